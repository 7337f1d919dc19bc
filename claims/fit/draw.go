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
	return d.drawWithout(chosen, newBitset(len(d.machine.Pools)), steps, limit)
}

// drawWithout leaves the barred pools alone. Where what it finds uses a pool
// beside one that excludes it, it tries without the one, then without the other.
func (d *devices) drawWithout(chosen, barred bitset, steps *int, limit int) ([]PoolUse, bool) {
	if *steps += 1 + len(d.kinds)*len(d.machine.Pools)/16; *steps > limit {
		return nil, false
	}
	f := flow{devices: d, taken: make([][]int, len(d.kinds)), left: make([]int, len(d.machine.Pools)), seen: newBitset(len(d.kinds))}
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
		for range d.kinds[k].count {
			f.seen.reset()
			if !f.augment(k) {
				return nil, false
			}
		}
	}
	if a, b, clash := f.clash(); clash {
		for _, bar := range []int{a, b} {
			without := barred.clone()
			without.set(bar)
			if uses, ok := d.drawWithout(chosen, without, steps, limit); ok {
				return uses, true
			}
		}
		return nil, false
	}
	return f.uses(), true
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
		return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(len(x.Excludes), len(y.Excludes)), cmp.Compare(x.Count, y.Count))
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
}

// augment draws one function more for a kind, if need be by letting another
// kind draw elsewhere.
func (f *flow) augment(k int) bool {
	f.seen.set(k)
	for _, p := range f.pools[k] {
		if f.left[p] > 0 {
			f.left[p]--
			f.taken[k][p]++
			return true
		}
	}
	for _, p := range f.pools[k] {
		for other := range f.taken {
			if f.taken[other][p] > 0 && !f.seen.has(other) && f.augment(other) {
				f.taken[other][p]--
				f.taken[k][p]++
				return true
			}
		}
	}
	return false
}

// clash gives two pools in use that exclude each other.
func (f *flow) clash() (a, b int, clash bool) {
	used := func(p int) bool {
		return slices.ContainsFunc(f.taken, func(by []int) bool { return by[p] > 0 })
	}
	for p := range f.left {
		if len(f.machine.Pools[p].Excludes) == 0 || !used(p) {
			continue
		}
		for _, other := range f.machine.Pools[p].Excludes {
			if other != p && other < len(f.left) && used(other) {
				return p, other, true
			}
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
// can stand in for each other. A pool that excludes others is like no other.
func (d *devices) signature(host int) []byte {
	var pools [][]byte
	for p := range d.place {
		if d.place[p] != host {
			continue
		}
		key := binary.AppendVarint(nil, int64(d.machine.Pools[p].Count))
		for k := range d.kinds {
			key = append(key, byte(d.reach(k, p)))
		}
		if len(d.machine.Pools[p].Excludes) > 0 {
			key = binary.AppendVarint(append(key, 'x'), int64(p))
		}
		pools = append(pools, key)
	}
	slices.SortFunc(pools, slices.Compare[[]byte])
	return slices.Concat(pools...)
}
