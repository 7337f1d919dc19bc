package fitcase

import (
	"cmp"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/topology"
)

// Change is a JSON Patch of the case. Any one change of an answer, applied by
// itself, makes the case fit.
//
// Changes stand smallest first: by the number of operations, then by departure.
// What is freed departs by its share of what there is; a request that asks for
// less by the share it gives up, for a policy that is dropped a fixed half; a
// ratio that is raised by its growth; what is bought (CPUs, memory, pages,
// devices) by ten times its growth, and at least by ten.
type Change []Op

// mostChanges is how many changes an answer has; mostTries how many are tried
// for them at most. Both are a choice: nobody reads more, and a case of usual
// size is then answered within a few milliseconds.
const (
	mostChanges = 8
	mostTries   = 64
)

type candidate struct {
	ops       []Op
	departure float64
}

// changer looks for changes of one case.
type changer struct {
	c     *Case
	guest *topology.GuestTopology
	found []candidate
	tried map[string]bool // candidates
	kept  map[string]bool // what was left of those that work
}

func (c *Case) changes(guest *topology.GuestTopology) []Change {
	x := &changer{c: c, guest: guest, tried: map[string]bool{}, kept: map[string]bool{}}
	relaxed := x.relaxations()
	x.try(relaxed)
	x.try(x.fewer())
	x.try(x.hostChanges(c, guest, candidate{}, false))
	if len(x.found) < mostChanges/2 {
		// What no single relaxation does, it may do together with the host.
		for _, r := range relaxed {
			if len(x.found) >= mostChanges/2 {
				break
			}
			if after, afterGuest, ok := x.after(r); ok {
				x.try(x.hostChanges(after, afterGuest, r, false))
			}
		}
	}
	if len(x.found) == 0 {
		x.lastResort(relaxed)
	}
	slices.SortStableFunc(x.found, compare)
	out := []Change{}
	for _, f := range x.found[:min(len(x.found), mostChanges)] {
		out = append(out, f.ops)
	}
	return out
}

// lastResort gives up one wish of the request after another, and buys cells.
func (x *changer) lastResort(relaxed []candidate) {
	// At last no device is asked for; from the end, so that no index moves.
	for i := len(x.c.PCI) - 1; i >= 0; i-- {
		relaxed = append(relaxed, candidate{[]Op{{Op: "remove", Path: pointer("request", "pci_requests", itoa(i))}}, 2})
	}
	base := candidate{}
	for i := -1; i < len(relaxed) && len(x.found) == 0; i++ {
		if i >= 0 {
			if joined, _, ok := x.after(base.with(relaxed[i])); !ok || joined == nil {
				continue
			}
			base = base.with(relaxed[i])
		}
		if after, guest, ok := x.after(base); ok {
			x.try(x.hostChanges(after, guest, base, true))
		}
	}
}

func compare(a, b candidate) int {
	return cmp.Or(cmp.Compare(len(a.ops), len(b.ops)), cmp.Compare(a.departure, b.departure))
}

