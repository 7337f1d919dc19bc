package fit

import (
	"fmt"
	"testing"

	"berth/topology"
)

// bigMachine is a host of so many cells of cores × 2 threads, with functions of
// one kind on every cell.
func bigMachine(cells, cores, functions int) *Machine {
	m := &Machine{}
	for h := range cells {
		socket := h / 2
		c := Cell{ID: topology.CellID(h), Socket: &socket, MemoryMB: 65536, Pages: []Pages{
			{Size: topology.PageSize4K, Total: 8 << 20}, {Size: topology.PageSize1G, Total: 32},
		}}
		var all []int
		for k := range cores {
			a := h*cores + k
			b := a + cells*cores
			all = append(all, a, b)
			c.Cores = append(c.Cores, topology.NewCPUSet(a, b))
		}
		c.Dedicated = topology.NewCPUSet(all...)
		m.Cells = append(m.Cells, c)
		if functions > 0 {
			m.Pools = append(m.Pools, Pool{Vendor: "8086", Product: "1563", Type: topology.PCITypeVF, Cell: c.ID, Count: functions / cells})
		}
	}
	return m
}

func pinnedGuest(cells, vcpus int, memoryMB int64) *topology.GuestTopology {
	g := &topology.GuestTopology{}
	for i := range cells {
		var v []int
		for k := range vcpus {
			v = append(v, i*vcpus+k)
		}
		g.Cells = append(g.Cells, topology.GuestCell{
			DedicatedVCPUs: topology.NewCPUSet(v...), MemoryMB: memoryMB, PageSize: topology.PageRequest(topology.PageSize1G), CPUPolicy: topology.CPUPolicyDedicated,
		})
	}
	return g
}

func device(count int, affinity topology.PCIAffinity) []topology.PCIRequest {
	return []topology.PCIRequest{{ID: "nic", Count: count, Specs: []topology.PCISpec{{Vendor: "8086", Product: "1563"}}, Affinity: affinity}}
}

// The sizes are those of the recorded search cases; Nova takes over 30 s of CPU
// for both refusals on 16 cells.
func BenchmarkPlace(b *testing.B) {
	last := pinnedGuest(8, 2, 1024)
	last.Cells[7].MemoryMB = 64 << 10
	for _, bb := range []struct {
		name    string
		machine *Machine
		request Request
		fits    bool
	}{
		{"2cells-1", bigMachine(2, 8, 0), Request{Topology: pinnedGuest(1, 4, 1024)}, true},
		{"2cells-2", bigMachine(2, 8, 0), Request{Topology: pinnedGuest(2, 4, 1024)}, true},
		{"2cells-2-pci", bigMachine(2, 8, 16), Request{Topology: pinnedGuest(2, 4, 1024), PCI: device(2, topology.AffinityRequired)}, true},
		{"16cells-8-none", bigMachine(16, 8, 0), Request{Topology: pinnedGuest(8, 2, 64<<10)}, false},
		{"16cells-8-none-last", bigMachine(16, 8, 0), Request{Topology: last}, false},
		{"16cells-8-none-pci", bigMachine(16, 8, 16), Request{Topology: pinnedGuest(8, 2, 1024), PCI: device(9, topology.AffinityRequired)}, false},
		{"16cells-8-fits", bigMachine(16, 8, 16), Request{Topology: pinnedGuest(8, 2, 1024), PCI: device(8, topology.AffinityRequired)}, true},
		{"64cells-1024cpus-256functions-1", bigMachine(64, 8, 256), Request{Topology: pinnedGuest(1, 4, 1024), PCI: device(4, topology.AffinityRequired)}, true},
		{"64cells-1024cpus-256functions-32", bigMachine(64, 8, 256), Request{Topology: pinnedGuest(32, 4, 1024), PCI: device(100, topology.AffinityRequired)}, true},
		{"64cells-1024cpus-256functions-64", bigMachine(64, 8, 256), Request{Topology: pinnedGuest(64, 4, 1024), PCI: device(256, topology.AffinityPreferred)}, true},
		{"64cells-1024cpus-256functions-none", bigMachine(64, 8, 256), Request{Topology: pinnedGuest(32, 4, 1024), PCI: device(129, topology.AffinityRequired)}, false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a := Place(bb.request, bb.machine); a.Fits() != bb.fits {
					b.Fatal(fmt.Sprint(a.Reasons))
				}
			}
		})
	}
}
