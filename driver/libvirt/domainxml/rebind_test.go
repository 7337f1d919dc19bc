package domainxml

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// elsewhere is the place of the guest `dedicated` on another host.
func elsewhere(t testing.TB) Place {
	p := dedicated(t)
	p.Assignment = topology.Assignment{
		Cells: []topology.AssignedCell{
			{HostCell: 3, MemoryMB: 1024, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: 40}, {VCPU: 1, CPU: 41}}, Emulator: cpus(t, "44")},
			{HostCell: 2, MemoryMB: 2048, PageSize: topology.PageSize1G, Pins: []topology.Pin{{VCPU: 2, CPU: 30}, {VCPU: 3, CPU: 31}}},
		},
		Devices: []topology.AssignedDevice{
			{Request: "gpu", Address: pci(t, "0000:af:00.0")},
			{Request: "nic", Address: pci(t, "0000:3b:02.7"), Managed: true},
		},
	}
	p.SharedCPUs = cpus(t, "0-7")
	return p
}

const (
	mdevHere  = "4b20d080-1b54-4048-85b3-a6a62d165c01"
	mdevThere = "4b20d080-1b54-4048-85b3-a6a62d165c02"
)

func there(t testing.TB) Binding {
	return Binding{
		Place: elsewhere(t), Devices: MapDevices(dedicated(t).Assignment, elsewhere(t).Assignment),
		Mdevs: map[string]string{mdevHere: mdevThere}, Listen: "198.51.100.9",
	}
}

func here(t testing.TB) Binding {
	return Binding{
		Place: dedicated(t), Devices: MapDevices(dedicated(t).Assignment, dedicated(t).Assignment),
		Mdevs: map[string]string{mdevHere: mdevHere}, Listen: "192.0.2.1",
	}
}

