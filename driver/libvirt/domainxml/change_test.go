package domainxml

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// changeTo is the change of a guest that was built from one specification to another.
func changeTo(from, to Spec) Change {
	return Change{
		Binding: Binding{Place: to.Place}, VCPUs: to.Flavor.VCPUs, MemoryMB: to.Flavor.MemoryMB,
		LockedMemory: to.LockedMemory, WasLocked: from.LockedMemory, Cores: to.Cores, Had: from.Assignment,
	}
}

// unordered are the lines of a document, sorted and without their indentation: what
// is in it.
func unordered(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(line, "></cpu>", "/>")
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// Whatever a guest was, it becomes what a new one of that flavor would be: from
// floating to pinned and back, from one cell to two, with and without huge pages,
// realtime vCPUs, locked memory and devices.
func TestChange_MakesWhatBuildWouldHaveMade(t *testing.T) {
	specs := placedSpecs(t)
	specs["bare"] = spec(Place{}, 8, 4096)
	one := spec(Place{
		Topology: &topology.GuestTopology{Cells: []topology.GuestCell{{DedicatedVCPUs: cpus(t, "0-2"), MemoryMB: 512}}},
		Assignment: topology.Assignment{
			Cells:   []topology.AssignedCell{{HostCell: 1, MemoryMB: 512, Pins: []topology.Pin{{VCPU: 0, CPU: 9}, {VCPU: 1, CPU: 10}, {VCPU: 2, CPU: 11}}}},
			Devices: []topology.AssignedDevice{{Request: "gpu", Address: pci(t, "0000:1b:00.0")}, {Request: "gpu", Address: pci(t, "0000:1c:00.0")}},
		},
		SharedCPUs: cpus(t, "0-1"),
	}, 3, 512)
	specs["one cell"] = one
	for _, from := range slices.Sorted(maps.Keys(specs)) {
		for _, to := range slices.Sorted(maps.Keys(specs)) {
			t.Run(from+" to "+to, func(t *testing.T) {
				a, b := specs[from], specs[to]
				a.IOThreads, b.IOThreads = 0, 0 // those of a guest stay
				// The n-th device of a request keeps its <managed>, whichever it is.
				for _, s := range []*Spec{&a, &b} {
					s.Assignment.Devices = slices.Clone(s.Assignment.Devices)
					for i := range s.Assignment.Devices {
						s.Assignment.Devices[i].Managed = true
					}
				}
				had, err := Build(a)
				if err != nil {
					t.Fatal(err)
				}
				want, err := Build(b)
				if err != nil {
					t.Fatal(err)
				}
				d := parsed(t, had)
				if err := d.Change(changeTo(a, b)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(unordered(want), unordered(d.String())); diff != "" {
					t.Errorf("changed (-want +got):\n%s\n%s", diff, d)
				}
				if d.VCPUs() != b.Flavor.VCPUs || d.MemoryMB() != b.Flavor.MemoryMB {
					t.Errorf("the document says that it has %d vCPUs and %d MiB", d.VCPUs(), d.MemoryMB())
				}
				again := parsed(t, d.String())
				if err := again.Change(changeTo(b, b)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(d.String(), again.String()); diff != "" {
					t.Errorf("changed to what it is (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// without takes a part of a text out.
func without(text, from, to string) string {
	a := strings.Index(text, from)
	return text[:a] + text[a+strings.Index(text[a:], to):]
}

// What a change is none of the business of stays byte for byte.
func TestChange_LeavesTheRest(t *testing.T) {
	text := strings.Replace(persistent(fixture(t, "placed.xml")), "cpuset='0-1,16-17'", "cpuset='0-7'", -1)
	text = without(without(text, "    <memory model='dimm'>", "  </devices>"), "    <hostdev mode='subsystem' type='mdev'", "  </devices>")
	d := parsed(t, text)
	to := elsewhere(t)
	to.Topology = &topology.GuestTopology{Cells: []topology.GuestCell{{SharedVCPUs: cpus(t, "0-1"), MemoryMB: 2048}}}
	to.Assignment = topology.Assignment{
		Cells:   []topology.AssignedCell{{HostCell: 1, MemoryMB: 2048, Shared: 2}},
		Devices: []topology.AssignedDevice{{Request: "nic", Address: pci(t, "0000:3b:02.7"), Managed: true}, {Request: "fpga", Address: pci(t, "0000:81:00.0")}},
	}
	if err := d.Change(Change{Binding: Binding{Place: to}, VCPUs: 2, MemoryMB: 2048, Had: dedicated(t).Assignment}); err != nil {
		t.Fatal(err)
	}
	golden(t, "placed-changed.xml", d.String())
}

func TestChange_DividesVCPUsAnew(t *testing.T) {
	for _, tt := range []struct {
		had   string
		vcpus int
		want  string
	}{
		{"sockets='1' cores='4' threads='1'", 8, "sockets='1' cores='8' threads='1'"},
		{"sockets='4' cores='1' threads='1'", 8, "sockets='8' cores='1' threads='1'"},
		{"sockets='2' cores='2' threads='1'", 3, "sockets='3' cores='1' threads='1'"},
		{"sockets='1' cores='2' threads='2'", 6, "sockets='1' cores='3' threads='2'"},
		{"sockets='1' cores='2' threads='2'", 3, "sockets='1' cores='3' threads='1'"},
		{"sockets='1' dies='2' cores='2' threads='1'", 8, "sockets='1' dies='2' cores='4' threads='1'"},
		{"sockets='1' dies='2' cores='2' threads='1'", 5, "sockets='1' cores='5' threads='1'"},
	} {
		text := strings.Replace(fixture(t, "bare.xml"), "</domain>", "<vcpu current='1'>4</vcpu><vcpus><vcpu id='0' enabled='yes'/></vcpus><cpu><topology "+tt.had+"/></cpu></domain>", 1)
		d := parsed(t, text)
		if err := d.Change(Change{VCPUs: tt.vcpus, MemoryMB: d.MemoryMB()}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(d.String(), "<topology "+tt.want+"/>") || strings.Contains(d.String(), "current") || strings.Contains(d.String(), "vcpus>") {
			t.Errorf("%s with %d vCPUs: want %s:\n%s", tt.had, tt.vcpus, tt.want, d)
		}
	}
}

func TestChange_Refuses(t *testing.T) {
	text := fixture(t, "placed.xml")
	at := there(t).Place
	stays := Change{Binding: Binding{Place: at}, VCPUs: 4, MemoryMB: 3072, Had: dedicated(t).Assignment}
	for _, tt := range []struct {
		name string
		with func(c *Change)
		want []string
	}{
		{"memory modules", func(c *Change) { c.VCPUs = 8 }, []string{"1 memory modules"}},
		{"mediated devices", func(*Change) {}, []string{"nothing stands for mediated device " + mdevHere}},
		{"a device that nobody was given", func(c *Change) { c.Had.Devices = nil }, []string{"nothing stands for PCI device 0000:3b:02.1", "nothing stands for mediated device"}},
		{"nothing", func(c *Change) { c.VCPUs, c.MemoryMB = 0, 0 }, []string{"0 vCPUs and 0 MiB"}},
		{"a disk that is not there", func(c *Change) {
			c.Assignment.Mdevs, c.Files = []string{mdevHere}, map[string]string{"vdx": "raw"}
		}, []string{"[vdx]"}},
	} {
		c := stays
		tt.with(&c)
		text := text
		if tt.name != "memory modules" {
			text = without(text, "    <memory model='dimm'>", "  </devices>")
		}
		d := parsed(t, text)
		err := d.Change(c)
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tt.name, err, want)
			}
		}
		if d.String() != text {
			t.Errorf("%s: the document was changed all the same", tt.name)
		}
	}
}

// A file that was made anew has no chain below it, whatever the document said.
func TestChange_NewFilesEndTheirChains(t *testing.T) {
	disk := "<disk type='file' device='disk'><source file='/img/root'/><backingStore type='file'><format type='raw'/><source file='/img/base'/></backingStore><target dev='vda'/></disk>"
	d := parsed(t, strings.Replace(fixture(t, "bare.xml"), "</domain>", "<devices>"+disk+"</devices></domain>", 1))
	if err := d.Change(Change{VCPUs: d.VCPUs(), MemoryMB: d.MemoryMB(), Files: map[string]string{"vda": "qcow2"}}); err != nil {
		t.Fatal(err)
	}
	back := parsed(t, d.String()).Disks()
	if got := back[len(back)-1]; got.Format != "qcow2" || len(got.Backing) > 0 || got.Source != "/img/root" {
		t.Errorf("disk: %+v\n%s", got, d)
	}
}

// The properties of an image stay in the metadata until another image comes.
func TestMetadata_KeepsImageProperties(t *testing.T) {
	d := parsed(t, fixture(t, "rich.xml"))
	meta, _, err := d.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	without := d.String()
	for _, tt := range []struct{ write, want map[string]string }{
		{map[string]string{"hw_numa_nodes": "2", "os_type": "a 'b' & c"}, map[string]string{"hw_numa_nodes": "2", "os_type": "a 'b' & c"}},
		{nil, map[string]string{"hw_numa_nodes": "2", "os_type": "a 'b' & c"}},
		{map[string]string{"hw_numa_nodes": "1"}, map[string]string{"hw_numa_nodes": "1"}},
		{map[string]string{}, nil},
	} {
		meta.Image = tt.write
		d.SetMetadata(meta)
		got, _, err := parsed(t, d.String()).Metadata()
		if diff := cmp.Diff(tt.want, got.Image); diff != "" || err != nil {
			t.Errorf("after writing %v: %v (-want +got):\n%s", tt.write, err, diff)
		}
	}
	if diff := cmp.Diff(without, d.String()); diff != "" {
		t.Errorf("without properties again (-want +got):\n%s", diff)
	}
}
