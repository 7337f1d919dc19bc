package pci_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/topology"
)

func at(t testing.TB, text string) topology.PCIAddress {
	t.Helper()
	a, err := topology.ParsePCIAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// function is an ordinary one, "8086:1563", of cell 0.
func function(t testing.TB, address, ids string) topology.PCIDevice {
	vendor, product, _ := strings.Cut(ids, ":")
	return topology.PCIDevice{Address: at(t, address), Vendor: "0x" + vendor, Product: "0x" + product, Class: "0x020000"}
}

// card is a PF, 8086:1563, with VFs 8086:1565 of the functions 1 to n of its slot.
func card(t testing.TB, pf string, n int) []topology.PCIDevice {
	out := []topology.PCIDevice{function(t, pf, "8086:1563")}
	out[0].TotalVFs = 7
	for i := range n {
		vf := function(t, pf, "8086:1565")
		vf.Address.Function = uint8(i + 1)
		parent := out[0].Address
		vf.PhysFn = &parent
		out[0].VFs = append(out[0].VFs, vf.Address)
		out = append(out, vf)
	}
	return out
}

func TestSpec_ValidateGivesEveryFault(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec pci.Spec
		want []string // key and a part of the message
	}{
		{"nothing asked", pci.Spec{}, nil},
		{"everything, and sound", pci.Spec{
			VendorID: "0x15B3", ProductID: "*", Address: "*:0a:00.*", PhysicalNetwork: "physnet1", Trusted: "true",
			RemoteManaged: "False", Managed: "no", LiveMigratable: "yes", ResourceClass: "PGPU", Traits: "HW_GPU_API_VULKAN,my-gpu",
		}, nil},
		{"a 32-bit domain", pci.Spec{Address: "ffffffff:ff:1f.7"}, nil},
		{"a table", pci.Spec{Address: map[string]any{"domain": ".*", "bus": "02", "slot": "0[1-2]", "function": "[0-7]"}}, nil},
		{"everything at once", pci.Spec{
			VendorID: "intel", ProductID: "12345", Address: "100000000:1ff:20.8", DevName: "eth0", Managed: "maybe",
			LiveMigratable: "2", Trusted: "x", RemoteManaged: "-", ResourceClass: " ", Traits: "a,,b",
		}, []string{
			`vendor_id "intel" is not a hexadecimal`, `product_id "12345" is above ffff`, `devname "eth0"`,
			`address domain of "100000000:1ff:20.8": "100000000" is above ffffffff`, `address bus of "100000000:1ff:20.8": "1ff" is above ff`,
			`address slot of "100000000:1ff:20.8": "20" is above 1f`, `address function of "100000000:1ff:20.8": "8" is above 7`,
			`managed "maybe"`, `live_migratable "2"`, `remote_managed "-"`, `trusted "x"`, `resource_class " " is an empty name`, `traits "" is an empty name`,
		}},
		{"too many parts", pci.Spec{Address: "0:0:0:0.0"}, []string{`address "0:0:0:0.0" is not DOMAIN`}},
		{"a bad table", pci.Spec{Address: map[string]any{"bus": "[", "slot": int64(2), "function": "8", "port": "1"}}, []string{
			`address.bus "[" is not a regular expression`, `address.slot 2 is not a string`, `address.function "8" is above 7`, `address.port unknown key`,
		}},
		{"neither text nor table", pci.Spec{Address: int64(3)}, []string{"address 3 is neither"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faults := tt.spec.Validate()
			if len(faults) != len(tt.want) {
				t.Fatalf("%d faults, want %d: %+v", len(faults), len(tt.want), faults)
			}
			for i, f := range faults {
				if got := f.Key + " " + f.Message; !strings.HasPrefix(got, tt.want[i]) {
					t.Errorf("fault %d is %q, want %q", i, got, tt.want[i])
				}
			}
		})
	}
}

