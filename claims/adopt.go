package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/topology"
)

// Found is what a guest uses that is already here: what was asked for it, as far
// as anybody knows, and what it has.
type Found struct {
	Resources  topology.Resources
	Topology   *topology.GuestTopology // nil when it floats, or nobody knows
	PCI        []topology.PCIRequest
	Assignment topology.Assignment // its pins, memory nodes, pages and devices as found
}

// Adopt takes a guest that is already here under a bound claim and makes this
// host its owner (see Own), in one commit. It never refuses for room and never
// after Refuse: what does not fit, or holds a CPU, page or device that another
// has, is claimed all the same and marked forced. Repeated with something else
// the claim follows the guest. fault.Busy while a migration has a claim for it
// here; the refusals of Own.
func (t *Tracker) Adopt(ctx context.Context, i Instance, f Found) (Claim, error) {
	if err := validInstance("adopt", i); err != nil {
		return Claim{}, err
	}
	if err := validResources(f.Resources); err != nil {
		return Claim{}, fault.New(fault.Invalid, "adopt instance %s: %w", i.UUID, err)
	}
	var answer Claim
	i.Adopted = true
	err := t.change(ctx, []string{ofInstance(i.UUID), ofName(i.Name)}, func() (plan, error) {
		p, _, err := t.ownLocked("adopt", i)
		if err != nil {
			return plan{}, err
		}
		owner := Owner{Instance: i.UUID, Kind: KindInstance}
		e := t.findLocked(owner)
		if e == nil {
			if err := t.admitOwnerLocked("adopt instance "+i.UUID, owner); err != nil {
				return plan{}, err
			}
			c, err := t.newClaimLocked(Request{Owner: owner, Resources: f.Resources, Topology: f.Topology, PCI: f.PCI}, f.Assignment.Clone())
			if err != nil {
				return plan{}, err
			}
			c.State, c.Lease = Bound, nil
			c.Forced = t.overLocked(nil, c)
			answer = c.clone()
			return p.and(t.insertLocked(c)), nil
		}
		q, next := t.followLocked(e, f)
		answer = next.clone()
		return p.and(q), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// CheckFound answers whether a guest that is here unmanaged would be adopted
// without force, and changes nothing: fault.DoesNotFit with every amount that is
// short and every CPU and device that another guest has; fault.Unavailable after
// Refuse.
func (t *Tracker) CheckFound(instance string, f Found) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	doing := fmt.Sprintf("adopt instance %s on %s", instance, t.host)
	if _, err := t.roomLocked(doing, Request{Resources: f.Resources}); err != nil {
		return err
	}
	h := t.machine.hold(f.Resources, f.Assignment)
	t.machine.add(instance, h)
	defer t.machine.remove(instance, h)
	if !t.machine.over(instance, h) {
		return nil
	}
	var reasons []fault.Reason
	if cpus := t.machine.doubledCPUs(h); len(cpus) > 0 {
		reasons = append(reasons, fault.Reason{
			Code: "cpus_doubled", Message: "another guest has CPUs " + cpus.String() + " to itself", Have: cpus.String(), Change: "pin one of the two elsewhere",
		})
	}
	for _, d := range t.machine.doubledDevices(instance, h) {
		reasons = append(reasons, fault.Reason{Code: "device_doubled", Message: "another guest has PCI device " + d.String(), Have: d.String(), Change: "detach it from one of the two"})
	}
	if len(reasons) == 0 {
		reasons = append(reasons, fault.Reason{
			Code: "pages_over", Message: "it uses memory pages of a cell that are promised to others or reserved", Change: "move guests away, or lower what is reserved",
		})
	}
	return fault.Refuse(fault.DoesNotFit, doing, reasons...)
}

// overLocked reports whether the host would have given too much if it gave this
// claim, in the place of another where one is named.
func (t *Tracker) overLocked(instead *entry, c Claim) bool {
	instance, h := c.Owner.Instance, t.machine.hold(c.Resources, c.Assignment)
	if instead != nil {
		before := t.holdings[instance].counted
		t.machine.remove(instance, before)
		defer t.machine.add(instance, before)
	}
	t.machine.add(instance, h)
	defer t.machine.remove(instance, h)
	return t.machine.over(instance, h)
}

// followLocked plans a bound claim of what was found. While it is on its way
// old and new are counted together.
func (t *Tracker) followLocked(e *entry, f Found) (plan, Claim) {
	next := e.claim.clone()
	next.Resources, next.State, next.Lease = f.Resources, Bound, nil
	next.Topology, next.PCI, next.Assignment = f.Topology.Clone(), cloneRequests(f.PCI), f.Assignment.Clone()
	if e.claim.State == Held {
		next.State = Held
	}
	next.Forced = t.overLocked(e, next)
	what, _, _ := Request{Resources: f.Resources, Topology: f.Topology, PCI: f.PCI}.differs(e.claim)
	if what == "" && sameAssignment(next.Assignment, e.claim.Assignment) && next.State == e.claim.State && next.Forced == e.claim.Forced {
		return plan{}, next
	}
	before := e.claim
	t.recountLocked(e, before, &next)
	return plan{
		mutations: []store.Mutation{put(bucketClaims, next.ID, next)},
		apply:     func() { t.recountLocked(e, next, nil) },
		revert:    func() { t.recountLocked(e, before, nil) },
	}, next
}
