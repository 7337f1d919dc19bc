package domainxml

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

func cpus(t testing.TB, list string) topology.CPUSet {
	t.Helper()
	s, err := topology.ParseCPUSet(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pci(t testing.TB, text string) topology.PCIAddress {
	t.Helper()
	a, err := topology.ParsePCIAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// dedicated is a guest with everything: two cells of two siblings each, an
// emulator CPU, a realtime vCPU, two page sizes and two PCI functions.
func dedicated(t testing.TB) Place {
	return Place{
		Topology: &topology.GuestTopology{
			Emulator: topology.EmulatorIsolate,
			Realtime: cpus(t, "1-3"),
			Cells: []topology.GuestCell{
				{DedicatedVCPUs: cpus(t, "0-1"), MemoryMB: 1024, PageSize: topology.PagesLarge, CPUPolicy: topology.CPUPolicyDedicated},
				{DedicatedVCPUs: cpus(t, "2-3"), MemoryMB: 2048, PageSize: topology.PagesLarge, CPUPolicy: topology.CPUPolicyDedicated},
			},
		},
		Assignment: topology.Assignment{
			Cells: []topology.AssignedCell{
				{HostCell: 1, MemoryMB: 1024, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: 8}, {VCPU: 1, CPU: 24}}, Emulator: cpus(t, "9")},
				{HostCell: 0, MemoryMB: 2048, PageSize: topology.PageSize1G, Pins: []topology.Pin{{VCPU: 2, CPU: 2}, {VCPU: 3, CPU: 18}}},
			},
			Devices: []topology.AssignedDevice{
				{Request: "nic", Address: pci(t, "0000:3b:02.1"), Managed: true},
				{Request: "gpu", Address: pci(t, "10000:af:00.0")},
			},
		},
		SharedCPUs: cpus(t, "0-1,16-17"),
	}
}

// mixed is a guest of two cells with a dedicated and a shared vCPU on huge pages.
func mixed(t testing.TB) Place {
	return Place{
		Topology: &topology.GuestTopology{Cells: []topology.GuestCell{
			{DedicatedVCPUs: cpus(t, "0"), MemoryMB: 64, PageSize: topology.PageRequest(topology.PageSize2M), CPUPolicy: topology.CPUPolicyMixed},
			{SharedVCPUs: cpus(t, "1"), MemoryMB: 64, PageSize: topology.PageRequest(topology.PageSize2M), CPUPolicy: topology.CPUPolicyMixed},
		}},
		Assignment: topology.Assignment{Cells: []topology.AssignedCell{
			{HostCell: 0, MemoryMB: 64, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: 3}}},
			{HostCell: 1, MemoryMB: 64, PageSize: topology.PageSize2M, Shared: 1},
		}},
		SharedCPUs:   cpus(t, "0,4-5"),
		SharedByCell: map[topology.CellID]topology.CPUSet{0: cpus(t, "0"), 1: cpus(t, "4-5")},
	}
}

func spec(p Place, vcpus int, memoryMB int64) Spec {
	f := topology.Flavor{Name: "f", VCPUs: vcpus, MemoryMB: memoryMB}
	return Spec{
		Name: "placed", UUID: "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d13", Flavor: f, KVM: true, Place: p,
		Disks: []SpecDisk{{Path: "/images/a.raw"}, {Path: "/images/b.raw"}, {Path: "/images/c.raw"}},
	}
}

func placedSpecs(t testing.TB) map[string]Spec {
	full := spec(dedicated(t), 4, 3072)
	full.IOThreads = 2
	full.Cores = []topology.CPUSet{cpus(t, "2,18"), cpus(t, "8,24"), cpus(t, "9,25")}
	m := spec(mixed(t), 2, 128)
	m.LockedMemory = true
	floating := spec(Place{SharedCPUs: cpus(t, "0-1,16-17")}, 2, 256)
	floating.IOThreads = 1
	small := spec(mixed(t), 2, 128)
	small.Topology.Emulator = topology.EmulatorShare
	for i := range small.Assignment.Cells {
		small.Assignment.Cells[i].PageSize = topology.PageSize4K
	}
	return map[string]Spec{"build-dedicated.xml": full, "build-mixed.xml": m, "build-floating.xml": floating, "build-small-pages.xml": small}
}

