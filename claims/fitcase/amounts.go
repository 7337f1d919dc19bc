package fitcase

import (
	"math"
	"strconv"

	"berth/claims/fit"
	"berth/topology"
)

func itoa(n int) string { return strconv.Itoa(n) }

// ratio is the least ratio, in ten-thousandths where they reach, by which want
// is promised of have; 0 where nothing would do.
func ratio(want, have float64) float64 {
	if have <= 0 {
		return 0
	}
	r := math.Ceil(want/have*1e4) / 1e4
	for have*r < want {
		r = math.Nextafter(r, math.Inf(1))
	}
	return r
}

// raise brings the ratios of the case to at least these.
func (c *Case) raise(cpu, ram float64) (out candidate) {
	l := c.Machine.Limits
	if l == nil {
		return out
	}
	if cpu > l.CPURatio {
		out.ops = append(out.ops, Op{"replace", "/limits/cpu_allocation_ratio", cpu})
		out.departure += cpu/l.CPURatio - 1
	}
	if ram > l.RAMRatio {
		out.ops = append(out.ops, Op{"replace", "/limits/ram_allocation_ratio", ram})
		out.departure += ram/l.RAMRatio - 1
	}
	return out
}

// floatingChanges are the host's changes for a guest without NUMA topology:
// raise the ratios, free what is in use, or enlarge a cell; and devices.
func (c *Case) floatingChanges() []candidate {
	h, want := c.amounts(), c.Flavor.Resources()
	devices := c.nearness(nil, nil)
	var out []candidate
	join := func(ways ...candidate) {
		for _, d := range devices {
			all := candidate{}
			for _, w := range ways {
				all = all.with(w)
			}
			out = append(out, all.with(d))
		}
	}
	overCPU, overMemory := int64(want.VCPUs-h.Total.VCPUs), want.MemoryMB-h.Total.MemoryMB
	cpus, memory := c.enlargeFloating(overCPU, overMemory)
	grown := h
	grown.Total.VCPUs += int(max(0, overCPU))
	grown.Total.MemoryMB += max(0, overMemory)
	limit := grown.Limit()
	shortCPU := int64(h.Used.VCPUs+want.VCPUs) - int64(limit.VCPUs)
	shortMemory := h.Used.MemoryMB + want.MemoryMB - limit.MemoryMB
	// The ratio is rounded down once more by the whole host's arithmetic, which
	// asks for no less than what ratio gives.
	join(cpus, memory, c.raise(ratio(float64(h.Used.VCPUs+want.VCPUs), float64(grown.Total.VCPUs)),
		ratio(float64(h.Used.MemoryMB+want.MemoryMB), float64(grown.Total.MemoryMB))))
	freeCPU, ok1 := c.freeFloating("shared_vcpus_used", shortCPU, int64(h.Total.VCPUs), func(f *fit.Cell) int64 { return int64(f.SharedUsed) })
	freeMemory, ok2 := c.freeFloating("memory_used_mb", shortMemory, h.Total.MemoryMB, func(f *fit.Cell) int64 { return f.MemoryUsedMB })
	if ok1 && ok2 {
		join(cpus, memory, freeCPU, freeMemory)
	}
	if l := c.Machine.Limits; l != nil && float64(h.Used.VCPUs+want.VCPUs)/l.CPURatio < topology.MaxCPU && float64(h.Used.MemoryMB+want.MemoryMB)/l.RAMRatio < mostMemoryMB {
		moreCPU := int64(math.Ceil(float64(h.Used.VCPUs+want.VCPUs)/l.CPURatio)) - int64(h.Total.VCPUs) + btoi64(l.CPURatio != math.Trunc(l.CPURatio))
		moreMemory := int64(math.Ceil(float64(h.Used.MemoryMB+want.MemoryMB)/l.RAMRatio)) - h.Total.MemoryMB + btoi64(l.RAMRatio != math.Trunc(l.RAMRatio))
		if shortCPU <= 0 {
			moreCPU = overCPU
		}
		if shortMemory <= 0 {
			moreMemory = overMemory
		}
		cpus, memory := c.enlargeFloating(max(moreCPU, overCPU), max(moreMemory, overMemory))
		join(cpus, memory)
	}
	return out
}

func btoi64(b bool) int64 { return int64(btoi(b)) }

// freeFloating frees an amount that is in use, of the fullest cells first.
func (c *Case) freeFloating(key string, short, total int64, used func(*fit.Cell) int64) (out candidate, ok bool) {
	left := map[int]bool{}
	for i := range c.Machine.Cells {
		left[i] = true
	}
	for short > 0 && len(left) > 0 {
		fullest := -1
		for i := range c.Machine.Cells {
			if left[i] && (fullest < 0 || used(&c.Machine.Cells[i]) > used(&c.Machine.Cells[fullest])) {
				fullest = i
			}
		}
		delete(left, fullest)
		has := used(&c.Machine.Cells[fullest])
		if has == 0 {
			break
		}
		n := min(has, short)
		out.ops = append(out.ops, Op{"replace", pointer("host", "cells", itoa(fullest), key), has - n})
		out.departure += float64(n) / float64(max(1, total))
		short -= n
	}
	return out, short <= 0
}

// enlargeFloating gives the host's first cell more CPUs and memory, or the host
// a cell where it has none.
func (c *Case) enlargeFloating(cpus, memory int64) (moreCPUs, moreMemory candidate) {
	if len(c.Machine.Cells) == 0 {
		next := 0
		guest := topology.GuestCell{MemoryMB: max(1, memory)}
		for i := range max(0, cpus) {
			guest.SharedVCPUs = append(guest.SharedVCPUs, int(i))
		}
		cell, _ := c.newCell(&guest, 0, 0, &next)
		return candidate{[]Op{{"add", "/host/cells/-", cell}}, 1000}, candidate{}
	}
	cell := &c.Machine.Cells[0]
	if cpus > 0 {
		guest := &topology.GuestTopology{Cells: []topology.GuestCell{{}}}
		m := newMatcher(c, guest)
		next := m.firstCPU()
		f := m.fixer(0, 0, terms{enlarge: true}, &next)
		f.memory, f.memoryUsed, f.sharedUsed, f.pages = cell.MemoryMB, cell.MemoryUsedMB, cell.SharedUsed, cell.Pages
		f.shared = cell.Shared.Len() + int(cpus)
		moreCPUs.ops, moreCPUs.departure, _ = f.write()
	}
	if memory > 0 {
		moreMemory = candidate{[]Op{{"replace", "/host/cells/0/memory_mb", cell.MemoryMB + memory}}, 10 * (1 + float64(memory)/float64(max(1, cell.MemoryMB)))}
	}
	return moreCPUs, moreMemory
}
