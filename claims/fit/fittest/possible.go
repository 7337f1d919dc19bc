package fittest

import (
	"berth/claims/fit"
	"berth/topology"
)

// Possible reports whether the request has any valid placement, by trying every
// injection of guest cells into host cells, every set of CPUs and every way to
// draw devices, each judged by Check's rules. It is for tiny machines: a handful
// of cells, of CPUs in each, and of pools.
func Possible(m *fit.Machine, r fit.Request) bool {
	if r.Topology == nil {
		return drawable(m, r, nil)
	}
	guests := r.Topology.Cells
	holds := make([][]bool, len(guests))
	for g := range guests {
		emulator := 0
		if g == 0 && r.Topology.Emulator == topology.EmulatorIsolate && guests[0].CPUPolicy.Pins() {
			emulator = 1
		}
		holds[g] = make([]bool, len(m.Cells))
		for h := range m.Cells {
			holds[g][h] = holdsCell(&guests[g], emulator, &m.Cells[h], m.Limits)
		}
	}
	chosen := map[topology.CellID]bool{}
	var place func(g int) bool
	place = func(g int) bool {
		if g == len(guests) {
			return checkNetworks(m, chosen) == nil && drawable(m, r, chosen)
		}
		for h, c := range m.Cells {
			if !holds[g][h] || chosen[c.ID] {
				continue
			}
			chosen[c.ID] = true
			if place(g + 1) {
				return true
			}
			delete(chosen, c.ID)
		}
		return false
	}
	return place(0)
}

// holdsCell tries every page size and every choice of CPUs.
func holdsCell(g *topology.GuestCell, emulator int, h *fit.Cell, l *fit.Limits) bool {
	sizes := []topology.PageSize{0}
	for _, p := range h.Pages {
		sizes = append(sizes, p.Size)
	}
	for _, size := range sizes {
		a := topology.AssignedCell{HostCell: h.ID, MemoryMB: g.MemoryMB, PageSize: size, Shared: len(g.SharedVCPUs)}
		if checkMemory(g, h, size) == nil && pinnable(g, emulator, h, l, a) {
			return true
		}
	}
	return false
}

func pinnable(g *topology.GuestCell, emulator int, h *fit.Cell, l *fit.Limits, a topology.AssignedCell) bool {
	if !g.CPUPolicy.Pins() {
		return checkCell(g, emulator, h, l, a) == nil
	}
	want, all := len(g.DedicatedVCPUs), len(h.Dedicated)
	for mask := range 1 << all {
		var cpus topology.CPUSet
		for i, cpu := range h.Dedicated {
			if mask>>i&1 == 1 {
				cpus = append(cpus, cpu)
			}
		}
		if len(cpus) != want {
			continue
		}
		a.Pins = nil
		for i, vcpu := range g.DedicatedVCPUs {
			a.Pins = append(a.Pins, topology.Pin{VCPU: vcpu, CPU: cpus[i]})
		}
		a.Idle = nil
		if g.ThreadPolicy == topology.ThreadPolicyIsolate {
			for _, s := range siblings(h) {
				if s.Intersects(cpus) {
					a.Idle = a.Idle.Union(s.Difference(cpus))
				}
			}
		}
		emulators := []topology.CPUSet{nil}
		if emulator > 0 {
			emulators = nil
			for _, cpu := range h.Dedicated {
				emulators = append(emulators, topology.CPUSet{cpu})
			}
		}
		for _, e := range emulators {
			if a.Emulator = e; checkCell(g, emulator, h, l, a) == nil {
				return true
			}
		}
	}
	return false
}

// drawable tries every way to draw the devices, one after the other.
func drawable(m *fit.Machine, r fit.Request, chosen map[topology.CellID]bool) bool {
	left, inUse := make([]int, len(m.Pools)), make([]int, len(m.Pools))
	for i, p := range m.Pools {
		left[i] = p.Count
	}
	excluded := func(p int) bool {
		for other, n := range inUse {
			if n == 0 {
				continue
			}
			for _, e := range m.Pools[other].Excludes {
				if e == p {
					return true
				}
			}
			for _, e := range m.Pools[p].Excludes {
				if e == other {
					return true
				}
			}
		}
		return false
	}
	var draw func(q, n, from int) bool
	draw = func(q, n, from int) bool {
		if q == len(r.PCI) {
			return true
		}
		if n >= r.PCI[q].Count {
			return draw(q+1, 0, 0)
		}
		// The devices of one request are alike: pools in ascending order will do.
		for p := from; p < len(m.Pools); p++ {
			if left[p] == 0 || excluded(p) || !matches(r.PCI[q], &m.Pools[p]) || !reaches(m, r.PCI[q], m.Pools[p].Cell, chosen) {
				continue
			}
			left[p]--
			inUse[p]++
			if draw(q, n+1, p) {
				return true
			}
			left[p]++
			inUse[p]--
		}
		return false
	}
	return draw(0, 0, 0)
}
