package topology

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseCPUSet_ReadsTheKernelsListForm(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "\n": nil, "0": {0}, "0-3,8\n": {0, 1, 2, 3, 8}, "8,0-1": {0, 1, 8}, "1,1,0-1": {0, 1},
		"0-7:2/4": {0, 1, 4, 5}, "0-3:1/2": {0, 2}, "65535": {65535},
	} {
		got, err := ParseCPUSet(text)
		if diff := cmp.Diff(want, []int(got)); diff != "" || err != nil {
			t.Errorf("%q, %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"a", "-", "1-", "-1", "3-1", "1,", ",", "0-4294967295", "65536", "99999999999999999999", "0x3", "+1", "1 2", "0-7:2", "0-7:0/4", "0-7:5/4", "3:1/2",
		strings.Repeat("0-65535,", 20) + "1", strings.Repeat(" 0,", 1<<18)} {
		if got, err := ParseCPUSet(text); err == nil {
			t.Errorf("%.20q: %.40s, want an error", text, got)
		}
	}
}

func TestCPUSet_IsAListInJSONAndTheListFormInText(t *testing.T) {
	for want, s := range map[string]CPUSet{"[]": nil, "[0,1,8]": NewCPUSet(8, 0, 1, 1, -4)} {
		data, err := json.Marshal(s)
		if err != nil || string(data) != want {
			t.Errorf("%v: %s, %v; want %s", s, data, err, want)
		}
	}
	var s CPUSet
	if err := json.Unmarshal([]byte("[3,1,3]"), &s); err != nil || s.String() != "1,3" {
		t.Errorf("%v, %v", s, err)
	}
	if err := s.UnmarshalText([]byte("4-6")); err != nil || s.String() != "4-6" {
		t.Errorf("%v, %v", s, err)
	}
	for _, bad := range []string{"[-1]", "[70000]", `"0-3"`, "{}"} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// TestCPUSet_OperationsAreThoseOfSets compares with maps.
func TestCPUSet_OperationsAreThoseOfSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOf(rapid.IntRange(0, 40))
		a, b := some.Draw(t, "a"), some.Draw(t, "b")
		s, u := NewCPUSet(a...), NewCPUSet(b...)
		var union, both, diff []int
		for n := range 41 {
			inA, inB := slices.Contains(a, n), slices.Contains(b, n)
			if inA || inB {
				union = append(union, n)
			}
			if inA && inB {
				both = append(both, n)
			}
			if inA && !inB {
				diff = append(diff, n)
			}
			if s.Contains(n) != inA {
				t.Fatalf("%v contains %d: %v", s, n, !inA)
			}
		}
		for _, c := range []struct {
			name string
			want []int
			got  CPUSet
		}{{"union", union, s.Union(u)}, {"intersection", both, s.Intersection(u)}, {"difference", diff, s.Difference(u)}} {
			if d := cmp.Diff(c.want, []int(c.got)); d != "" {
				t.Fatalf("%s (-want +got):\n%s", c.name, d)
			}
		}
		if s.Intersects(u) != (len(both) > 0) || s.ContainsAll(u) != (len(u) == len(both)) || s.Len() != len(diff)+len(both) {
			t.Fatalf("%v and %v: predicates disagree", s, u)
		}
		back, err := ParseCPUSet(s.String())
		if err != nil || !back.SameAs(s) {
			t.Fatalf("%v came back as %v, %v", s, back, err)
		}
	})
}

func FuzzParseCPUSet(f *testing.F) {
	for _, s := range []string{"0-3,8", "0-31:2/4", "0-4294967295", "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseCPUSet(text)
		if err != nil {
			return
		}
		if !slices.IsSorted(s) || (len(s) > 0 && (s[0] < 0 || s[len(s)-1] > MaxCPU)) {
			t.Fatalf("%q: %v", text, s)
		}
		back, err := ParseCPUSet(s.String())
		if err != nil || !back.SameAs(s) {
			t.Fatalf("%q: %v came back as %v, %v", text, s, back, err)
		}
	})
}