// key tells whether two changes are the same: the same operations, in whatever
// order the guest's cells asked for them.
func (a candidate) key() string {
	texts := make([]string, len(a.ops))
	for i, op := range a.ops {
		texts[i] = op.Op + " " + op.Path + " " + value(op.Value)
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// with gives the operations of a and then those of b.
func (a candidate) with(b candidate) candidate {
	return candidate{append(slices.Clone(a.ops), b.ops...), a.departure + b.departure}
}

// after gives the case after a change, and its guest.
func (x *changer) after(change candidate) (*Case, *topology.GuestTopology, bool) {
	if len(change.ops) == 0 {
		return x.c, x.guest, true
	}
	doc, err := apply(x.c.doc, change.ops)
	if err != nil {
		return nil, nil, false
	}
	after, err := fromDocument(doc, x.c.cells)
	if err != nil {
		return nil, nil, false
	}
	guest, err := after.stageOne()
	return after, guest, err == nil
}

// works reports whether the change makes the case fit: it is applied, the case
// read again and solved again.
func (x *changer) works(change candidate) bool {
	after, guest, ok := x.after(change)
	return ok && after.fit(guest).Fits()
}

// try keeps those candidates that work, the smallest first, until there are
// enough.
func (x *changer) try(candidates []candidate) {
	slices.SortStableFunc(candidates, compare)
	kept := 0
	for _, c := range candidates {
		if len(c.ops) == 0 {
			continue
		}
		if kept >= mostChanges || len(x.tried) >= mostTries && len(x.found) > 0 {
			return
		}
		key := c.key()
		if x.tried[key] {
			continue
		}
		x.tried[key] = true
		if !x.works(c) {
			continue
		}
		c = x.shrink(c)
		if key = c.key(); !x.kept[key] {
			x.kept[key] = true
			x.found = append(x.found, c)
			kept++
		}
	}
}

// shrink leaves out what the rest of a change does without: a policy need not
// be softened where the host is made to hold it anyway. The operations on one
// host cell belong together, and stay.
func (x *changer) shrink(c candidate) candidate {
	for i := 0; i < len(c.ops) && len(c.ops) > 1; {
		if strings.HasPrefix(c.ops[i].Path, "/host/cells/") {
			i++
			continue
		}
		if less := (candidate{slices.Delete(slices.Clone(c.ops), i, i+1), c.departure}); x.works(less) {
			c = less
			continue
		}
		i++
	}
	return c
}

// hostChanges are changes of the host and of the limits, upon a change of the
// request that was made before.
func (x *changer) hostChanges(c *Case, guest *topology.GuestTopology, base candidate, add bool) []candidate {
	if guest == nil {
		return upon(base, c.floatingChanges())
	}
	m := newMatcher(c, guest)
	var out []candidate
	add = add || len(guest.Cells) > len(c.Machine.Cells)
	for _, t := range []terms{{}, {ratios: true}, {convert: true}, {enlarge: true}, {enlarge: true, ratios: true}} {
		t.add = add
		for _, host := range m.changes(t) {
			joined := base.with(host.candidate)
			if len(c.PCI) == 0 && (c.Machine.Limits == nil || c.Machine.Limits.Network == nil) {
				out = append(out, joined)
				continue
			}
			after, _, ok := x.after(joined)
			if !ok {
				continue
			}
			for _, more := range after.nearness(guest, host.chosen) {
				out = append(out, joined.with(more))
			}
		}
	}
	return out
}

func upon(base candidate, changes []candidate) []candidate {
	for i := range changes {
		changes[i] = base.with(changes[i])
	}
	return changes
}

// matcher pairs guest cells with host cells.
type matcher struct {
	c     *Case
	guest *topology.GuestTopology
	kind  []int     // by guest cell: the first that asks for the same
	sorts []*sorted // by host cell
}

func newMatcher(c *Case, guest *topology.GuestTopology) matcher {
	m := matcher{c: c, guest: guest, kind: make([]int, len(guest.Cells)), sorts: make([]*sorted, len(c.Machine.Cells))}
	for g := range m.kind {
		m.kind[g] = m.like(g)
	}
	for h := range m.sorts {
		m.sorts[h] = sortCores(&c.Machine.Cells[h])
	}
	return m
}

// matched is a change and the host cells that it was made for, by guest cell, as
// indexes after the change.
type matched struct {
	candidate
	chosen []int
}

// alternatives is how many other choices of host cells are looked at under the
// same terms; a choice of ours.
const alternatives = 3

func (m matcher) changes(t terms) []matched {
	hosts, guests := len(m.c.Machine.Cells), len(m.guest.Cells)
	columns := hosts
	if t.add {
		columns += guests
	}
	if guests > columns {
		return nil
	}
	first := m.firstCPU()
	costs := make([][]int64, guests)
	for g := range costs {
		if like := m.kind[g]; like < g {
			costs[g] = slices.Clone(costs[like])
			continue
		}
		costs[g] = make([]int64, columns)
		for h := range costs[g] {
			next := first
			costs[g][h] = m.price(g, h, t, &next)
		}
	}
	var out []matched
	for range alternatives {
		pairs := fit.Cheapest(costs)
		if pairs == nil {
			break
		}
		out = append(out, m.build(pairs, t, first))
		paid := false
		for g, h := range pairs {
			if costs[g][h] >= anOp {
				paid = true
				for other := range costs {
					if m.kind[other] == m.kind[g] {
						costs[other][h] = fit.Never
					}
				}
			}
		}
		if !paid {
			break
		}
	}
	return out
}

// anOp is what an operation costs; departures are held below it.
const anOp = int64(1) << 40

func price(ops int, departure float64) int64 {
	return int64(ops)*anOp + int64(min(departure, 1<<18)*(1<<20))
}

// price is that of the host cell for the guest cell; columns beyond the host's
// cells are new cells.
func (m matcher) price(g, h int, t terms, next *int) int64 {
	if h >= len(m.c.Machine.Cells) {
		if _, ok := m.c.newCell(&m.guest.Cells[g], m.emulator(g), 0, next); !ok {
			return fit.Never
		}
		return price(1, 1000)
	}
	ops, departure, ok := m.fixer(g, h, t, next).fix()
	if !ok {
		return fit.Never
	}
	return price(len(ops), departure)
}

func (m matcher) fixer(g, h int, t terms, next *int) *fixer {
	list, _ := m.c.doc["host"].(map[string]any)["cells"].([]any)
	doc, _ := list[h].(map[string]any)
	return &fixer{
		cell: &m.c.Machine.Cells[h], doc: doc, path: []string{"host", "cells", itoa(h)},
		guest: &m.guest.Cells[g], emu: m.emulator(g), terms: t, limit: m.c.Machine.Limits, next: next, sorts: m.sorts[h],
	}
}

func (m matcher) emulator(g int) int {
	return btoi(g == 0 && m.guest.Emulator == topology.EmulatorIsolate && m.guest.Cells[0].CPUPolicy.Pins())
}

// like is the first guest cell that asks for the same.
func (m matcher) like(g int) int {
	type key struct {
		shared, dedicated, emulator int
		memory                      int64
		pages                       topology.PageRequest
		policy                      topology.CPUPolicy
		threads                     topology.ThreadPolicy
	}
	of := func(g int) key {
		c := m.guest.Cells[g]
		return key{c.SharedVCPUs.Len(), c.DedicatedVCPUs.Len(), m.emulator(g), c.MemoryMB, c.PageSize, c.CPUPolicy, c.ThreadPolicy}
	}
	want := of(g)
	for i := range g {
		if of(i) == want {
			return i
		}
	}
	return g
}

// firstCPU is a number above all CPUs of the host.
func (m matcher) firstCPU() int {
	last := -1
	for _, c := range m.c.Machine.Cells {
		for _, s := range append([]topology.CPUSet{c.Shared, c.Dedicated, c.Pinned}, c.Cores...) {
			if n := s.Len(); n > 0 {
				last = max(last, s[n-1])
			}
		}
	}
	return last + 1
}

// build writes the change for the pairs: cell by cell, then new cells, then the
// ratios.
func (m matcher) build(pairs []int, t terms, next int) matched {
	out := matched{chosen: slices.Clone(pairs)}
	hosts, id := len(m.c.Machine.Cells), 0
	for _, c := range m.c.Machine.Cells {
		id = max(id, int(c.ID)+1)
	}
	added := 0
	cpu, ram := 0.0, 0.0
	for g, h := range pairs {
		q := &m.guest.Cells[g]
		if h >= hosts {
			cell, ok := m.c.newCell(q, m.emulator(g), id, &next)
			if !ok {
				continue
			}
			out.ops = append(out.ops, Op{"add", "/host/cells/-", cell})
			out.departure += 1000
			out.chosen[g] = hosts + added
			id++
			added++
			continue
		}
		f := m.fixer(g, h, t, &next)
		ops, departure, _ := f.fix()
		out.ops = append(out.ops, ops...)
		out.departure += departure
		if q.CPUPolicy != topology.CPUPolicyDedicated {
			cpu = max(cpu, ratio(float64(f.sharedUsed+q.SharedVCPUs.Len()), float64(f.shared)))
			ram = max(ram, ratio(float64(f.memoryUsed+q.MemoryMB), float64(f.memory)))
		}
	}
	if t.ratios {
		raised := m.c.raise(cpu, ram)
		out.ops = append(out.ops, raised.ops...)
		out.departure += raised.departure
	}
	return out
}