func TestSpec_AddressesMeanTheFunctionsThatNovaMeans(t *testing.T) {
	functions := []string{"0000:02:01.0", "0000:02:01.1", "0000:02:11.0", "0000:0a:00.0", "0000:0a:00.1", "0001:0a:00.0", "10000:e1:00.0"}
	table := func(kv ...string) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		address any
		want    string // indexes into functions
	}{
		{"none named", nil, "0123456"},
		{"all wild", "*:*:*.*", "0123456"},
		{"glob", "*:0a:00.*", "345"},
		{"parts left out", ":0a:00.", "345"},
		{"bus left out", "0000::01.0", "0"},
		{"slot alone", "1.", "01"},
		{"slot and function", "00.1", "4"},
		{"function alone", ".1", "14"},
		{"one function", "0000:0A:00.1", "4"},
		{"without zeros", "0:a:0.1", "4"},
		{"a 32-bit domain", "10000:e1:00.0", "6"},
		{"not text before it: domain 1 is not 10000", "1:*:*.*", "5"},
		{"regular expressions", table("domain", ".*", "bus", "02", "slot", "01", "function", "[0-2]"), "01"},
		{"parts of a table left out", table("bus", "02"), "012"},
		{"matched at the beginning only", table("bus", "0"), "012345"},
		{"to the end when asked", table("domain", "1$|0001"), "5"},
		{"capitals", table("bus", "E1"), "6"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &topology.Host{}
			for _, f := range functions {
				h.PCI = append(h.PCI, function(t, f, "8086:0001"))
			}
			devices, _ := pci.Devices(h, []pci.Spec{{Address: tt.address}})
			got := ""
			for _, d := range devices {
				for i, f := range functions {
					if d.Address == at(t, f) {
						got += string(rune('0' + i))
					}
				}
			}
			if got != tt.want {
				t.Errorf("means %s, want %s of %v", got, tt.want, functions)
			}
		})
	}
}

func TestSpec_OnePFMeansItsVFs(t *testing.T) {
	h := &topology.Host{PCI: append(card(t, "0000:3b:00.0", 2), card(t, "0000:5e:00.0", 2)...)}
	addresses := func(s pci.Spec) string {
		devices, _ := pci.Devices(h, []pci.Spec{s})
		var out []string
		for _, d := range devices {
			out = append(out, d.Address.String()[5:])
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct {
		name string
		spec pci.Spec
		want string
	}{
		{"as text", pci.Spec{Address: "0000:3b:00.0"}, "3b:00.0 3b:00.1 3b:00.2"},
		{"as a table of plain numbers", pci.Spec{Address: map[string]any{"domain": "0000", "bus": "3b", "slot": "00", "function": "0"}}, "3b:00.0 3b:00.1 3b:00.2"},
		{"only the VFs, by their product", pci.Spec{Address: "0000:3b:00.0", ProductID: "1565"}, "3b:00.1 3b:00.2"},
		{"only the PF, by its product", pci.Spec{Address: "0000:3b:00.0", ProductID: "1563"}, "3b:00.0"},
		{"a pattern means what it says", pci.Spec{Address: "*:3b:00.0"}, "3b:00.0"},
		{"one VF", pci.Spec{Address: "0000:3b:00.1"}, "3b:00.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := addresses(tt.spec); got != tt.want {
				t.Errorf("means %s, want %s", got, tt.want)
			}
		})
	}
}

