package fitcase

import (
	"time"

	"berth/claims/fit"
	"berth/topology"
)

// Solver answers cases.
type Solver struct {
	// Now tells the time, for Answer.NS; nil leaves it 0.
	Now func() time.Time
}

// Solve answers a case. It does not change it, and two answers to one case are
// the same but for NS.
func (s Solver) Solve(c *Case) Answer {
	a := blank(c.ID)
	guest, err := c.stageOne()
	if err != nil {
		a.Refused = err.Error()
		return a
	}
	a.Topology = topologyOf(guest)
	if guest != nil {
		a.Realtime = guest.Realtime.String()
	}
	start := s.now()
	answer := c.fit(guest)
	a.NS = s.now().Sub(start).Nanoseconds()
	a.Undecided, a.Reasons = answer.Undecided, reasons(answer.Reasons)
	if a.Fits = answer.Fits(); a.Fits {
		c.place(&a, answer.Placement)
		return a
	}
	a.Changes = c.changes(guest)
	return a
}

func (s Solver) now() time.Time {
	if s.Now == nil {
		return time.Time{}
	}
	return s.Now()
}

// fit asks the solver. A guest without NUMA topology floats over the host, and
// is held against the sums of the cells.
func (c *Case) fit(guest *topology.GuestTopology) fit.Answer {
	a := fit.Place(fit.Request{Topology: guest, PCI: c.PCI}, &c.Machine)
	if guest == nil {
		a.Reasons = append(fit.Fits(c.Flavor.Resources(), c.amounts()), a.Reasons...)
	}
	return a
}

// amounts are the sums over the cells. Without limits nobody promised what is in
// use to anyone: a guest that floats may share it.
func (c *Case) amounts() fit.Host {
	var h fit.Host
	for _, cell := range c.Machine.Cells {
		h.Total.VCPUs += cell.Shared.Len()
		h.Total.MemoryMB += cell.MemoryMB
		h.Used.VCPUs += cell.SharedUsed
		h.Used.MemoryMB += cell.MemoryUsedMB
	}
	if l := c.Machine.Limits; l != nil {
		h.CPURatio, h.RAMRatio = l.CPURatio, l.RAMRatio
	} else {
		h.Used = topology.Resources{}
	}
	return h
}
