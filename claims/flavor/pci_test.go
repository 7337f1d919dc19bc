package flavor

import (
	"errors"
	"strings"
	"testing"

	"berth/topology"

	"github.com/google/go-cmp/cmp"
)

var quickAssist = []Alias{
	{Name: "qat", VendorID: "8086", ProductID: "0443", DeviceType: "type-PCI"},
	{Name: " qat ", VendorID: "8086", ProductID: "0AAA", DeviceType: "type-PCI", NUMAPolicy: "legacy"},
	{Name: "nic", VendorID: "8086", ProductID: "10ed", DeviceType: "type-VF", NUMAPolicy: "required", LiveMigratable: "Yes"},
	{Name: "gpu", ResourceClass: " my-gpu.x ", Traits: "fast, HW_GPU_API_VULKAN,,CUSTOM_a b", LiveMigratable: "no"},
}

func TestPCIRequests_TurnsAliasesIntoRequests(t *testing.T) {
	qat := []topology.PCISpec{
		{Vendor: "8086", Product: "0443", Type: topology.PCITypeFunction},
		{Vendor: "8086", Product: "0aaa", Type: topology.PCITypeFunction},
	}
	nic := []topology.PCISpec{{Vendor: "8086", Product: "10ed", Type: topology.PCITypeVF, Tags: map[string]string{"live_migratable": "true"}}}
	gpu := []topology.PCISpec{{Tags: map[string]string{
		"live_migratable": "false", "resource_class": "CUSTOM_MY_GPU_X",
		"trait:CUSTOM_FAST": "required", "trait:HW_GPU_API_VULKAN": "required", "trait:CUSTOM_A_B": "required",
	}}}
	for _, tt := range []struct {
		specs, image string
		want         []topology.PCIRequest
	}{
		{"", "", nil},
		{"hw:pci_numa_affinity_policy=socket", "", nil},
		{"pci_passthrough:alias=qat:2,~nic~:~+1", "", []topology.PCIRequest{
			{ID: "qat", Count: 2, Specs: qat, Affinity: topology.AffinityLegacy},
			{ID: "nic", Count: 1, Specs: nic, Affinity: topology.AffinityRequired},
		}},
		{"pci_passthrough:alias=gpu:1,gpu:2,gpu:3 hw:pci_numa_affinity_policy=socket", "", []topology.PCIRequest{
			{ID: "gpu", Count: 1, Specs: gpu, Affinity: topology.AffinitySocket},
			{ID: "gpu#2", Count: 2, Specs: gpu, Affinity: topology.AffinitySocket},
			{ID: "gpu#3", Count: 3, Specs: gpu, Affinity: topology.AffinitySocket},
		}},
		{"pci_passthrough:alias=nic:1", "hw_pci_numa_affinity_policy=preferred", []topology.PCIRequest{
			{ID: "nic", Count: 1, Specs: nic, Affinity: topology.AffinityPreferred},
		}},
		{"pci_passthrough:alias=nic:1 hw:pci_numa_affinity_policy=legacy", "hw_pci_numa_affinity_policy=legacy", []topology.PCIRequest{
			{ID: "nic", Count: 1, Specs: nic, Affinity: topology.AffinityLegacy},
		}},
	} {
		got, err := PCIRequests(guest(tt.specs), specs(tt.image), quickAssist)
		if err != nil {
			t.Errorf("%s: %v", tt.specs, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s · %s (-want +got):\n%s", tt.specs, tt.image, diff)
		}
	}
}

func codes(err error) string {
	var errs Errors
	errors.As(err, &errs)
	var out []string
	for _, e := range errs {
		out = append(out, strings.TrimSpace(e.Nova+" "+e.Code))
	}
	return strings.Join(out, "; ")
}

func TestPCIRequests_RefusesWithEveryFault(t *testing.T) {
	for _, tt := range []struct{ specs, image, want string }{
		{"pci_passthrough:alias=", "", "ValueError pci_alias_malformed"},
		{"pci_passthrough:alias=qat", "", "ValueError pci_alias_malformed"},
		{"pci_passthrough:alias=qat:1:2", "", "ValueError pci_alias_malformed"},
		{"pci_passthrough:alias=qat:1,", "", "ValueError pci_alias_malformed"},
		{"pci_passthrough:alias=qat:", "", "ValueError pci_count_malformed"},
		{"pci_passthrough:alias=qat:one", "", "ValueError pci_count_malformed"},
		{"pci_passthrough:alias=qat:1.0", "", "ValueError pci_count_malformed"},
		{"pci_passthrough:alias=qat:0", "", "pci_count_out_of_range"},
		{"pci_passthrough:alias=qat:-1", "", "pci_count_out_of_range"},
		{"pci_passthrough:alias=qat:99999999999999999999", "", "pci_count_out_of_range"},
		{"pci_passthrough:alias=QAT:1", "", "PciRequestAliasNotDefined pci_alias_undefined"},
		{"pci_passthrough:alias=fpga:x,nic:0,nic", "", "PciRequestAliasNotDefined pci_alias_undefined; ValueError pci_count_malformed; pci_count_out_of_range; ValueError pci_alias_malformed"},
		{"hw:pci_numa_affinity_policy=near pci_passthrough:alias=fpga:1", "", "InvalidPCINUMAAffinity pci_affinity_unknown; PciRequestAliasNotDefined pci_alias_undefined"},
		{"hw:pci_numa_affinity_policy=socket", "hw_pci_numa_affinity_policy=legacy", "ImagePCINUMAPolicyForbidden pci_affinity_conflict"},
		{"", "hw_pci_numa_affinity_policy=", "ValueError pci_affinity_unknown"},
	} {
		got, err := PCIRequests(guest(tt.specs), specs(tt.image), quickAssist)
		if got != nil || codes(err) != tt.want {
			t.Errorf("%s · %s: got %v, %v; want %s", tt.specs, tt.image, got, err, tt.want)
		}
	}
}

func TestPCIAffinity_IsTheFlavorsOrTheImages(t *testing.T) {
	for _, tt := range []struct {
		specs, image string
		want         topology.PCIAffinity
	}{
		{"", "", ""},
		{"hw:pci_numa_affinity_policy=", "", ""},
		{"hw:pci_numa_affinity_policy=required", "", topology.AffinityRequired},
		{"", "hw_pci_numa_affinity_policy=socket", topology.AffinitySocket},
	} {
		if got, err := PCIAffinity(guest(tt.specs), specs(tt.image)); got != tt.want || err != nil {
			t.Errorf("%s · %s: got %q, %v", tt.specs, tt.image, got, err)
		}
	}
}

func TestValidateAliases_FindsWhatNoDeviceCanBe(t *testing.T) {
	good := Alias{Name: "a", VendorID: "8086", ProductID: "1563"}
	with := func(change func(*Alias)) []Alias {
		a := good
		change(&a)
		return []Alias{a}
	}
	if err := ValidateAliases(append(quickAssist, good)); err != nil {
		t.Errorf("good aliases: %v", err)
	}
	const invalid = "PciInvalidAlias pci_alias_invalid"
	for name, tt := range map[string]struct {
		aliases []Alias
		want    string
	}{
		"no name":            {with(func(a *Alias) { a.Name = " " }), invalid},
		"long name":          {with(func(a *Alias) { a.Name = strings.Repeat("a", 257) }), invalid},
		"unspeakable name":   {with(func(a *Alias) { a.Name = "a:b" }), "pci_alias_invalid"},
		"short vendor":       {with(func(a *Alias) { a.VendorID = "086" }), invalid},
		"vendor of letters":  {with(func(a *Alias) { a.VendorID = "808g" }), invalid},
		"product with 0x":    {with(func(a *Alias) { a.ProductID = "0x1563" }), invalid},
		"no product":         {with(func(a *Alias) { a.ProductID = "" }), invalid},
		"nothing":            {[]Alias{{Name: "a"}}, invalid},
		"vdpa":               {with(func(a *Alias) { a.DeviceType = "vdpa" }), invalid},
		"policy":             {with(func(a *Alias) { a.NUMAPolicy = "strict" }), invalid},
		"live_migratable":    {with(func(a *Alias) { a.LiveMigratable = "maybe" }), invalid},
		"all of it":          {[]Alias{{Name: "", VendorID: "x", ProductID: "y", DeviceType: "z", NUMAPolicy: "p", LiveMigratable: "l"}}, strings.Repeat(invalid+"; ", 5) + invalid},
		"policies disagree":  {append(with(func(a *Alias) { a.NUMAPolicy = "socket" }), good), "PciInvalidAlias pci_alias_disagrees"},
		"types disagree":     {append(with(func(a *Alias) { a.DeviceType = "type-PF" }), good), "PciInvalidAlias pci_alias_disagrees"},
		"legacy is the rest": {append(with(func(a *Alias) { a.NUMAPolicy = "legacy" }), good), ""},
	} {
		err := ValidateAliases(tt.aliases)
		if codes(err) != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
		_, refused := PCIRequests(guest("pci_passthrough:alias=a:1"), nil, tt.aliases)
		if (refused != nil) != (err != nil) {
			t.Errorf("%s: the aliases are %v, the request is %v", name, err, refused)
		}
	}
}

func TestNames_ArePlacements(t *testing.T) {
	for in, want := range map[string]string{"vgpu": "VGPU", "CUSTOM_X": "CUSTOM_X", "a--b/c": "CUSTOM_A_B_C", " pgpu": "PGPU"} {
		if got := ResourceClass(in); got != want {
			t.Errorf("class %q: %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"hw_nic_sriov": "HW_NIC_SRIOV", "HW_x.y": "CUSTOM_HW_X_Y", "custom_a": "CUSTOM_A", "b": "CUSTOM_B"} {
		if got := Trait(in); got != want {
			t.Errorf("trait %q: %s, want %s", in, got, want)
		}
	}
}
