package fit

import (
	"cmp"
	"slices"

	"berth/topology"
)

// Place finds a place for a guest on a machine, whenever there is one, or tells
// every reason why there is none. It is pure and deterministic, keeps nothing,
// and may be called from many goroutines with one Machine.
func Place(r Request, m *Machine) Answer {
	d := newDevices(r, m)
	if r.Topology == nil {
		return d.floating()
	}
	p := newPlacing(r, m, d)
	if reasons := p.unplaced(); len(reasons) > 0 {
		return Answer{Reasons: reasons}
	}
	nothing := newBitset(len(m.Cells))
	first, v := p.search.find(nothing)
	switch v {
	case none:
		return Answer{Reasons: p.explainDemands(), Steps: p.search.steps}
	case undecided:
		return Answer{Undecided: true, Steps: p.search.steps, Reasons: []Reason{{
			Code:    Undecided,
			Message: "whether it fits was not found out within the bounds of the search: too many kinds of devices and networks at once",
			Change:  "ask for fewer kinds of devices, or for affinity preferred",
		}}}
	}
	return Answer{Placement: p.best(nothing, first), Steps: p.search.steps}
}

// floating is the answer for a guest without cells: it needs only devices.
func (d *devices) floating() Answer {
	steps := 0
	uses, ok := d.draw(newBitset(len(d.machine.Cells)), &steps, Budget)
	if !ok {
		reasons := d.explainFloating()
		return Answer{Reasons: reasons, Steps: steps, Undecided: steps > Budget}
	}
	return Answer{Placement: Placement{PCI: uses}, Steps: steps}
}

// placing is one request on its way.
type placing struct {
	machine *Machine
	asks    []ask
	kind    []int // by guest cell: the first guest cell that asks for the same
	rooms   []room
	devices *devices
	search  *search
	choices [][]choice // by guest cell of a kind, then host cell; filled when first asked for
}

func newPlacing(r Request, m *Machine, d *devices) *placing {
	cells := r.Topology.Cells
	p := &placing{
		machine: m, asks: make([]ask, len(cells)), kind: make([]int, len(cells)), rooms: make([]room, len(m.Cells)),
		devices: d, choices: make([][]choice, len(cells)),
	}
	for g := range cells {
		q := ask{cell: &cells[g], shared: len(cells[g].SharedVCPUs), dedicated: len(cells[g].DedicatedVCPUs), limits: m.Limits}
		if g == 0 && r.Topology.Emulator == topology.EmulatorIsolate && cells[g].CPUPolicy.Pins() {
			q.emulator = 1
		}
		p.asks[g] = q
		p.kind[g] = slices.IndexFunc(p.asks[:g+1], func(o ask) bool { return o.like(&q) })
	}
	var scratch cpuBits
	for h := range m.Cells {
		p.rooms[h] = enter(&m.Cells[h], &scratch)
	}
	for i := range m.Pools {
		for h := range m.Cells {
			if m.Pools[i].Count > 0 && m.Pools[i].Cell == m.Cells[h].ID {
				p.rooms[h].devices = true
			}
		}
	}
	s := &search{admits: make([]bitset, len(m.Cells)), guests: len(cells), devices: d, limit: Budget, rank: make([]int, len(m.Cells))}
	for h := range s.admits {
		s.admits[h], s.rank[h] = newBitset(len(cells)), h
		for g := range cells {
			if k := p.kind[g]; k < g && s.admits[h].has(k) || k == g && p.rooms[h].holds(&p.asks[g], nil) {
				s.admits[h].set(g)
			}
		}
	}
	s.m = newMatching(s.admits, len(cells))
	s.demands = append(d.demands(), networkDemands(m)...)
	p.search = s
	return p
}

// choice gives where in a host cell a guest cell would go.
func (p *placing) choice(guest, host int) *choice {
	k := p.kind[guest]
	if p.choices[k] == nil {
		p.choices[k] = make([]choice, len(p.rooms))
	}
	c := &p.choices[k][host]
	if c.cell.MemoryMB == 0 { // no guest cell is without memory
		*c = p.rooms[host].choose(&p.asks[k], len(p.devices.kinds) > 0)
	}
	return c
}

// preferenceSteps is how many steps each wish may cost; a wish that would take
// more is given up, never the answer.
const preferenceSteps = Budget / 64

// best chooses among the placements that there are, in the order of the package
// doc: devices near, few sockets, then the cheapest cells. first is a set of
// cells that will do.
func (p *placing) best(out, first bitset) Placement {
	p.orderByCost()
	p.search.class = nil
	p.tightenAffinity(out)
	out = p.fewSockets(out)
	var hosts []int
	if p.search.guests == 1 {
		hosts = p.cheapestCell(out, first)
	} else {
		allowed := out
		if len(p.search.demands) > 0 {
			chosen, v := p.find(out)
			if v != found {
				chosen = first
			}
			allowed = newBitset(len(p.rooms))
			for h := range p.rooms {
				if !chosen.has(h) {
					allowed.set(h)
				}
			}
		}
		hosts = p.cheapest(allowed)
	}
	chosen := newBitset(len(p.rooms))
	cells := make([]topology.AssignedCell, len(hosts))
	for g, h := range hosts {
		chosen.set(h)
		cells[g] = p.choice(g, h).cell
		if k := p.kind[g]; k != g { // the same CPUs, this cell's vCPUs
			cells[g].Pins = slices.Clone(cells[g].Pins)
			for i := range cells[g].Pins {
				cells[g].Pins[i].VCPU = p.asks[g].cell.DedicatedVCPUs[i]
			}
		}
	}
	p.search.limit = p.search.steps + Budget
	p.search.enough(chosen)
	return Placement{Cells: cells, PCI: p.search.pci}
}

