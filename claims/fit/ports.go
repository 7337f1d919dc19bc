package fit

// A PF and its VFs cannot be given away both. What is decided here is, port by port,
// which of the two it is.

import (
	"encoding/binary"
	"slices"
)

// port is a number of pools that exclude each other, a PF and its VFs, with the
// ways to use it: each a greatest set of pools that can be used together.
type port struct {
	pools []int
	ways  [][]int
}

// mostWays bounds the ways of one port. An SR-IOV port has two. A host with a port of
// more is decided by drawWithout alone.
const mostWays = 64

// portsOf gives the ports among the pools that use says are of any use, and the
// pools that exclude none of them. ok is false where a port has more ways than
// mostWays.
func (d *devices) portsOf(use func(p int) bool) (ports []port, alone []int, ok bool) {
	seen := newBitset(len(d.rivals))
	for p := range d.rivals {
		if seen.has(p) || !use(p) {
			continue
		}
		seen.set(p)
		pools := []int{p}
		for i := 0; i < len(pools); i++ {
			for _, r := range d.rivals[pools[i]] {
				if !seen.has(r) && use(r) {
					seen.set(r)
					pools = append(pools, r)
				}
			}
		}
		if len(pools) == 1 {
			alone = append(alone, p)
			continue
		}
		slices.Sort(pools)
		ways := d.ways(pools)
		if ways == nil {
			return nil, nil, false
		}
		ports = append(ports, port{pools, ways})
	}
	return ports, alone, true
}

// ways gives the greatest sets of pools of which no two exclude each other, those
// without the pool that excludes most first; nil when they are more than mostWays.
func (d *devices) ways(pools []int) [][]int {
	middle := pools[0]
	for _, p := range pools {
		if len(d.rivals[p]) > len(d.rivals[middle]) {
			middle = p
		}
	}
	var out [][]int
	var extend func(in, open, done []int) bool
	// Bron and Kerbosch's enumeration, of independent sets: in is chosen, open may be
	// added, done was added before in another branch.
	extend = func(in, open, done []int) bool {
		if len(open) == 0 {
			if len(done) == 0 {
				out = append(out, slices.Clone(in))
			}
			return len(out) <= mostWays
		}
		for len(open) > 0 {
			p := open[0]
			beside := func(q int) bool { return q == p || slices.Contains(d.rivals[p], q) }
			if !extend(append(in, p), slices.DeleteFunc(slices.Clone(open), beside), slices.DeleteFunc(slices.Clone(done), beside)) {
				return false
			}
			open, done = open[1:], append(slices.Clone(done), p)
		}
		return true
	}
	if !extend(nil, pools, nil) {
		return nil
	}
	slices.SortStableFunc(out, func(a, b []int) int { return btoi(slices.Contains(a, middle)) - btoi(slices.Contains(b, middle)) })
	return out
}

// supply is what pools bring when of each port so far a way was chosen: by class of
// pools, no more of each than the kinds that may use it want.
type supply struct {
	of   []int
	from *supply // before the last port
	way  int     // of the last port
}

// drawByPort decides which way each port is used so that the kinds find their
// functions, and draws them; the last result is false when the steps ran out. It
// walks the ports and keeps every sum of supplies that no other exceeds in all
// classes: with PFs and VFs of one kind each, no more than there are PFs wanted.
func (d *devices) drawByPort(chosen bitset, steps *int, limit int) (uses []PoolUse, ok, decided bool) {
	class, wants := d.classes(chosen)
	ports, alone, whole := d.portsOf(func(p int) bool { return class[p] >= 0 })
	if !whole {
		return nil, false, false
	}
	first := &supply{of: make([]int, len(wants))}
	bring := func(to []int, pools []int) {
		for _, p := range pools {
			to[class[p]] = min(wants[class[p]], to[class[p]]+d.machine.Pools[p].Count)
		}
	}
	bring(first.of, alone)
	sums := []*supply{first}
	for _, x := range ports {
		next := make([]*supply, 0, len(sums)*len(x.ways))
		for w, pools := range x.ways {
			for _, s := range sums {
				one := &supply{of: slices.Clone(s.of), from: s, way: w}
				bring(one.of, pools)
				next = append(next, one)
			}
		}
		if sums = greatest(next, steps); *steps > limit {
			return nil, false, false
		}
	}
	for _, s := range sums {
		barred := newBitset(len(d.rivals))
		at := s
		for _, x := range slices.Backward(ports) {
			for _, p := range x.pools {
				if !slices.Contains(x.ways[at.way], p) {
					barred.set(p)
				}
			}
			at = at.from
		}
		f, ok := d.flow(chosen, barred, steps)
		if ok {
			return f.uses(), true, true
		}
		if *steps > limit {
			return nil, false, false
		}
	}
	return nil, false, true
}

