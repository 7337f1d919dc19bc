package domainxml

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

func TestPinning_ReadsWhatADocumentAsks(t *testing.T) {
	got, err := parsed(t, fixture(t, "placed.xml")).Pinning()
	if err != nil {
		t.Fatal(err)
	}
	anywhere := cpus(t, "0-1,16-17")
	want := Pinning{
		Online: cpus(t, "0-3"), MaxVCPUs: 6,
		VCPUs:     map[int]topology.CPUSet{0: {8}, 1: {24}, 2: {2}, 3: {18}, 4: anywhere, 5: anywhere},
		Emulator:  cpus(t, "9"),
		IOThreads: map[int]topology.CPUSet{2: {9}, 5: {9}},
		Realtime:  cpus(t, "1-3"), MemoryMode: "strict", MemoryNodes: cpus(t, "0-1"), HasCells: true,
		OwnPages: []MemoryModule{{Cell: 1, MemoryMB: 512, Pages: topology.PageSize2M}},
		Cells: []PinnedCell{
			{VCPUs: cpus(t, "0-1,4"), MemoryMB: 1024, Pages: topology.PageRequest(topology.PageSize2M), Mode: "strict", Nodes: cpus(t, "1")},
			{VCPUs: cpus(t, "2-3,5"), MemoryMB: 2560, Pages: topology.PageRequest(topology.PageSize1G), Mode: "strict", Nodes: cpus(t, "0")},
		},
		Devices: []HostDevice{
			{Address: pci(t, "10000:af:00.0"), Element: "hostdev", Alias: "hostdev1"},
			{Address: pci(t, "0000:3b:02.1"), Element: "interface", Alias: "hostdev0", Managed: true},
		},
		Mdevs: []string{mdevHere},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPinning_OfAGuestWithoutCellsHasOne(t *testing.T) {
	text := strings.Replace(fixture(t, "unpinned.xml"), "<vcpu ", "<memoryBacking><hugepages><page size='1' unit='G' nodeset='0'/></hugepages></memoryBacking>\n<vcpu ", 1)
	text = strings.Replace(text, "cpuset='4-5'", "cpuset='4-9,^6-7,^9,12'", 1)
	text = strings.Replace(text, "<devices>", `<vcpus><vcpu id='1' enabled='yes'/><vcpu id='0' enabled='no'/></vcpus><devices>
		<disk type='nvme'><target dev='vda'/><source type='pci' managed='yes' namespace='1'><address domain='1' bus='0x3c' function='2'/></source></disk>`, 1)
	got, err := parsed(t, text).Pinning()
	if err != nil {
		t.Fatal(err)
	}
	want := Pinning{
		Online: cpus(t, "1"), MaxVCPUs: 2, CPUSet: cpus(t, "4-7"),
		VCPUs: map[int]topology.CPUSet{0: cpus(t, "4-5,8,12"), 1: cpus(t, "6-7")}, IOThreads: map[int]topology.CPUSet{}, Emulator: cpus(t, "4"),
		MemoryMode: "preferred", MemoryNodes: cpus(t, "1"),
		Cells:   []PinnedCell{{VCPUs: cpus(t, "0-1"), MemoryMB: 256, Pages: topology.PageRequest(topology.PageSize1G)}},
		Devices: []HostDevice{{Address: pci(t, "0001:3c:00.2"), Element: "disk"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPinning_ErrorsNameTheElementAndTheRestIsRead(t *testing.T) {
	text := fixture(t, "placed.xml")
	for from, to := range map[string]string{
		"vcpupin vcpu='0'": "vcpupin vcpu='-1'", "emulatorpin cpuset='9'": "emulatorpin cpuset='9-'", "memnode cellid='1'": "memnode cellid='2'",
		"size='1048576'": "size='0'", "bus='0xaf'": "bus='0x1af'", "cell id='1' cpus='2-3,5' memory='2097152'": "cell id='1' cpus='2-3,5' memory='x'",
	} {
		if !strings.Contains(text, from) {
			t.Fatalf("%s is not in the fixture", from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	p, err := parsed(t, text).Pinning()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"<vcpupin>: vcpu", "<emulatorpin>: cpuset", "no guest cell 2", "size of <page>", "hostdev: bus", "memory of <cell id='1'>"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if p.VCPUs[3].String() != "18" || len(p.Devices) != 1 || p.Cells[0].Nodes.String() != "1" {
		t.Errorf("the rest is %+v", p)
	}
}

// twoCells is a host of two cells with four cores of two threads each, the
// devices of placed.xml, and 2 MiB and 1 GiB pages.
func twoCells(t testing.TB) *topology.Host {
	h := &topology.Host{
		Cells:        []topology.Cell{{ID: 0, CPUs: cpus(t, "0-3,16-19")}, {ID: 1, CPUs: cpus(t, "8-11,24-27")}},
		BasePageSize: topology.PageSize4K, PageSizes: []topology.PageSize{topology.PageSize4K, topology.PageSize2M, topology.PageSize1G},
		PCI: []topology.PCIDevice{
			{Address: pci(t, "0000:3b:00.0"), Vendor: "0x8086", Product: "0x1563", TotalVFs: 64},
			{Address: pci(t, "0000:3b:02.1"), Vendor: "0x8086", Product: "0x1565", NUMANode: 1},
			{Address: pci(t, "10000:af:00.0"), Vendor: "0x10de", Product: "0x20b0", NUMANode: topology.UnknownCell},
		},
	}
	h.PCI[1].PhysFn = &h.PCI[0].Address
	for _, c := range []int{0, 1, 2, 3, 8, 9, 10, 11} {
		h.Cores = append(h.Cores, topology.NewCPUSet(c, c+16))
	}
	return h
}

func TestAssignment_IsWhatTheDocumentWasWrittenFrom(t *testing.T) {
	topo, got, remarks := parsed(t, fixture(t, "placed.xml")).Assignment(twoCells(t), cpus(t, "0-1,16-17"))
	p := dedicated(t)
	want := p.Assignment
	want.Mdevs = []string{mdevHere}
	want.Devices = []topology.AssignedDevice{
		{Request: "hostdev0", Address: pci(t, "10000:af:00.0"), Vendor: "10de", Product: "20b0", Type: topology.PCITypeFunction, Cell: topology.UnknownCell},
		{Request: "hostdev1", Address: pci(t, "0000:3b:02.1"), Vendor: "8086", Product: "1565", Type: topology.PCITypeVF, Cell: 1, Managed: true},
	}
	wantTopo := p.Topology
	for i, size := range []topology.PageSize{topology.PageSize2M, topology.PageSize1G} {
		wantTopo.Cells[i].PageSize = topology.PageRequest(size)
	}
	// Its memory device was plugged in later.
	wantTopo.Cells[1].MemoryMB, want.Cells[1].MemoryMB = 2560, 2560
	if diff := cmp.Diff(wantTopo, topo); diff != "" {
		t.Errorf("topology (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("assignment (-want +got):\n%s", diff)
	}
	wantRemarks := []string{
		"guest cell 1: a memory device of 512 MiB has pages of 2MiB, other ones than its cell; counted as the cell's",
	}
	if diff := cmp.Diff(wantRemarks, remarks); diff != "" {
		t.Errorf("remarks (-want +got):\n%s", diff)
	}
}

func TestAssignment_OfAGuestThatBindsNothingIsEmpty(t *testing.T) {
	topo, a, remarks := parsed(t, fixture(t, "unpinned.xml")).Assignment(twoCells(t), nil)
	if topo != nil || !a.IsZero() || len(remarks) != 1 || !strings.Contains(remarks[0], "mode preferred on host cells 1") {
		t.Errorf("%+v, %+v, %q", topo, a, remarks)
	}
	text := strings.Replace(fixture(t, "build-floating.xml"), "<cpu mode='host-model'/>",
		"<cpu><numa><cell cpus='0' memory='128' unit='MiB'/><cell cpus='1' memory='128' unit='MiB'/></numa></cpu>", 1)
	if topo, a, remarks := parsed(t, text).Assignment(nil, nil); topo != nil || !a.IsZero() || len(remarks) > 0 {
		t.Errorf("guest cells alone: %+v, %+v, %q", topo, a, remarks)
	}
}

func TestAssignment_Guesses(t *testing.T) {
	const vcpus = "<cputune><vcpupin vcpu='0' cpuset='%'/><vcpupin vcpu='1' cpuset='&'/>#</cputune>"
	tune := func(pins ...string) string {
		return strings.NewReplacer("%", pins[0], "&", pins[1], "#", strings.Join(pins[2:], "")).Replace(vcpus)
	}
	type result struct {
		Dedicated, Shared, Emulator, Idle string
		Host                              topology.CellID
		Pages                             topology.PageSize
		Policy                            topology.CPUPolicy
		Threads                           topology.EmulatorPolicy
	}
	one := twoCells(t)
	one.Cells, one.PageSizes = one.Cells[:1], one.PageSizes[:2]
	for _, tt := range []struct {
		name   string
		in     string // in place of <cputune>, <numatune>, <memoryBacking>, <metadata>
		host   *topology.Host
		want   result
		remark string // in the remarks; empty for none
	}{
		{"pins alone name the cell", tune("8", "9"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, ""},
		{"pins without a host", tune("8", "9"), nil, result{Dedicated: "0-1", Host: -1, Policy: "dedicated"}, "cannot be known"},
		{"pins of two cells", tune("8", "2"), twoCells(t), result{Dedicated: "0-1", Host: -1, Policy: "dedicated"}, "its CPUs 2,8 are in no single cell"},
		{"a wide pin is affinity", tune("8", "8-11"), twoCells(t), result{Dedicated: "0", Shared: "1", Host: 1, Policy: "mixed"}, "vCPUs may run on CPUs 9-11, which are neither shared"},
		{"I/O threads elsewhere", tune("8", "9", "<iothreadpin iothread='1' cpuset='0,8,10'/>"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, "I/O threads may run on CPUs 10,"},
		{"I/O threads with the emulator", tune("8", "9", "<emulatorpin cpuset='10'/><iothreadpin iothread='1' cpuset='10'/>"), twoCells(t),
			result{Dedicated: "0-1", Host: 1, Policy: "dedicated", Threads: "isolate", Emulator: "10"}, ""},
		{"memory nodes by control group", "<numatune><memory mode='restrictive' nodeset='1'/></numatune>", twoCells(t), result{Shared: "0-1", Host: 1, Policy: "shared"}, ""},
		{"no pins, and memory on a cell that is not there", "<numatune><memory nodeset='7'/></numatune>", twoCells(t), result{Shared: "0-1", Host: 7, Policy: "shared"}, "does not have"},
		{"idle siblings less the emulator's", "<metadata><b:instance xmlns:b='urn:berth:domain:1' name='a'><b:flavor name='f'><b:extra_spec key='hw:cpu_thread_policy' value='isolate'/>" +
			"<b:extra_spec key='hw:emulator_threads_policy' value='isolate'/></b:flavor></b:instance></metadata>" + tune("8", "9", "<emulatorpin cpuset='24'/>"), twoCells(t),
			result{Dedicated: "0-1", Host: 1, Policy: "dedicated", Threads: "isolate", Emulator: "24", Idle: "25"}, ""},
		{"a shared CPU is nobody's", tune("8", "0"), twoCells(t), result{Dedicated: "0", Shared: "1", Host: 1, Policy: "mixed"}, ""},
		{"one CPU twice", tune("8", "8"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, "CPU 8 has the vCPUs [0 1]"},
		{"memory beside the pins", tune("8", "9", "</cputune><numatune><memory mode='strict' nodeset='0'/></numatune><cputune>"), twoCells(t),
			result{Dedicated: "0-1", Host: 0, Policy: "dedicated"}, "its memory is on host cell 0, its CPUs 8-9 are not"},
		{"memory on two cells", tune("8", "9", "</cputune><numatune><memory nodeset='0-1'/></numatune><cputune>"), twoCells(t),
			result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, "counted on 1, where its CPUs are"},
		{"memory alone", "<numatune><memory mode='strict' nodeset='0-1'/></numatune>", twoCells(t), result{Shared: "0-1", Host: 0, Policy: "shared"}, "counted on 0"},
		{"memory on a cell that is not there", tune("8", "9", "</cputune><numatune><memory nodeset='7'/></numatune><cputune>"), twoCells(t),
			result{Dedicated: "0-1", Host: 7, Policy: "dedicated"}, "does not have"},
		{"the host's only cell and huge page", "<memoryBacking><hugepages/></memoryBacking>", one, result{Shared: "0-1", Host: 0, Pages: topology.PageSize2M, Policy: "shared"}, ""},
		{"huge pages of unknown size", "<memoryBacking><hugepages/></memoryBacking>", nil, result{Shared: "0-1", Host: -1, Pages: topology.PageSize2M, Policy: "shared"}, "counted as 2MiB"},
		{"emulator with the vCPUs", tune("8", "9", "<emulatorpin cpuset='8-9'/>"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, ""},
		{"emulator by itself", tune("8", "9", "<emulatorpin cpuset='10'/>"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated", Threads: "isolate", Emulator: "10"}, ""},
		{"emulator on shared CPUs", tune("8", "9", "<emulatorpin cpuset='0'/>"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated", Threads: "share"}, ""},
		{"emulator on many CPUs", tune("8", "9", "<emulatorpin cpuset='9-11'/>"), twoCells(t), result{Dedicated: "0-1", Host: 1, Policy: "dedicated"}, "emulator threads may run on CPUs 10-11"},
		{"realtime on shared CPUs", tune("8", "0", "<vcpusched vcpus='0-1' scheduler='rr' priority='1'/>"), twoCells(t), result{Dedicated: "0", Shared: "1", Host: 1, Policy: "mixed"}, "vCPUs 1 run with realtime"},
		{"idle siblings", "<metadata><b:instance xmlns:b='urn:berth:domain:1' name='a'><b:flavor name='f'><b:extra_spec key='hw:cpu_thread_policy' value='isolate'/>" +
			"<b:extra_spec key='hw:emulator_threads_policy' value='isolate'/></b:flavor></b:instance></metadata>" + tune("8", "9", "<emulatorpin cpuset='10-11'/>"), twoCells(t),
			result{Dedicated: "0-1", Host: 1, Policy: "dedicated", Threads: "isolate", Emulator: "10-11", Idle: "24-25"}, ""},
		{"garbage", tune("8", "x"), twoCells(t), result{Dedicated: "0", Shared: "1", Host: 1, Policy: "mixed"}, "<vcpupin>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := parsed(t, "<domain><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>64</memory><vcpu>2</vcpu>"+tt.in+"</domain>")
			topo, a, remarks := d.Assignment(tt.host, cpus(t, "0-1"))
			if topo == nil || len(topo.Cells) != 1 || len(a.Cells) != 1 {
				t.Fatalf("%+v, %+v", topo, a)
			}
			c, g := topo.Cells[0], a.Cells[0]
			got := result{c.DedicatedVCPUs.String(), c.SharedVCPUs.String(), g.Emulator.String(), g.Idle.String(), g.HostCell, g.PageSize, c.CPUPolicy, topo.Emulator}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if all := strings.Join(remarks, "\n"); !strings.Contains(all, tt.remark) || tt.remark == "" && all != "" {
				t.Errorf("remarks %q, want %q", remarks, tt.remark)
			}
		})
	}
}

// A pin of all threads is one of each vCPU that has none of its own, but where
// libvirt asks numad and leaves it unread.
func TestAssignment_PinOfAllThreads(t *testing.T) {
	for _, tt := range []struct {
		vcpu   string // element, with what follows
		pins   string // vCPU:CPU
		remark string // of all
	}{
		{"<vcpu cpuset='9'>1</vcpu>", "0:9", ""},
		{"<vcpu cpuset='0'>1</vcpu>", "", ""},
		{"<vcpu cpuset='9' placement='auto'>1</vcpu>", "", ""},
		{"<vcpu cpuset='9'>2</vcpu><cputune><vcpupin vcpu='1' cpuset='10'/></cputune>", "0:9 1:10", ""},
		{"<vcpu cpuset='0-3'>2</vcpu>", "", "vCPUs may run on CPUs 2-3, which are neither shared nor theirs alone; they hold none of them"},
	} {
		d := parsed(t, "<domain><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>64</memory>"+tt.vcpu+"</domain>")
		_, a, remarks := d.Assignment(twoCells(t), cpus(t, "0-1"))
		var pins []string
		for _, c := range a.Cells {
			for _, p := range c.Pins {
				pins = append(pins, fmt.Sprintf("%d:%d", p.VCPU, p.CPU))
			}
		}
		if got := strings.Join(pins, " "); got != tt.pins || strings.Join(remarks, "; ") != tt.remark {
			t.Errorf("%s: pins %q, remarks %q", tt.vcpu, got, remarks)
		}
	}
}

func TestCurrentMemory_IsWhatABalloonLeaves(t *testing.T) {
	const balloon = "<devices><memballoon model='virtio'/></devices>"
	for in, want := range map[string]int64{
		"<currentMemory>513</currentMemory>" + balloon:                                                                 1, // rounded up
		"<currentMemory unit='MiB'>32</currentMemory>" + balloon:                                                       32,
		"<currentMemory unit='MiB'>65</currentMemory>" + balloon:                                                       64,
		"<currentMemory unit='x'>1</currentMemory>" + balloon:                                                          64,
		"<currentMemory unit='MiB'>32</currentMemory>":                                                                 64,
		"<currentMemory unit='MiB'>32</currentMemory><devices><memballoon model='none'/></devices>":                    64,
		"<currentMemory unit='MiB'>32</currentMemory><devices><memballoon model='virtio' autodeflate='on'/></devices>": 64,
		"<currentMemory unit='MiB'>32</currentMemory><devices><memballoon autodeflate='off'/></devices>":               32,
		balloon: 64,
	} {
		d := parsed(t, "<domain><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>64</memory>"+in+"</domain>")
		if got := d.CurrentMemoryMB(); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}

// What makes no sense is named, and counts for nothing else.
func TestPinning_OddLists(t *testing.T) {
	const start = "<domain><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>64</memory><vcpu current='2'>3</vcpu>"
	p, err := parsed(t, start+"<vcpus><vcpu id='0'/><vcpu id='2'/><vcpu id='7'/></vcpus><cpu><numa><cell cpus='1' memory='1024'/><cell id='1' cpus='2' memory='1024'/></numa></cpu>"+
		"<devices><hostdev mode='capabilities' type='pci'><source><address bus='1'/></source></hostdev>"+
		"<interface type='hostdev'><source><address type='usb' bus='1' device='2'/></source></interface></devices></domain>").Pinning()
	if err != nil || p.Online.String() != "0,2" || p.Cells[0].VCPUs.String() != "0-1" || len(p.Devices) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, in := range []string{
		"<cpu><numa><cell id='1' memory='1024'/><cell id='1' memory='1024'/></numa></cpu>",
		"<cputune><emulatorpin cpuset='0-9" + strings.Repeat(",^1", 300) + "'/></cputune>",
		"<cpu><numa>" + strings.Repeat("<cell memory='1024'/>", 2000) + "</numa></cpu>",
		"<devices><hostdev mode='subsystem' type='mdev'><source><address/></source></hostdev></devices>",
	} {
		if p, err := parsed(t, start+in+"</domain>").Pinning(); err == nil || len(p.Cells) > 1024 || len(p.Mdevs) > 0 {
			t.Errorf("%.90s…: %d cells, %v", in, len(p.Cells), err)
		}
	}
}

// What Build writes for a claim, adoption reads from the document.
func TestAssignment_ReadsWhatBuildWrote(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		s, _ := guest(r)
		text, err := Build(s)
		if err != nil {
			t.Fatal(err)
		}
		topo, got, _ := parsed(t, text).Assignment(nil, s.SharedCPUs)
		if (topo == nil) != (s.Topology == nil) || len(got.Devices) != len(s.Assignment.Devices) {
			t.Fatalf("seed %d: topology %+v, devices %+v of\n%s", seed, topo, got.Devices, text)
		}
		for i, d := range got.Devices {
			if d.Address != s.Assignment.Devices[i].Address || !d.Managed {
				t.Fatalf("seed %d: device %+v of\n%s", seed, d, text)
			}
		}
		want := s.Assignment.Clone()
		for i := range want.Cells {
			want.Cells[i].PageSize = s.pages(want.Cells[i].PageSize)
		}
		if diff := cmp.Diff(want.Cells, got.Cells); diff != "" {
			t.Fatalf("seed %d: cells (-want +got):\n%s\n%s", seed, diff, text)
		}
		if topo != nil && !topo.Realtime.SameAs(s.Topology.Realtime) {
			t.Fatalf("seed %d: realtime vCPUs %q, want %q", seed, topo.Realtime, s.Topology.Realtime)
		}
	}
}
