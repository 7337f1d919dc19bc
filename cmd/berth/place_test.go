package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/topology"
)

func TestPlace_IsShortAndCountsWhatIsWide(t *testing.T) {
	pins := func(first, n int) (out []topology.Pin) {
		for i := range n {
			out = append(out, topology.Pin{VCPU: i, CPU: first + i})
		}
		return out
	}
	device := func(n uint8) topology.AssignedDevice {
		return topology.AssignedDevice{Address: topology.PCIAddress{Bus: n}}
	}
	wide := topology.Assignment{Devices: []topology.AssignedDevice{device(1)}}
	for i := range 4 {
		wide.Cells = append(wide.Cells, topology.AssignedCell{HostCell: topology.CellID(i), Pins: pins(8*i, 4)})
	}
	for name, c := range map[string]struct {
		a    topology.Assignment
		want string
	}{
		"no cell": {topology.Assignment{}, "floats"},
		"a device alone": {
			topology.Assignment{Devices: []topology.AssignedDevice{device(0x3b)}}, "floats; 0000:3b:00.0",
		},
		"dedicated and shared": {
			topology.Assignment{Cells: []topology.AssignedCell{{Pins: pins(2, 2)}, {HostCell: 1, Shared: 2}}}, "cell 0: cpus 2-3; cell 1: shared",
		},
		"all in one cell": {
			topology.Assignment{Cells: []topology.AssignedCell{{Pins: pins(2, 1), Emulator: topology.NewCPUSet(4), Shared: 1}}}, "cell 0: cpu 2 + emulator 4 + shared",
		},
		"memory alone": {topology.Assignment{Cells: []topology.AssignedCell{{HostCell: 2, MemoryMB: 64}}}, "cell 2: memory"},
		"wide":         {wide, "4 cells, 16 cpus, 1 device"},
	} {
		if got := place(c.a, 40); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestExplainCell_SaysEveryKindOfHolding(t *testing.T) {
	var out bytes.Buffer
	explainCell(&out, claims.ExplainedCell{
		GuestCell: 1, HostCell: 2, SharedVCPUs: 1, Pins: []topology.Pin{{VCPU: 4, CPU: 8}, {VCPU: 5, CPU: 10}}, Emulator: topology.NewCPUSet(12),
		Idle: topology.NewCPUSet(9, 11, 13), MemoryMB: 2048, PageSize: topology.PageSize1G, Pages: 2,
	}, nil)
	// Found here: what was asked is not known.
	want := strings.Join([]string{
		"1\t2\tdedicated\t-\tvcpu→cpu 4→8 5→10",
		" \t \tidle\ttheir siblings kept empty\tcpus 9,11,13",
		" \t \temulator\tthreads isolate\tcpu 12",
		" \t \tshared\t-\t1 vcpu on the cell's shared CPUs",
		" \t \tmemory\t-\t2 pages of 1GiB", "",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplainCell_WrapsPins(t *testing.T) {
	var pins []topology.Pin
	for i := range 64 {
		pins = append(pins, topology.Pin{VCPU: i, CPU: 100 + 2*i})
	}
	var out bytes.Buffer
	explainCell(&out, claims.ExplainedCell{Pins: pins}, nil)
	told := 0
	for line := range strings.Lines(out.String()) {
		told += strings.Count(line, "→") - strings.Count(line, "vcpu→cpu")
		if given := line[strings.LastIndex(line, "\t")+1:]; len([]rune(given)) > pinColumns+len("vcpu→cpu ")+1 {
			t.Errorf("a line of %d: %q", len([]rune(given)), given)
		}
	}
	if told != len(pins) {
		t.Errorf("%d pins told, want %d", told, len(pins))
	}
}
