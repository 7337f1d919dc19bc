package inventory_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/agent/inventory"
	"berth/claims/fit"
	"berth/test/shared"
	"berth/topology"
)

func set(text string) topology.CPUSet {
	s, err := topology.ParseCPUSet(text)
	if err != nil {
		panic(err)
	}
	return s
}

func number(n int) *int { return &n }

// twoSockets has cells 0 and 2 of a socket each, SMT, CPU 8 offline, CPU 9 in no
// cell, and cell 3 of memory only.
func twoSockets() *topology.Host {
	return &topology.Host{
		Cells: []topology.Cell{
			{ID: 0, CPUs: set("0-1,4-5"), MemoryBytes: 4 << 30, Pages: topology.Pages{4096: 786432, 2 << 20: 512}},
			{ID: 2, CPUs: set("2-3,6-7"), MemoryBytes: 4 << 30, Pages: topology.Pages{4096: 1048576}},
			{ID: 3, MemoryBytes: 1 << 30, Pages: topology.Pages{4096: 262144}},
		},
		Cores:           []topology.CPUSet{set("0,4"), set("1,5"), set("2,6"), set("3,7"), set("9")},
		Packages:        []topology.Package{{ID: number(0), CPUs: set("0-1,4-5")}, {ID: number(36), CPUs: set("2-3,6-7,9")}},
		LastLevelCaches: []topology.CPUSet{set("0-1,4-5"), set("2-3,6-7")},
		OfflineCPUs:     set("8"),
		PageSizes:       []topology.PageSize{4096, 2 << 20},
	}
}

func TestFitCells(t *testing.T) {
	pages := func(base, large, reserved int64) []fit.Pages {
		return []fit.Pages{{Size: 4096, Total: base}, {Size: 2 << 20, Total: large, Reserved: reserved}}
	}
	memory := fit.Cell{ID: 3, MemoryMB: 1024, Pages: pages(262144, 0, 0)}
	for _, tt := range []struct {
		name    string
		options inventory.CellOptions
		want    []fit.Cell
		reasons []string
	}{
		{"no sets: all shared", inventory.CellOptions{}, []fit.Cell{
			{ID: 0, Socket: number(0), Shared: set("0-1,4-5"), Cores: []topology.CPUSet{set("0,4"), set("1,5")}, Caches: []topology.CPUSet{set("0-1,4-5")}, MemoryMB: 4096, Pages: pages(786432, 512, 0)},
			{ID: 2, Socket: number(36), Shared: set("2-3,6-7"), Cores: []topology.CPUSet{set("2,6"), set("3,7")}, Caches: []topology.CPUSet{set("2-3,6-7")}, MemoryMB: 4096, Pages: pages(1048576, 0, 0)},
			memory,
		}, nil},
		{"dedicated alone: nothing shared; a sibling that is nobody's leaves a core of one",
			inventory.CellOptions{Dedicated: set("1-3,5-6"), Pages: []inventory.ReservedPages{{Cell: 0, Size: 2 << 20, Count: 12}}}, []fit.Cell{
				{ID: 0, Socket: number(0), Dedicated: set("1,5"), Cores: []topology.CPUSet{set("1,5")}, Caches: []topology.CPUSet{set("1,5")}, MemoryMB: 4096, Pages: pages(786432, 512, 12)},
				{ID: 2, Socket: number(36), Dedicated: set("2-3,6"), Cores: []topology.CPUSet{set("2,6"), set("3")}, Caches: []topology.CPUSet{set("2-3,6")}, MemoryMB: 4096, Pages: pages(1048576, 0, 0)},
				memory,
			}, nil},
		{"both", inventory.CellOptions{Dedicated: set("1,5"), Shared: set("2-3")}, []fit.Cell{
			{ID: 0, Socket: number(0), Dedicated: set("1,5"), Cores: []topology.CPUSet{set("1,5")}, Caches: []topology.CPUSet{set("1,5")}, MemoryMB: 4096, Pages: pages(786432, 512, 0)},
			{ID: 2, Socket: number(36), Shared: set("2-3"), Cores: []topology.CPUSet{set("2"), set("3")}, Caches: []topology.CPUSet{set("2-3")}, MemoryMB: 4096, Pages: pages(1048576, 0, 0)},
			memory,
		}, nil},
		{"everything that does not go with the host", inventory.CellOptions{
			Dedicated: set("0,8"), Shared: set("0,9,64"),
			Pages: []inventory.ReservedPages{{Cell: 1, Size: 2 << 20, Count: 1}, {Cell: 0, Size: 1 << 30, Count: 1}, {Cell: 0, Size: 2 << 20, Count: 513}},
		}, []fit.Cell{
			{ID: 0, Socket: number(0), Dedicated: set("0"), Cores: []topology.CPUSet{set("0")}, Caches: []topology.CPUSet{set("0")}, MemoryMB: 4096, Pages: pages(786432, 512, 512)},
			{ID: 2, Socket: number(36), MemoryMB: 4096, Pages: pages(1048576, 0, 0)},
			memory,
		}, []string{inventory.CPUOffline, inventory.CPUAbsent, inventory.CPUWithoutCell, inventory.CPUInBoth, inventory.CellUnknown, inventory.PageUnknown, inventory.PagesOver}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, reasons := inventory.FitCells(twoSockets(), tt.options)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("cells (-want +got):\n%s", diff)
			}
			var codes []string
			for _, r := range reasons {
				codes = append(codes, r.Code)
				if r.Message == "" || r.Change == "" {
					t.Errorf("incomplete reason %+v", r)
				}
			}
			if diff := cmp.Diff(tt.reasons, codes); diff != "" {
				t.Errorf("reasons (-want +got):\n%s%+v", diff, reasons)
			}
		})
	}
}

