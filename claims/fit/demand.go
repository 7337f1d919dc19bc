package fit

import (
	"slices"
	"strings"

	"berth/topology"
)

// kind is a PCI request, or several that ask for the same.
type kind struct {
	requests []int // indexes of Request.PCI
	affinity topology.PCIAffinity
	count    int
	matches  []bool // by pool
}

// near says where a pool must be for a kind to draw on it.
type near int

const (
	nowhere  near = iota // never
	onCell               // its cell is chosen
	onSocket             // a chosen cell shares its socket, or is it
	anywhere
)

// devices is all of PCI in one question: the kinds, and where each may draw.
type devices struct {
	machine  *Machine
	kinds    []kind
	place    []int   // by pool: index of its host cell, −1 when it is on none
	rivals   [][]int // by pool: those that cannot be used beside it
	socket   []int   // by host cell: index of its socket; nil when one is unknown
	sockets  int
	floats   bool // the guest has no cells: affinity asks nothing
	excludes bool // pools that some kind may use exclude each other
	ports    []port
	requests []topology.PCIRequest
}

func newDevices(r Request, m *Machine) *devices {
	d := &devices{machine: m, requests: r.PCI, floats: r.Topology == nil}
	if len(r.PCI) == 0 {
		return d
	}
	index := make(map[topology.CellID]int, len(m.Cells))
	for i := range m.Cells {
		index[m.Cells[i].ID] = i
	}
	d.place = make([]int, len(m.Pools))
	for p := range m.Pools {
		d.place[p] = -1
		if i, ok := index[m.Pools[p].Cell]; ok && m.Pools[p].Cell != topology.UnknownCell {
			d.place[p] = i
		}
	}
	d.findSockets()
	d.findRivals()
requests:
	for i, q := range r.PCI {
		if q.Count <= 0 {
			continue
		}
		affinity := q.Affinity
		if affinity == "" {
			affinity = topology.AffinityLegacy
		}
		matches := make([]bool, len(m.Pools))
		for p := range m.Pools {
			matches[p] = m.Pools[p].Answers(q)
		}
		for k := range d.kinds {
			if d.kinds[k].affinity == affinity && slices.Equal(d.kinds[k].matches, matches) {
				d.kinds[k].requests = append(d.kinds[k].requests, i)
				d.kinds[k].count = int(topology.AddCapped(int64(d.kinds[k].count), int64(q.Count)))
				continue requests
			}
		}
		d.kinds = append(d.kinds, kind{requests: []int{i}, affinity: affinity, count: q.Count, matches: matches})
	}
	d.ports, _, _ = d.portsOf(func(p int) bool {
		return m.Pools[p].Count > 0 && slices.ContainsFunc(d.kinds, func(k kind) bool { return k.matches[p] })
	})
	d.excludes = len(d.ports) > 0
	return d
}

func (d *devices) findSockets() {
	numbers := map[int]int{}
	d.socket = make([]int, len(d.machine.Cells))
	for i := range d.machine.Cells {
		s := d.machine.Cells[i].Socket
		if s == nil {
			d.socket = nil // as in Nova: one unknown socket makes all of them unknown
			return
		}
		n, ok := numbers[*s]
		if !ok {
			n = len(numbers)
			numbers[*s] = n
		}
		d.socket[i] = n
	}
	d.sockets = len(numbers)
}

// Answers reports whether a pool's functions are what a request asks for. A
// physical function is only given to who names one, in whichever of the specs: it
// takes all its virtual ones along.
func (p *Pool) Answers(q topology.PCIRequest) bool {
	named := slices.ContainsFunc(q.Specs, func(s topology.PCISpec) bool { return s.Type == topology.PCITypePF })
	return (p.Type != topology.PCITypePF || named) && slices.ContainsFunc(q.Specs, p.is)
}

// is reports whether a pool's functions are what one spec says.
func (p *Pool) is(s topology.PCISpec) bool {
	same := func(want, have string) bool { return want == "" || strings.EqualFold(want, have) }
	if !same(s.Vendor, p.Vendor) || !same(s.Product, p.Product) || !same(string(s.Type), string(p.Type)) {
		return false
	}
	for k, v := range s.Tags {
		if have, ok := p.Tags[k]; !ok || !strings.EqualFold(v, have) {
			return false
		}
	}
	return true
}

// reach says where pool p must be for kind k.
func (d *devices) reach(k, p int) near {
	if !d.kinds[k].matches[p] || d.machine.Pools[p].Count <= 0 {
		return nowhere
	}
	if d.floats {
		return anywhere
	}
	switch d.kinds[k].affinity {
	case topology.AffinityPreferred:
		return anywhere
	case topology.AffinityLegacy:
		if d.machine.Pools[p].Cell == topology.UnknownCell {
			return anywhere
		}
	case topology.AffinitySocket:
		// Where a host tells no sockets, a device on the instance's own cell is on its socket.
		if d.socket != nil && d.place[p] >= 0 {
			return onSocket
		}
	}
	if d.place[p] < 0 {
		return nowhere
	}
	return onCell
}

