// Package demand is what a flavor asks of a host, in the words of claims. It is pure: a
// flavor, an image's properties and a host's aliases in, a Demand and every reason against
// it out.
package demand

import (
	"errors"

	"berth/claims/flavor"
	"berth/internal/fault"
	"berth/topology"
)

// Demand is what a guest asks of a host beyond disks.
type Demand struct {
	Resources topology.Resources
	Topology  *topology.GuestTopology // nil for a guest that floats
	PCI       []topology.PCIRequest
	Locked    bool // its memory is never swapped
	Refused   bool // the flavor itself is at fault; the rest is not to be believed
}

// Of reads what a flavor asks for a guest with that image, nil for none. Every reason why
// nobody could serve it is added to no, as fault.Invalid.
func Of(f topology.Flavor, image flavor.Image, aliases []flavor.Alias, no *fault.Refusal) Demand {
	var d Demand
	var err error
	take := func(err error) {
		d.Refused = d.Refused || err != nil
		no.Add(fault.Invalid, Reasons(err)...)
	}
	take(flavor.Validate(f))
	if d.Topology, err = flavor.Topology(f, image); err != nil {
		take(err)
	}
	if d.PCI, err = flavor.PCIRequests(f, image, aliases); err != nil {
		take(err)
	}
	if d.Locked, err = flavor.LockedMemory(f, image); err != nil {
		take(err)
	}
	d.Resources = f.ResourcesWith(d.Topology)
	return d
}

// Reasons makes a reason of each fault of a flavor.
func Reasons(err error) []fault.Reason {
	if err == nil {
		return nil
	}
	var all flavor.Errors
	if !errors.As(err, &all) {
		return fault.ReasonPerLine("flavor_invalid", err)
	}
	var out []fault.Reason
	for _, e := range all {
		out = append(out, fault.Reason{Code: e.Code, Message: "flavor: " + e.Error(), Have: e.Key})
	}
	return out
}

// AsItRuns is a guest's topology with the page sizes that it got: memory cannot
// change its pages while it is sent.
func AsItRuns(t *topology.GuestTopology, a topology.Assignment) *topology.GuestTopology {
	t = t.Clone()
	if t == nil {
		return nil
	}
	for i := range t.Cells {
		if i < len(a.Cells) && a.Cells[i].PageSize > 0 {
			t.Cells[i].PageSize = topology.PageRequest(a.Cells[i].PageSize)
		}
	}
	return t
}

// UsesOf are the amounts of a guest whose document has that topology; uses where
// it has none. The cells decide: each is rounded up by itself, and together they
// are what is held.
func UsesOf(t *topology.GuestTopology, uses topology.Resources) topology.Resources {
	if t == nil {
		return uses
	}
	uses.VCPUs, uses.PCPUs = t.CPUs()
	uses.MemoryMB = 0
	for _, c := range t.Cells {
		uses.MemoryMB = topology.AddCapped(uses.MemoryMB, c.MemoryMB)
	}
	return uses
}
