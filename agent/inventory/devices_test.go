package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/agent/inventory"
	"berth/claims/pci"
	"berth/placementclient"
	"berth/topology"
)

func address(text string) topology.PCIAddress {
	a, err := topology.ParsePCIAddress(text)
	if err != nil {
		panic(err)
	}
	return a
}

// carded has one cell, a card 0000:81:00.0 with three VFs, and a plain device
// 0000:90:00.0 with a function in the same IOMMU group.
func carded() *topology.Host {
	h := host(4, 4096, false)
	h.Cells[0].CPUs = set("0-3")
	add := func(text, product string, group int) *topology.PCIDevice {
		h.PCI = append(h.PCI, topology.PCIDevice{Address: address(text), Vendor: "0x8086", Product: product, Class: "0x020000", IOMMUGroup: &group})
		return &h.PCI[len(h.PCI)-1]
	}
	add("0000:81:00.0", "0x1563", 1).TotalVFs = 3
	pf := address("0000:81:00.0")
	for i := range 3 {
		vf := fmt.Sprintf("0000:81:10.%d", i)
		add(vf, "0x1565", 10+i).PhysFn = &pf
		h.PCI[0].VFs = append(h.PCI[0].VFs, address(vf))
	}
	add("0000:90:00.0", "0x0b60", 2)
	add("0000:90:00.1", "0x0b61", 2)
	return h
}

func assigned(texts ...string) []inventory.Held {
	h := inventory.Held{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}}
	for _, text := range texts {
		h.Assignment.Devices = append(h.Assignment.Devices, topology.AssignedDevice{Address: address(text), Vendor: "8086", Product: "1565", Type: topology.PCITypeVF, Cell: topology.UnknownCell})
	}
	return []inventory.Held{h}
}

// children gives, by name, what is told of each child of the root.
func children(tree *inventory.Tree) map[string]map[string][2]int64 {
	out := map[string]map[string][2]int64{}
	for _, p := range tree.Providers[1:] {
		out[p.Name] = map[string][2]int64{}
		for class, inv := range p.Inventories {
			out[p.Name][class] = [2]int64{inv.Total, inv.Reserved}
		}
	}
	return out
}

