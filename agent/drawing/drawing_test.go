package drawing_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/agent/drawing"
	"berth/topology"
)

var update = flag.Bool("update", false, "write the golden files anew")

// hardware is a host of hwdiscovery's tests.
func hardware(t *testing.T, name string) *topology.Host {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "hwdiscovery", "testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var h topology.Host
	if err := json.Unmarshal(data, &h); err != nil {
		t.Fatal(err)
	}
	return &h
}

func address(t *testing.T, text string) topology.PCIAddress {
	t.Helper()
	a, err := topology.ParsePCIAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// full is a host with everything that can be drawn: pinned guests, one that isolates its
// emulator and its siblings, one that floats, one on its way, a CPU and a device promised twice.
func full(t *testing.T) drawing.Input {
	set := topology.NewCPUSet
	pool := func(size topology.PageSize, total, reserved, used int64) drawing.Pool {
		return drawing.Pool{Size: size, Total: total, Reserved: reserved, Used: used}
	}
	cell := func(id topology.CellID, mb int64, size topology.PageSize, pins ...topology.Pin) topology.AssignedCell {
		return topology.AssignedCell{HostCell: id, MemoryMB: mb, PageSize: size, Pins: pins}
	}
	vf := func(text string) topology.AssignedDevice {
		return topology.AssignedDevice{Address: address(t, text), Vendor: "8086", Product: "154c", Type: topology.PCITypeVF}
	}
	device := func(text, product string, kind topology.PCIType, unfit string) drawing.Device {
		return drawing.Device{Address: address(t, text), Product: product, Type: kind, Unfit: unfit}
	}
	isolated := cell(1, 2048, topology.PageSize1G, topology.Pin{VCPU: 0, CPU: 2})
	isolated.Emulator, isolated.Idle = set(3), set(6)
	return drawing.Input{
		Name: "host-a", Hardware: hardware(t, "sriov"),
		Rooms: []drawing.Room{
			{Cell: 0, Dedicated: set(1, 5), Shared: set(0), Pools: []drawing.Pool{pool(4<<10, 3932160, 131072, 262144), pool(2<<20, 512, 64, 300)}},
			{Cell: 1, Dedicated: set(2, 3, 6), Shared: set(7), Pools: []drawing.Pool{pool(4<<10, 3538944, 0, 0), pool(2<<20, 256, 0, 0), pool(1<<30, 2, 0, 3)}},
		},
		Devices: []drawing.Device{
			device("0000:3b:02.0", "8086:154c", topology.PCITypeVF, ""), device("0000:3b:02.1", "8086:154c", topology.PCITypeVF, ""),
			device("0000:af:00.0", "10de:1eb8", topology.PCITypeFunction, "it is not in an IOMMU group"),
		},
		Claims: []drawing.Claim{
			{Instance: "u-db", Name: "db-1", Stands: "lives here", Resources: topology.Resources{PCPUs: 2, MemoryMB: 256, DiskGB: 10},
				Assignment: topology.Assignment{Cells: []topology.AssignedCell{cell(0, 256, topology.PageSize2M, topology.Pin{VCPU: 0, CPU: 1}, topology.Pin{VCPU: 1, CPU: 5})},
					Devices: []topology.AssignedDevice{vf("0000:3b:02.0")}}},
			{Instance: "u-rt", Name: "realtime", Stands: "lives here", Resources: topology.Resources{PCPUs: 2, MemoryMB: 2048}, Assignment: topology.Assignment{Cells: []topology.AssignedCell{isolated}}},
			{Instance: "u-rt", Name: "realtime", Stands: "kept for the way back, migration 3f2c0a11", Resources: topology.Resources{PCPUs: 1, MemoryMB: 1024},
				Assignment: topology.Assignment{Cells: []topology.AssignedCell{cell(1, 1024, topology.PageSize1G, topology.Pin{VCPU: 0, CPU: 2})}}},
			{Instance: "u-old", Name: "legacy", Stands: "lives here", Forced: true, Resources: topology.Resources{PCPUs: 1, VCPUs: 1, MemoryMB: 1024},
				Assignment: topology.Assignment{Cells: []topology.AssignedCell{cell(1, 1024, topology.PageSize1G, topology.Pin{VCPU: 0, CPU: 2}), cell(0, 0, 0, topology.Pin{VCPU: 1, CPU: 4})},
					Devices: []topology.AssignedDevice{vf("0000:3b:02.0")}}},
			{Instance: "u-web", Name: "web <1>\x1b[31m", Stands: "on its way here, migration 9d1e77aa", Resources: topology.Resources{VCPUs: 4, MemoryMB: 4096, DiskGB: 20}},
			{Instance: "u-mem", Name: "cache", Stands: "lives here", Resources: topology.Resources{VCPUs: 1, MemoryMB: 1024},
				Assignment: topology.Assignment{Cells: []topology.AssignedCell{{HostCell: 0, MemoryMB: 1024, Shared: 1}}}},
		},
		Whole: &drawing.Whole{
			Total: topology.Resources{VCPUs: 2, PCPUs: 5, MemoryMB: 32768, DiskGB: 100}, Reserved: topology.Resources{MemoryMB: 512}, CPURatio: 4, MemoryRatio: 1, DiskRatio: 1,
		},
		Unclaimed: []string{"rescue", "by-hand"},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, after a change that is wanted run with -update (-want +got):\n%s", path, diff)
	}
}

func text(t *testing.T, h drawing.Host, style drawing.Style) string {
	t.Helper()
	var b strings.Builder
	if err := h.Text(&b, style); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func svg(t *testing.T, draw func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := draw(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// inputs are hosts as they may be met, by what is special about them.
func inputs(t *testing.T) map[string]drawing.Input {
	out := map[string]drawing.Input{
		"full":          full(t),
		"unread":        {Name: "host-a", Claims: full(t).Claims},
		"not fitted":    {Name: "host-a", Hardware: hardware(t, "sriov"), Claims: full(t).Claims},
		"empty":         {},
		"card is gone":  {Name: "host-a", Hardware: hardware(t, "two-sockets"), Claims: full(t).Claims, Rooms: full(t).Rooms, Devices: full(t).Devices},
		"another shape": {Name: "host-a", Hardware: hardware(t, "sparse-cells"), Claims: full(t).Claims, Rooms: full(t).Rooms},
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "hwdiscovery", "testdata", "*.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d hosts, %v", len(files), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		h := hardware(t, name)
		in := drawing.Input{Name: name, Hardware: h}
		for _, c := range h.Cells {
			in.Rooms = append(in.Rooms, drawing.Room{Cell: c.ID, Shared: c.CPUs})
		}
		out[name] = in
	}
	return out
}

func TestText_OfAHostWithEverything(t *testing.T) {
	h := drawing.Of(full(t))
	golden(t, "full.txt", text(t, h, drawing.Style{Width: 100}))
	golden(t, "full-narrow.txt", text(t, h, drawing.Style{Width: 60}))
	golden(t, "full-colour.txt", text(t, h, drawing.Style{Width: 100, Colour: true}))
	golden(t, "full.svg", svg(t, h.SVG))
	plain := text(t, h, drawing.Style{Width: 100, ASCII: true})
	golden(t, "full-ascii.txt", plain)
	for _, r := range plain {
		if r > 0x7e {
			t.Errorf("%q is no ASCII", r)
		}
	}
}

// TestText_KeepsItsWidth holds every line of every host to the width that was asked for.
func TestText_KeepsItsWidth(t *testing.T) {
	for name, in := range inputs(t) {
		h := drawing.Of(in)
		for _, width := range []int{60, 80, 100, 200} {
			out := text(t, h, drawing.Style{Width: width})
			if strings.ContainsAny(out, "\x1b\t") {
				t.Errorf("%s: without colour it has control characters", name)
			}
			for line := range strings.Lines(out) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("%s: %d columns wide, not %d: %s", name, n, width, line)
				}
			}
		}
	}
}

// TestSVG_IsADocumentWithoutActiveParts reads every picture as XML, and holds the inline form
// to what a page with a strict policy lets be.
func TestSVG_IsADocumentWithoutActiveParts(t *testing.T) {
	for name, in := range inputs(t) {
		h := drawing.Of(in)
		inline := svg(t, h.Inline)
		for _, doc := range []string{svg(t, h.SVG), inline} {
			dec := xml.NewDecoder(strings.NewReader(doc))
			for {
				token, err := dec.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, doc)
				}
				if e, is := token.(xml.StartElement); is {
					for _, a := range e.Attr {
						if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "style" || a.Name.Local == "href" {
							t.Errorf("%s: <%s> has %s", name, e.Name.Local, a.Name.Local)
						}
					}
					if e.Name.Local == "script" || e.Name.Local == "style" && doc == inline {
						t.Errorf("%s: there is a <%s>", name, e.Name.Local)
					}
				}
			}
		}
	}
}

