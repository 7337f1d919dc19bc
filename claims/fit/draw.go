package fit

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// draw takes each kind's functions from the pools that it may use when these
// host cells are chosen, the nearest first: a maximum flow by augmenting paths,
// one function at a time.
func (d *devices) draw(chosen bitset, steps *int, limit int) ([]PoolUse, bool) {
	if len(d.kinds) == 0 {
		return nil, true
	}
	// What is near comes first in the one, and what there are many of is decided by
	// the other.
	most := min(limit, *steps+nearSteps)
	if uses, ok := d.drawWithout(chosen, newBitset(len(d.machine.Pools)), steps, most); ok || *steps <= most {
		return uses, ok
	}
	uses, ok, decided := d.drawByPort(chosen, steps, limit)
	if !decided {
		*steps = max(*steps, limit+1)
	}
	return uses, ok
}

// nearSteps is how many steps are spent to keep to the nearest pools where some
// exclude each other.
const nearSteps = 1 << 6

// drawWithout leaves the barred pools alone. Where what it finds uses a pool
// beside one that excludes it, it tries without the one, then with it and without
// all that it excludes. When no draw does without the pool, none does without a
// twin of it either, so that all twins are decided at once: ten like PFs and their
// VFs are ten questions and not 2^10.
func (d *devices) drawWithout(chosen, barred bitset, steps *int, limit int) ([]PoolUse, bool) {
	f, ok := d.flow(chosen, barred, steps)
	if !ok || *steps > limit {
		return nil, false
	}
	if a, b, clash := f.clash(); clash {
		if !d.star(a) && d.star(b) {
			a = b
		}
		without := barred.clone()
		without.set(a)
		if uses, ok := d.drawWithout(chosen, without, steps, limit); ok {
			return uses, true
		}
		with := barred.clone()
		for _, p := range d.twins(a, chosen, barred) {
			for _, rival := range d.rivals[p] {
				with.set(rival)
			}
		}
		return d.drawWithout(chosen, with, steps, limit)
	}
	return f.uses(), true
}

// flow draws each kind's functions, whether or not what it uses excludes each other;
// false when they cannot be had. A step is some sixteen pools looked at.
func (d *devices) flow(chosen, barred bitset, steps *int) (*flow, bool) {
	*steps += 1 + len(d.kinds)*len(d.machine.Pools)/16
	f := &flow{devices: d, steps: steps, taken: make([][]int, len(d.kinds)), left: make([]int, len(d.machine.Pools)), seen: newBitset(len(d.kinds))}
	for p := range f.left {
		if !barred.has(p) {
			f.left[p] = d.machine.Pools[p].Count
		}
	}
	f.pools = make([][]int, len(d.kinds))
	for k := range d.kinds {
		f.taken[k] = make([]int, len(f.left))
		f.pools[k] = d.nearest(k, chosen)
	}
	for k := range d.kinds {
		for want := d.kinds[k].count; want > 0; {
			f.seen.reset()
			n := f.augment(k, want)
			if n == 0 {
				return nil, false
			}
			want -= n
		}
	}
	return f, true
}

// findRivals tells each pool those that cannot be used beside it, on whichever
// side that is said.
func (d *devices) findRivals() {
	d.rivals = make([][]int, len(d.machine.Pools))
	add := func(p, other int) {
		if !slices.Contains(d.rivals[p], other) {
			d.rivals[p] = append(d.rivals[p], other)
		}
	}
	for p := range d.machine.Pools {
		for _, other := range d.machine.Pools[p].Excludes {
			if other != p && other >= 0 && other < len(d.rivals) {
				add(p, other)
				add(other, p)
			}
		}
	}
}

// star reports whether no rival of a pool has another rival than this one: a PF
// among the pools of its VFs.
func (d *devices) star(p int) bool {
	return !slices.ContainsFunc(d.rivals[p], func(r int) bool { return len(d.rivals[r]) > 1 })
}

// twins gives a pool and, where it is the middle of a star, those of all stars
// that are the same to every kind. Changing two of them over, rivals and all,
// changes no answer.
func (d *devices) twins(p int, chosen, barred bitset) []int {
	if !d.star(p) {
		return []int{p}
	}
	where := func(k, p int) byte { return byte(btoi(!barred.has(p) && d.usable(k, p, chosen))) }
	shape := d.shape(p, where)
	var twins []int
	for q := range d.rivals {
		if q == p || len(d.rivals[q]) == len(d.rivals[p]) && d.star(q) && slices.Equal(shape, d.shape(q, where)) {
			twins = append(twins, q)
		}
	}
	return twins
}

