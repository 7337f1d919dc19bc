package hwdiscovery

import (
	"strings"
	"testing"

	"berth/topology"

	"github.com/google/go-cmp/cmp"
)

func TestParseMask_TakesOnlyWholeGroups(t *testing.T) {
	for text, want := range map[string]string{
		"00000000,0000ffff": "0-15", "f": "0-3", "0xf": "0-3", "80000000,00000001": "0,63", "0000,00000011,11111111": "0,4,8,12,16,20,24,28,32,36", "0": "",
	} {
		got, err := parseMask(text)
		if err != nil || got.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "g", "0000,0000001", "1,", ",1", "100000000", "-1", strings.Repeat("ffffffff,", 1<<12) + "ffffffff"} {
		if got, err := parseMask(text); err == nil {
			t.Errorf("%.20q: %.40s, want an error", text, got)
		}
	}
}

func TestParseMeminfo_WantsMemTotalOfItsNodeWhole(t *testing.T) {
	got, err := parseMeminfo(3)("\nNode 3 MemTotal:     16772456 kB\nNode 3 MemFree:      1024 kB\nNode 3 HugePages_Total:     4\n")
	if diff := cmp.Diff([]int64{16772456 << 10, 1 << 20, 4, -1}, []int64{got.total, got.free, got.hugeTotal, got.hugeSize}); diff != "" || err != nil {
		t.Errorf("meminfo (-want +got), %v:\n%s", err, diff)
	}
	for _, text := range []string{"", "Node 3 MemFree: 1 kB", "Node 4 MemTotal: 1 kB", "Node 3 MemTotal: 167", "Node 3 MemTotal: kB", "Node 3 MemTotal: -1 kB",
		"Node 3 MemTotal: 99999999999999999999 kB", "Node 3 MemTotal: 1 kB\nNode 3 MemTotal: 2 kB"} {
		if got, err := parseMeminfo(3)(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

func TestParseMeminfo_MalformedOptionalLine_CostsNothingElse(t *testing.T) {
	for text, want := range map[string][]int64{
		"Node 3 MemTotal: 4 kB\nNode 3 MemFree: 1\nNode 3 HugePages_Total: 4\n":                               {4 << 10, -1, 4},
		"Node 3 HugePages_Total: four\nNode 3 MemTotal: 4 kB\nNode 3 MemFree: 1 kB\n":                         {4 << 10, 1 << 10, -1},
		"Node 3 MemTotal: 4 kB\nNode 3 HugePages_Total: 4\nNode 3 HugePages_Total: 5\nNode 3 MemFree: 1 kB\n": {4 << 10, 1 << 10, -1},
	} {
		got, err := parseMeminfo(3)(text)
		if diff := cmp.Diff(want, []int64{got.total, got.free, got.hugeTotal}); diff != "" || err != nil || got.malformed == "" {
			t.Errorf("%q: malformed %s, %v (-want +got):\n%s", text, got.malformed, err, diff)
		}
	}
}

func TestVPDSerial_FindsKeywordSN(t *testing.T) {
	field := func(key, value string) string { return key + string(rune(len(value))) + value }
	read := field("PN", "G46371") + field("SN", "B4969140A3B8 ")
	vpd := "\x82\x04\x00Card" + "\x90" + string(rune(len(read))) + "\x00" + read + "\x78"
	if got := vpdSerial([]byte(vpd)); got != "B4969140A3B8" {
		t.Errorf("serial %q", got)
	}
	for cut := range len(vpd) {
		vpdSerial([]byte(vpd[:cut])) // must not panic
	}
	if got := vpdSerial([]byte("\x90\x05\x00SN\x02\x01\x02\x78")); got != "" {
		t.Errorf("unprintable serial %q", got)
	}
}

func FuzzParseMask(f *testing.F) {
	f.Add("00000000,0000ffff")
	f.Add("0xf")
	f.Fuzz(func(t *testing.T, text string) {
		cpus, err := parseMask(text)
		if err == nil && len(cpus) > 0 && cpus[len(cpus)-1] > topology.MaxCPU {
			t.Errorf("CPU %d", cpus[len(cpus)-1])
		}
		if !cpus.SameAs(topology.NewCPUSet(cpus...)) {
			t.Errorf("%q: out of order: %v", text, cpus)
		}
	})
}

func FuzzParseMeminfo(f *testing.F) {
	f.Add(0, "Node 0 MemTotal: 16772456 kB\n")
	f.Add(-1, "MemTotal: 16772456 kB\nHugePages_Total: 4\nHugepagesize: 2048 kB\n")
	f.Fuzz(func(t *testing.T, node int, text string) {
		m, err := parseMeminfo(node)(text)
		if err == nil && (m.total < 0 || m.free < -1 || m.hugeTotal < -1 || m.hugeSize < -1) {
			t.Errorf("negative amounts: %+v", m)
		}
	})
}

func FuzzParseCPUInfo(f *testing.F) {
	f.Add("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\nphysical id\t: 0\ncore id\t: 0\n")
	f.Add("processor 0: version = FF\n")
	f.Fuzz(func(t *testing.T, text string) {
		info, err := parseCPUInfo(text)
		if err != nil {
			return
		}
		for cpu := range info.core {
			if !info.processors.Contains(cpu) {
				t.Errorf("core of CPU %d, which is none of %s", cpu, info.processors)
			}
		}
	})
}

func FuzzParseSmall(f *testing.F) {
	f.Add("10 20 20", "hugepages-2048kB", "Node: 255", "cpu0 1 2\ncpu1 3", "0x8086", "-1")
	f.Fuzz(func(t *testing.T, distances, pool, gpu, stat, id, number string) {
		if row, err := parseDistances(distances); err == nil {
			for _, d := range row {
				if d <= 0 {
					t.Errorf("distance %d", d)
				}
			}
		}
		if size, err := parsePoolName(pool); err == nil && size <= 0 {
			t.Errorf("page size %d", size)
		}
		if n, ok := parseGPUNode(gpu); ok && n < 0 {
			t.Errorf("node %d", n)
		}
		if cpus, err := parseStatCPUs(stat); err == nil && !cpus.SameAs(topology.NewCPUSet(cpus...)) {
			t.Errorf("out of order: %v", cpus)
		}
		if v, err := hexID(4)(id); err == nil && len(v) != 6 {
			t.Errorf("id %q", v)
		}
		if n, err := parseCount(number); err == nil && n < 0 {
			t.Errorf("count %d", n)
		}
		if _, err := parseInt(number); err != nil {
			if _, err := parseSwitch(number); err == nil {
				t.Errorf("%q is a switch and no number", number)
			}
		}
	})
}

func FuzzVPDSerial(f *testing.F) {
	f.Add([]byte("\x82\x04\x00Card\x90\x0a\x00SN\x03abcXY\x00\x78"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, c := range []byte(vpdSerial(data)) {
			if c < 0x20 || c > 0x7e {
				t.Errorf("byte %#x in a serial number", c)
			}
		}
	})
}