// find is the search's, for a wish.
func (p *placing) find(out bitset) (bitset, verdict) {
	p.search.limit = p.search.steps + preferenceSteps
	return p.search.find(out)
}

// orderByCost ranks the host cells by what the guest's cheapest cell costs on
// them.
func (p *placing) orderByCost() {
	least := make([]int64, len(p.rooms))
	for h := range p.rooms {
		least[h] = Never
		for g, k := range p.kind {
			if k == g && p.search.admits[h].has(g) {
				least[h] = min(least[h], p.choice(g, h).cost.packed())
			}
		}
	}
	slices.SortStableFunc(p.search.rank, func(a, b int) int { return cmp.Compare(least[a], least[b]) })
}

// tightenAffinity wants every device on a cell of the guest, then as many
// requests as can have that, one after the other.
func (p *placing) tightenAffinity(out bitset) {
	d := p.devices
	soft := make([]int, 0, len(d.kinds))
	for k := range d.kinds {
		if d.kinds[k].affinity != topology.AffinityRequired {
			soft = append(soft, k)
		}
	}
	if len(soft) == 0 {
		return
	}
	try := func(kinds ...int) bool {
		was := make([]topology.PCIAffinity, len(kinds))
		demands, pci := p.search.demands, p.search.pci
		for i, k := range kinds {
			was[i], d.kinds[k].affinity = d.kinds[k].affinity, topology.AffinityRequired
		}
		p.search.demands, p.search.class = append(d.demands(), networkDemands(p.machine)...), nil
		if _, v := p.find(out); v == found {
			return true
		}
		for i, k := range kinds {
			d.kinds[k].affinity = was[i]
		}
		p.search.demands, p.search.class, p.search.pci = demands, nil, pci
		return false
	}
	if try(soft...) || len(soft) == 1 {
		return
	}
	for _, k := range soft {
		try(k)
	}
}

// fewSockets gives the host cells to leave out so that the guest stays on one
// socket, the cheapest, or on few: sockets are left out one by one while the
// others do. That is few, not always fewest.
func (p *placing) fewSockets(out bitset) bitset {
	if p.devices.socket == nil {
		p.devices.findSockets()
	}
	d := p.devices
	if p.search.guests < 2 || d.socket == nil || d.sockets < 2 {
		return out
	}
	cells := make([]int, d.sockets)
	for h, s := range d.socket {
		if !out.has(h) {
			cells[s]++
		}
	}
	only := func(s int) bitset {
		b := out.clone()
		for h := range d.socket {
			if d.socket[h] != s {
				b.set(h)
			}
		}
		return b
	}
	var best bitset
	least := int64(Never)
	for s := range cells {
		if cells[s] < p.search.guests {
			continue
		}
		if b := only(s); p.holds(b) {
			if sum := p.sum(b); sum < least {
				best, least = b, sum
			}
		}
	}
	if best != nil {
		return best
	}
	free := len(p.rooms) - out.count()
	for _, h := range slices.Backward(p.search.rank) { // the socket of the dearest cell first
		s := d.socket[h]
		if cells[s] == 0 || free-cells[s] < p.search.guests {
			continue
		}
		b := out.clone()
		for i := range d.socket {
			if d.socket[i] == s {
				b.set(i)
			}
		}
		if p.holds(b) {
			out, free = b, free-cells[s]
		}
		cells[s] = 0
	}
	return out
}

func (p *placing) holds(out bitset) bool {
	_, v := p.find(out)
	return v == found
}

// sum is what the cheapest placement on the cells that are not out costs, as
// far as can be told without looking at devices.
func (p *placing) sum(out bitset) int64 {
	sum := int64(0)
	for g, h := range p.cheapest(out) {
		sum += p.choice(g, h).cost.packed()
	}
	return sum
}

// cheapest gives each guest cell a host cell that is not out, at the least cost
// together.
func (p *placing) cheapest(out bitset) []int {
	var hosts []int
	for h := range p.rooms {
		if !out.has(h) {
			hosts = append(hosts, h)
		}
	}
	costs := make([][]int64, len(p.asks))
	for g := range costs {
		costs[g] = make([]int64, len(hosts))
		for i, h := range hosts {
			costs[g][i] = Never
			if p.search.admits[h].has(g) {
				costs[g][i] = p.choice(g, h).cost.packed()
			}
		}
	}
	answer := Cheapest(costs)
	for g := range answer {
		answer[g] = hosts[answer[g]]
	}
	return answer
}

// cheapestCell is the host cell for a guest of one cell: each is tried, the
// cheapest first.
func (p *placing) cheapestCell(out, first bitset) []int {
	chosen := newBitset(len(p.rooms))
	for _, h := range p.search.rank {
		if out.has(h) || !p.search.admits[h].has(0) {
			continue
		}
		chosen.reset()
		chosen.set(h)
		p.search.limit = p.search.steps + preferenceSteps
		if p.search.enough(chosen) {
			return []int{h}
		}
	}
	return []int{p.search.rank[slices.IndexFunc(p.search.rank, first.has)]}
}