// shape says what a pool and each of its rivals are to every kind: where says
// whether, or how near, the kind may draw on it.
func (d *devices) shape(p int, where func(k, p int) byte) []byte {
	likeness := func(p int) []byte {
		key := binary.AppendVarint(nil, int64(d.machine.Pools[p].Count))
		for k := range d.kinds {
			key = append(key, where(k, p))
		}
		return key
	}
	rivals := make([][]byte, len(d.rivals[p]))
	for i, r := range d.rivals[p] {
		rivals[i] = likeness(r)
	}
	slices.SortFunc(rivals, slices.Compare[[]byte])
	return append(binary.AppendVarint(likeness(p), int64(len(rivals))), slices.Concat(rivals...)...)
}

// nearest gives the pools that a kind may use, those on a chosen cell first,
// then on a chosen socket, then of unknown cell, then the rest; among equals
// those that exclude nothing, then those with the fewest left.
func (d *devices) nearest(k int, chosen bitset) []int {
	var pools []int
	far := func(p int) int {
		switch i := d.place[p]; {
		case i >= 0 && chosen.has(i):
			return 0
		case i >= 0 && d.socket != nil && d.onChosenSocket(i, chosen):
			return 1
		case i < 0:
			return 2
		}
		return 3
	}
	for p := range d.machine.Pools {
		if d.usable(k, p, chosen) {
			pools = append(pools, p)
		}
	}
	slices.SortStableFunc(pools, func(a, b int) int {
		x, y := &d.machine.Pools[a], &d.machine.Pools[b]
		return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(len(d.rivals[a]), len(d.rivals[b])), cmp.Compare(x.Count, y.Count))
	})
	return pools
}

func (d *devices) onChosenSocket(host int, chosen bitset) bool {
	for i, s := range d.socket {
		if s == d.socket[host] && chosen.has(i) {
			return true
		}
	}
	return false
}

// flow is who draws how many functions from which pool.
type flow struct {
	*devices
	pools [][]int // by kind: the pools it may use, the best first
	taken [][]int // by kind and pool
	left  []int   // by pool
	seen  bitset  // kinds looked at in this augmentation
	steps *int
}

// augment draws up to so many functions more for a kind, if need be by letting
// another kind draw elsewhere, and gives how many; 0 when it has no way to any.
func (f *flow) augment(k, most int) int {
	f.seen.set(k)
	*f.steps += 1 + len(f.pools[k])*len(f.taken)/64
	for _, p := range f.pools[k] {
		if n := min(f.left[p], most); n > 0 {
			f.left[p] -= n
			f.taken[k][p] += n
			return n
		}
	}
	for _, p := range f.pools[k] {
		for other := range f.taken {
			if f.taken[other][p] == 0 || f.seen.has(other) {
				continue
			}
			if n := f.augment(other, min(f.taken[other][p], most)); n > 0 {
				f.taken[other][p] -= n
				f.taken[k][p] += n
				return n
			}
		}
	}
	return 0
}

// clash gives two pools in use that exclude each other.
func (f *flow) clash() (a, b int, clash bool) {
	used := func(p int) bool {
		return slices.ContainsFunc(f.taken, func(by []int) bool { return by[p] > 0 })
	}
	for p := range f.left {
		if len(f.rivals[p]) == 0 || !used(p) {
			continue
		}
		if i := slices.IndexFunc(f.rivals[p], used); i >= 0 {
			return p, f.rivals[p][i], true
		}
	}
	return 0, 0, false
}

// uses deals what the kinds have drawn out to their requests.
func (f *flow) uses() []PoolUse {
	var uses []PoolUse
	for k := range f.kinds {
		p := 0
		for _, request := range f.kinds[k].requests {
			for want := f.requests[request].Count; want > 0; {
				for f.taken[k][p] == 0 {
					p++
				}
				n := min(want, f.taken[k][p])
				f.taken[k][p] -= n
				want -= n
				uses = append(uses, PoolUse{Request: request, Pool: p, Count: n})
			}
		}
	}
	slices.SortStableFunc(uses, func(a, b PoolUse) int { return cmp.Compare(a.Request, b.Request) })
	return uses
}

// signature says what PCI there is on a host cell: two cells of one signature
// can stand in for each other. A PF and its VFs are part of it as one; a pool
// whose rivals are on another cell, or no star, is like no other.
func (d *devices) signature(host int) []byte {
	here := func(p int) bool { return d.place[p] == host }
	where := func(k, p int) byte { return byte(d.reach(k, p)) }
	var pools [][]byte
	for p := range d.place {
		if !here(p) {
			continue
		}
		if d.star(p) && !slices.ContainsFunc(d.rivals[p], func(r int) bool { return !here(r) }) {
			pools = append(pools, d.shape(p, where))
			continue
		}
		if r := d.rivals[p]; len(r) == 1 && here(r[0]) && d.star(r[0]) {
			continue // part of its star's shape
		}
		pools = append(pools, binary.AppendVarint(binary.AppendVarint(nil, -1), int64(p))) // no count is below 0
	}
	slices.SortFunc(pools, slices.Compare[[]byte])
	return slices.Concat(pools...)
}
