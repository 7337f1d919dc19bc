package fitcase

import (
	"math"
	"slices"
	"strconv"

	"berth/claims/fit"
	"berth/topology"
)

// terms say what a change may do to host cells.
type terms struct {
	enlarge bool // give a cell CPUs, memory or pages that it has not; else only free what is in use
	convert bool // dedicate cores of a cell that are shared until now
	ratios  bool // leave the ratios out of account: they are raised afterwards
	add     bool // give the host more cells
}

// fixer makes one host cell hold one guest cell. It works on amounts, and writes
// the operations for what has changed at the end.
type fixer struct {
	cell  *fit.Cell
	doc   map[string]any // the cell's object
	path  []string
	guest *topology.GuestCell
	emu   int // isolated emulator CPUs wanted
	terms terms
	limit *fit.Limits
	next  *int // the next CPU number that nobody has
	sorts *sorted

	memory, memoryUsed int64
	shared, sharedUsed int
	released           []int
	newCores           [][]int
	converted          topology.CPUSet // CPUs of newCores that were shared
	failed             bool            // a core was wanted and could not be had
	both               bool            // new dedicated CPUs are shared ones too
	pages              []fit.Pages
	addedPages         []fit.Pages
}

// fix gives the operations that make the cell hold the guest cell, and how far
// they depart from what is; false when no operation on the cell does.
func (f *fixer) fix() (ops []Op, departure float64, ok bool) {
	f.memory, f.memoryUsed = f.cell.MemoryMB, f.cell.MemoryUsedMB
	f.shared, f.sharedUsed = f.cell.Shared.Len(), f.cell.SharedUsed
	f.pages = f.cell.Pages
	if !f.fixPages() || !f.fixShared() || !f.fixDedicated() {
		return nil, 0, false
	}
	if f.failed {
		return nil, 0, false
	}
	return f.write()
}

// fixPages sees to the memory that rules 1 and 2 of the case format ask for.
func (f *fixer) fixPages() bool {
	need, pins := f.guest.MemoryMB, f.guest.CPUPolicy.Pins()
	want := f.guest.PageSize
	switch {
	case want != topology.PagesDefault:
		return f.fixAskedPages(want)
	case len(f.pages) > 0:
		if f.divides(f.pages[0].Size) {
			return f.morePages(0, pins)
		}
		return f.addPages(f.smaller())
	case pins && f.memory-f.memoryUsed < need:
		if f.memory >= need {
			f.memoryUsed = f.memory - need
			return true
		}
		f.memory = f.memoryUsed + need
		return f.terms.enlarge
	case f.memory < need:
		f.memory = need
		return f.terms.enlarge
	}
	return true
}

func (f *fixer) divides(size topology.PageSize) bool {
	return size > 0 && f.guest.MemoryMB<<20%int64(size) == 0
}

// smaller is a page size below all that the cell has, which divides every MiB.
func (f *fixer) smaller() topology.PageSize {
	if len(f.pages) == 0 || f.pages[0].Size > 4<<10 {
		return 4 << 10
	}
	return 1 << 10
}

func (f *fixer) fixAskedPages(want topology.PageRequest) bool {
	best, least := -1, math.Inf(1)
	for i, p := range f.pages {
		if !want.Takes(i, p.Size) || !f.divides(p.Size) {
			continue
		}
		need := f.guest.MemoryMB << 20 / int64(p.Size)
		price := 0.0
		if need > p.Free() {
			price = 1 + float64(need-p.Free())/float64(max(1, p.Total))
			if need > p.Total-p.Reserved {
				price += 1000
			}
		}
		if price < least {
			best, least = i, price
		}
	}
	if best >= 0 {
		return f.morePages(best, true)
	}
	switch want {
	case topology.PagesSmall, topology.PagesAny:
		return f.addPages(f.smaller())
	case topology.PagesLarge:
		if len(f.pages) == 0 && !f.addPages(4<<10) {
			return false
		}
		for _, size := range []topology.PageSize{2 << 20, 1 << 20, 64 << 10, 8 << 10, 1 << 30} {
			known := slices.ContainsFunc(f.pages, func(p fit.Pages) bool { return p.Size == size })
			if !known && f.divides(size) && (len(f.pages) == 0 || size > f.pages[0].Size) {
				return f.addPages(size)
			}
		}
		return false
	}
	return f.divides(topology.PageSize(want)) && f.addPages(topology.PageSize(want))
}