func TestDevices_TheFirstSpecDecides(t *testing.T) {
	h := &topology.Host{PCI: card(t, "0000:3b:00.0", 1)}
	h.PCI[1].NUMANode = 1
	got, reasons := pci.Devices(h, []pci.Spec{
		{ProductID: "zz"},
		{ProductID: "1565", PhysicalNetwork: "physnet1", Trusted: "YES", Managed: "no", LiveMigratable: "yes", ResourceClass: "fast vf", Traits: "z,HW_NIC_X,a"},
		{VendorID: "8086"},
		{VendorID: "8086"},
	})
	pf, vf := at(t, "0000:3b:00.0"), at(t, "0000:3b:00.1")
	want := []pci.Device{
		{Address: pf, Vendor: "8086", Product: "1563", Type: topology.PCITypePF, VFs: []topology.PCIAddress{vf}, Managed: true,
			Tags: map[string]string{"live_migratable": "false", "resource_class": "CUSTOM_PCI_8086_1563"}},
		{Address: vf, Vendor: "8086", Product: "1565", Type: topology.PCITypeVF, Cell: 1, Parent: &pf, LiveMigratable: true,
			Tags: map[string]string{"live_migratable": "true", "resource_class": "CUSTOM_FAST_VF", "physical_network": "physnet1",
				"trusted": "true", "trait:CUSTOM_A": "required", "trait:CUSTOM_Z": "required", "trait:HW_NIC_X": "required"}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	var codes []string
	for _, r := range reasons {
		codes = append(codes, r.Code)
	}
	if diff := cmp.Diff([]string{pci.SpecInvalid, pci.SpecUnmatched, pci.NoIOMMU}, codes); diff != "" {
		t.Errorf("reasons (-want +got):\n%s%+v", diff, reasons)
	}
	if !strings.Contains(reasons[0].Message, "device_spec[0].product_id") || !strings.Contains(reasons[1].Message, "device_spec[3]") {
		t.Errorf("reasons do not name their spec: %+v", reasons)
	}
}

func TestDevices_NameWhyAFunctionIsUnfit(t *testing.T) {
	group := func(n int) *int { return &n }
	for _, tt := range []struct {
		name  string
		spec  pci.Spec
		shape func(f, other *topology.PCIDevice, h *topology.Host) // other stands in the group of f
		want  []string
	}{
		{"fit", pci.Spec{}, nil, nil},
		{"a host bridge", pci.Spec{}, func(f, _ *topology.PCIDevice, _ *topology.Host) { f.Class = "0x060000" }, []string{pci.Bridge}},
		{"an NVSwitch", pci.Spec{}, func(f, _ *topology.PCIDevice, _ *topology.Host) { f.Class = "0x068000" }, nil},
		{"no group", pci.Spec{}, func(f, _ *topology.PCIDevice, _ *topology.Host) { f.IOMMUGroup = nil }, []string{pci.NoGroup}},
		{"no IOMMU at all", pci.Spec{}, func(f, other *topology.PCIDevice, _ *topology.Host) { f.IOMMUGroup, other.IOMMUGroup = nil, nil }, nil},
		{"its neighbour is in a driver's hands", pci.Spec{}, func(_, other *topology.PCIDevice, _ *topology.Host) { other.Driver = "snd_hda_intel" }, []string{pci.GroupHeld}},
		{"its neighbour is in VFIO's", pci.Spec{}, func(_, other *topology.PCIDevice, _ *topology.Host) { other.Driver = "mlx5_vfio_pci" }, nil},
		{"its neighbour is a port", pci.Spec{}, func(_, other *topology.PCIDevice, _ *topology.Host) {
			other.Driver, other.Class = "pcieport", "0x060400"
		}, nil},
		{"its own driver is what managed is for", pci.Spec{}, func(f, _ *topology.PCIDevice, _ *topology.Host) { f.Driver = "ixgbe" }, nil},
		{"remote_managed, not a VF and no serial", pci.Spec{RemoteManaged: "true"}, nil, []string{pci.NotVF}},
		{"remote_managed without a serial", pci.Spec{RemoteManaged: "true"}, func(f, other *topology.PCIDevice, _ *topology.Host) { f.PhysFn = &other.Address }, []string{pci.NoSerial}},
		{"remote_managed with the PF's serial", pci.Spec{RemoteManaged: "true"}, func(f, other *topology.PCIDevice, _ *topology.Host) {
			f.PhysFn, other.SerialNumber = &other.Address, "MT2042"
		}, nil},
		{"a broken file and a bridge: both are named", pci.Spec{}, func(f, _ *topology.PCIDevice, h *topology.Host) {
			f.Class = "0x060400"
			h.Reasons = []topology.Reason{{Code: "file_missing", Message: "class: missing", Device: &f.Address, Degrades: true}}
		}, []string{pci.Degraded, pci.Bridge}},
		{"a remark is no reason", pci.Spec{}, func(f, _ *topology.PCIDevice, h *topology.Host) {
			h.Reasons = []topology.Reason{{Code: "ghw_differs", Message: "x", Device: &f.Address}}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, other := function(t, "0000:01:00.1", "10de:0001"), function(t, "0000:01:00.0", "10de:0002")
			f.IOMMUGroup, other.IOMMUGroup = group(3), group(3)
			h := &topology.Host{}
			if tt.shape != nil {
				tt.shape(&f, &other, h)
			}
			h.PCI = []topology.PCIDevice{other, f}
			tt.spec.ProductID = "0001"
			devices, reasons := pci.Devices(h, []pci.Spec{tt.spec})
			if len(devices) != 1 {
				t.Fatalf("devices %+v, want the one function, fit or not", devices)
			}
			var got []string
			for _, r := range devices[0].Unfit {
				got = append(got, r.Code)
				if r.Message == "" || r.Change == "" || r.Device == nil || *r.Device != f.Address {
					t.Errorf("incomplete reason %+v", r)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("unfit (-want +got):\n%s", diff)
			}
			if len(reasons) < len(got) {
				t.Errorf("%d reasons are told of %d", len(reasons), len(got))
			}
			if free := pci.Pools(devices, nil, ""); (len(free) > 0) != (len(got) == 0) {
				t.Errorf("pools %+v, and unfit for %v", free, got)
			}
		})
	}
}

// TestDevices_MeetTheAliasesOfFlavors: what an alias asks in any spelling is what
// a device of the same words says of itself.
func TestDevices_MeetTheAliasesOfFlavors(t *testing.T) {
	h := &topology.Host{PCI: []topology.PCIDevice{function(t, "0000:01:00.0", "10DE:2330")}}
	for _, tt := range []struct {
		name  string
		spec  pci.Spec
		alias flavor.Alias
	}{
		{"ids", pci.Spec{}, flavor.Alias{VendorID: "10DE", ProductID: "2330"}},
		{"not live migratable unless it is said", pci.Spec{}, flavor.Alias{VendorID: "10de", ProductID: "2330", LiveMigratable: "no"}},
		{"live migratable", pci.Spec{LiveMigratable: "yes"}, flavor.Alias{VendorID: "10de", ProductID: "2330", LiveMigratable: "true"}},
		{"the class of the ids", pci.Spec{}, flavor.Alias{ResourceClass: "CUSTOM_PCI_10DE_2330"}},
		{"a standard class", pci.Spec{ResourceClass: "pgpu"}, flavor.Alias{ResourceClass: "PGPU"}},
		{"a class in other words", pci.Spec{ResourceClass: "big gpu"}, flavor.Alias{ResourceClass: "CUSTOM_BIG-GPU"}},
		{"some of the traits", pci.Spec{Traits: "my-gpu, HW_GPU_API_VULKAN,HW_x.y,OWNER_NOVA"}, flavor.Alias{ResourceClass: "custom_pci_10de_2330", Traits: "hw_gpu_api_vulkan,My.GPU,HW_X-Y,OWNER_NOVA"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.alias.Name = "gpu"
			requests, err := flavor.PCIRequests(topology.Flavor{ExtraSpecs: map[string]string{"pci_passthrough:alias": "gpu:1"}}, flavor.Image{}, []flavor.Alias{tt.alias})
			if err != nil {
				t.Fatal(err)
			}
			devices, _ := pci.Devices(h, []pci.Spec{tt.spec})
			want, got := requests[0].Specs[0], devices[0]
			if want.Vendor != "" && want.Vendor != got.Vendor || want.Product != "" && want.Product != got.Product {
				t.Errorf("ids %s:%s, want %s:%s", got.Vendor, got.Product, want.Vendor, want.Product)
			}
			for k, v := range want.Tags {
				if got.Tags[k] != v {
					t.Errorf("tag %s is %q, want %q", k, got.Tags[k], v)
				}
			}
		})
	}
}