// classes tells pools of one class by which kinds may use them when these host
// cells are chosen, −1 for none, and gives how many functions those kinds want.
func (d *devices) classes(chosen bitset) (class, wants []int) {
	class = make([]int, len(d.machine.Pools))
	names := map[string]int{}
	for p := range class {
		var key []byte
		want := 0
		for k := range d.kinds {
			if d.usable(k, p, chosen) {
				key = binary.AppendUvarint(key, uint64(k))
				want += d.kinds[k].count
			}
		}
		if class[p] = -1; len(key) == 0 {
			continue
		}
		n, known := names[string(key)]
		if !known {
			n = len(wants)
			names[string(key)] = n
			wants = append(wants, want)
		}
		class[p] = n
	}
	return class, wants
}

// greatest keeps the supplies that no other reaches in every class; of equals the
// first.
func greatest(all []*supply, steps *int) []*supply {
	slices.SortStableFunc(all, func(a, b *supply) int { return slices.Compare(b.of, a.of) })
	var out []*supply
	for _, s := range all {
		*steps += 1 + len(out)/16
		if !slices.ContainsFunc(out, func(o *supply) bool { return o.reaches(s) }) {
			out = append(out, s)
		}
	}
	return out
}

func (s *supply) reaches(o *supply) bool {
	for i := range s.of {
		if s.of[i] < o.of[i] {
			return false
		}
	}
	return true
}

// outbid lowers what host cells bring to a sum of demands, where a port cannot bring
// what all of its pools would: it brings its best way. value gives what a pool brings.
// got, by host cell and demand, is what comes of that, and nil where nothing is
// excluded: then each demand has all that it counts.
func (s *search) outbid(sum *demand, value func(i, p int) int64) (got [][]int64) {
	d := s.devices
	if !d.excludes {
		return nil
	}
	got = make([][]int64, s.hosts())
	for h := range got {
		got[h] = make([]int64, len(s.demands))
	}
	most := make([]int64, s.hosts())
	take := func(h, p int) int64 {
		all := int64(0)
		for i := range s.demands {
			if x := &s.demands[i]; x.pools != nil && x.pools[p] > 0 {
				got[h][i] += x.pools[p]
				all += value(i, p)
			}
		}
		return all
	}
	worth := func(pools []int, h int) int64 {
		all := int64(0)
		for _, p := range pools {
			if d.place[p] != h {
				continue
			}
			for i := range s.demands {
				if x := &s.demands[i]; x.pools != nil && x.pools[p] > 0 {
					all += value(i, p)
				}
			}
		}
		return all
	}
	split := newBitset(len(d.rivals))
	for _, x := range d.ports {
		h := d.place[x.pools[0]]
		if h < 0 || slices.ContainsFunc(x.pools, func(p int) bool { return d.place[p] != h }) {
			continue // over several cells, each may be chosen without the others
		}
		best, least := 0, int64(-1)
		for w, pools := range x.ways {
			if v := worth(pools, h); v > least {
				best, least = w, v
			}
		}
		for _, p := range x.pools {
			split.set(p)
		}
		for _, p := range x.ways[best] {
			most[h] += take(h, p)
		}
	}
	for p, h := range d.place {
		if h >= 0 && !split.has(p) {
			most[h] += take(h, p)
		}
	}
	for i := range s.demands { // of networks
		if x := &s.demands[i]; x.pools == nil {
			for h, v := range x.cell {
				got[h][i] = v
				most[h] += v * value(i, -1)
			}
		}
	}
	for h := range sum.cell {
		sum.cell[h] = min(sum.cell[h], most[h])
	}
	return got
}
