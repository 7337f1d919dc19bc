package fitcase

import (
	"math"
	"slices"

	"berth/claims/fit"
	"berth/topology"
)

// coreState is what is free and what is taken of the dedicated CPUs of a core.
type coreState struct{ free, taken []int }

func (k coreState) len() int { return len(k.free) + len(k.taken) }

// sorted are the dedicated CPUs of a cell in cores; threads is how many the
// largest core has. They are the same for every guest cell and all terms.
type sorted struct {
	cores   []coreState
	threads int
}

func sortCores(cell *fit.Cell) *sorted {
	cores, threads := []coreState{}, 1
	add := func(cpus topology.CPUSet) {
		var k coreState
		for _, cpu := range cpus {
			switch {
			case !cell.Dedicated.Contains(cpu):
			case cell.Pinned.Contains(cpu):
				k.taken = append(k.taken, cpu)
			default:
				k.free = append(k.free, cpu)
			}
		}
		if k.len() > 0 {
			cores = append(cores, k)
		}
	}
	in := map[int]bool{}
	for _, siblings := range cell.Cores {
		threads = max(threads, siblings.Len())
		add(siblings)
		for _, cpu := range siblings {
			in[cpu] = true
		}
	}
	for _, cpu := range cell.Dedicated {
		if !in[cpu] {
			add(topology.CPUSet{cpu})
		}
	}
	return &sorted{cores, threads}
}

// fixDedicated sees to CPUs for dedicated vCPUs and isolated emulator threads.
func (f *fixer) fixDedicated() bool {
	if !f.guest.CPUPolicy.Pins() {
		return true
	}
	want := f.guest.DedicatedVCPUs.Len()
	if f.emu > 0 && want == 0 {
		return false // Nova has no place for emulator threads without dedicated vCPUs
	}
	// The thread policy holds for a cell without dedicated vCPUs too.
	vcpus := want
	if want == 0 {
		switch f.guest.ThreadPolicy {
		case topology.ThreadPolicyIsolate:
			return false
		case topology.ThreadPolicyRequire:
			vcpus = 1
		default:
			return true
		}
	}
	cores, threads := f.sorts.cores, f.sorts.threads
	free, taken := 0, 0
	for _, k := range cores {
		free += len(k.free)
		taken += len(k.taken)
	}
	per, whole := 1, 0 // threads wanted of each core, and how many cores have them
	switch f.guest.ThreadPolicy {
	case topology.ThreadPolicyIsolate:
		if threads > 1 && !f.cell.Shared.SameAs(f.cell.Dedicated) {
			return false
		}
		f.both = threads > 1
		per, whole = threads, want
	case topology.ThreadPolicyRequire:
		if threads < 2 && !f.terms.enlarge {
			return false
		}
		per, whole = f.grouping(cores, vcpus, max(2, threads))
	}
	if per > 1 || f.guest.ThreadPolicy == topology.ThreadPolicyIsolate {
		if !f.releaseCores(cores, per, whole) {
			if !f.terms.enlarge && !f.terms.convert {
				return false
			}
			f.released = nil
			if f.guest.ThreadPolicy == topology.ThreadPolicyRequire {
				per = max(2, threads)
				whole = (vcpus + per - 1) / per
			}
			have := 0
			for _, k := range cores {
				if len(k.free) >= per {
					have++
				}
			}
			for ; have < whole; have++ {
				f.newCore(per)
			}
		}
	}
	total := want + f.emu
	if f.guest.ThreadPolicy == topology.ThreadPolicyIsolate {
		total = want*threads + f.emu
	}
	short := total - free - len(f.released)
	for _, k := range f.newCores {
		short -= len(k)
	}
	if short <= 0 {
		return true
	}
	if short <= taken-len(f.released) {
		f.releaseAny(cores, short)
		return true
	}
	for ; short > 0 && (f.terms.enlarge || f.terms.convert) && !f.failed; short -= threads {
		f.newCore(threads)
	}
	return short <= 0
}

// grouping is the number of threads a core, and of such cores, that `require`
// comes by with the fewest CPUs released.
func (f *fixer) grouping(cores []coreState, want, threads int) (per, whole int) {
	least := math.MaxInt
	per, whole = threads, (want+threads-1)/threads
	for k := threads; k >= 2; k-- {
		n := (want + k - 1) / k
		if cpus, ok := missing(cores, k, n); ok && len(cpus) < least {
			per, whole, least = k, n, len(cpus)
		}
	}
	return per, whole
}

// missing are the CPUs to be released so that n cores have per free threads each.
func missing(cores []coreState, per, n int) ([]int, bool) {
	var short []coreState
	for _, k := range cores {
		switch {
		case len(k.free) >= per:
			n--
		case k.len() >= per:
			short = append(short, k)
		}
	}
	slices.SortStableFunc(short, func(a, b coreState) int { return len(b.free) - len(a.free) })
	var out []int
	for _, k := range short {
		if n <= 0 {
			break
		}
		out = append(out, k.taken[:per-len(k.free)]...)
		n--
	}
	return out, n <= 0
}

func (f *fixer) releaseCores(cores []coreState, per, whole int) bool {
	cpus, ok := missing(cores, per, whole)
	if ok {
		f.released = cpus
	}
	return ok
}

// releaseAny releases so many CPUs beyond those released already: of the cores
// where that leaves the fewest taken.
func (f *fixer) releaseAny(cores []coreState, n int) {
	fullest := slices.Clone(cores)
	slices.SortStableFunc(fullest, func(a, b coreState) int { return len(a.taken) - len(b.taken) })
	for _, k := range fullest {
		for _, cpu := range k.taken {
			if n > 0 && !slices.Contains(f.released, cpu) {
				f.released = append(f.released, cpu)
				n--
			}
		}
	}
}

func (f *fixer) newCore(threads int) {
	if f.terms.convert {
		for _, s := range f.cell.Cores {
			if s.Len() == threads && f.cell.Shared.ContainsAll(s) && !s.Intersects(f.cell.Dedicated) && !s.Intersects(f.converted) {
				f.newCores = append(f.newCores, s)
				f.converted = f.converted.Union(s)
				return
			}
		}
		f.failed = true
		return
	}
	core := make([]int, threads)
	for i := range core {
		core[i] = *f.next
		*f.next++
	}
	f.newCores = append(f.newCores, core)
}
