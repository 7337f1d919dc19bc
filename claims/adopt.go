package claims

import (
	"context"
	"fmt"
	"strconv"

	"berth/claims/fit"
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
	if err := f.invalid("adopt instance " + i.UUID); err != nil {
		return Claim{}, err
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
			if err := t.admitOwnerLocked("adopt instance "+i.UUID, owner, nil); err != nil {
				return plan{}, err
			}
			c, err := t.newClaimLocked(Request{Owner: owner, Resources: f.Resources, Topology: f.Topology, PCI: f.PCI}, f.Assignment.Clone())
			if err != nil {
				return plan{}, err
			}
			c.State, c.Lease = Bound, nil
			t.forgetStrangerLocked(i.UUID)
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
// short, every CPU and device that is not for it alone, and every cell that has
// too little of what it uses there; fault.Unavailable after Refuse.
func (t *Tracker) CheckFound(instance string, f Found) error {
	doing := fmt.Sprintf("adopt instance %s on %s", instance, t.host)
	if err := f.invalid(doing); err != nil {
		return err
	}
	m, err := t.machineFor(doing, Request{Owner: Owner{Instance: instance, Kind: KindInstance}})
	if err != nil {
		return err
	}
	return m.fitsAsFound(doing, instance, f)
}

// fitsAsFound refuses what a guest has here that does not fit where it is.
func (m *machine) fitsAsFound(doing, instance string, f Found) error {
	reasons := fit.Fits(f.Resources, m.host())
	h := m.hold(f.Resources, f.Assignment)
	if r, short := m.ordinaryShort(h.ordinaryMB); short {
		reasons = append(reasons, r)
	}
	m.add(instance, h)
	defer m.remove(instance, h)
	if reasons = append(reasons, m.overReasons(instance, h)...); len(reasons) > 0 {
		return fault.Refuse(fault.DoesNotFit, doing, reasonsOf(reasons)...)
	}
	return nil
}

// overReasons tells what a machine that counts h for the instance has given more
// often than it may, cell by cell; host-wide amounts aside.
func (m *machine) overReasons(instance string, h hold) []fit.Reason {
	var out []fit.Reason
	for _, cpu := range m.doubledCPUs(h) {
		r := fit.Reason{Code: "cpus_doubled", Have: strconv.Itoa(cpu)}
		if m.taken[cpu] > 1 {
			r.Message, r.Change = fmt.Sprintf("another guest has CPU %d to itself", cpu), "pin one of the two elsewhere"
		} else {
			r.Code = "cpu_not_dedicated"
			r.Message, r.Change = fmt.Sprintf("CPU %d is not a dedicated one: shared vCPUs run there", cpu), "pin it elsewhere, or put the CPU into [host] dedicated_cpus"
		}
		out = append(out, r)
	}
	for _, d := range m.doubledDevices(instance, h) {
		out = append(out, fit.Reason{
			Code: "device_doubled", Message: fmt.Sprintf("another guest has PCI device %s, or one that goes with it", d), Have: d.String(), Change: "detach it from one of the two",
		})
	}
	for _, uuid := range m.doubledMdevs(instance, h) {
		out = append(out, fit.Reason{
			Code: "mdev_doubled", Message: "another guest has mediated device " + uuid, Have: uuid, Change: "detach it from one of the two",
		})
	}
	for _, c := range h.cells {
		id := int(c.id)
		i, ok := m.index[c.id]
		if !ok {
			switch {
			case len(m.cells) == 0:
			case c.id == topology.UnknownCell:
				out = append(out, fit.Reason{Code: CellUnknown, Message: "which of the host's cells it uses is not known", Change: "bind its memory to a cell"})
			default:
				out = append(out, fit.Reason{Code: CellUnknown, Cell: &id, Message: fmt.Sprintf("it uses cell %d, which the host does not have", id), Change: "bind it to other cells"})
			}
			continue
		}
		if over := m.overShared(i); c.shared > 0 && over > 0 {
			out = append(out, fit.Reason{
				Code: fit.CellVCPURatio, Cell: &id, Message: fmt.Sprintf("cell %d: %d more shared vCPUs than its shared CPUs may have", id, over),
				Change: "move guests away, or raise cpu_allocation_ratio",
			})
		}
		for j, p := range m.cells[i].Pages {
			if over := m.overPool(i, j); c.holds(m.cells[i].Pages, j) && over > 0 {
				out = append(out, fit.Reason{
					Code: "pages_over", Cell: &id, Message: fmt.Sprintf("cell %d: %d more pages of %s in use than guests may have", id, over, p.Size),
					Change: "move guests away, make the pool larger, or lower what is reserved",
				})
			}
		}
	}
	return out
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

// followLocked plans a bound claim of what was found.
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
	return t.swapLocked(e, next), next
}

// swapLocked plans a claim in the place of another of the same owner. While it is
// on its way old and new are counted together.
func (t *Tracker) swapLocked(e *entry, next Claim) plan {
	before := e.claim
	t.recountLocked(e, before, &next)
	return plan{
		mutations: []store.Mutation{put(bucketClaims, next.ID, next)},
		apply:     func() { t.recountLocked(e, next, nil) },
		revert:    func() { t.recountLocked(e, before, nil) },
	}
}
