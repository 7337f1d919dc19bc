package fit

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Budget is how many steps Place takes at most before it says that it does not
// know. A step is one host cell offered to a matching.
const Budget = 1 << 17

// verdict is what a search came to.
type verdict int

const (
	none verdict = iota
	found
	undecided
)

// search looks for a set of host cells that holds the guest's cells and meets
// every demand.
type search struct {
	admits  []bitset // by host cell: the guest cells that it holds
	guests  int
	devices *devices
	demands []demand
	rank    []int // host cells, the one that costs least first
	class   []int // by host cell: cells of one class can stand in for each other

	m     *matching
	limit int // of steps
	steps int
	pci   []PoolUse // of the set found
}

func (s *search) hosts() int { return len(s.admits) }

// find looks among the host cells that are not out. The answer, when there is
// one, has as many cells as the guest.
func (s *search) find(out bitset) (bitset, verdict) {
	if len(s.demands) > 0 && s.class == nil {
		s.classify()
	}
	return s.node(newBitset(s.hosts()), out.clone())
}

// node decides for the sets that hold all of in and nothing of out.
func (s *search) node(in, out bitset) (bitset, verdict) {
	chosen, _, ok := s.most(in, out, nil)
	if !ok {
		return nil, none
	}
	if s.enough(chosen) {
		return chosen, found
	}
	if s.steps > s.limit {
		return nil, undecided
	}
	if in.count() == s.guests {
		return nil, none // it was the only set
	}
	best := chosen
	for i := range s.demands {
		x := &s.demands[i]
		set, bound, _ := s.most(in, out, x)
		if bound < x.need {
			return nil, none
		}
		if len(s.demands) > 1 && s.enough(set) {
			return set, found
		}
		best = set
	}
	if len(s.demands) > 1 {
		set, ok, met := s.together(in, out)
		if !ok {
			return nil, none
		}
		if met {
			return set, found
		}
		best = set
	}
	if s.enough(best) {
		return best, found
	}
	if s.steps > s.limit {
		return nil, undecided
	}
	host := s.branch(best, in, out)
	if host < 0 {
		return nil, none
	}
	with := in.clone()
	with.set(host)
	set, v := s.node(with, out)
	if v != none {
		return set, v
	}
	// Whatever has the host or one of its class has been looked at: a set that
	// has another of the class has it in the host's stead.
	without := out.clone()
	without.set(host) // without demands there are no classes
	for i := range s.class {
		if s.class[i] == s.class[host] && !in.has(i) {
			without.set(i)
		}
	}
	return s.node(in, without)
}

// most gives the set of host cells that brings most for a demand, and a bound
// that no set exceeds; for a demand of cells alone the set reaches it. Without a
// demand it gives the set that costs least. False when no set can be matched.
func (s *search) most(in, out bitset, x *demand) (bitset, int64, bool) {
	s.m.empty()
	chosen := newBitset(s.hosts())
	for i := range s.admits {
		if in.has(i) {
			if s.steps++; !s.m.add(i) {
				return nil, 0, false
			}
			chosen.set(i)
		}
	}
	bound := int64(0)
	if x != nil {
		bound = x.base
		if x.socket != nil {
			bound += s.sockets(x, in, out, chosen)
		}
	}
	for _, i := range s.order(x) {
		if s.m.full() {
			break
		}
		if !chosen.has(i) && !out.has(i) {
			if s.steps++; s.m.add(i) {
				chosen.set(i)
			}
		}
	}
	if !s.m.full() {
		return nil, 0, false
	}
	if x == nil {
		return chosen, 0, true
	}
	if x.socket == nil {
		for i, v := range x.cell {
			if chosen.has(i) {
				bound += v
			}
		}
		return chosen, bound, true
	}
	if slices.Max(x.cell) > 0 { // the cells' part by itself
		part := demand{cell: x.cell, order: s.order(x)}
		_, cells, _ := s.most(in, out, &part)
		bound += cells
	}
	return chosen, bound, true
}

// order gives the host cells, what brings most first, then what costs least.
func (s *search) order(x *demand) []int {
	if x == nil {
		return s.rank
	}
	if x.order == nil {
		x.order = slices.Clone(s.rank)
		slices.SortStableFunc(x.order, func(a, b int) int { return cmp.Compare(x.cell[b], x.cell[a]) })
	}
	return x.order
}

// sockets adds one host cell of each socket that can be reached, the socket that
// brings most first, and gives what all of them bring: no set of cells reaches
// sockets that bring more, since the sets of sockets that can be reached are
// again the independent sets of a matroid. A socket holds whatever one of its
// cells holds; which of them is settled last, lest the first that comes keeps
// another socket out.
func (s *search) sockets(x *demand, in, out, chosen bitset) int64 {
	sum := int64(0)
	n := s.hosts()
	reached := newBitset(len(x.socket))
	admits := append(s.admits[:n:n], make([]bitset, len(x.socket))...)
	for t := range x.socket {
		admits[n+t] = newBitset(s.guests)
	}
	for i, t := range s.devices.socket {
		if !out.has(i) {
			admits[n+t].include(s.admits[i])
		}
	}
	m := newMatching(admits, s.guests)
	order := make([]int, len(x.socket))
	for t := range order {
		order[t] = t
	}
	for i, t := range s.devices.socket {
		if !in.has(i) {
			continue
		}
		m.add(i)
		if !reached.has(t) {
			reached.set(t)
			sum += x.socket[t]
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.socket[b], x.socket[a]) })
	for _, t := range order {
		if reached.has(t) || x.socket[t] == 0 || m.full() {
			continue
		}
		if s.steps++; m.add(n + t) {
			sum += x.socket[t]
		}
	}
	for g, at := range m.host {
		if at < n {
			continue
		}
		i := slices.IndexFunc(s.rank, func(i int) bool {
			return n+s.devices.socket[i] == at && !out.has(i) && s.admits[i].has(g)
		})
		chosen.set(s.rank[i])
		s.m.add(s.rank[i])
	}
	return sum
}