// usable reports whether kind k may draw on pool p when these host cells are
// chosen.
func (d *devices) usable(k, p int, chosen bitset) bool {
	switch d.reach(k, p) {
	case anywhere:
		return true
	case onCell:
		return chosen.has(d.place[p])
	case onSocket:
		for i, s := range d.socket {
			if s == d.socket[d.place[p]] && chosen.has(i) {
				return true
			}
		}
	}
	return false
}

// demand is one thing that the chosen host cells must bring together. A set of
// cells meets all demands exactly when the devices and networks can be given.
type demand struct {
	need   int64
	base   int64   // had wherever the guest goes
	cell   []int64 // by host cell: what choosing it brings
	socket []int64 // by socket: what choosing a cell of it brings; nil for nothing
	kinds  []int   // of the requests it is of; nil for a network
	what   string  // the network
	order  []int   // host cells, what brings most first; filled when first asked for
	pools  []int64 // by pool: its part of cell; nil for a network and where nothing is excluded
}

// mostKinds bounds how many kinds of request are taken together in every
// combination: 2^mostKinds demands. A guest with more kinds of device has them
// held against all pools only one by one and all at once; the search still
// decides it, with less to guide it.
const mostKinds = 6

// demands are those of the PCI requests, by the theorem of Hall for supply and
// demand (Gale 1957): the requests can be met exactly when, for every set of
// them, the pools that any of the set may use hold as many as the set wants.
func (d *devices) demands() []demand {
	n := len(d.kinds)
	var sets [][]int
	if n <= mostKinds {
		for mask := 1; mask < 1<<n; mask++ {
			var set []int
			for k := range n {
				if mask>>k&1 == 1 {
					set = append(set, k)
				}
			}
			sets = append(sets, set)
		}
	} else {
		all := make([]int, n)
		for k := range n {
			all[k] = k
			sets = append(sets, []int{k})
		}
		sets = append(sets, all)
	}
	var out []demand
	for _, set := range sets {
		// Of requests that share no pools each has to find its own.
		if n <= mostKinds && !d.connected(set) {
			continue
		}
		if x := d.demandOf(set); x.need > x.base {
			out = append(out, x)
		}
	}
	return out
}

// connected reports whether the kinds of a set cannot be parted into two that
// share no pool.
func (d *devices) connected(set []int) bool {
	reached := []int{set[0]}
	for i := 0; i < len(reached); i++ {
		for _, k := range set {
			if !slices.Contains(reached, k) && d.share(reached[i], k) {
				reached = append(reached, k)
			}
		}
	}
	return len(reached) == len(set)
}

func (d *devices) share(a, b int) bool {
	for p := range d.machine.Pools {
		if d.kinds[a].matches[p] && d.kinds[b].matches[p] {
			return true
		}
	}
	return false
}

func (d *devices) demandOf(set []int) demand {
	x := demand{kinds: set, cell: make([]int64, len(d.machine.Cells))}
	if d.excludes {
		x.pools = make([]int64, len(d.machine.Pools))
	}
	for _, k := range set {
		x.need = topology.AddCapped(x.need, int64(d.kinds[k].count))
	}
	for p := range d.machine.Pools {
		widest := nowhere
		for _, k := range set {
			widest = max(widest, d.reach(k, p))
		}
		count := int64(d.machine.Pools[p].Count)
		switch widest {
		case anywhere:
			x.base += count
		case onCell:
			x.cell[d.place[p]] += count
			if x.pools != nil {
				x.pools[p] = count
			}
		case onSocket:
			if x.socket == nil {
				x.socket = make([]int64, d.sockets)
			}
			x.socket[d.socket[d.place[p]]] += count
		}
	}
	return x
}

// networkDemands: of every network that is near to some cells, one such cell
// must be chosen.
func networkDemands(m *Machine) []demand {
	if m.Limits == nil || m.Limits.Network == nil {
		return nil
	}
	var out []demand
	of := func(what string, near func(*Network) bool) {
		x := demand{need: 1, cell: make([]int64, len(m.Cells)), what: what}
		any := false
		for i := range m.Cells {
			if n := m.Cells[i].Network; n != nil && near(n) {
				x.cell[i], any = 1, true
			}
		}
		if any {
			out = append(out, x)
		}
	}
	for _, p := range m.Limits.Network.Physical {
		of("physical network "+p, func(n *Network) bool { return slices.Contains(n.Physical, p) })
	}
	if m.Limits.Network.Tunneled {
		of("tunnelled networks", func(n *Network) bool { return n.Tunneled })
	}
	return out
}

// met is what a set of host cells brings for the demand.
func (x *demand) met(chosen bitset, socket []int) int64 {
	sum := x.base
	for i, v := range x.cell {
		if chosen.has(i) {
			sum += v
		}
	}
	if x.socket == nil {
		return sum
	}
	seen := make([]bool, len(x.socket))
	for i, t := range socket {
		if chosen.has(i) && !seen[t] {
			seen[t] = true
			sum += x.socket[t]
		}
	}
	return sum
}
