package claims

import (
	"context"
	"reflect"
	"slices"

	"berth/internal/fault"
	"berth/topology"
)

// Seen is what a guest's document shows, as far as a claim depends on it. Two
// sightings that are equal are of one use, whatever else the document says.
type Seen struct {
	Resources topology.Resources `json:"resources"`
	Placement string             `json:"placement"`         // digest of CPUs, pins, memory nodes, pages
	Devices   string             `json:"devices,omitempty"` // digest of the host's devices that it has
}

// Follow makes the claim of a guest that stands still here follow what somebody
// did to it past Berth. seen is what its document shows now, and f what that comes
// to here. A part that shows what it showed the last time stays as it is claimed:
// more may have been asked for than the document uses. A part that differs is
// claimed as found. The first time, the parts of which the claim covers what was found
// stay.
//
// It never refuses for room and never after Refuse: what does not fit, or holds a
// CPU, page or device that another has, is claimed all the same and marked forced;
// a claim that is smaller than it was is not marked for what others did. A mark
// that is no longer due goes. Nothing is written where nothing differs.
//
// It gives the claim as it is then, and whether it holds something else than
// before. fault.NotFound where the instance has no bound claim or no token here;
// fault.Busy while a migration has a claim or a context for it here.
func (t *Tracker) Follow(ctx context.Context, instance string, seen Seen, f Found) (claim Claim, changed bool, err error) {
	if err := f.invalid("follow instance " + instance); err != nil {
		return Claim{}, false, err
	}
	err = t.change(ctx, []string{ofInstance(instance)}, func() (plan, error) {
		e, err := t.standingLocked(instance)
		if err != nil {
			return plan{}, err
		}
		next := t.asSeenLocked(e.claim, seen, f)
		changed = !t.sameUse(e.claim, next)
		next.ByHand = e.claim.ByHand || changed
		next.Forced = t.forcedLocked(e, next)
		claim = next.clone()
		if !changed && next.Forced == e.claim.Forced && e.claim.Seen != nil && *e.claim.Seen == seen {
			return plan{}, nil
		}
		return t.swapLocked(e, next), nil
	})
	if err != nil {
		return Claim{}, false, err
	}
	return claim, changed, nil
}

// Relax takes the mark from forced claims that fit by now: another guest has gone
// or shrunk, the host has grown. It gives the instances.
func (t *Tracker) Relax(ctx context.Context) ([]string, error) {
	var out []string
	for _, instance := range t.Usage().Forced {
		relaxed := false
		err := t.change(ctx, []string{ofInstance(instance)}, func() (plan, error) {
			e, err := t.standingLocked(instance)
			if err != nil || !e.claim.Forced || t.overLocked(e, e.claim) {
				return plan{}, nil // it moves or has gone, or is forced still
			}
			next := e.claim.clone()
			next.Forced, relaxed = false, true
			return t.swapLocked(e, next), nil
		})
		if err != nil {
			return out, err
		}
		if relaxed {
			out = append(out, instance)
		}
	}
	return out, nil
}

// standingLocked gives the bound claim of an instance that lives here and does not
// move.
func (t *Tracker) standingLocked(instance string) (*entry, error) {
	doing := "follow instance " + instance
	e := t.findLocked(Owner{Instance: instance, Kind: KindInstance})
	if i, known := t.instances[instance]; e == nil || e.claim.State != Bound || !known || i.Token.State != TokenHere {
		return nil, fault.New(fault.NotFound, "%s on %s: it has no bound claim and token here", doing, t.host)
	}
	for id, h := range t.migrations {
		if h.Context != nil && h.Context.Instance == instance {
			return nil, fault.Refuse(fault.Busy, doing, isMoving(id, "has a context here"))
		}
	}
	for _, other := range t.entriesLocked(instance) {
		if o := other.claim.Owner; o.Kind != KindInstance {
			return nil, fault.Refuse(fault.Busy, doing, holds(other.claim))
		}
	}
	return e, nil
}

// coveredLocked is what a document that was never seen before would have had to show for
// those parts to differ, and only those, of which the claim does not cover what was found.
func (t *Tracker) coveredLocked(c Claim, seen Seen, f Found) Seen {
	const other = -1 // is no amount
	now := t.machine.hold(c.Resources, c.Assignment)
	covers := func(r topology.Resources, a topology.Assignment) bool { return within(t.machine.hold(r, a), now) }
	was := seen
	if f.Resources.DiskGB > c.Resources.DiskGB {
		was.Resources.DiskGB = other
	}
	if f.Resources.VCPUs > c.Resources.VCPUs || f.Resources.PCPUs > c.Resources.PCPUs {
		was.Resources.VCPUs = other
	}
	if f.Resources.MemoryMB > c.Resources.MemoryMB {
		was.Resources.MemoryMB = other
	}
	place, devices := f.Resources, c.Assignment.Clone()
	place.DiskGB = c.Resources.DiskGB
	devices.Cells = f.Assignment.Cells
	if !covers(place, devices) {
		was.Placement = ""
	}
	devices = c.Assignment.Clone()
	devices.Devices, devices.Mdevs = f.Assignment.Devices, f.Assignment.Mdevs
	if !covers(c.Resources, devices) {
		was.Devices = ""
	}
	return was
}

