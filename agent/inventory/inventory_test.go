package inventory_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/placementclient"
	"berth/topology"
)

func host(cpus int, memoryMB int64, smt bool) *topology.Host {
	h := &topology.Host{Health: topology.HealthOK, Cells: []topology.Cell{{MemoryBytes: memoryMB << 20}}}
	for c := range cpus {
		if smt && c%2 == 1 {
			h.Cores[c/2] = topology.NewCPUSet(c-1, c)
			continue
		}
		h.Cores = append(h.Cores, topology.NewCPUSet(c))
	}
	return h
}

const rootUUID = "c0ffee00-0000-4000-8000-000000000001"

func input(h *topology.Host) inventory.Input {
	return inventory.Input{
		UUID: rootUUID, Name: "compute1",
		Host: h, Arch: "x86_64", DiskGB: 100, Reserved: topology.Resources{MemoryMB: 512},
		Initial: inventory.Ratios{CPU: 4, RAM: 1, Disk: 1},
	}
}

// rooted is a report of a host of which only the root stands, with that root.
type rooted struct {
	inventory.Report
	inventory.Provider
}

func compute(in inventory.Input, inventories map[string]placementclient.Inventory, traits []string) rooted {
	var standing []inventory.Standing
	if inventories != nil || traits != nil {
		standing = []inventory.Standing{{
			Provider: placementclient.ResourceProvider{UUID: in.UUID, Name: in.Name, RootProviderUUID: in.UUID}, Inventories: inventories, Traits: traits,
		}}
	}
	r := inventory.Compute(in, standing)
	return rooted{r, r.Tree.Providers[0]}
}

func TestCompute_NewProvider(t *testing.T) {
	got := compute(input(host(8, 16384, true)), nil, nil)
	want := inventory.Provider{
		UUID: rootUUID, Name: "compute1",
		Inventories: map[string]placementclient.Inventory{
			"VCPU":      {Total: 8, MinUnit: 1, MaxUnit: 8, StepSize: 1, AllocationRatio: 4},
			"MEMORY_MB": {Total: 16384, Reserved: 512, MinUnit: 1, MaxUnit: 16384, StepSize: 1, AllocationRatio: 1},
			"DISK_GB":   {Total: 100, MinUnit: 1, MaxUnit: 100, StepSize: 1, AllocationRatio: 1},
		},
		Traits: []string{"COMPUTE_NODE", "HW_ARCH_X86_64", "HW_CPU_HYPERTHREADING"},
	}
	if diff := cmp.Diff([]inventory.Provider{want}, got.Tree.Providers); diff != "" {
		t.Errorf("providers (-want +got):\n%s", diff)
	}
	capacity := inventory.Capacity{
		Total:    topology.Resources{VCPUs: 8, MemoryMB: 16384, DiskGB: 100},
		Reserved: topology.Resources{MemoryMB: 512},
		Ratios:   inventory.Ratios{CPU: 4, RAM: 1, Disk: 1},
	}
	if diff := cmp.Diff(capacity, got.Capacity); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	if got.Tree.Disk != rootUUID || got.Tree.Shape != inventory.Flat || got.Reshapes() {
		t.Errorf("disk of %s, shape %s, reshape %v", got.Tree.Disk, got.Tree.Shape, got.Reshapes())
	}
}

func TestCompute_CountsDedicatedCPUsApart(t *testing.T) {
	in := input(host(8, 16384, true))
	stands := map[string]placementclient.Inventory{"PCPU": {Total: 8, MinUnit: 1, MaxUnit: 8, StepSize: 1, AllocationRatio: 4}}
	for _, tt := range []struct {
		name       string
		cells      inventory.CellOptions
		vcpu, pcpu int64
	}{
		{"no sets", inventory.CellOptions{}, 8, 0},
		{"both", inventory.CellOptions{Dedicated: topology.NewCPUSet(2, 3, 4), Shared: topology.NewCPUSet(0, 1)}, 2, 3},
		{"dedicated alone", inventory.CellOptions{Dedicated: topology.NewCPUSet(2, 3)}, 0, 2},
		{"shared alone", inventory.CellOptions{Shared: topology.NewCPUSet(0, 1)}, 2, 0},
		{"CPUs that are not there", inventory.CellOptions{Dedicated: topology.NewCPUSet(7, 8), Shared: topology.NewCPUSet(0, 99)}, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in.Cells = tt.cells
			r := compute(in, stands, nil)
			for _, c := range []struct {
				class string
				want  int64
				ratio float64
			}{{"VCPU", tt.vcpu, 4}, {"PCPU", tt.pcpu, 1}} {
				got, ok := r.Inventories[c.class]
				if ok != (c.want > 0) {
					t.Fatalf("%s is %+v, want %d", c.class, got, c.want)
				}
				want := placementclient.Inventory{Total: c.want, MinUnit: 1, MaxUnit: c.want, StepSize: 1, AllocationRatio: c.ratio}
				if ok && got != want {
					t.Errorf("%s is %+v, want %+v", c.class, got, want)
				}
			}
			if got := r.Capacity.Total; int64(got.VCPUs) != tt.vcpu || int64(got.PCPUs) != tt.pcpu {
				t.Errorf("capacity %+v says otherwise", got)
			}
		})
	}
}

