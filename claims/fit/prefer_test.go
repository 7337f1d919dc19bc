package fit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// plain is a host of cells with so many cores of so many threads each; CPU
// numbers go through the cells, a core's threads beside each other. Every CPU
// may be pinned and shared.
func plain(cells, cores, threads int) *Machine {
	m := &Machine{}
	cpu := 0
	for h := range cells {
		socket := h / 2
		c := Cell{ID: topology.CellID(h), Socket: &socket, MemoryMB: 4096, Pages: []Pages{
			{Size: topology.PageSize4K, Total: 512 << 10}, {Size: topology.PageSize2M, Total: 512}, {Size: topology.PageSize1G, Total: 1},
		}}
		for range cores {
			var core topology.CPUSet
			for range threads {
				core = append(core, cpu)
				cpu++
			}
			c.Cores, c.Dedicated = append(c.Cores, core), c.Dedicated.Union(core)
		}
		c.Shared = c.Dedicated
		m.Cells = append(m.Cells, c)
	}
	return m
}

// guest is one of equal cells with so many dedicated vCPUs each.
func guest(cells, vcpus int, threads topology.ThreadPolicy) *topology.GuestTopology {
	g := &topology.GuestTopology{}
	for i := range cells {
		var own []int
		for v := range vcpus {
			own = append(own, i*vcpus+v)
		}
		g.Cells = append(g.Cells, topology.GuestCell{
			DedicatedVCPUs: topology.NewCPUSet(own...), MemoryMB: 64, CPUPolicy: topology.CPUPolicyDedicated, ThreadPolicy: threads,
		})
	}
	return g
}

func nic(count int, at topology.CellID) Pool {
	return Pool{Vendor: "8086", Product: "1563", Type: topology.PCITypeVF, Cell: at, Count: count}
}