func TestBuild_WritesThePlace(t *testing.T) {
	for name, s := range placedSpecs(t) {
		got, err := Build(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden(t, name, got)
	}
}

func TestBuild_ThreadsFollowTheSiblingsOfThePins(t *testing.T) {
	pins := func(perCell int, on ...int) Place {
		p := Place{Topology: &topology.GuestTopology{}}
		for v, cpu := range on {
			if v%perCell == 0 {
				p.Topology.Cells = append(p.Topology.Cells, topology.GuestCell{MemoryMB: 1})
				p.Assignment.Cells = append(p.Assignment.Cells, topology.AssignedCell{HostCell: topology.CellID(v / perCell), MemoryMB: 1})
			}
			c, a := &p.Topology.Cells[v/perCell], &p.Assignment.Cells[v/perCell]
			c.DedicatedVCPUs = c.DedicatedVCPUs.Union(topology.NewCPUSet(v))
			a.Pins = append(a.Pins, topology.Pin{VCPU: v, CPU: cpu})
		}
		return p
	}
	uneven := pins(3, 0, 8, 1, 9)
	floats := pins(2, 0, 8)
	floats.Topology.Cells[0] = topology.GuestCell{MemoryMB: 1, SharedVCPUs: cpus(t, "0-1")}
	floats.Assignment.Cells[0].Pins = nil
	four := []topology.CPUSet{cpus(t, "0-3"), cpus(t, "4-7")}
	two := []topology.CPUSet{cpus(t, "0,8"), cpus(t, "1,9"), cpus(t, "2,10")}
	for _, tt := range []struct {
		name  string
		place Place
		cores []topology.CPUSet
		want  string // sockets, cores, threads
	}{
		{"siblings", pins(4, 0, 8, 1, 9), two, "1 2 2"},
		{"siblings in two cells", pins(2, 0, 8, 1, 9), two, "2 1 2"},
		{"cores of their own", pins(4, 0, 1, 2, 3), two, "1 4 1"},
		{"siblings that are not neighbours", pins(4, 0, 1, 8, 9), two, "1 4 1"},
		{"one pair and two loners", pins(4, 0, 8, 1, 2), two, "1 4 1"},
		{"four threads", pins(4, 4, 5, 6, 7), four, "1 1 4"},
		{"two of four threads", pins(2, 4, 5), four, "1 1 2"},
		{"siblings unknown", pins(2, 0, 8), nil, "1 2 1"},
		{"odd number", pins(3, 0, 8, 1), two, "1 3 1"},
		{"uneven cells", uneven, two, "4 1 1"},
		{"floating", floats, two, "1 2 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, memory := 0, int64(0)
			for _, c := range tt.place.Topology.Cells {
				n, memory = n+c.VCPUs().Len(), memory+c.MemoryMB
			}
			s := spec(tt.place, n, memory)
			s.Cores = tt.cores
			text, err := Build(s)
			if err != nil {
				t.Fatal(err)
			}
			e := parsed(t, text).root.FindElement("./cpu/topology")
			got := e.SelectAttrValue("sockets", "") + " " + e.SelectAttrValue("cores", "") + " " + e.SelectAttrValue("threads", "")
			if got != tt.want {
				t.Errorf("sockets, cores, threads are %s, want %s", got, tt.want)
			}
		})
	}
}

func TestBuild_ListsEveryFaultOfThePlace(t *testing.T) {
	s := spec(mixed(t), 3, 100)
	s.IOThreads, s.RealtimePriority = -1, 100
	s.Topology.Emulator = topology.EmulatorIsolate
	s.Topology.Realtime = cpus(t, "1")
	s.Topology.Cells[1].SharedVCPUs = cpus(t, "0-1")
	s.Assignment.Cells[0].HostCell = topology.UnknownCell
	s.Assignment.Cells[1].MemoryMB = 32
	s.Assignment.Cells[1].Pins = []topology.Pin{{VCPU: 1, CPU: 3}}
	s.Assignment.Devices = []topology.AssignedDevice{{Address: pci(t, "0000:3b:02.1")}, {Address: pci(t, "0000:3b:02.1")}}
	_, err := Build(s)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"-1 I/O threads", "realtime priority 100", "policy isolate without a CPU", "realtime vCPUs 1 are not dedicated", "vCPUs 0 are there twice",
		"cell 0: no host cell", "64 MiB of memory with 32", "CPU 3 is given twice", "0000:3b:02.1 is assigned twice", "the flavor has 3", "the flavor has 100",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	for name, p := range map[string]Place{
		"without topology": {Assignment: mixed(t).Assignment},
		"of 2 cells":       {Topology: mixed(t).Topology},
		"policy share":     {Topology: &topology.GuestTopology{Emulator: topology.EmulatorShare, Cells: mixed(t).Topology.Cells}, Assignment: mixed(t).Assignment},
	} {
		if _, err := Build(spec(p, 2, 128)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one that says %q", err, name)
		}
	}
}

func TestPlace_EmulatorThreadsLeaveRealtimeCPUsAlone(t *testing.T) {
	p := dedicated(t)
	for _, tt := range []struct {
		policy         topology.EmulatorPolicy
		realtime, want string
	}{
		{topology.EmulatorNone, "", "2,8,18,24"},
		{topology.EmulatorNone, "1-3", "8"},
		{topology.EmulatorNone, "0-3", "0-1,16-17"},
		{topology.EmulatorShare, "1-3", "0-1,16-17"},
		{topology.EmulatorIsolate, "", "9"},
	} {
		p.Topology.Emulator, p.Topology.Realtime = tt.policy, cpus(t, tt.realtime)
		if faults := p.faults(); faults != nil {
			t.Fatal(faults)
		}
		if got := p.tune().emulator.String(); got != tt.want {
			t.Errorf("policy %q, realtime vCPUs %q: emulator threads on %q, want %q", tt.policy, tt.realtime, got, tt.want)
		}
	}
}

func TestPlace_AVCPUThatMayRunAnywhereFreesTheEmulatorToo(t *testing.T) {
	p := mixed(t)
	p.SharedCPUs, p.SharedByCell = nil, nil
	got := p.tune()
	if !got.emulator.IsEmpty() || len(got.pins) != 1 {
		t.Errorf("emulator threads on %q, pins %v", got.emulator, got.pins)
	}
}

func TestMapDevices_PairsByRequestThenOrder(t *testing.T) {
	devs := func(of ...string) (a topology.Assignment) {
		for i := 0; i < len(of); i += 2 {
			a.Devices = append(a.Devices, topology.AssignedDevice{Request: of[i], Address: pci(t, of[i+1])})
		}
		return a
	}
	got := MapDevices(
		devs("nic", "0000:01:00.0", "gpu", "0000:02:00.0", "nic", "0000:01:00.1", "disk", "0000:03:00.0"),
		devs("gpu", "0000:42:00.0", "nic", "0000:01:00.1", "nic", "0000:01:00.0"))
	want := map[topology.PCIAddress]topology.PCIAddress{
		pci(t, "0000:01:00.0"): pci(t, "0000:01:00.1"), pci(t, "0000:01:00.1"): pci(t, "0000:01:00.0"), pci(t, "0000:02:00.0"): pci(t, "0000:42:00.0"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
