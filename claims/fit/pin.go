package fit

import (
	"cmp"
	"slices"

	"berth/topology"
)

// choice is where in a host cell a guest cell would go, and what that costs.
type choice struct {
	cell topology.AssignedCell
	cost cost
}

// cost orders placements of one guest cell, the first field counting most. It
// holds the preferences of the package doc, from whole cores down.
type cost struct {
	devices int // 1 when the host cell has devices and the guest wants none
	broken  int // whole cores that are begun and not filled
	caches  int // last-level caches beyond the first
	left    int // CPUs that stay free: the tightest cell is best
	memory  int // memory that stays free, in 64ths of the cell
}

// packed is the cost as one number below 2^50. Each field is clipped so that a
// sum over 64 guest cells keeps the order of the fields.
func (c cost) packed() int64 {
	n := int64(0)
	for _, f := range [...]struct{ value, most, bits int }{
		{c.devices, 1, 7}, {c.broken, 3, 8}, {c.caches, 7, 9}, {c.left, 255, 14}, {c.memory, 63, 12},
	} {
		n = n<<f.bits + int64(min(f.value, f.most))
	}
	return n
}

// choose places a guest cell that holds says fits.
func (r *room) choose(q *ask, wantsDevices bool) choice {
	size, _ := r.pages(q)
	c := choice{cell: topology.AssignedCell{HostCell: r.cell.ID, MemoryMB: q.cell.MemoryMB, PageSize: size, Shared: q.shared}}
	if q.cell.CPUPolicy.Pins() && q.dedicated > 0 {
		r.pin(q, &c)
	}
	if r.devices && !wantsDevices {
		c.cost.devices = 1
	}
	if q.cell.CPUPolicy == topology.CPUPolicyDedicated {
		c.cost.left = r.free - q.dedicated - q.emulator - len(c.cell.Idle)
	} else {
		c.cost.left = max(0, len(r.cell.Shared)-r.cell.SharedUsed-q.shared)
	}
	c.cost.memory = r.memoryLeft(q, size)
	return c
}

// memoryLeft is what stays free of the memory that the guest cell draws on, in
// 64ths, rounded down.
func (r *room) memoryLeft(q *ask, size topology.PageSize) int {
	left, total := (r.cell.MemoryMB-r.cell.MemoryUsedMB)<<20, r.cell.MemoryMB<<20
	for i, p := range r.cell.Pages {
		if p.Size == size || size == 0 && i == 0 {
			left, total = p.Free()*int64(p.Size), p.Total*int64(p.Size)
		}
	}
	if left -= q.cell.MemoryMB << 20; left <= 0 || total <= 0 {
		return 0
	}
	return int(float64(left) / float64(total) * 64)
}

// part is how many threads of a core are taken.
type part struct {
	core    *core
	threads int
}

// pin chooses the CPUs.
func (r *room) pin(q *ask, c *choice) {
	var parts []part
	switch q.cell.ThreadPolicy {
	case topology.ThreadPolicyIsolate:
		for _, k := range r.inCaches(q.dedicated, func(k *core) int { return btoi(k.whole) }) {
			if len(parts) < q.dedicated {
				parts = append(parts, part{k, 1})
				c.cell.Idle = append(c.cell.Idle, k.free[1:]...)
			}
		}
	case topology.ThreadPolicyRequire:
		per := r.grouping(q.dedicated)
		parts = r.groups(q.dedicated, per)
	default:
		if per := r.grouping(q.dedicated); per > 0 && q.dedicated%per == 0 {
			parts = r.groups(q.dedicated, per)
		} else {
			parts = r.fill(q.dedicated)
		}
	}
	vcpus, n := q.cell.DedicatedVCPUs, 0
	c.cell.Pins = make([]topology.Pin, 0, len(vcpus))
	caches := map[int]bool{}
	for _, p := range parts {
		for _, cpu := range p.core.free[:p.threads] {
			c.cell.Pins = append(c.cell.Pins, topology.Pin{VCPU: vcpus[n], CPU: cpu})
			n++
		}
		if p.core.whole && p.threads < len(p.core.free) && q.cell.ThreadPolicy != topology.ThreadPolicyIsolate {
			c.cost.broken++
		}
		if r.caches > 1 {
			caches[p.core.cache] = true
		}
	}
	c.cost.caches = max(0, len(caches)-1)
	slices.Sort(c.cell.Idle)
	if q.emulator > 0 {
		c.cell.Emulator = r.forEmulator(q, parts)
	}
}

