package fit

import (
	"berth/topology"
)

// room is a host cell made ready for many questions.
type room struct {
	cell    *Cell
	cores   []core
	threads int   // of the core with the most: 1 on a host without SMT
	free    int   // dedicated CPUs that nobody has
	whole   int   // cores of all the host's threads, every one free
	having  []int // having[k] is how many cores have at least k free threads
	oneSet  bool  // one set of CPUs for both, or no SMT: where isolate may work
	caches  int   // last-level caches among its cores
	devices bool  // functions are free on it
}

// core is what is free of one physical core.
type core struct {
	free  []int // CPUs that may be pinned and that nobody has, ascending
	whole bool  // all of the host's threads stand in free
	cache int   // index of its last-level cache
}

// ask is a guest cell made ready.
type ask struct {
	cell              *topology.GuestCell
	shared, dedicated int
	emulator          int // isolated emulator CPUs: 1 in guest cell 0 where asked
	limits            *Limits
}

// like reports whether two guest cells ask for the same: then every host cell
// that holds the one holds the other.
func (a *ask) like(b *ask) bool {
	return a.shared == b.shared && a.dedicated == b.dedicated && a.emulator == b.emulator &&
		a.cell.MemoryMB == b.cell.MemoryMB && a.cell.PageSize == b.cell.PageSize &&
		a.cell.CPUPolicy == b.cell.CPUPolicy && a.cell.ThreadPolicy == b.cell.ThreadPolicy
}

// cpuBits is a set of CPUs with a test that costs nothing.
type cpuBits []uint64

func (b cpuBits) has(cpu int) bool {
	return cpu>>6 < len(b) && b[cpu>>6]&(1<<(cpu&63)) != 0
}

func (b *cpuBits) add(cpus topology.CPUSet) {
	if n := len(cpus); n > 0 {
		for words := cpus[n-1]>>6 + 1; len(*b) < words; {
			*b = append(*b, make([]uint64, words-len(*b))...)
		}
	}
	for _, c := range cpus {
		(*b)[c>>6] |= 1 << (c & 63)
	}
}

func (b cpuBits) remove(cpus topology.CPUSet) {
	for _, c := range cpus {
		if c>>6 < len(b) {
			b[c>>6] &^= 1 << (c & 63)
		}
	}
}

// enter makes a host cell ready. scratch is memory to use and to use again.
func enter(c *Cell, scratch *cpuBits) room {
	r := room{cell: c, threads: 1}
	for _, siblings := range c.Cores {
		r.threads = max(r.threads, len(siblings))
	}
	r.oneSet = r.threads == 1 || c.Shared.SameAs(c.Dedicated)
	bits := (*scratch)[:0]
	clear((*scratch)[:cap(*scratch)])
	bits.add(c.Dedicated)
	bits.remove(c.Pinned)
	all := make([]int, 0, len(c.Dedicated)) // one array behind every core's list
	r.cores = make([]core, 0, len(c.Cores))
	add := func(siblings topology.CPUSet) {
		first := len(all)
		for _, cpu := range siblings {
			if bits.has(cpu) {
				all = append(all, cpu)
			}
		}
		if free := all[first:len(all):len(all)]; len(free) > 0 {
			r.cores = append(r.cores, core{free: free, whole: len(free) >= r.threads})
		}
		bits.remove(siblings)
	}
	for _, siblings := range c.Cores {
		add(siblings)
	}
	for i, cpu := range c.Dedicated {
		if bits.has(cpu) { // it stands among no siblings
			add(c.Dedicated[i : i+1])
		}
	}
	*scratch = bits
	r.having = make([]int, r.threads+1)
	for _, k := range r.cores {
		r.free += len(k.free)
		if k.whole {
			r.whole++
		}
		for n := 1; n <= len(k.free); n++ {
			r.having[n]++
		}
	}
	r.findCaches()
	return r
}

// findCaches tells each core its last-level cache; cores of none share one.
func (r *room) findCaches() {
	r.caches = 1
	if len(r.cell.Caches) < 2 {
		return
	}
	r.caches = len(r.cell.Caches)
	for i := range r.cores {
		for n, cache := range r.cell.Caches {
			if cache.Contains(r.cores[i].free[0]) {
				r.cores[i].cache = n
				break
			}
		}
	}
}