func TestCompute_IsAFixedPoint(t *testing.T) {
	in := input(host(8, 16384, false))
	in.Fixed.CPU = 2
	first := compute(in, nil, []string{"CUSTOM_RACK_7"})
	again := compute(in, first.Inventories, reversed(first.Traits))
	if diff := cmp.Diff(first.Provider, again.Provider); diff != "" {
		t.Errorf("a second look wants something else (-first +again):\n%s", diff)
	}
	if inv, traits := again.Equal(inventory.Standing{Inventories: first.Inventories, Traits: reversed(first.Traits)}); !inv || !traits {
		t.Errorf("equal things differ: inventories %v, traits %v", inv, traits)
	}
}

func TestCompute_Ratios(t *testing.T) {
	stands := map[string]placementclient.Inventory{"VCPU": {Total: 8, AllocationRatio: 16}}
	for _, tt := range []struct {
		name  string
		fixed float64
		now   map[string]placementclient.Inventory
		want  float64
	}{
		{"the operator's wins", 2, stands, 2},
		{"what stands in Placement is kept", 0, stands, 16},
		{"a new provider begins with the initial one", 0, nil, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(host(8, 16384, false))
			in.Fixed.CPU = tt.fixed
			r := compute(in, tt.now, nil)
			if got := r.Inventories["VCPU"].AllocationRatio; got != tt.want || r.Capacity.Ratios.CPU != tt.want {
				t.Errorf("inventory %v, capacity %v, want %v", got, r.Capacity.Ratios.CPU, tt.want)
			}
		})
	}
}

func TestCompute_KeepsWhatOthersSet(t *testing.T) {
	gpu := placementclient.Inventory{Total: 2, MinUnit: 1, MaxUnit: 1, StepSize: 1, AllocationRatio: 1}
	r := compute(input(host(2, 4096, false)),
		map[string]placementclient.Inventory{"CUSTOM_GPU": gpu},
		[]string{"CUSTOM_RACK_7", "HW_ARCH_AARCH64", "HW_CPU_HYPERTHREADING"})
	if r.Inventories["CUSTOM_GPU"] != gpu {
		t.Errorf("inventory of another writer is %+v", r.Inventories["CUSTOM_GPU"])
	}
	// Traits that Berth decides on are corrected, the others stay.
	if diff := cmp.Diff([]string{"COMPUTE_NODE", "CUSTOM_RACK_7", "HW_ARCH_X86_64"}, r.Traits); diff != "" {
		t.Errorf("traits (-want +got):\n%s", diff)
	}
}

func TestCompute_NothingIsTightenedUnderAHeldMove(t *testing.T) {
	now := map[string]placementclient.Inventory{
		"MEMORY_MB": {Total: 16384, Reserved: 256, MinUnit: 1, MaxUnit: 16384, StepSize: 1, AllocationRatio: 1.5},
	}
	in := input(host(4, 8192, false))
	in.Fixed.RAM, in.Holding = 1, true
	got := compute(in, now, nil).Inventories["MEMORY_MB"]
	if got.Reserved != 256 || got.MaxUnit != 16384 || got.AllocationRatio != 1.5 || got.Total != 8192 {
		t.Errorf("while a move is held: %+v", got)
	}
	in.Holding = false
	got = compute(in, now, nil).Inventories["MEMORY_MB"]
	if got.Reserved != 512 || got.MaxUnit != 8192 || got.AllocationRatio != 1 {
		t.Errorf("after it: %+v", got)
	}
}

func TestCompute_ReserveAboveTheTotal(t *testing.T) {
	in := input(host(1, 256, false))
	in.DiskGB = 0
	r := compute(in, nil, nil)
	if m := r.Inventories["MEMORY_MB"]; m.Reserved != 256 || m.Capacity() != 0 {
		t.Errorf("memory %+v, want all of it reserved", m)
	}
	if d, ok := r.Inventories["DISK_GB"]; ok {
		t.Errorf("disk %+v, want none: Placement knows no inventory of nothing", d)
	}
}

func sorted(in []topology.PageSize) []topology.PageSize {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

func reversed(in []string) []string {
	out := slices.Clone(in)
	slices.Reverse(out)
	return out
}