func TestFitCells_SocketIsUnknownWhereACellSpansTwo(t *testing.T) {
	for _, tt := range []struct {
		name     string
		packages []topology.Package
		want     *int
	}{
		{"two sockets", []topology.Package{{ID: number(0), CPUs: set("0-1")}, {ID: number(1), CPUs: set("4-5")}}, nil},
		{"two halves of one socket", []topology.Package{{ID: number(1), CPUs: set("0-1")}, {ID: number(1), CPUs: set("4-5")}}, number(1)},
		{"a socket without a number", []topology.Package{{CPUs: set("0-1,4-5")}}, nil},
		{"a CPU of no socket", []topology.Package{{ID: number(0), CPUs: set("0-1,4")}}, nil},
		{"no sockets told", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := twoSockets()
			h.Packages = tt.packages
			cells, _ := inventory.FitCells(h, inventory.CellOptions{})
			if diff := cmp.Diff(tt.want, cells[0].Socket); diff != "" {
				t.Errorf("socket (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFitCells_SaysWhatCannotBeKnownOrUsed(t *testing.T) {
	h := twoSockets()
	h.Cores = nil
	_, reasons := inventory.FitCells(h, inventory.CellOptions{Dedicated: set("1")})
	if len(reasons) != 1 || reasons[0].Code != inventory.CoresUnknown {
		t.Errorf("no cores are told: %+v", reasons)
	}
	_, reasons = inventory.FitCells(twoSockets(), inventory.CellOptions{Shared: set("100")})
	if len(reasons) != 2 || reasons[1].Code != inventory.NoUsableCPU {
		t.Errorf("no CPU is left: %+v", reasons)
	}
}

func TestUnusableOf_NamesWhatDegrades(t *testing.T) {
	cell, device := topology.CellID(2), topology.PCIAddress{Bus: 1}
	h := twoSockets()
	h.Reasons = []topology.Reason{
		{Code: "file_missing", Message: "node2/meminfo: missing", Cell: &cell, Degrades: true},
		{Code: "pci_contradicts", Message: "0000:01:00.0: numa_node 7", Device: &device, Degrades: true},
		{Code: "siblings_contradict", Message: "of no cell", Degrades: true},
		{Code: "ghw_differs", Message: "a remark", Cell: &cell},
	}
	want := []inventory.Unusable{{Cell: &cell, Reason: "node2/meminfo: missing"}, {Device: &device, Reason: "0000:01:00.0: numa_node 7"}}
	if diff := cmp.Diff(want, inventory.UnusableOf(h)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFitCells_OfTheSharedMachines: the cells of real machines hold every CPU and
// page once.
func TestFitCells_OfTheSharedMachines(t *testing.T) {
	files, err := filepath.Glob(shared.Path(t, "hosts") + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d machines: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var h topology.Host
			if err := json.Unmarshal(data, &h); err != nil {
				t.Fatal(err)
			}
			for _, c := range h.Cells {
				for size := range c.Pages {
					h.PageSizes = append(h.PageSizes, size)
				}
			}
			h.PageSizes = sorted(h.PageSizes)
			first := h.CPUs()[:1]
			cells, reasons := inventory.FitCells(&h, inventory.CellOptions{Shared: first, Dedicated: h.CPUs().Difference(first)})
			for _, r := range reasons {
				if r.Code != inventory.CPUWithoutCell {
					t.Errorf("%+v", r)
				}
			}
			for i, c := range cells {
				if !c.Shared.Union(c.Dedicated).SameAs(h.Cells[i].CPUs) || c.Shared.Intersects(c.Dedicated) {
					t.Errorf("cell %d: shared %s, dedicated %s of CPUs %s", c.ID, c.Shared, c.Dedicated, h.Cells[i].CPUs)
				}
				var cores topology.CPUSet
				for _, core := range c.Cores {
					cores = cores.Union(core)
				}
				if !h.Cells[i].CPUs.ContainsAll(cores) {
					t.Errorf("cell %d: cores of CPUs %s, cell of CPUs %s", c.ID, cores, h.Cells[i].CPUs)
				}
				for _, p := range c.Pages {
					if p.Total != h.Cells[i].Pages[p.Size] || p.Free() != p.Total {
						t.Errorf("cell %d: %+v", c.ID, p)
					}
				}
			}
		})
	}
}

// TestUnusableOf_ADevicesCellStaysInUse: what is wrong with a device says nothing
// of the cell that it is on.
func TestUnusableOf_ADevicesCellStaysInUse(t *testing.T) {
	cell, device := topology.CellID(1), topology.PCIAddress{Bus: 1}
	h := twoSockets()
	h.Reasons = []topology.Reason{{Code: "pci_contradicts", Message: "numa_node 7", Cell: &cell, Device: &device, Degrades: true}}
	if diff := cmp.Diff([]inventory.Unusable{{Device: &device, Reason: "numa_node 7"}}, inventory.UnusableOf(h)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
