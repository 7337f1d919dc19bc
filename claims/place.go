package claims

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"berth/claims/fit"
	"berth/internal/fault"
	"berth/topology"
)

// The codes of the tracker's own reasons, beside those of package fit.
const (
	OrdinaryMemoryShort = "ordinary_memory_short" // what huge pages leave is too little
	CellsUnknown        = "cells_unknown"         // the host's cells were never read
	CellUnknown         = "cell_unknown"          // a guest that was found uses a cell that the host does not have
	CellUnusable        = "cell_unusable"         // a cell that may not be touched now
	DeviceUnusable      = "device_unusable"       // a PCI function that may not be touched now
)

// place chooses cells, CPUs, pages and devices for a request beside all that
// the machine counts, or gives every reason why there are none. It takes
// nothing.
func (m *machine) place(r Request) (topology.Assignment, []fit.Reason) {
	reasons := fit.Fits(r.Resources, m.host())
	var a topology.Assignment
	switch {
	case r.Topology != nil && len(m.cells) == 0:
		return a, append(reasons, fit.Reason{
			Code: CellsUnknown, Message: "the host's NUMA cells are not known", Change: "see the host's status",
		})
	case r.Topology != nil || len(r.PCI) > 0:
		view := m.view(r)
		answer := fit.Place(fit.Request{Topology: r.Topology, PCI: r.PCI}, &view)
		if !answer.Fits() {
			reasons = append(reasons, answer.Reasons...)
			return a, append(reasons, m.unusableReasons(r)...)
		}
		a.Cells = answer.Placement.Cells
		a.Devices = m.pick(r.PCI, answer.Placement.PCI)
	}
	if r, short := m.ordinaryShort(m.hold(r.Resources, a).ordinaryMB); short && (m.hasPools() || !memoryTold(reasons)) {
		reasons = append(reasons, r)
	}
	return a, reasons
}

// hasPools reports whether huge pages take any of the host's memory. Where they
// take none all memory is ordinary, and its want has been told by host-wide sums.
func (m *machine) hasPools() bool {
	return slices.ContainsFunc(m.cells, func(c fit.Cell) bool {
		return len(c.Pages) > 1 && slices.ContainsFunc(c.Pages[1:], func(p fit.Pages) bool { return p.Total > 0 })
	})
}

func memoryTold(reasons []fit.Reason) bool {
	return slices.ContainsFunc(reasons, func(r fit.Reason) bool { return r.Code == fit.MemoryShort || r.Code == fit.MemoryOverHost })
}

// ordinaryShort tells when there is too little memory in ordinary pages, all
// cells together.
func (m *machine) ordinaryShort(want int64) (fit.Reason, bool) {
	free := max(0, m.ordinaryLimit()-m.ordinaryMB)
	if len(m.cells) == 0 || want <= free {
		return fit.Reason{}, false
	}
	return fit.Reason{
		Code:    OrdinaryMemoryShort,
		Message: fmt.Sprintf("memory in ordinary pages: want %d MiB, %d MiB free; pools of huge pages hold the rest", want, free),
		Want:    fmt.Sprintf("%d MiB", want), Have: fmt.Sprintf("%d MiB", free),
		Change: fmt.Sprintf("free %d MiB, make the pools of huge pages smaller, or ask for huge pages", want-free),
	}, true
}

// unusableReasons names what was left out of the search.
func (m *machine) unusableReasons(r Request) []fit.Reason {
	var out []fit.Reason
	for _, u := range m.capacity.Unusable {
		switch {
		case u.Cell != nil && r.Topology != nil:
			id := int(*u.Cell)
			out = append(out, fit.Reason{
				Code: CellUnusable, Message: fmt.Sprintf("cell %d cannot be used: %s", id, u.Reason), Cell: &id,
				Have: u.Reason, Change: "see the host's status",
			})
		case u.Device != nil && len(r.PCI) > 0:
			out = append(out, fit.Reason{
				Code: DeviceUnusable, Message: fmt.Sprintf("PCI device %s cannot be used: %s", u.Device, u.Reason),
				Have: u.Reason, Change: "see the host's status",
			})
		}
	}
	return out
}

// roomLocked finds room for a request, or tells every reason why there is none.
// A resize or rebuild sees what its own guest holds here as free for itself:
// the guest uses one or the other, never both.
func (t *Tracker) roomLocked(doing string, r Request) (topology.Assignment, error) {
	if t.refusal != "" {
		return topology.Assignment{}, t.refusedLocked(doing)
	}
	if own, ok := t.holdings[r.Owner.Instance]; ok && (r.Owner.Kind == KindResize || r.Owner.Kind == KindRebuild) {
		t.machine.remove(r.Owner.Instance, own.counted)
		defer t.machine.add(r.Owner.Instance, own.counted)
	}
	defer t.withoutStrangerLocked(r.Owner.Instance)()
	return t.machine.room(doing, r)
}