// forEmulator is a CPU beside the vCPUs': of a core that is begun already, if
// there is one, and under isolate of a core that holds no vCPU.
func (r *room) forEmulator(q *ask, parts []part) topology.CPUSet {
	used := map[*core]int{}
	for _, p := range parts {
		used[p.core] = p.threads
	}
	best, bestCPU := 0, -1
	for i := range r.cores {
		k := &r.cores[i]
		n, holds := used[k]
		if holds && q.cell.ThreadPolicy == topology.ThreadPolicyIsolate || n == len(k.free) {
			continue
		}
		rank := 1
		switch {
		case !k.whole && !holds:
			rank = 3
		case holds:
			rank = 2 // shares a core with a vCPU of its own guest
		}
		if rank > best {
			best, bestCPU = rank, k.free[n]
		}
	}
	return topology.CPUSet{bestCPU}
}

// groups takes n threads, `per` from each core, from the cores that have the
// fewest free beyond that; the last core may be used in part.
func (r *room) groups(n, per int) []part {
	var parts []part
	for _, k := range r.inCaches(n, func(k *core) int { return per * btoi(len(k.free) >= per) }) {
		if n > 0 {
			parts = append(parts, part{k, min(n, per)})
			n -= min(n, per)
		}
	}
	return parts
}

// fill takes n threads: whole cores while they can be filled, then what is left
// over from the core that it fills best, then anything.
func (r *room) fill(n int) []part {
	taken := map[*core]bool{}
	var parts []part
	take := func(k *core) {
		m := min(n, len(k.free))
		parts = append(parts, part{k, m})
		taken[k] = true
		n -= m
	}
	cores := r.inCaches(n, func(k *core) int { return len(k.free) })
	for _, k := range cores {
		if k.whole && len(k.free) <= n {
			take(k)
		}
	}
	for n > 0 {
		var best *core
		for _, k := range cores {
			if !taken[k] && (best == nil || fillsBetter(k, best, n)) {
				best = k
			}
		}
		take(best)
	}
	return parts
}

// fillsBetter reports whether taking up to n threads of a leaves less begun than
// of b: a core that n fills, the largest such; else the one with least to spare.
func fillsBetter(a, b *core, n int) bool {
	spareA, spareB := len(a.free)-n, len(b.free)-n
	switch {
	case spareA <= 0 && spareB <= 0:
		return spareA > spareB
	case spareA <= 0 || spareB <= 0:
		return spareA <= 0
	}
	return spareA < spareB
}

// inCaches gives the cores of which count says more than nothing, in the order
// in which to use them for n threads: those of the one last-level cache that has
// just enough, or, where none has, cache after cache, the emptiest first; within
// a cache the cores with the fewest free threads first.
func (r *room) inCaches(n int, count func(*core) int) []*core {
	cores := make([]*core, 0, len(r.cores))
	capacity := make([]int, r.caches)
	for i := range r.cores {
		if k := &r.cores[i]; count(k) > 0 {
			cores = append(cores, k)
			capacity[k.cache] += count(k)
		}
	}
	best := -1
	for i, have := range capacity {
		if have >= n && (best < 0 || have < capacity[best]) {
			best = i
		}
	}
	slices.SortStableFunc(cores, func(a, b *core) int {
		if a.cache == b.cache {
			return cmp.Compare(len(a.free), len(b.free))
		}
		return cmp.Or(btoi(b.cache == best)-btoi(a.cache == best), cmp.Compare(capacity[b.cache], capacity[a.cache]), cmp.Compare(a.cache, b.cache))
	})
	return cores
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