// persistent is the inactive form of a live document: no id, no aliases.
func persistent(text string) string {
	var out []string
	for line := range strings.Lines(strings.Replace(text, " id='3'", "", 1)) {
		if !strings.Contains(line, "<alias ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// differences are the lines of two texts that differ, for texts of as many lines.
func differences(t testing.TB, a, b string) []string {
	t.Helper()
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	if len(as) != len(bs) {
		t.Fatalf("%d lines became %d:\n%s", len(as), len(bs), cmp.Diff(a, b))
	}
	var out []string
	for i := range as {
		if as[i] != bs[i] {
			out = append(out, strings.TrimSpace(bs[i]))
		}
	}
	return out
}

func TestRebind_RewritesWhatNamesTheHostAndNothingElse(t *testing.T) {
	want := []string{
		"<vcpupin vcpu='0' cpuset='40'/>", "<vcpupin vcpu='1' cpuset='41'/>", "<vcpupin vcpu='2' cpuset='30'/>", "<vcpupin vcpu='3' cpuset='31'/>",
		"<vcpupin vcpu='4' cpuset='0-7'/>", "<vcpupin vcpu='5' cpuset='0-7'/>",
		"<emulatorpin cpuset='44'/>", "<iothreadpin iothread='2' cpuset='44'/>", "<iothreadpin iothread='5' cpuset='44'/>",
		"<memory mode='strict' nodeset='2-3'/>", "<memnode cellid='0' mode='strict' nodeset='3'/>", "<memnode cellid='1' mode='strict' nodeset='2'/>",
		"<address type='pci' domain='0x0000' bus='0x3b' slot='0x02' function='0x7'/>",
		"<source mode='bind' host='198.51.100.9' service='4555'/>", "<source mode='bind' host='198.51.100.9' service='4555'/>",
		"<graphics type='vnc' port='5900' autoport='yes' listen='198.51.100.9'>", "<listen type='address' address='198.51.100.9'/>",
		"<address domain='0x0000' bus='0xaf' slot='0x00' function='0x0'/>",
		"<address uuid='" + mdevThere + "'/>", "<nodemask>2</nodemask>",
	}
	live := fixture(t, "placed.xml")
	for name, text := range map[string]string{"live": live, "persistent": persistent(live)} {
		d := parsed(t, text)
		if err := d.Rebind(there(t)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, differences(t, text, d.String())); diff != "" {
			t.Errorf("%s: changed lines (-want +got):\n%s", name, diff)
		}
		back := here(t)
		back.Devices, back.Mdevs = MapDevices(elsewhere(t).Assignment, dedicated(t).Assignment), map[string]string{mdevThere: mdevHere}
		if err := d.Rebind(back); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The uuid was in capitals.
		if diff := cmp.Diff(strings.ReplaceAll(text, strings.ToUpper(mdevHere), mdevHere), d.String()); diff != "" {
			t.Errorf("%s there and back (-want +got):\n%s", name, diff)
		}
	}
}

func TestRebind_ToTheSamePlaceIsTheSameText(t *testing.T) {
	text := fixture(t, "placed.xml")
	d := parsed(t, text)
	if err := d.Rebind(here(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, d.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, s := range placedSpecs(t) {
		d := parsed(t, fixture(t, name))
		if err := d.Rebind(Binding{Place: s.Place, Devices: MapDevices(s.Assignment, s.Assignment)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(fixture(t, name), d.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestRebind_AGuestThatFloatsLeavesItsPinsBehind(t *testing.T) {
	d := parsed(t, fixture(t, "unpinned.xml"))
	if err := d.Rebind(Binding{Place: Place{SharedCPUs: cpus(t, "0-1")}, Listen: "198.51.100.9"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "unpinned-moved.xml", d.String())
	if err := d.Rebind(Binding{}); err != nil { // to a host that restricts nobody
		t.Fatal(err)
	}
	if p, err := d.Pinning(); err != nil || !p.CPUSet.IsEmpty() || strings.Contains(d.String(), "cpuset") {
		t.Errorf("cpuset %q, %v:\n%s", p.CPUSet, err, d)
	}
}

func TestRebind_MakesTheElementsThatAreMissing(t *testing.T) {
	text := `<domain type='kvm'>
  <name>bare</name>
  <uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d14</uuid>
  <memory unit='MiB'>64</memory>
  <memoryBacking>
    <hugepages/>
  </memoryBacking>
  <vcpu placement='auto' current='1'>2</vcpu>
  <iothreads>1</iothreads>
  <numatune>
    <memory mode='strict' placement='auto'/>
  </numatune>
  <os>
    <type>hvm</type>
  </os>
  <cputune>
    <shares>7</shares>
    <quota>9000</quota>
  </cputune>
</domain>
`
	d := parsed(t, text)
	place := Place{
		Topology: &topology.GuestTopology{Cells: []topology.GuestCell{{DedicatedVCPUs: cpus(t, "0"), MemoryMB: 64}}, Realtime: cpus(t, "0")},
		Assignment: topology.Assignment{Cells: []topology.AssignedCell{
			{HostCell: 1, MemoryMB: 64, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: 5}}}}},
		SharedCPUs: cpus(t, "0-1"), RealtimePriority: 3,
	}
	if err := d.Rebind(Binding{Place: place}); err != nil {
		t.Fatal(err)
	}
	golden(t, "bare-placed.xml", d.String())
	once := d.String()
	if err := d.Rebind(Binding{Place: place}); err != nil || d.String() != once {
		t.Errorf("a second time: %v\n%s", err, cmp.Diff(once, d.String()))
	}
}

func TestRebind_KeepsTheModeOfTheMemory(t *testing.T) {
	text := strings.Replace(fixture(t, "build-mixed.xml"), "<memory mode='strict'", "<memory mode='restrictive'", 1)
	text = strings.ReplaceAll(text, "'0' mode='strict'", "'0' mode='restrictive'")
	d := parsed(t, text)
	b := Binding{Place: mixed(t)}
	b.Assignment.Cells[0].HostCell, b.Assignment.Cells[1].HostCell = 4, 5
	if err := d.Rebind(b); err != nil {
		t.Fatal(err)
	}
	p, err := d.Pinning()
	if err != nil || p.MemoryMode != "restrictive" || p.MemoryNodes.String() != "4-5" || p.Cells[0].Mode != "restrictive" || p.Cells[0].Nodes.String() != "4" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestRebind_ErrorsListEveryReasonAndChangeNothing(t *testing.T) {
	text := fixture(t, "placed.xml")
	for _, tt := range []struct {
		name string
		edit func(b *Binding)
		want []string
	}{
		{"other pages", func(b *Binding) {
			b.Assignment.Cells[0].PageSize, b.Assignment.Cells[1].PageSize = 0, topology.PageSize2M
		}, []string{"guest cell 0: runs on pages of 2MiB, its place has ordinary memory", "guest cell 1: runs on pages of 1GiB, its place has pages of 2MiB"}},
		{"no devices", func(b *Binding) { b.Devices, b.Mdevs = nil, nil }, []string{
			"<interface>: nothing stands for PCI device 0000:3b:02.1", "<hostdev>: nothing stands for PCI device 10000:af:00.0",
			"nothing stands for mediated device " + mdevHere}},
		{"one device twice", func(b *Binding) { b.Devices[pci(t, "10000:af:00.0")] = pci(t, "0000:3b:02.7") }, []string{"0000:3b:02.7 is given twice"}},
		{"a device of nobody", func(b *Binding) { b.Devices[pci(t, "10000:af:00.0")] = pci(t, "0000:99:00.0") }, []string{"0000:99:00.0 stands for 10000:af:00.0 and is not assigned"}},
		{"one cell", func(b *Binding) {
			b.Topology.Realtime = nil
			b.Topology.Cells, b.Assignment.Cells = b.Topology.Cells[:1], b.Assignment.Cells[:1]
		}, []string{"the guest has 2 cells, its place 1"}},
		{"other vCPUs", func(b *Binding) {
			b.Topology.Realtime = nil
			b.Topology.Cells[1].DedicatedVCPUs, b.Assignment.Cells[1].Pins = cpus(t, "2,4"), []topology.Pin{{VCPU: 2, CPU: 30}, {VCPU: 4, CPU: 31}}
		}, []string{`guest cell 1: vCPUs are "2-3,5", the place has vCPUs "2,4"`, "vCPUs 3 have no place"}},
		{"floating", func(b *Binding) { b.Topology, b.Assignment.Cells = nil, nil }, []string{"guest cell 0: runs on pages of 2MiB, its place has ordinary memory"}},
		{"a fault of the place", func(b *Binding) { b.Assignment.Cells[1].HostCell = -1 }, []string{"guest cell 1: no host cell"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, b := parsed(t, text), there(t)
			tt.edit(&b)
			err := d.Rebind(b)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if d.String() != text {
				t.Errorf("the document changed:\n%s", cmp.Diff(text, d.String()))
			}
		})
	}
	d := parsed(t, strings.Replace(text, "vcpupin vcpu='0' cpuset='8'", "vcpupin vcpu='x' cpuset='8-'", 1))
	if err := d.Rebind(there(t)); err == nil || !strings.Contains(err.Error(), "<vcpupin>") {
		t.Errorf("error %v, want one that names <vcpupin>", err)
	}
	d = parsed(t, strings.Replace(fixture(t, "unpinned.xml"), "<vcpu ", "<memoryBacking><hugepages/></memoryBacking><vcpu ", 1))
	if err := d.Rebind(Binding{}); err == nil || !strings.Contains(err.Error(), "runs on huge pages") {
		t.Errorf("error %v, want one that names huge pages", err)
	}
}

func TestRebind_WhatIsTheGuestsStaysWhenItFloats(t *testing.T) {
	text := strings.Replace(fixture(t, "placed.xml"), "<hugepages>", "<later>", 1)
	text = strings.Replace(text, "</hugepages>", "</later>", 1)
	d, b := parsed(t, text), there(t)
	b.Topology, b.Assignment.Cells = nil, nil
	if err := d.Rebind(b); err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{"<shares>4096</shares>", "<vcpusched vcpus='3' scheduler='fifo' priority='1'/>", "<iothreadsched ", "<cell id='1'", "<pagesize "} {
		if !strings.Contains(d.String(), kept) {
			t.Errorf("%s is gone", kept)
		}
	}
	for _, gone := range []string{"pin ", "<numatune", "<nodemask"} {
		if strings.Contains(d.String(), gone) {
			t.Errorf("%s is left:\n%s", gone, d)
		}
	}
	if p, err := d.Pinning(); err != nil || p.CPUSet.String() != "0-7" {
		t.Errorf("cpuset %q, %v", p.CPUSet, err)
	}
}

func TestRebind_RealtimeIsTheGuestsUnlessThePlaceSaysOtherwise(t *testing.T) {
	sched := func(edit func(p *Place)) (out []string) {
		text := strings.Replace(fixture(t, "placed.xml"), "<iothreadsched", "<vcpusched vcpus='0' scheduler='batch'/>\n    <iothreadsched", 1)
		d, b := parsed(t, strings.ReplaceAll(text, "priority='1'", "priority='7'")), here(t)
		edit(&b.Place)
		if err := d.Rebind(b); err != nil {
			t.Fatal(err)
		}
		for _, e := range d.root.FindElements("./cputune/vcpusched") {
			out = append(out, e.SelectAttrValue("vcpus", "")+" "+e.SelectAttrValue("scheduler", "")+" "+e.SelectAttrValue("priority", ""))
		}
		return out
	}
	for _, tt := range []struct {
		name string
		edit func(p *Place)
		want []string
	}{
		{"the same", func(*Place) {}, []string{"1 fifo 7", "2 fifo 7", "3 fifo 7", "0 batch "}},
		{"another priority", func(p *Place) { p.RealtimePriority = 2 }, []string{"1 fifo 2", "2 fifo 2", "3 fifo 2", "0 batch "}},
		{"other vCPUs", func(p *Place) { p.Topology.Realtime = topology.NewCPUSet(2, 3) }, []string{"0 batch ", "2-3 fifo 1"}},
		{"none", func(p *Place) { p.Topology.Realtime = nil }, []string{"0 batch "}},
	} {
		if diff := cmp.Diff(tt.want, sched(tt.edit)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRebind_PinsIOThreadsOfEveryNumber(t *testing.T) {
	for _, tt := range []struct{ ids, want string }{{"<iothread id='2'/><iothread id='5'/>", "2 5"}, {"<iothread id='2'/>", "2 1"}, {"", "1 2"}} {
		text := strings.NewReplacer("<iothread id='2'/>", "", "<iothread id='5'/>", "", "<iothreadids>", "<iothreadids>"+tt.ids).Replace(fixture(t, "placed.xml"))
		d := parsed(t, text)
		if err := d.Rebind(there(t)); err != nil {
			t.Fatal(err)
		}
		p, err := d.Pinning()
		if err != nil || len(p.IOThreads) != 2 {
			t.Errorf("%s: pins %v, %v", tt.ids, p.IOThreads, err)
		}
		for _, id := range d.ioThreads() {
			if p.IOThreads[id].String() != "44" || !strings.Contains(tt.want, strconv.Itoa(id)) {
				t.Errorf("%s: thread %d on %q, want threads %s on 44", tt.ids, id, p.IOThreads[id], tt.want)
			}
		}
	}
}

func TestRebind_SwapsDevicesOfOneHost(t *testing.T) {
	d := parsed(t, fixture(t, "placed.xml"))
	b := here(t)
	nic, gpu := pci(t, "0000:3b:02.1"), pci(t, "10000:af:00.0")
	b.Devices = map[topology.PCIAddress]topology.PCIAddress{nic: gpu, gpu: nic}
	if err := d.Rebind(b); err != nil {
		t.Fatal(err)
	}
	p, err := d.Pinning()
	if err != nil || len(p.Devices) != 2 || p.Devices[0].Element != "hostdev" || p.Devices[0].Address != nic || p.Devices[1].Address != gpu {
		t.Errorf("%+v, %v", p.Devices, err)
	}
}

func TestRebind_UnknownElementsSurvive(t *testing.T) {
	const odd = "<odd:thing xmlns:odd='urn:odd' a='1'><!-- kept --><odd:in>x &amp; y</odd:in></odd:thing>"
	text := fixture(t, "placed.xml")
	for _, after := range []string{"<cputune>", "<numatune>", "<memoryBacking>", "<hugepages>", "<devices>", "</metadata>", "<driver name='vfio'/>"} {
		text = strings.Replace(text, after, after+odd, 1)
	}
	text = strings.Replace(text, "<vcpupin vcpu='0'", "<vcpupin odd='1' vcpu='0'", 1)
	d := parsed(t, text)
	if err := d.Rebind(there(t)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(d.String(), odd); got != 7 || !strings.Contains(d.String(), "odd='1' vcpu='0' cpuset='40'") {
		t.Errorf("%d of 7 unknown elements are left:\n%s", got, d)
	}
}

// guest is a random guest with its disks and I/O threads; on gives it a place on
// some host.
func guest(r *rand.Rand) (Spec, func() Place) {
	t := &topology.GuestTopology{}
	vcpus, n := 0, 1+r.IntN(3)
	for range n {
		c := topology.GuestCell{MemoryMB: int64(1+r.IntN(4)) * 64}
		for range 1 + r.IntN(3) {
			set := &c.DedicatedVCPUs
			if r.IntN(3) == 0 {
				set = &c.SharedVCPUs
			}
			*set = set.Union(topology.NewCPUSet(vcpus))
			vcpus++
		}
		for _, v := range c.DedicatedVCPUs {
			if r.IntN(4) == 0 {
				t.Realtime = t.Realtime.Union(topology.NewCPUSet(v))
			}
		}
		t.Cells = append(t.Cells, c)
	}
	t.Emulator = []topology.EmulatorPolicy{topology.EmulatorNone, topology.EmulatorShare, topology.EmulatorIsolate}[r.IntN(3)]
	pages := make([]topology.PageSize, n)
	memory := int64(0)
	for i, c := range t.Cells {
		pages[i] = []topology.PageSize{0, topology.PageSize4K, topology.PageSize2M, topology.PageSize1G}[r.IntN(4)]
		memory += c.MemoryMB
	}
	requests := r.IntN(4)
	if r.IntN(5) == 0 {
		t = nil
	}
	on := func() Place {
		p := Place{Topology: t.Clone(), SharedCPUs: topology.NewCPUSet(0, 1+r.IntN(9)), SharedByCell: map[topology.CellID]topology.CPUSet{}}
		for i := range requests {
			p.Assignment.Devices = append(p.Assignment.Devices, topology.AssignedDevice{
				Request: string(rune('a' + i%2)), Address: topology.PCIAddress{Bus: uint8(r.IntN(256)), Function: uint8(i)}, Managed: true})
		}
		if t == nil {
			return p
		}
		free := r.Perm(200)
		take := func() int { cpu := free[0]; free = free[1:]; return cpu + 16 }
		for i, cell := range r.Perm(8)[:n] {
			c := topology.AssignedCell{HostCell: topology.CellID(cell), MemoryMB: t.Cells[i].MemoryMB, PageSize: pages[i], Shared: t.Cells[i].SharedVCPUs.Len()}
			for _, v := range t.Cells[i].DedicatedVCPUs {
				c.Pins = append(c.Pins, topology.Pin{VCPU: v, CPU: take()})
			}
			if i == 0 && t.Emulator == topology.EmulatorIsolate {
				c.Emulator = topology.NewCPUSet(take())
			}
			p.Assignment.Cells = append(p.Assignment.Cells, c)
			p.SharedByCell[c.HostCell] = p.SharedCPUs[:1]
		}
		return p
	}
	s := spec(on(), vcpus, memory)
	s.IOThreads = r.IntN(3)
	return s, on
}

// A document rebound to a place is the document that Build writes there; back
// again it is the first one; and adoption reads from it what was written.
func TestRebind_ThereAndBackOfRandomGuests(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		s, on := guest(r)
		first, err := Build(s)
		if err != nil {
			t.Fatal(err)
		}
		away := on()
		d := parsed(t, first)
		if err := d.Rebind(Binding{Place: away, Devices: MapDevices(s.Assignment, away.Assignment)}); err != nil {
			t.Fatal(err)
		}
		moved := s
		moved.Place = away
		if want, err := Build(moved); err != nil || d.String() != want {
			t.Fatalf("seed %d, there, %v (-built +rebound):\n%s", seed, err, cmp.Diff(want, d.String()))
		}
		if err := d.Rebind(Binding{Place: s.Place, Devices: MapDevices(away.Assignment, s.Assignment)}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, d.String()); diff != "" {
			t.Fatalf("seed %d, there and back (-want +got):\n%s", seed, diff)
		}
	}
}

// Rebind never panics; what it gives parses, with everything that it has no
// business with still there; and doing it again changes nothing.
func FuzzRebind(f *testing.F) {
	for _, name := range []string{"placed.xml", "unpinned.xml", "build-mixed.xml", "build-floating.xml", "rich.xml"} {
		f.Add(fixture(f, name))
	}
	places := []Binding{there(f), {Place: mixed(f)}, {Place: Place{SharedCPUs: cpus(f, "0-3")}, Listen: "::1"}, {}}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		d.Assignment(nil, nil)
		for _, b := range places {
			c := d.Clone()
			if err := c.Rebind(b); err != nil {
				if c.String() != text {
					t.Fatalf("%v, and the document changed", err)
				}
				continue
			}
			once := c.String()
			again, err := Parse(once)
			if err != nil {
				t.Fatalf("after Rebind: %v\n%s", err, once)
			}
			if got, want := len(again.root.FindElements("./devices/*")), len(d.root.FindElements("./devices/*")); got != want {
				t.Fatalf("%d devices, were %d", got, want)
			}
			b.Devices = nil // the names are now the new ones
			if len(again.pciSources()) > 0 || len(again.mdevSources()) > 0 {
				continue
			}
			if err := again.Rebind(b); err != nil || again.String() != once {
				t.Fatalf("a second time: %v\n%s", err, cmp.Diff(once, again.String()))
			}
		}
	})
}