// asSeenLocked is the claim with what was found in the parts that show something
// else than before.
func (t *Tracker) asSeenLocked(c Claim, seen Seen, f Found) Claim {
	next := c.clone()
	next.Seen = &seen
	was := c.Seen
	if was == nil {
		first := t.coveredLocked(c, seen, f)
		was = &first
	}
	if seen.Resources.DiskGB != was.Resources.DiskGB {
		next.Resources.DiskGB = f.Resources.DiskGB
	}
	switch floats := len(c.Assignment.Cells)+len(f.Assignment.Cells) == 0; {
	case floats:
		if seen.Resources.VCPUs != was.Resources.VCPUs {
			next.Resources.VCPUs, next.Resources.PCPUs = f.Resources.VCPUs, f.Resources.PCPUs
		}
		if seen.Resources.MemoryMB != was.Resources.MemoryMB {
			next.Resources.MemoryMB = f.Resources.MemoryMB
		}
	case seen.Placement != was.Placement:
		next.Topology, next.Assignment.Cells = f.Topology.Clone(), f.Assignment.Clone().Cells
		next.Resources.VCPUs, next.Resources.PCPUs, next.Resources.MemoryMB = f.Resources.VCPUs, f.Resources.PCPUs, f.Resources.MemoryMB
	}
	if seen.Devices != was.Devices {
		next.PCI, next.Assignment.Devices = withDevices(c, f)
		next.Assignment.Mdevs = slices.Clone(f.Assignment.Mdevs)
	}
	return next
}

// withDevices gives the devices that were found, those that the claim has already
// as it has them, with the requests that they came by.
func withDevices(c Claim, f Found) (requests []topology.PCIRequest, devices []topology.AssignedDevice) {
	count := map[string]int{} // of devices that are there still, by the claim's request
	for _, d := range f.Assignment.Devices {
		at := slices.IndexFunc(c.Assignment.Devices, func(o topology.AssignedDevice) bool { return o.Address == d.Address })
		if at >= 0 {
			d = c.Assignment.Devices[at]
			count[d.Request]++
		}
		devices = append(devices, d)
	}
	for _, r := range c.PCI {
		if n := count[r.ID]; n > 0 {
			r.Count = n
			requests = append(requests, r)
		}
	}
	for i, d := range devices {
		if slices.ContainsFunc(c.Assignment.Devices, func(o topology.AssignedDevice) bool { return o.Address == d.Address }) {
			continue
		}
		at := slices.IndexFunc(f.PCI, func(r topology.PCIRequest) bool { return r.ID == d.Request })
		if at < 0 {
			continue
		}
		r := f.PCI[at]
		// A document's names of devices, hostdev0 and on, may be taken by a request
		// that the claim has from before.
		r.ID = "by-hand-" + d.Address.String()
		devices[i].Request = r.ID
		requests = append(requests, r)
	}
	return requests, devices
}

// sameUse reports whether two claims hold the same for the same vCPUs.
func (t *Tracker) sameUse(a, b Claim) bool {
	return a.Resources == b.Resources && sameAssignment(a.Assignment, b.Assignment) && sameTopology(a.Topology, b.Topology) &&
		slices.EqualFunc(a.PCI, b.PCI, sameRequest)
}

// forcedLocked says whether a claim that takes the place of another is to be marked.
func (t *Tracker) forcedLocked(e *entry, next Claim) bool {
	if !t.overLocked(e, next) {
		return false
	}
	return e.claim.Forced || !within(t.machine.hold(next.Resources, next.Assignment), t.machine.hold(e.claim.Resources, e.claim.Assignment))
}

// within reports whether small holds nothing that big does not.
func within(small, big hold) bool {
	return reflect.DeepEqual(normal(big.union(small)), normal(big.union(big)))
}

// normal makes holds of the same comparable: an empty list is as good as none.
func normal(h hold) hold {
	if len(h.cpus) == 0 {
		h.cpus = nil
	}
	if len(h.cells) == 0 {
		h.cells = nil
	}
	if len(h.devices) == 0 {
		h.devices = nil
	}
	for i := range h.cells {
		if len(h.cells[i].pages) == 0 {
			h.cells[i].pages = nil
		}
	}
	return h
}