// TestPlace_Prefers holds one preference of the package doc at a time: each host
// has a place that would be valid and is worse.
func TestPlace_Prefers(t *testing.T) {
	cells := func(p Placement) string {
		var ids []int
		for _, c := range p.Cells {
			ids = append(ids, int(c.HostCell))
		}
		return topology.NewCPUSet(ids...).String()
	}
	cpus := func(p Placement) string {
		var all topology.CPUSet
		for _, c := range p.Cells {
			all = all.Union(c.Pinned())
		}
		return all.String()
	}
	emulator := func(p Placement) string { return p.Cells[0].Emulator.String() }
	for _, tt := range []struct {
		name  string
		host  *Machine
		guest *topology.GuestTopology
		with  func(*Machine, *Request)
		see   func(Placement) string
		want  string
	}{
		{"the cell of the device before a tighter one", plain(2, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(0, 1)
			m.Pools, r.PCI = []Pool{nic(1, 1)}, device(1, topology.AffinityPreferred)
		}, cells, "1"},
		{"one device near when both cannot be", plain(2, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(0, 1)
			m.Pools = []Pool{nic(1, 1), {Vendor: "10de", Type: topology.PCITypeFunction, Cell: topology.UnknownCell, Count: 1}}
			r.PCI = append(device(1, topology.AffinityPreferred), topology.PCIRequest{ID: "gpu", Count: 1, Specs: []topology.PCISpec{{Vendor: "10de"}}})
		}, cells, "1"},
		{"a cell without devices for who wants none", plain(2, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(0, 1)
			m.Pools = []Pool{nic(1, 0)}
		}, cells, "1"},
		{"one socket before two tighter cells", plain(4, 4, 1), guest(2, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned, m.Cells[2].Pinned = topology.NewCPUSet(0, 1, 2), topology.NewCPUSet(8, 9)
		}, cells, "0-1"},
		{"the cheaper of two sockets", plain(4, 4, 1), guest(2, 1, ""), func(m *Machine, r *Request) {
			m.Cells[2].Pinned, m.Cells[3].Pinned = topology.NewCPUSet(8), topology.NewCPUSet(12)
		}, cells, "2-3"},
		{"two sockets when three would do", plain(6, 4, 1), guest(3, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned, m.Cells[2].Pinned, m.Cells[4].Pinned = topology.NewCPUSet(0), topology.NewCPUSet(8), topology.NewCPUSet(16)
		}, func(p Placement) string {
			sockets := map[topology.CellID]bool{}
			for _, c := range p.Cells {
				sockets[c.HostCell/2] = true
			}
			return string(rune('0' + len(sockets)))
		}, "2"},
		{"the tightest cell", plain(3, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[1].Pinned = topology.NewCPUSet(4, 5)
		}, cells, "1"},
		{"the cell with less memory to spare", plain(3, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[2].Pages[0].Used = 256 << 10
		}, cells, "2"},
		{"a cell where no whole core is begun", plain(2, 2, 2), guest(1, 1, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(0, 1)
			m.Cells[1].Pinned = topology.NewCPUSet(4)
		}, cells, "1"},
		{"whole cores", plain(1, 4, 2), guest(1, 2, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(0, 2)
		}, cpus, "4-5"},
		{"the core with least to spare for the odd thread", plain(1, 3, 3), guest(1, 2, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(3)
		}, cpus, "4-5"},
		{"a core that is begun for the odd thread", plain(1, 3, 2), guest(1, 3, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned = topology.NewCPUSet(2)
		}, cpus, "0-1,3"},
		{"as many threads of a core as there are", plain(1, 4, 4), guest(1, 4, topology.ThreadPolicyRequire), nil, cpus, "0-3"},
		{"the last-level cache that has just enough", plain(1, 6, 1), guest(1, 2, ""), func(m *Machine, r *Request) {
			m.Cells[0].Caches = []topology.CPUSet{topology.NewCPUSet(0, 1, 2, 3), topology.NewCPUSet(4, 5)}
		}, cpus, "4-5"},
		{"a cell where one cache is enough", plain(2, 4, 1), guest(1, 3, ""), func(m *Machine, r *Request) {
			m.Cells[0].Caches = []topology.CPUSet{topology.NewCPUSet(0, 1), topology.NewCPUSet(2, 3)}
			m.Cells[1].Caches = []topology.CPUSet{topology.NewCPUSet(4, 5, 6), topology.NewCPUSet(7)}
		}, cells, "1"},
		{"a begun core for the emulator", plain(1, 4, 2), guest(1, 2, ""), func(m *Machine, r *Request) {
			m.Cells[0].Pinned, r.Topology.Emulator = topology.NewCPUSet(7), topology.EmulatorIsolate
		}, emulator, "6"},
		{"a core of the guest's own for the emulator", plain(1, 4, 2), guest(1, 1, ""), func(m *Machine, r *Request) {
			r.Topology.Emulator = topology.EmulatorIsolate
		}, func(p Placement) string {
			return p.Cells[0].Pinned().Union(p.Cells[0].Emulator).String()
		}, "0-1"},
		{"the largest pages that fit", plain(1, 4, 1), guest(1, 1, ""), func(m *Machine, r *Request) {
			r.Topology.Cells[0].PageSize, r.Topology.Cells[0].MemoryMB = topology.PagesAny, 1024
		}, func(p Placement) string { return p.Cells[0].PageSize.String() }, "1GiB"},
		{"functions of a PF that is begun", plain(1, 4, 1), nil, func(m *Machine, r *Request) {
			pf := nic(1, 0)
			pf.Type = topology.PCITypePF
			m.Pools, r.PCI = []Pool{nic(1, 0), pf, nic(2, 0)}, device(1, "")
			m.Pools[0].Excludes, m.Pools[1].Excludes = []int{1}, []int{0}
		}, func(p Placement) string { return string(rune('0' + p.PCI[0].Pool)) }, "2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Request{Topology: tt.guest}
			if tt.with != nil {
				tt.with(tt.host, &r)
			}
			a := Place(r, tt.host)
			if !a.Fits() {
				t.Fatalf("refused: %v", a.Reasons)
			}
			if diff := cmp.Diff(tt.want, tt.see(a.Placement)); diff != "" {
				t.Errorf("placed (-want +got)\n%s%+v", diff, a.Placement)
			}
		})
	}
}