// holds reports whether the guest cell fits the host cell by itself; with say,
// it goes on past the first reason why not and tells each.
func (r *room) holds(q *ask, say func(Reason)) bool {
	_, ok := r.pages(q)
	if !ok {
		if say == nil {
			return false
		}
		r.sayMemory(q, say)
	}
	all := ok
	for _, rule := range [...]struct {
		holds func(*room, *ask) bool
		say   func(*room, *ask, func(Reason))
	}{
		{(*room).sharedFit, (*room).saySharedFit},
		{(*room).vcpusWithinRatio, (*room).sayVCPURatio},
		{(*room).memoryWithinRatio, (*room).sayMemoryRatio},
		{(*room).dedicatedFit, (*room).sayDedicatedFit},
		{(*room).threadsFit, (*room).sayThreads},
	} {
		if rule.holds(r, q) {
			continue
		}
		if say == nil {
			return false
		}
		rule.say(r, q, say)
		all = false
	}
	return all
}

// pages chooses the page size for a guest cell: the one it names, else the
// largest that fits. 0 where none was asked.
func (r *room) pages(q *ask) (topology.PageSize, bool) {
	bytes := q.cell.MemoryMB << 20
	pools, want := r.cell.Pages, q.cell.PageSize
	if want == topology.PagesDefault {
		return 0, r.ordinaryMemory(q) >= bytes && (len(pools) == 0 || bytes%int64(pools[0].Size) == 0)
	}
	for i := len(pools) - 1; i >= 0; i-- {
		p := pools[i]
		if want.Takes(i, p.Size) && bytes%int64(p.Size) == 0 && bytes/int64(p.Size) <= p.Free() {
			return p.Size, true
		}
	}
	return 0, false
}

// ordinaryMemory is how many bytes a guest cell that asks for no page size may
// have. A guest that pins cannot be given what others use; one that floats may
// be, up to the ratio, but never more than the cell has.
func (r *room) ordinaryMemory(q *ask) int64 {
	pins := q.cell.CPUPolicy.Pins()
	if len(r.cell.Pages) > 0 {
		p := r.cell.Pages[0]
		if pins {
			return p.Free() * int64(p.Size)
		}
		return p.Total * int64(p.Size)
	}
	if pins {
		return max(0, r.cell.MemoryMB-r.cell.MemoryUsedMB) << 20
	}
	return r.cell.MemoryMB << 20
}

// sharedFit: a guest cell is never promised more shared vCPUs than there are
// shared CPUs, whatever the ratio: it would wait for itself.
func (r *room) sharedFit(q *ask) bool {
	return q.cell.CPUPolicy == topology.CPUPolicyDedicated || q.shared <= len(r.cell.Shared)
}

func (r *room) vcpusWithinRatio(q *ask) bool {
	if q.limits == nil || q.cell.CPUPolicy == topology.CPUPolicyDedicated {
		return true
	}
	return float64(r.cell.SharedUsed+q.shared) <= float64(len(r.cell.Shared))*orOne(q.limits.CPURatio)
}

func (r *room) memoryWithinRatio(q *ask) bool {
	if q.limits == nil || q.cell.CPUPolicy == topology.CPUPolicyDedicated {
		return true
	}
	return float64(r.cell.MemoryUsedMB+q.cell.MemoryMB) <= float64(r.cell.MemoryMB)*orOne(q.limits.RAMRatio)
}

func orOne(ratio float64) float64 {
	if ratio <= 0 {
		return 1
	}
	return ratio
}

func (r *room) dedicatedFit(q *ask) bool {
	if !q.cell.CPUPolicy.Pins() {
		return true
	}
	// Isolated emulator threads go beside dedicated vCPUs or, as in Nova, nowhere.
	return q.dedicated+q.emulator <= r.free && (q.emulator == 0 || q.dedicated > 0)
}

// threadsFit holds the thread policy also against a mixed guest's cell without a
// dedicated vCPU, as Nova does: such a cell cannot be isolated, and require asks
// of its host cell that there are free siblings.
func (r *room) threadsFit(q *ask) bool {
	if !q.cell.CPUPolicy.Pins() {
		return true
	}
	switch q.cell.ThreadPolicy {
	case topology.ThreadPolicyIsolate:
		return r.oneSet && q.dedicated > 0 && q.dedicated <= r.whole && r.free-q.dedicated*r.threads >= q.emulator
	case topology.ThreadPolicyRequire:
		return r.grouping(max(1, q.dedicated)) > 0
	}
	return true
}

// grouping is the most threads a core, at least two, by which n vCPUs can be
// placed on cores that each have so many free; 0 when there is none.
func (r *room) grouping(n int) int {
	for k := r.threads; k > 1; k-- {
		if k*r.having[k] >= n {
			return k
		}
	}
	return 0
}