// rounds is how often together shifts the weights of the demands.
const rounds = 8

// together adds all demands up, each counted as a share of what it needs and no
// more than that, and weighted; a set that meets them all meets the sum, so a
// sum that no set reaches ends the node (ok is false). What the best set of one
// round misses weighs more in the next (Lagrange's multipliers). The last set is
// the answer, with whether it meets all.
func (s *search) together(in, out bitset) (set bitset, ok, met bool) {
	weight := make([]float64, len(s.demands))
	for i := range weight {
		weight[i] = 1
	}
	for range rounds {
		sum, got := s.weighted(weight)
		var bound int64
		if set, bound, ok = s.most(in, out, &sum); !ok || bound < sum.need {
			return nil, false, false
		}
		if s.enough(set) {
			return set, true, true
		}
		if s.steps > s.limit {
			return set, true, false
		}
		for i := range s.demands {
			x := &s.demands[i]
			have := x.met(set, s.devices.socket)
			if got != nil && x.socket == nil {
				have = x.base
				for h := range got {
					if set.has(h) {
						have += got[h][i]
					}
				}
			}
			share := float64(have) / float64(x.need)
			weight[i] *= 1 + max(-0.4, min(0.8, 1.2*(1-share)))
		}
	}
	return set, true, false
}

// weighted is the weighted sum of all demands. Sums are rounded so that no set
// which meets every demand falls short of it. got is outbid's.
func (s *search) weighted(weight []float64) (sum demand, got [][]int64) {
	const whole = 1 << 20
	sum = demand{cell: make([]int64, s.hosts())}
	for i := range s.demands {
		x := &s.demands[i]
		need := x.need - x.base
		share := int64(weight[i] * whole)
		if need <= 0 || share <= 0 {
			continue
		}
		part := func(v int64) int64 { return (min(v, need)*share + need - 1) / need }
		sum.need += share
		for h, v := range x.cell {
			sum.cell[h] += part(v)
		}
		if x.socket == nil {
			continue
		}
		if sum.socket == nil {
			sum.socket = make([]int64, len(x.socket))
		}
		for t, v := range x.socket {
			sum.socket[t] += part(v)
		}
	}
	return sum, s.outbid(&sum, func(i, p int) int64 {
		x := &s.demands[i]
		need, share := x.need-x.base, int64(weight[i]*whole)
		if need <= 0 || share <= 0 {
			return 0
		}
		v := int64(1) // a network's
		if p >= 0 {
			v = x.pools[p]
		}
		return (min(v, need)*share + need - 1) / need
	})
}

// enough reports whether a set of host cells meets every demand, and finds the
// devices.
func (s *search) enough(chosen bitset) bool {
	for i := range s.demands {
		if s.demands[i].met(chosen, s.devices.socket) < s.demands[i].need {
			return false
		}
	}
	uses, ok := s.devices.draw(chosen, &s.steps, s.limit)
	if ok {
		s.pci = uses
	}
	return ok
}

// branch chooses the host cell to decide on next: the one that brings most for
// the demand which the set misses by most; −1 when there is none to decide on.
func (s *search) branch(set, in, out bitset) int {
	worst, share := -1, 1.0
	for i := range s.demands {
		x := &s.demands[i]
		if have := float64(x.met(set, s.devices.socket)) / float64(x.need); have < share {
			worst, share = i, have
		}
	}
	host, most := -1, int64(0)
	for _, i := range s.rank {
		if in.has(i) || out.has(i) {
			continue
		}
		v := int64(1) // the demands are met, and yet the devices cannot be drawn
		if worst >= 0 {
			x := &s.demands[worst]
			v = x.cell[i]
			if x.socket != nil {
				v += x.socket[s.devices.socket[i]]
			}
			v *= 2
			if !set.has(i) {
				v++
			}
		}
		if v > most {
			host, most = i, v
		}
	}
	return host
}

// classify tells which host cells bring the same: they hold the same guest
// cells, the same pools, the same networks, and where sockets matter are on the
// same one.
func (s *search) classify() {
	s.class = make([]int, s.hosts())
	for i := range s.demands {
		s.demands[i].order = nil
	}
	names := map[string]int{}
	for i := range s.class {
		var key []byte
		add := func(n int64) { key = binary.AppendVarint(key, n) }
		for _, w := range s.admits[i] {
			add(int64(w))
		}
		for d := range s.demands {
			add(s.demands[d].cell[i])
			if s.demands[d].socket != nil {
				add(int64(s.devices.socket[i]))
			}
		}
		key = append(key, s.devices.signature(i)...)
		n, ok := names[string(key)]
		if !ok {
			n = len(names)
			names[string(key)] = n
		}
		s.class[i] = n
	}
}
