package candidates

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/placementclient"
	"berth/topology"
)

func set(list string) topology.CPUSet {
	s, err := topology.ParseCPUSet(list)
	if err != nil {
		panic(err)
	}
	return s
}

// questions are requests as Placement gets them: shape, then the query of the
// newest microversion, unescaped.
func questions(t *testing.T, requests []Request) []string {
	t.Helper()
	var out []string
	for _, r := range requests {
		text, err := url.QueryUnescape(r.Query(placementclient.MaxMicroversion))
		if err != nil {
			t.Fatal(err)
		}
		head := string(r.Shape)
		if r.SameDisk {
			head += " same disk"
		}
		if r.Spread != nil {
			head += fmt.Sprintf(" with %d VCPU and %d MEMORY_MB", r.Spread["VCPU"], r.Spread["MEMORY_MB"])
		}
		out = append(out, head+"? "+strings.ReplaceAll(text, "&", " "))
	}
	return out
}

const aggregate = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"

var (
	small = topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 10}
	pool  = Disk{Provider: "pool", Aggregates: []string{aggregate}}
	gpu   = topology.PCIRequest{ID: "gpu", Count: 2, Affinity: topology.AffinityRequired,
		Specs: []topology.PCISpec{{Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction}}}
	nic = topology.PCIRequest{ID: "nic", Count: 1, Specs: []topology.PCISpec{
		{Tags: map[string]string{"resource_class": "CUSTOM_FAST_NIC", "trait:CUSTOM_RED": "required", "trait:CUSTOM_BLUE": "required", "live_migratable": "true"}, Type: topology.PCITypeVF},
	}}
	twoCells = &topology.GuestTopology{Emulator: topology.EmulatorIsolate, Cells: []topology.GuestCell{
		{DedicatedVCPUs: set("0-1"), MemoryMB: 512, PageSize: topology.PagesLarge},
		{DedicatedVCPUs: set("2"), SharedVCPUs: set("3"), MemoryMB: 256, PageSize: topology.PageRequest(1 << 30)},
	}}
)

func oneCell(c topology.GuestCell) *topology.GuestTopology {
	return &topology.GuestTopology{Cells: []topology.GuestCell{c}}
}