// morePages sees to enough pages in a pool: free ones, or of the total where
// those in use do not count.
func (f *fixer) morePages(i int, free bool) bool {
	p := f.pages[i]
	need := f.guest.MemoryMB << 20 / int64(p.Size)
	if !free {
		p.Used, p.Reserved = 0, 0
	}
	switch {
	case need <= p.Free():
		return true
	case need <= p.Total-p.Reserved:
		p.Used = p.Total - p.Reserved - need
	case f.terms.enlarge:
		p.Total = p.Used + p.Reserved + need
	default:
		return false
	}
	if !free {
		p.Used, p.Reserved = f.pages[i].Used, f.pages[i].Reserved
	}
	f.pages = slices.Clone(f.pages)
	f.pages[i] = p
	return true
}

func (f *fixer) addPages(size topology.PageSize) bool {
	if !f.terms.enlarge {
		return false
	}
	f.addedPages = append(f.addedPages, fit.Pages{Size: size, Total: f.guest.MemoryMB << 20 / int64(size)})
	return true
}

// fixShared sees to the shared CPUs and to the ratios.
func (f *fixer) fixShared() bool {
	if f.guest.CPUPolicy == topology.CPUPolicyDedicated {
		return true
	}
	want := f.guest.SharedVCPUs.Len()
	if f.shared < want {
		f.shared = want
		if !f.terms.enlarge {
			return false
		}
	}
	if f.limit == nil || f.terms.ratios {
		return f.limit == nil || (want+f.sharedUsed == 0 || f.shared > 0) && f.memory > 0
	}
	if float64(f.sharedUsed+want) > float64(f.shared)*f.limit.CPURatio {
		may := int(float64(f.shared) * f.limit.CPURatio)
		switch {
		case may >= want:
			f.sharedUsed = may - want
		case f.terms.enlarge && float64(f.sharedUsed+want)/f.limit.CPURatio < topology.MaxCPU:
			f.shared = max(f.shared, int(math.Ceil(float64(f.sharedUsed+want)/f.limit.CPURatio)))
			for float64(f.sharedUsed+want) > float64(f.shared)*f.limit.CPURatio {
				f.shared++
			}
		default:
			return false
		}
	}
	need := f.guest.MemoryMB
	if float64(f.memoryUsed+need) > float64(f.memory)*f.limit.RAMRatio {
		may := int64(float64(f.memory) * f.limit.RAMRatio)
		switch {
		case may >= need:
			f.memoryUsed = may - need
		case f.terms.enlarge && float64(f.memoryUsed+need)/f.limit.RAMRatio < mostMemoryMB:
			f.memory = int64(math.Ceil(float64(f.memoryUsed+need) / f.limit.RAMRatio))
			for float64(f.memoryUsed+need) > float64(f.memory)*f.limit.RAMRatio {
				f.memory++
			}
		default:
			return false
		}
	}
	return true
}