// TestOf_CountsNothingTwice holds the picture against the claims it is made of.
func TestOf_CountsNothingTwice(t *testing.T) {
	h := drawing.Of(full(t))
	marks := map[string]string{}
	for _, g := range h.Guests {
		marks[g.Name] = g.Mark
	}
	if len(h.Guests) != 5 || marks["cache"] != "A" || marks["realtime"] != "D" {
		t.Errorf("guests %v", marks)
	}
	held := map[int][]string{}
	for _, c := range h.Cells {
		for _, core := range c.Cores {
			for _, cpu := range core.CPUs {
				for _, by := range cpu.Holders {
					held[cpu.ID] = append(held[cpu.ID], h.Guests[by.Guest].Name+" "+string(by.Use))
				}
			}
		}
	}
	if diff := cmp.Diff(map[int][]string{
		1: {"db-1 pinned"}, 2: {"legacy pinned", "realtime pinned"}, 3: {"realtime emulator"}, 4: {"legacy pinned"}, 5: {"db-1 pinned"}, 6: {"realtime idle"},
	}, held); diff != "" {
		t.Errorf("CPUs (-want +got):\n%s", diff)
	}
	// Of its two claims the guest uses one: the larger counts.
	for _, p := range h.Cells[1].Pools {
		for _, s := range p.Shares {
			if h.Guests[s.Guest].Name == "realtime" && s.Pages != 2 {
				t.Errorf("realtime has %d pages of %s", s.Pages, p.Size)
			}
		}
	}
	if g := h.Cells[0].Groups; len(g) != 1 || len(g[0].Devices) != 2 || len(g[0].Devices[0].Guests) != 2 {
		t.Errorf("functions of cell 0: %+v", g)
	}
	if strings.ContainsRune(h.Guests[4].Name, '\x1b') {
		t.Errorf("a guest's name reaches the terminal as it is: %q", h.Guests[4].Name)
	}
}

func TestOf_MarksManyGuests(t *testing.T) {
	in := drawing.Input{Name: "h"}
	for i := range 800 {
		in.Claims = append(in.Claims, drawing.Claim{Instance: strings.Repeat("i", i+1)})
	}
	seen := map[string]bool{}
	guests := drawing.Of(in).Guests
	for _, g := range guests {
		seen[g.Mark] = true
	}
	if len(seen) != 800 || guests[0].Mark != "A" || guests[25].Mark != "Z" || guests[26].Mark != "AA" || guests[702].Mark != "AAA" {
		t.Errorf("%d marks of 800: %s %s %s %s", len(seen), guests[0].Mark, guests[25].Mark, guests[26].Mark, guests[702].Mark)
	}
}