func TestBuild_WritesAWishDownAsQuestions(t *testing.T) {
	for _, c := range []struct {
		name string
		wish Wish
		want []string
	}{
		{"a guest that floats is asked for once", Wish{Resources: small}, []string{
			"either? limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 2 VCPU and 1024 MEMORY_MB? limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources=DISK_GB:10 resources_MEM0=MEMORY_MB:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
		{"nothing is not asked for", Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}}, []string{
			"either? limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=MEMORY_MB:64,VCPU:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 1 VCPU and 64 MEMORY_MB? limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_MEM0=MEMORY_MB:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
		{"one cell: the sums of a flat host, or a cell with its pages", Wish{
			Resources: small, Topology: oneCell(topology.GuestCell{SharedVCPUs: set("0-1"), MemoryMB: 1024}),
		}, []string{
			"flat? limit=5000 required=!HW_NUMA_ROOT resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=none limit=5000 required_CELL0=HW_NUMA_ROOT required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources=DISK_GB:10 resources_CELL0=VCPU:2 resources_MEM0=MEMORY_MB:1024" +
				" root_required=!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0",
		}},
		{"two cells are on two, the emulator's CPU in the first", Wish{
			Resources: topology.Resources{VCPUs: 1, PCPUs: 4, MemoryMB: 768}, Topology: twoCells,
		}, []string{
			"flat? limit=5000 required=!HW_NUMA_ROOT resources=MEMORY_MB:768,PCPU:4,VCPU:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=isolate limit=5000 required_CELL0=HW_NUMA_ROOT required_CELL1=HW_NUMA_ROOT required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_LARGE required_MEM1=CUSTOM_MEMORY_PAGE_SIZE_1048576" +
				" resources_CELL0=PCPU:3 resources_CELL1=PCPU:1,VCPU:1 resources_MEM0=MEMORY_MB:512 resources_MEM1=MEMORY_MB:256" +
				" root_required=!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0 same_subtree=_CELL1,_MEM1",
		}},
		{"pages of any size, and siblings that must be there", Wish{
			Resources: topology.Resources{PCPUs: 2, MemoryMB: 64},
			Topology:  oneCell(topology.GuestCell{DedicatedVCPUs: set("0-1"), MemoryMB: 64, PageSize: topology.PagesAny, ThreadPolicy: topology.ThreadPolicyRequire}),
		}, []string{
			"flat? limit=5000 required=HW_CPU_HYPERTHREADING,!HW_NUMA_ROOT resources=MEMORY_MB:64,PCPU:2 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=none limit=5000 required_CELL0=HW_NUMA_ROOT resources_CELL0=PCPU:2 resources_MEM0=MEMORY_MB:64" +
				" root_required=HW_CPU_HYPERTHREADING,!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0",
		}},
		{"devices are groups of one; an alias's class and traits", Wish{Resources: small, Devices: []topology.PCIRequest{gpu, nic}}, []string{
			"either? group_policy=none limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE required_PCI1=CUSTOM_BLUE,CUSTOM_RED resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2" +
				" resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_FAST_NIC:1 resources_PCI2=CUSTOM_PCI_10DE_2330:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 2 VCPU and 1024 MEMORY_MB? group_policy=none limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL required_PCI1=CUSTOM_BLUE,CUSTOM_RED resources=DISK_GB:10 resources_MEM0=MEMORY_MB:1 resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_FAST_NIC:1 resources_PCI2=CUSTOM_PCI_10DE_2330:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
		{"a device that must be of the guest's cell is below it", Wish{
			Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Topology: oneCell(topology.GuestCell{SharedVCPUs: set("0"), MemoryMB: 64}), Devices: []topology.PCIRequest{gpu, nic},
		}, []string{
			"flat? group_policy=none limit=5000 required=!HW_NUMA_ROOT required_PCI1=CUSTOM_BLUE,CUSTOM_RED resources=MEMORY_MB:64,VCPU:1" +
				" resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_FAST_NIC:1 resources_PCI2=CUSTOM_PCI_10DE_2330:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=none limit=5000 required_CELL0=HW_NUMA_ROOT required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL required_PCI1=CUSTOM_BLUE,CUSTOM_RED" +
				" resources_CELL0=VCPU:1 resources_MEM0=MEMORY_MB:64 resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_FAST_NIC:1 resources_PCI2=CUSTOM_PCI_10DE_2330:1" +
				" root_required=!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0,_PCI0,_PCI2",
		}},
		{"a device that is counted as another class where it is", Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Devices: []topology.PCIRequest{gpu}, Counted: []string{"CUSTOM_GPU"},
			Topology: oneCell(topology.GuestCell{SharedVCPUs: set("0"), MemoryMB: 64})}, []string{
			"flat? group_policy=none limit=5000 required=!HW_NUMA_ROOT resources=MEMORY_MB:64,VCPU:1 resources_PCI0=CUSTOM_GPU:1 resources_PCI1=CUSTOM_GPU:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=none limit=5000 required_CELL0=HW_NUMA_ROOT required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_CELL0=VCPU:1 resources_MEM0=MEMORY_MB:64" +
				" resources_PCI0=CUSTOM_GPU:1 resources_PCI1=CUSTOM_GPU:1 root_required=!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0,_PCI0,_PCI1",
			"flat? group_policy=none limit=5000 required=!HW_NUMA_ROOT resources=MEMORY_MB:64,VCPU:1 resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_PCI_10DE_2330:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested? group_policy=none limit=5000 required_CELL0=HW_NUMA_ROOT required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_CELL0=VCPU:1 resources_MEM0=MEMORY_MB:64" +
				" resources_PCI0=CUSTOM_PCI_10DE_2330:1 resources_PCI1=CUSTOM_PCI_10DE_2330:1 root_required=!COMPUTE_STATUS_DISABLED same_subtree=_CELL0,_MEM0,_PCI0,_PCI1",
		}},
		{"an alias of two kinds is two questions", Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Devices: []topology.PCIRequest{{
			ID: "a", Count: 1, Specs: []topology.PCISpec{{Vendor: "8086", Product: "1563"}, {Vendor: "8086", Product: "10fb"}, {Vendor: "8086", Product: "1563", Type: topology.PCIType("")}},
		}}}, []string{
			"either? limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=MEMORY_MB:64,VCPU:1 resources_PCI0=CUSTOM_PCI_8086_1563:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 1 VCPU and 64 MEMORY_MB? group_policy=none limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_MEM0=MEMORY_MB:1 resources_PCI0=CUSTOM_PCI_8086_1563:1 root_required=!COMPUTE_STATUS_DISABLED",
			"either? limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=MEMORY_MB:64,VCPU:1 resources_PCI0=CUSTOM_PCI_8086_10FB:1 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 1 VCPU and 64 MEMORY_MB? group_policy=none limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_MEM0=MEMORY_MB:1 resources_PCI0=CUSTOM_PCI_8086_10FB:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
		{"traits are the flat host's provider's, or the nested one's root's", Wish{Resources: small, ExtraSpecs: map[string]string{
			"trait:CUSTOM_RACK": "required", "trait:HW_CPU_X86_VMX": "forbidden", "trait:STORAGE_DISK_SSD": "required", "hw:watchdog_action": "reset",
		}}, []string{
			"either? limit=5000 required=CUSTOM_RACK,STORAGE_DISK_SSD,!HW_CPU_X86_VMX,!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2" +
				" root_required=!HW_CPU_X86_VMX,!COMPUTE_STATUS_DISABLED",
			"nested? limit=5000 required=STORAGE_DISK_SSD,!HW_CPU_X86_VMX,!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2" +
				" root_required=CUSTOM_RACK,!HW_CPU_X86_VMX,!COMPUTE_STATUS_DISABLED",
			"nested with 2 VCPU and 1024 MEMORY_MB? limit=5000 required=STORAGE_DISK_SSD,!HW_CPU_X86_VMX required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources=DISK_GB:10 resources_MEM0=MEMORY_MB:1 root_required=CUSTOM_RACK,!HW_CPU_X86_VMX,!COMPUTE_STATUS_DISABLED",
		}},
		{"the flavor's groups take their part of the sums", Wish{Resources: small, ExtraSpecs: map[string]string{
			"resources:CUSTOM_LICENSE": "1", "resources:VCPU": "9", "resources:VGPU": "0",
			"resources1:VCPU": "1", "trait1:CUSTOM_A": "required", "resources_B:VGPU": "1", "trait_B:CUSTOM_B": "forbidden", "group_policy": "isolate",
		}}, []string{
			"either? group_policy=isolate limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE required1=CUSTOM_A required_B=!CUSTOM_B" +
				" resources=CUSTOM_LICENSE:1,DISK_GB:10,MEMORY_MB:1024,VCPU:1 resources1=VCPU:1 resources_B=VGPU:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
		{"a disk that is shared is not asked for again where it is shared", Wish{Resources: small, Disk: pool}, []string{
			"either same disk? limit=5000 member_of=in:" + aggregate + " required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=MEMORY_MB:1024,VCPU:2 root_required=!COMPUTE_STATUS_DISABLED",
			"nested same disk with 2 VCPU and 1024 MEMORY_MB? limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources_MEM0=MEMORY_MB:1 root_required=!COMPUTE_STATUS_DISABLED",
			"either? limit=5000 required=!CUSTOM_MEMORY_PAGE_SIZE_LARGE resources=DISK_GB:10,MEMORY_MB:1024,VCPU:2 root_required=!COMPUTE_STATUS_DISABLED",
			"nested with 2 VCPU and 1024 MEMORY_MB? limit=5000 required_MEM0=CUSTOM_MEMORY_PAGE_SIZE_SMALL resources=DISK_GB:10 resources_MEM0=MEMORY_MB:1 root_required=!COMPUTE_STATUS_DISABLED",
		}},
	} {
		got, err := Build(c.wish)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, questions(t, got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestBuild_IsBounded: what a question would cost is bounded, and what is left out
// is said.
func TestBuild_IsBounded(t *testing.T) {
	many := gpu
	many.Count = 200
	lots := topology.PCIRequest{ID: "lots", Count: 1}
	for _, p := range []string{"0001", "0002", "0003", "0004", "0005"} {
		lots.Specs = append(lots.Specs, topology.PCISpec{Vendor: "8086", Product: p})
	}
	network := topology.PCIRequest{ID: "port", Count: 1, Specs: []topology.PCISpec{{Vendor: "8086", Product: "10ed", Tags: map[string]string{"physical_network": "red"}}}}
	cells := &topology.GuestTopology{}
	for i := range 4 {
		cells.Cells = append(cells.Cells, topology.GuestCell{SharedVCPUs: set(string(rune('0' + i))), MemoryMB: int64(100 + i)})
	}
	got, err := Build(Wish{Resources: topology.Resources{VCPUs: 4, MemoryMB: 406}, Topology: cells, Devices: []topology.PCIRequest{many, lots, network, nic}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(got[1].Groups) != 2*maxCells+maxDevices {
		t.Fatalf("%d questions, the last with %d groups", len(got), len(got[len(got)-1].Groups))
	}
	if _, there := got[1].Groups["_CELL3"]; !there {
		t.Errorf("the largest cell is not among the groups: %v", got[1].Groups)
	}
	if got[1].Groups["_PCI1"].Resources["CUSTOM_FAST_NIC"] != 1 {
		t.Errorf("the other device is not among the groups: %v", got[1].Groups)
	}
	want := []string{
		"device lots: it may be of 5 kinds, which with the others are too many questions", "device port: it is not known what Placement counts it as",
		"197 of 201 devices: only 4 are asked for by groups", "2 of 4 guest cells: only the 2 largest are asked for by groups",
	}
	if diff := cmp.Diff(want, got[1].Left); diff != "" {
		t.Errorf("what is left out (-want +got):\n%s", diff)
	}
}

func TestBuild_RefusesWhatNobodyCouldAsk(t *testing.T) {
	_, err := Build(Wish{Resources: small, ExtraSpecs: map[string]string{
		"resources:VGPU": "one", "resources1:VCPU": "-1", "trait:HW_CPU_X86_VMX": "maybe", "trait2:CUSTOM_A": "required", "resources:vgpu": "1",
		"group_policy": "apart", "resources_CELL0:VCPU": "1", "resources3:VGPU": "99999999999999999999",
	}})
	if fault.KindOf(err) != fault.Invalid {
		t.Fatalf("error %v", err)
	}
	var got []string
	for _, r := range fault.ReasonsOf(err) {
		got = append(got, r.Message)
	}
	if diff := cmp.Diff([]string{
		`flavor: group_policy: "apart": want none or isolate`,
		`flavor: resources1:VCPU: "-1": want a whole number from 0 to 2147483647`,
		`flavor: resources3:VGPU: "99999999999999999999": want a whole number from 0 to 2147483647`,
		`flavor: resources:VGPU: "one": want a whole number from 0 to 2147483647`,
		`flavor: resources:vgpu: "vgpu": want capitals, digits and underscores`,
		`flavor: trait:HW_CPU_X86_VMX: "maybe": want required or forbidden`,
		`flavor: trait2: there is no resources2 that says of what provider`,
		`flavor: resources_CELL0: groups whose names begin with _CELL are made of the guest's own cells and devices`,
	}, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

// TestBuild_HoldsGroupsApartOnlyWhereAllAre: VFs of one card, and a flavor's groups,
// may be one provider's.
func TestBuild_HoldsGroupsApartOnlyWhereAllAre(t *testing.T) {
	cells := &topology.GuestTopology{Cells: []topology.GuestCell{{SharedVCPUs: set("0"), MemoryMB: 64}, {SharedVCPUs: set("1"), MemoryMB: 64}}}
	r := topology.Resources{VCPUs: 2, MemoryMB: 128}
	for _, tt := range []struct {
		name string
		wish Wish
		want string
	}{
		{"cells", Wish{Resources: r, Topology: cells}, "isolate"},
		{"cells and whole cards", Wish{Resources: r, Topology: cells, Devices: []topology.PCIRequest{gpu}}, "isolate"},
		{"cells and VFs", Wish{Resources: r, Topology: cells, Devices: []topology.PCIRequest{nic}}, "none"},
		{"cells and a group", Wish{Resources: r, Topology: cells, ExtraSpecs: map[string]string{"resources1:VGPU": "1"}}, "none"},
	} {
		got, err := Build(tt.wish)
		if err != nil {
			t.Fatal(err)
		}
		last := got[len(got)-1]
		if last.Shape != Nested || last.GroupPolicy != tt.want {
			t.Errorf("%s: %s asks with policy %q, want %q", tt.name, last.Shape, last.GroupPolicy, tt.want)
		}
		for _, tied := range last.SameSubtree {
			if len(tied) != 2 {
				t.Errorf("%s: %v are tied: a device may be of either cell", tt.name, tied)
			}
		}
	}
}
