package fitcase

import (
	"math"
	"slices"
	"strconv"

	"berth/claims/fit"
	"berth/topology"
)

// newCell is a host cell made for a guest cell.
func (c *Case) newCell(g *topology.GuestCell, emu, id int, next *int) (map[string]any, bool) {
	take := func(n int) []int {
		cpus := make([]int, n)
		for i := range cpus {
			cpus[i] = *next
			*next++
		}
		return cpus
	}
	shared, dedicated, threads := g.SharedVCPUs.Len(), g.DedicatedVCPUs.Len(), 1
	if dedicated == 0 && g.CPUPolicy.Pins() && (emu > 0 || g.ThreadPolicy == topology.ThreadPolicyIsolate) {
		return nil, false
	}
	memory := g.MemoryMB
	if l := c.Machine.Limits; l != nil {
		if float64(shared)/l.CPURatio > topology.MaxCPU || float64(memory)/l.RAMRatio > mostMemoryMB {
			return nil, false
		}
		shared = max(shared, int(math.Ceil(float64(shared)/l.CPURatio))+btoi(shared > 0 && l.CPURatio < 1))
		memory = max(memory, int64(math.Ceil(float64(memory)/l.RAMRatio))+int64(btoi(l.RAMRatio < 1)))
	}
	pinned := dedicated + emu
	if g.ThreadPolicy == topology.ThreadPolicyRequire && g.CPUPolicy.Pins() {
		threads, pinned = 2, max(1, pinned)
	}
	siblings, pinnable := []string{}, []int{}
	for n := pinned; n > 0; n -= threads {
		core := take(threads)
		siblings = append(siblings, topology.NewCPUSet(core...).String())
		pinnable = append(pinnable, core...)
	}
	floating := take(shared)
	for _, cpu := range floating {
		siblings = append(siblings, strconv.Itoa(cpu))
	}
	pages := []any{}
	page := func(kb, total int64) {
		pages = append(pages, map[string]any{"size_kb": kb, "total": total, "used": 0, "reserved": 0})
	}
	switch p := g.PageSize; {
	case p == topology.PagesLarge:
		if g.MemoryMB%2 != 0 {
			return nil, false
		}
		page(4, 0)
		page(2048, memory/2)
	case p < 0:
		page(4, memory<<8)
	case p > 0:
		if g.MemoryMB<<20%int64(p) != 0 {
			return nil, false
		}
		if kb := int64(p) >> 10; kb > 4 {
			page(4, 0)
			page(kb, g.MemoryMB<<10/kb)
		} else {
			page(kb, g.MemoryMB<<10/kb)
		}
	default:
		if slices.ContainsFunc(c.Machine.Cells, func(h fit.Cell) bool { return len(h.Pages) > 0 }) {
			page(4, memory<<8)
		}
	}
	cell := map[string]any{
		"id": id, "socket": nil, "shared_cpus": topology.NewCPUSet(floating...).String(), "dedicated_cpus": topology.NewCPUSet(pinnable...).String(),
		"siblings": siblings, "memory_mb": memory, "memory_used_mb": 0, "shared_vcpus_used": 0, "pinned_cpus": "", "mempages": pages,
	}
	// A socket of unknown number would take the socket policy from all others.
	for _, h := range c.Machine.Cells {
		if h.Socket != nil {
			cell["socket"] = *h.Socket
		}
	}
	return cell, true
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