func TestParsePCIAddress_TakesDomainsOf32Bits(t *testing.T) {
	for text, want := range map[string]PCIAddress{
		"0000:3b:00.1": {0, 0x3b, 0, 1}, "10000:e1:1f.7": {0x10000, 0xe1, 0x1f, 7}, "5ba1cafe:00:02.0": {0x5ba1cafe, 0, 2, 0}, "FFFF:FF:00.0": {0xffff, 0xff, 0, 0},
	} {
		got, err := ParsePCIAddress(text)
		if got != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
		if got.String() != strings.ToLower(text) {
			t.Errorf("%q came back as %s", text, got)
		}
	}
	for _, text := range []string{"", "3b:00.1", "000:3b:00.1", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00.1 ", "123456789:00:00.0", "0000:3b-00.1", "0000:+b:00.1", "zzzz:00:00.0"} {
		if got, err := ParsePCIAddress(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

func FuzzParsePCIAddress(f *testing.F) {
	f.Add("0000:3b:00.1")
	f.Add("5ba1cafe:00:02.0")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParsePCIAddress(text)
		if err != nil {
			return
		}
		back, err := ParsePCIAddress(a.String())
		if err != nil || back != a || a.Device > 31 || a.Function > 7 {
			t.Fatalf("%q: %v came back as %v, %v", text, a, back, err)
		}
	})
}

func TestPageSize_PrintsItsLargestUnit(t *testing.T) {
	for size, want := range map[PageSize]string{PageSize4K: "4KiB", PageSize2M: "2MiB", PageSize1G: "1GiB", 64 << 10: "64KiB", 3000: "3000B"} {
		if size.String() != want {
			t.Errorf("%d prints as %s, want %s", int64(size), size, want)
		}
	}
}

func TestHost_FindsCellsDevicesAndDistances(t *testing.T) {
	h := Host{
		Cells: []Cell{{ID: 0, CPUs: NewCPUSet(0, 1), MemoryBytes: 1, Distances: []int{10, 40}}, {ID: 8, MemoryBytes: 2, Distances: []int{40, 10}}},
		Cores: []CPUSet{{0, 1}, {2}},
		PCI:   []PCIDevice{{Address: PCIAddress{Bus: 1}}, {Address: PCIAddress{Domain: 1}}},
	}
	if c, ok := h.Cell(8); !ok || c.MemoryBytes != 2 {
		t.Errorf("cell 8: %v, %v", c, ok)
	}
	if _, ok := h.Cell(1); ok {
		t.Error("cell 1 was found")
	}
	if d, ok := h.Device(PCIAddress{Domain: 1}); !ok || d.Address.Domain != 1 {
		t.Errorf("device: %v, %v", d, ok)
	}
	if _, ok := h.Device(PCIAddress{}); ok {
		t.Error("device 0000:00:00.0 was found")
	}
	if d, ok := h.Distance(0, 8); !ok || d != 40 {
		t.Errorf("distance: %d, %v", d, ok)
	}
	if _, ok := h.Distance(0, 3); ok {
		t.Error("distance to a cell that is not there")
	}
	// CPU 2 is in a core and in no cell.
	if got := h.CPUs().String(); got != "0-2" || h.MemoryBytes() != 3 {
		t.Errorf("CPUs %s, memory %d", got, h.MemoryBytes())
	}
}

func TestFlavor_DedicatedCPUsAreAClassOfTheirOwn(t *testing.T) {
	f := Flavor{Name: "f", VCPUs: 4, MemoryMB: 64, DiskGB: 1}
	mixed := &GuestTopology{Emulator: EmulatorIsolate, Cells: []GuestCell{
		{SharedVCPUs: NewCPUSet(0), DedicatedVCPUs: NewCPUSet(1), MemoryMB: 32},
		{DedicatedVCPUs: NewCPUSet(2, 3), MemoryMB: 32},
	}}
	for _, tt := range []struct {
		topology *GuestTopology
		want     Resources
		text     string
	}{
		{nil, Resources{VCPUs: 4, MemoryMB: 64, DiskGB: 1}, "4 vcpus, 64 MiB, 1 GiB"},
		{mixed, Resources{VCPUs: 1, PCPUs: 4, MemoryMB: 64, DiskGB: 1}, "1 vcpus, 4 pcpus, 64 MiB, 1 GiB"},
	} {
		if got := f.ResourcesWith(tt.topology); got != tt.want || got.String() != tt.text {
			t.Errorf("resources %s, want %s (%q)", got, tt.want, tt.text)
		}
	}
	a, b := Resources{1, 2, 3, 4}, Resources{4, 3, 2, 1}
	if a.Add(b) != (Resources{5, 5, 5, 5}) || a.Sub(b) != (Resources{-3, -1, 1, 3}) || a.Max(b) != (Resources{4, 3, 3, 4}) {
		t.Errorf("sum %s, difference %s, maximum %s", a.Add(b), a.Sub(b), a.Max(b))
	}
}