func TestCompute_CountsDevices(t *testing.T) {
	const card, plain = "compute1_0000:81:00.0", "compute1_0000:90:00.0"
	both := []pci.Spec{{ProductID: "1563"}, {ProductID: "1565"}}
	vfs := []pci.Spec{{ProductID: "1565", ResourceClass: "net"}}
	type want = map[string]map[string][2]int64
	bad := address("0000:81:10.1")
	for _, tt := range []struct {
		name     string
		specs    []pci.Spec
		held     []inventory.Held
		unusable []inventory.Unusable
		change   func(h *topology.Host)
		want     want
	}{
		{"none are given", nil, nil, nil, nil, want{}},
		{"VFs, as a count of their PF's provider", vfs, nil, nil, nil, want{card: {"CUSTOM_NET": {3, 0}}}},
		{"VFs of Neutron's networks too", []pci.Spec{{ProductID: "1565", PhysicalNetwork: "a"}}, nil, nil, nil, want{card: {"CUSTOM_PCI_8086_1565": {3, 0}}}},
		{"a standard class", []pci.Spec{{ProductID: "1565", ResourceClass: "sriov_net_vf"}}, nil, nil, nil, want{card: {"SRIOV_NET_VF": {3, 0}}}},
		{"two classes of one PF", []pci.Spec{{Address: "0000:81:10.2", ResourceClass: "fast"}, {ProductID: "1565", ResourceClass: "net"}}, nil, nil, nil,
			want{card: {"CUSTOM_NET": {2, 0}, "CUSTOM_FAST": {1, 0}}}},
		{"a plain device", []pci.Spec{{ProductID: "0b60"}}, nil, nil, nil, want{plain: {"CUSTOM_PCI_8086_0B60": {1, 0}}}},

		{"a PF and its VFs, free", both, nil, nil, nil, want{card: {"CUSTOM_PCI_8086_1563": {1, 0}, "CUSTOM_PCI_8086_1565": {3, 0}}}},
		{"the PF is reserved while a VF is held", both, assigned("0000:81:10.1"), nil, nil, want{card: {"CUSTOM_PCI_8086_1563": {1, 1}, "CUSTOM_PCI_8086_1565": {3, 0}}}},
		{"the VFs are while the PF is", both, assigned("0000:81:00.0"), nil, nil, want{card: {"CUSTOM_PCI_8086_1563": {1, 0}, "CUSTOM_PCI_8086_1565": {3, 3}}}},

		{"an unusable one is reserved", vfs, nil, []inventory.Unusable{{Device: &bad}}, nil, want{card: {"CUSTOM_NET": {3, 1}}}},
		{"not while it is held", vfs, assigned("0000:81:10.1"), []inventory.Unusable{{Device: &bad}}, nil, want{card: {"CUSTOM_NET": {3, 0}}}},
		{"an unfit one is reserved", []pci.Spec{{ProductID: "0b60"}}, nil, nil, func(h *topology.Host) { h.PCI[5].Driver = "ixgbe" }, want{plain: {"CUSTOM_PCI_8086_0B60": {1, 1}}}},
		{"one of a taken IOMMU group is reserved", []pci.Spec{{VendorID: "8086", Address: "0000:90:*.*"}}, assigned("0000:90:00.0"), nil, nil,
			want{plain: {"CUSTOM_PCI_8086_0B60": {1, 0}}, "compute1_0000:90:00.1": {"CUSTOM_PCI_8086_0B61": {1, 1}}}},

		{"what a guest has stays when it is gone from device_spec", nil, assigned("0000:81:10.1"), nil, nil, want{card: {"CUSTOM_PCI_8086_1565": {1, 0}}}},
		{"and when it is gone", vfs, assigned("0000:81:10.7"), nil, nil, want{card: {"CUSTOM_NET": {3, 0}}, "compute1_0000:81:10.7": {"CUSTOM_PCI_8086_1565": {1, 0}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := carded()
			if tt.change != nil {
				tt.change(h)
			}
			in := input(h)
			in.Devices, _ = pci.Devices(h, tt.specs)
			in.Held, in.Unusable = tt.held, tt.unusable
			r := inventory.Compute(in, nil)
			valid(t, r.Tree)
			if diff := cmp.Diff(tt.want, children(r.Tree)); diff != "" {
				t.Errorf("total and reserved (-want +got):\n%s", diff)
			}
			for _, h := range tt.held {
				if unknown := r.Tree.Unknown(h); len(unknown) > 0 {
					t.Errorf("the tree does not know %v", unknown)
				}
			}
		})
	}
}

// TestCompute_AVanishedVFIsCountedWhereItWas: its PF's driver was told to make none
// while a guest had one; what was remembered says whose it was.
func TestCompute_AVanishedVFIsCountedWhereItWas(t *testing.T) {
	in := input(carded())
	in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", ResourceClass: "net", Traits: "fast", LiveMigratable: "yes"}})
	in.Held = assigned("0000:81:10.1")
	before := inventory.Compute(in, nil)

	in.Host.PCI = slices.Delete(in.Host.PCI, 1, 4)
	in.Host.PCI[0].VFs = nil
	in.Devices, in.Applied = nil, before.Applied
	after := inventory.Compute(in, standing(before.Tree))
	want := map[string]map[string][2]int64{"compute1_0000:81:00.0": {"CUSTOM_NET": {1, 0}}}
	if diff := cmp.Diff(want, children(after.Tree)); diff != "" {
		t.Errorf("while it is held (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Tree.Providers[1].Traits, after.Tree.Providers[1].Traits); diff != "" {
		t.Errorf("traits (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before.Tree.Place(in.Held[0], nil), after.Tree.Place(in.Held[0], nil)); diff != "" {
		t.Errorf("its guest is counted elsewhere (-before +after):\n%s", diff)
	}

	in.Held, in.Applied = nil, after.Applied
	last := inventory.Compute(in, standing(after.Tree))
	if len(last.Tree.Providers) != 1 || len(last.Tree.Retired) != 1 {
		t.Fatalf("%d providers, %d retired once it is given back, want the root and 1", len(last.Tree.Providers), len(last.Tree.Retired))
	}
	gone := last.Tree.Retired[0]
	if inv := gone.Inventories["CUSTOM_NET"]; gone.Name != "compute1_0000:81:00.0" || inv.Reserved != inv.Total || !last.Tree.Owns(gone.UUID) {
		t.Errorf("retired %+v, want all of the card reserved and still owned", gone)
	}
	if len(last.Applied.Devices) > 0 {
		t.Errorf("it still remembers %v", last.Applied.Devices)
	}
}

// TestCompute_AnUnreadableFunctionTakesNothingAway: a read error never becomes a
// smaller host, in neither shape. Its functions stay counted where they were, and
// nobody gets them; the operator who takes them out of device_spec later has his way.
func TestCompute_AnUnreadableFunctionTakesNothingAway(t *testing.T) {
	for _, tt := range []struct {
		name   string
		broken string
		harm   func(f *topology.PCIDevice)
		want   [2]int64
	}{
		{"a VF's product", "0000:81:10.1", func(f *topology.PCIDevice) { f.Product = "" }, [2]int64{3, 1}},
		{"that it is a VF", "0000:81:10.1", func(f *topology.PCIDevice) { f.PhysFn = nil }, [2]int64{3, 1}},
		{"its PF's cell", "0000:81:00.0", func(f *topology.PCIDevice) { f.NUMANode = topology.UnknownCell }, [2]int64{3, 0}},
	} {
		for _, shape := range []inventory.Shape{inventory.Flat, inventory.Nested} {
			t.Run(tt.name+" "+string(shape), func(t *testing.T) {
				specs := []pci.Spec{{ProductID: "1565", ResourceClass: "net", Traits: "fast", LiveMigratable: "yes"}}
				in := input(carded())
				in.Shape = shape
				in.Devices, _ = pci.Devices(in.Host, specs)
				before := inventory.Compute(in, nil)
				bad := address(tt.broken)
				at := slices.IndexFunc(in.Host.PCI, func(f topology.PCIDevice) bool { return f.Address == bad })
				tt.harm(&in.Host.PCI[at])
				in.Host.Reasons = []topology.Reason{{Code: "file_unreadable", Message: "unreadable", Device: &bad, Degrades: true}}
				in.Unusable = inventory.UnusableOf(in.Host)
				in.Devices, _ = pci.Devices(in.Host, specs)
				in.Applied = before.Applied
				// It stays so for as long as it is broken.
				stands := standing(before.Tree)
				for range 2 {
					r := inventory.Compute(in, stands)
					valid(t, r.Tree)
					if len(r.Tree.Retired) > 0 || len(r.Tree.Providers) != len(before.Tree.Providers) {
						t.Fatalf("%d providers, %d retired; want the %d that stand", len(r.Tree.Providers), len(r.Tree.Retired), len(before.Tree.Providers))
					}
					for i, p := range r.Tree.Providers {
						was := before.Tree.Providers[i]
						if p.UUID != was.UUID || p.Parent != was.Parent || !slices.Equal(p.Traits, was.Traits) {
							t.Errorf("%+v, want it to stay as %+v", p, was)
						}
					}
					if got := children(r.Tree)["compute1_0000:81:00.0"]["CUSTOM_NET"]; got != tt.want {
						t.Errorf("total and reserved %v, want %v", got, tt.want)
					}
					stands, in.Applied = standing(r.Tree), r.Applied
				}
				in.Host.Reasons, in.Unusable, in.Devices = nil, nil, nil
				if r := inventory.Compute(in, stands); len(r.Tree.Retired) != 1 {
					t.Errorf("%d are retired when all is read and given to nobody, want the card", len(r.Tree.Retired))
				}
			})
		}
	}
}

func TestCompute_TraitsOfDeviceSpecComeAndGo(t *testing.T) {
	in := input(carded())
	compute := func(traits, live string, stands []inventory.Standing) (inventory.Report, []string) {
		in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", Traits: traits, LiveMigratable: live}})
		r := inventory.Compute(in, stands)
		in.Applied = r.Applied
		return r, r.Tree.Providers[1].Traits
	}
	r, got := compute("fast,HW_NIC_SRIOV", "yes", nil)
	if diff := cmp.Diff([]string{"COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_FAST", "HW_NIC_SRIOV", "HW_PCI_LIVE_MIGRATABLE"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	stands := standing(r.Tree)
	stands[1].Traits = append(stands[1].Traits, "CUSTOM_OF_OTHERS")
	// The agent is killed before it writes: what stands is remembered until it is gone.
	if _, got = compute("", "", stands); !slices.Equal(got, []string{"COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_OF_OTHERS"}) {
		t.Errorf("once they are gone from device_spec: %v", got)
	}
	if r, got = compute("", "", stands); !slices.Equal(got, []string{"COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_OF_OTHERS"}) {
		t.Errorf("computed again before it was written: %v", got)
	}
	if compute("", "", standing(r.Tree)); len(in.Applied.Providers) != 0 {
		t.Errorf("it remembers %v of what is gone", in.Applied.Providers)
	}
}

// TestCompute_WhatAFileGaveGoesWithIt, also from a card that only guests keep: what
// device_spec said of that stays.
func TestCompute_WhatAFileGaveGoesWithIt(t *testing.T) {
	in := input(carded())
	in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", Traits: "fast"}})
	in.Held = assigned("0000:81:10.1")
	in.Config = []inventory.ProviderConfig{{Where: "a.yaml:1", Name: "compute1_0000:81:00.0", Traits: []string{"CUSTOM_A"}}}
	before := inventory.Compute(in, nil)
	in.Devices, in.Config, in.Applied = nil, nil, before.Applied
	stands := standing(before.Tree)
	for range 2 {
		r := inventory.Compute(in, stands)
		if diff := cmp.Diff([]string{"COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_FAST"}, r.Tree.Providers[1].Traits); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stands, in.Applied = standing(r.Tree), r.Applied
	}
}

// TestCompute_AHeldDeviceKeepsItsClass: Placement changes no class under an
// allocation.
func TestCompute_AHeldDeviceKeepsItsClass(t *testing.T) {
	in := input(carded())
	in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", ResourceClass: "old"}})
	in.Held = assigned("0000:81:10.1")
	before := inventory.Compute(in, nil)
	in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", ResourceClass: "new"}})
	in.Applied = before.Applied
	after := inventory.Compute(in, standing(before.Tree))
	want := map[string]map[string][2]int64{"compute1_0000:81:00.0": {"CUSTOM_OLD": {1, 0}, "CUSTOM_NEW": {2, 0}}}
	if diff := cmp.Diff(want, children(after.Tree)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	in.Held, in.Applied = nil, after.Applied
	want = map[string]map[string][2]int64{"compute1_0000:81:00.0": {"CUSTOM_NEW": {3, 0}}}
	if diff := cmp.Diff(want, children(inventory.Compute(in, standing(after.Tree)).Tree)); diff != "" {
		t.Errorf("once it is given back (-want +got):\n%s", diff)
	}
}

func TestCompute_CountsMediatedDevices(t *testing.T) {
	const uuid1, uuid2, uuid3 = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "4b20d080-1b54-4048-85b3-a6a62d165c01", "c2177883-f1bb-47f0-914d-32a22e3a8804"
	a, b := address("0000:84:00.0"), address("0000:85:00.0")
	mdevs := func(of topology.PCIAddress, kind string, uuids ...string) (out []topology.Mdev) {
		for _, u := range uuids {
			out = append(out, topology.Mdev{UUID: u, Parent: of, Type: kind})
		}
		return out
	}
	held := func(uuids ...string) []inventory.Held {
		return []inventory.Held{{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}, Assignment: topology.Assignment{Mdevs: uuids}}}
	}
	type want = map[string]map[string][2]int64
	const gpuA, gpuB = "compute1_pci_0000_84_00_0", "compute1_pci_0000_85_00_0"
	for _, tt := range []struct {
		name    string
		enabled []inventory.EnabledMdev
		exist   []topology.Mdev
		held    []inventory.Held
		bad     bool // 84:00.0 may not be touched
		want    want
	}{
		{"no type is enabled", nil, mdevs(a, "nvidia-35", uuid1), nil, false, want{}},
		{"what can be made", []inventory.EnabledMdev{{Type: "nvidia-35"}}, nil, nil, false, want{gpuA: {"VGPU": {4, 0}}, gpuB: {"VGPU": {4, 0}}}},
		{"and what was made", []inventory.EnabledMdev{{Type: "nvidia-35"}}, mdevs(a, "nvidia-35", uuid1, uuid2), nil, false, want{gpuA: {"VGPU": {6, 0}}, gpuB: {"VGPU": {4, 0}}}},
		{"no more than the operator wants", []inventory.EnabledMdev{{Type: "nvidia-35", Max: 3}}, mdevs(a, "nvidia-35", uuid1), nil, false, want{gpuA: {"VGPU": {3, 0}}, gpuB: {"VGPU": {3, 0}}}},
		{"a function makes the type that names it", []inventory.EnabledMdev{{Type: "nvidia-35"}, {Type: "nvidia-36", Parents: []topology.PCIAddress{b}, Class: "CUSTOM_BIG"}}, nil, nil, false,
			want{gpuA: {"VGPU": {4, 0}}, gpuB: {"CUSTOM_BIG": {1, 0}}}},
		{"what a guest has of another type is counted", []inventory.EnabledMdev{{Type: "nvidia-35"}}, mdevs(a, "nvidia-36", uuid1, uuid2), held(uuid1), false, want{gpuA: {"VGPU": {5, 0}}, gpuB: {"VGPU": {4, 0}}}},
		{"and of a type that nobody enabled", nil, mdevs(a, "nvidia-36", uuid1, uuid2), held(uuid1), false, want{gpuA: {"VGPU": {1, 0}}}},
		{"guests have more than the operator wants", []inventory.EnabledMdev{{Type: "nvidia-35", Max: 1}}, mdevs(a, "nvidia-35", uuid1, uuid2), held(uuid1, uuid2), false, want{gpuA: {"VGPU": {2, 0}}, gpuB: {"VGPU": {1, 0}}}},
		{"of a broken one the rest is reserved", []inventory.EnabledMdev{{Type: "nvidia-35"}}, mdevs(a, "nvidia-35", uuid1, uuid2), held(uuid1), true, want{gpuA: {"VGPU": {6, 5}}, gpuB: {"VGPU": {4, 0}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := host(2, 4096, false)
			for _, at := range []topology.PCIAddress{a, b} {
				h.PCI = append(h.PCI, topology.PCIDevice{Address: at, Mdev: []topology.MdevType{{Name: "nvidia-35", Available: 4}, {Name: "nvidia-36", Available: 1}}})
			}
			h.Mdevs = tt.exist
			in := input(h)
			in.Mdev, in.Held = tt.enabled, tt.held
			if tt.bad {
				in.Unusable = []inventory.Unusable{{Device: &a}}
			}
			r := inventory.Compute(in, nil)
			valid(t, r.Tree)
			if diff := cmp.Diff(tt.want, children(r.Tree)); diff != "" {
				t.Errorf("total and reserved (-want +got):\n%s", diff)
			}
			if len(tt.held) == 0 {
				return
			}
			// They are gone, and their guest has them.
			in.Host.Mdevs, in.Applied = nil, r.Applied
			after := inventory.Compute(in, standing(r.Tree))
			if unknown := after.Tree.Unknown(tt.held[0]); len(unknown) > 0 {
				t.Errorf("gone: %v are known no more", unknown)
			}
			if diff := cmp.Diff(r.Tree.Place(tt.held[0], nil), after.Tree.Place(tt.held[0], nil)); diff != "" {
				t.Errorf("gone: their guest is counted elsewhere (-before +after):\n%s", diff)
			}
		})
	}
	// One that nobody ever saw has no parent: it is named.
	in := input(host(2, 4096, false))
	in.Held = held(uuid3)
	r := inventory.Compute(in, nil)
	if diff := cmp.Diff([]string{uuid3}, r.Tree.Unknown(in.Held[0])); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if len(r.Reasons) != 1 || r.Reasons[0].Code != inventory.MdevUnknown || !strings.Contains(r.Reasons[0].Message, uuid3) || r.Reasons[0].Change == "" {
		t.Errorf("reasons %+v, want one that names it", r.Reasons)
	}
}

// gpus is a host with two GPUs, 0000:84:00.0 and 0000:85:00.0, that can make four
// mediated devices of nvidia-35 each.
func gpus() (h *topology.Host, a, b topology.PCIAddress) {
	h = host(2, 4096, false)
	a, b = address("0000:84:00.0"), address("0000:85:00.0")
	for _, at := range []topology.PCIAddress{a, b} {
		h.PCI = append(h.PCI, topology.PCIDevice{Address: at, NUMANode: 1, Mdev: []topology.MdevType{{Name: "nvidia-35", Available: 4}}})
	}
	return h, a, b
}

// TestCompute_NoMoreMediatedDevicesThanCanBeMade: what guests had before the
// machine was booted is to be made again, where it was or on another GPU.
func TestCompute_NoMoreMediatedDevicesThanCanBeMade(t *testing.T) {
	const uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
	const gpuA, gpuB = "compute1_pci_0000_84_00_0", "compute1_pci_0000_85_00_0"
	h, a, b := gpus()
	in := input(h)
	in.Mdev = []inventory.EnabledMdev{{Type: "nvidia-35"}}
	in.Held = []inventory.Held{{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}, Assignment: topology.Assignment{Mdevs: []string{uuid}}}}
	made := func(by topology.PCIAddress, available int) map[string]map[string][2]int64 {
		for i := range h.PCI {
			h.PCI[i].Mdev[0].Available = 4
			if h.PCI[i].Address == by {
				h.PCI[i].Mdev[0].Available = available
			}
		}
		r := inventory.Compute(in, nil)
		in.Applied = r.Applied
		return children(r.Tree)
	}
	want := map[string]map[string][2]int64{gpuA: {"VGPU": {4, 0}}, gpuB: {"VGPU": {4, 0}}}
	h.Mdevs = []topology.Mdev{{UUID: uuid, Parent: a, Type: "nvidia-35"}}
	if diff := cmp.Diff(want, made(a, 3)); diff != "" {
		t.Errorf("as it was made (-want +got):\n%s", diff)
	}
	h.Mdevs = nil
	if diff := cmp.Diff(want, made(a, 4)); diff != "" {
		t.Errorf("booted anew (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]map[string][2]int64{gpuA: {"VGPU": {1, 0}}, gpuB: {"VGPU": {4, 0}}}, made(a, 0)); diff != "" {
		t.Errorf("the GPU makes none now, and the guest's is counted (-want +got):\n%s", diff)
	}
	h.Mdevs = []topology.Mdev{{UUID: uuid, Parent: b, Type: "nvidia-35"}}
	if diff := cmp.Diff(want, made(b, 3)); diff != "" {
		t.Errorf("made again of the other GPU (-want +got):\n%s", diff)
	}
	if got := in.Applied.Mdevs[uuid].Function; got != b {
		t.Errorf("it is counted at %s, want %s which made it", got, b)
	}
}

// TestCompute_AnUnreadableGPUTakesNothingAway: how many it can make still is not
// known, so what stands stands, and nobody gets more of it.
func TestCompute_AnUnreadableGPUTakesNothingAway(t *testing.T) {
	h, a, _ := gpus()
	in := input(h)
	in.Mdev = []inventory.EnabledMdev{{Type: "nvidia-35"}}
	before := inventory.Compute(in, nil)
	h.PCI[0].Mdev[0].Available = 0
	h.Reasons = []topology.Reason{{Code: "file_unreadable", Message: "available_instances", Device: &a, Degrades: true}}
	in.Unusable, in.Applied = inventory.UnusableOf(h), before.Applied
	want := map[string]map[string][2]int64{"compute1_pci_0000_84_00_0": {"VGPU": {4, 4}}, "compute1_pci_0000_85_00_0": {"VGPU": {4, 0}}}
	r := inventory.Compute(in, standing(before.Tree))
	if diff := cmp.Diff(want, children(r.Tree)); diff != "" || len(r.Tree.Retired) > 0 {
		t.Errorf("%d retired (-want +got):\n%s", len(r.Tree.Retired), diff)
	}
	// A cell that nobody may touch takes its GPUs with it.
	cell := topology.CellID(1)
	in.Unusable, h.Reasons, h.PCI[0].Mdev[0].Available = []inventory.Unusable{{Cell: &cell}}, nil, 4
	for name, got := range children(inventory.Compute(in, nil).Tree) {
		if got["VGPU"] != [2]int64{4, 4} {
			t.Errorf("%s of the unusable cell: %v, want all of it reserved", name, got)
		}
	}
}

// TestCompute_AFunctionThatIsNamedMakesNoOtherType, also when it cannot make that.
func TestCompute_AFunctionThatIsNamedMakesNoOtherType(t *testing.T) {
	h, a, _ := gpus()
	in := input(h)
	in.Mdev = []inventory.EnabledMdev{{Type: "nvidia-35"}, {Type: "nvidia-99", Parents: []topology.PCIAddress{a}}}
	want := map[string]map[string][2]int64{"compute1_pci_0000_85_00_0": {"VGPU": {4, 0}}}
	if diff := cmp.Diff(want, children(inventory.Compute(in, nil).Tree)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompute_ProviderConfig(t *testing.T) {
	one := map[string]placementclient.Inventory{"CUSTOM_LICENSE": {Total: 4}}
	whole := placementclient.Inventory{Total: 4, MinUnit: 1, MaxUnit: placementclient.MaxInt, StepSize: 1, AllocationRatio: 1}
	card := inventory.ChildUUID(rootUUID, "0000:81:00.0")
	for _, tt := range []struct {
		name    string
		config  []inventory.ProviderConfig
		at      int // index of a provider
		class   bool
		trait   bool
		reasons []string
	}{
		{"of the compute node", []inventory.ProviderConfig{{UUID: inventory.ComputeNode, Inventories: one, Traits: []string{"CUSTOM_A"}}}, 0, true, true, nil},
		{"by name", []inventory.ProviderConfig{{Name: "compute1", Inventories: one}}, 0, true, false, nil},
		{"of a child, by uuid", []inventory.ProviderConfig{{UUID: card, Inventories: one, Traits: []string{"CUSTOM_A"}}}, 1, true, true, nil},
		{"the compute node by name wins over all compute nodes", []inventory.ProviderConfig{{UUID: inventory.ComputeNode, Inventories: one}, {Name: "compute1", Traits: []string{"CUSTOM_A"}}}, 0, false, true, nil},
		{"of another host", []inventory.ProviderConfig{{Name: "compute2", Inventories: one}}, 0, false, false, []string{inventory.ConfigUnmatched}},
		{"twice of one", []inventory.ProviderConfig{{Name: "compute1", Inventories: one}, {UUID: rootUUID, Traits: []string{"CUSTOM_A"}}}, 0, true, false, []string{inventory.ConfigClash}},
		{"a class of Berth's", []inventory.ProviderConfig{{UUID: card, Inventories: map[string]placementclient.Inventory{"CUSTOM_NET": {Total: 9}}, Traits: []string{"CUSTOM_A"}}}, 1, false, true, []string{inventory.ConfigClash}},
		{"a trait of Berth's", []inventory.ProviderConfig{{UUID: card, Inventories: one, Traits: []string{"CUSTOM_FAST"}}}, 1, true, false, []string{inventory.ConfigClash}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(carded())
			in.Devices, _ = pci.Devices(in.Host, []pci.Spec{{ProductID: "1565", ResourceClass: "net", Traits: "fast"}})
			plain := inventory.Compute(in, nil)
			for i := range tt.config {
				tt.config[i].Where = fmt.Sprintf("a.yaml:%d", i+1)
			}
			in.Config = tt.config
			// Once on a new host, then where it stands, then without the file.
			var stands []inventory.Standing
			for range 2 {
				r := inventory.Compute(in, stands)
				valid(t, r.Tree)
				p := r.Tree.Providers[tt.at]
				if inv, has := p.Inventories["CUSTOM_LICENSE"]; has != tt.class || has && inv != whole {
					t.Errorf("class: %v %+v, want %v %+v", has, inv, tt.class, whole)
				}
				if has := slices.Contains(p.Traits, "CUSTOM_A"); has != tt.trait {
					t.Errorf("trait: %v, want %v", has, tt.trait)
				}
				var codes []string
				for _, reason := range r.Reasons {
					codes = append(codes, reason.Code)
					if reason.Message == "" || reason.Change == "" {
						t.Errorf("incomplete reason %+v", reason)
					}
				}
				if diff := cmp.Diff(tt.reasons, codes); diff != "" {
					t.Errorf("reasons (-want +got):\n%s", diff)
				}
				stands, in.Applied = standing(r.Tree), r.Applied
			}
			in.Config = nil
			r := inventory.Compute(in, stands)
			if diff := cmp.Diff(plain.Tree.Providers, r.Tree.Providers, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("without the file something is left (-want +got):\n%s", diff)
			}
		})
	}
}