// write compares what is wanted with what is.
func (f *fixer) write() (ops []Op, departure float64, ok bool) {
	set := func(value any, key string, path ...string) {
		op := "replace"
		if _, there := f.doc[key]; !there && len(path) == 0 {
			op = "add"
		}
		ops = append(ops, Op{op, pointer(append(append(slices.Clone(f.path), key), path...)...), value})
	}
	// What is freed counts once, what is bought ten times.
	freed := func(n, of int64) { departure += float64(n) / float64(max(1, of)) }
	bought := func(n, of int64) { departure += 10 * (1 + float64(n)/float64(max(1, of))) }

	if len(f.released) > 0 {
		set(f.cell.Pinned.Difference(topology.NewCPUSet(f.released...)).String(), "pinned_cpus")
		freed(int64(len(f.released)), int64(f.cell.Dedicated.Len()))
	}
	f.writePages(&ops, set, freed, bought)
	if f.memory != f.cell.MemoryMB {
		set(f.memory, "memory_mb")
		bought(f.memory-f.cell.MemoryMB, f.cell.MemoryMB)
	}
	if f.memoryUsed != f.cell.MemoryUsedMB {
		set(f.memoryUsed, "memory_used_mb")
		freed(f.cell.MemoryUsedMB-f.memoryUsed, f.cell.MemoryMB)
	}
	if f.sharedUsed != f.cell.SharedUsed {
		set(f.sharedUsed, "shared_vcpus_used")
		freed(int64(f.cell.SharedUsed-f.sharedUsed), int64(f.cell.Shared.Len()))
	}
	var dedicated []int
	for _, k := range f.newCores {
		dedicated = append(dedicated, k...)
	}
	shared := f.cell.Shared
	if f.both {
		shared = shared.Union(topology.NewCPUSet(dedicated...))
	}
	cores := f.newCores
	if !f.converted.IsEmpty() {
		cores = nil // they are known
		left := shared.Difference(f.converted)
		set(left.String(), "shared_cpus")
		set(f.cell.Dedicated.Union(f.converted).String(), "dedicated_cpus")
		departure += 2 + float64(f.converted.Len())/float64(shared.Len())
		return ops, departure, left.Len() >= f.guest.SharedVCPUs.Len()
	}
	for shared.Len() < f.shared {
		shared = shared.Union(topology.CPUSet{*f.next})
		cores = append(cores, []int{*f.next})
		*f.next++
	}
	if len(dedicated) > 0 {
		set(f.cell.Dedicated.Union(topology.NewCPUSet(dedicated...)).String(), "dedicated_cpus")
		bought(int64(len(dedicated)), int64(f.cell.Dedicated.Len()))
	}
	if n := shared.Len() - f.cell.Shared.Len(); n > 0 {
		set(shared.String(), "shared_cpus")
		bought(int64(n), int64(f.cell.Shared.Len()))
	}
	if len(cores) > 0 {
		siblings := []string{}
		for _, k := range f.cell.Cores {
			siblings = append(siblings, k.String())
		}
		for _, k := range cores {
			siblings = append(siblings, topology.NewCPUSet(k...).String())
		}
		set(siblings, "siblings")
	}
	return ops, departure, true
}

// writePages writes the page pools, and the memory that must hold them.
func (f *fixer) writePages(ops *[]Op, set func(any, string, ...string), freed, bought func(n, of int64)) {
	sum := func(pages []fit.Pages) (bytes int64) {
		for _, p := range pages {
			bytes += p.Total * int64(p.Size)
		}
		return bytes
	}
	list, _ := f.doc["mempages"].([]any)
	for i, p := range f.pages {
		was := f.cell.Pages[i]
		at := slices.IndexFunc(list, func(v any) bool {
			m, _ := v.(map[string]any)
			kb, ok := whole(m["size_kb"])
			return ok && topology.PageSize(kb)<<10 == p.Size
		})
		if p.Used != was.Used {
			set(p.Used, "mempages", strconv.Itoa(at), "used")
			freed(was.Used-p.Used, was.Total)
		}
		if p.Total != was.Total {
			set(p.Total, "mempages", strconv.Itoa(at), "total")
			bought(p.Total-was.Total, was.Total)
		}
	}
	if len(f.addedPages) > 0 {
		if f.doc["mempages"] == nil {
			set([]any{}, "mempages")
		}
		for _, p := range f.addedPages {
			*ops = append(*ops, Op{"add", pointer(append(slices.Clone(f.path), "mempages", "-")...),
				map[string]any{"size_kb": int64(p.Size) >> 10, "total": p.Total, "used": 0, "reserved": 0}})
			bought(1, 1)
		}
	}
	// Pages are part of the cell's memory: where they stood within it, they stay.
	before, after := sum(f.cell.Pages), sum(f.pages)+sum(f.addedPages)
	if after > before && before <= f.cell.MemoryMB<<20 {
		f.memory = max(f.memory, (after+1<<20-1)>>20)
	}
}