// room finds room on m for a request, or tells every reason why there is none. m
// is then as it was.
func (m *machine) room(doing string, r Request) (topology.Assignment, error) {
	if r.Found != nil {
		return r.Found.Clone(), m.fitsAsFound(doing, r.Owner.Instance, Found{Resources: r.Resources, Assignment: *r.Found})
	}
	a, reasons := m.place(r)
	if len(reasons) > 0 {
		return topology.Assignment{}, fault.Refuse(fault.DoesNotFit, doing, reasonsOf(reasons)...)
	}
	return a, nil
}

func (t *Tracker) refusedLocked(doing string) error {
	return fault.Refuse(fault.Unavailable, doing, fault.Reason{
		Code: "no_new_claims", Message: "no new claims are given: " + t.refusal, Change: "see the host's status",
	})
}

func reasonsOf(reasons []fit.Reason) []fault.Reason {
	out := make([]fault.Reason, len(reasons))
	for i, r := range reasons {
		out[i] = fault.Reason(r)
	}
	return out
}

// over reports whether the machine, which counts h for the instance, has given
// more than it may of anything that h holds: only guests that were found here
// can do that.
func (m *machine) over(instance string, h hold) bool {
	limit, host := m.host().Limit(), m.capacity
	used := m.used
	switch r := h.resources; {
	case r.VCPUs > 0 && (used.VCPUs > limit.VCPUs || r.VCPUs > host.Total.VCPUs),
		r.PCPUs > 0 && (used.PCPUs > limit.PCPUs || r.PCPUs > host.Total.PCPUs),
		r.MemoryMB > 0 && (used.MemoryMB > limit.MemoryMB || r.MemoryMB > host.Total.MemoryMB),
		r.DiskGB > 0 && (used.DiskGB > limit.DiskGB || r.DiskGB > host.Total.DiskGB):
		return true
	case len(m.cells) > 0 && h.ordinaryMB > 0 && m.ordinaryMB > m.ordinaryLimit():
		return true
	}
	return len(m.overReasons(instance, h)) > 0
}

// overShared is how many shared vCPUs of a cell are promised beyond its shared
// CPUs times the ratio.
func (m *machine) overShared(cell int) int {
	limit := float64(m.cells[cell].Shared.Len()) * ratio(m.capacity.CPURatio)
	return max(0, int(math.Ceil(float64(m.cells[cell].SharedUsed)-limit)))
}

// overPool is how many pages of a pool of a cell are promised beyond those there
// are; ordinary pages, the smallest, are promised by the ratio.
func (m *machine) overPool(cell, pool int) int64 {
	p := m.cells[cell].Pages[pool]
	limit := p.Total - p.Reserved
	if pool == 0 {
		limit = int64(float64(limit) * ratio(m.capacity.RAMRatio))
	}
	return p.Used - limit
}

// holds reports whether c has pages of a pool of its cell.
func (c cellHold) holds(pools []fit.Pages, pool int) bool {
	if pool == 0 {
		return c.ordinaryMB > 0
	}
	return slices.ContainsFunc(c.pages, func(p pagesHold) bool { return p.size == pools[pool].Size })
}

// doubledCPUs are those of h that are not its own alone: another instance has
// them too, or they are not among the host's dedicated CPUs, so that shared
// vCPUs run there.
func (m *machine) doubledCPUs(h hold) topology.CPUSet {
	var out topology.CPUSet
	for _, cpu := range h.cpus {
		cell := m.cellOf[cpu]
		if m.taken[cpu] > 1 || cell >= 0 && !m.cells[cell].Dedicated.Contains(cpu) {
			out = append(out, cpu)
		}
	}
	return out
}

// differs says in what a request is not the claim that its owner has.
func (r Request) differs(c Claim) (what, want, have string) {
	switch {
	case c.Resources != r.Resources:
		return c.Resources.String(), r.Resources.String(), c.Resources.String()
	case !sameTopology(c.Topology, r.Topology):
		return "another NUMA topology", cellsOf(r.Topology), cellsOf(c.Topology)
	case !slices.EqualFunc(c.PCI, r.PCI, sameRequest):
		return "other PCI devices", requestsOf(r.PCI), requestsOf(c.PCI)
	}
	return "", "", ""
}

func cellsOf(t *topology.GuestTopology) string {
	if t == nil {
		return "no cells"
	}
	return strconv.Itoa(len(t.Cells)) + " cells"
}

func requestsOf(requests []topology.PCIRequest) string {
	n := int64(0)
	for _, r := range requests {
		n = topology.AddCapped(n, int64(r.Count))
	}
	return strconv.FormatInt(n, 10) + " devices"
}
