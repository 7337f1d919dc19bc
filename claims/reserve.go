package claims

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

// StepClaim is the step that Claim and Abort take when none is named.
const StepClaim = "claim"

func stepOr(step, fallback string) string {
	if step == "" {
		return fallback
	}
	return step
}

// Refuse makes the tracker give no new claims, for the reason told to every
// caller: a first start with no inventory, a shutdown. Everything else works:
// adoption, moves under way, releases.
func (t *Tracker) Refuse(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusal = reason
}

// Allow ends Refuse.
func (t *Tracker) Allow() { t.Refuse("") }

// Refused is why no new claims are given; empty while they are.
func (t *Tracker) Refused() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refusal
}

// SetCapacity changes what the host has to give, from now on. It never takes a
// claim away: a host that shrank below its claims just has nothing free.
func (t *Tracker) SetCapacity(c Capacity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countAnewLocked(c)
}

// countAnewLocked makes the machine anew from all that is held.
func (t *Tracker) countAnewLocked(c Capacity) {
	t.machine = newMachine(c)
	for _, h := range t.holdings {
		for _, e := range h.entries {
			e.counted = e.holdOn(t.machine)
		}
		h.counted = h.sum()
		t.machine.add(h.instance, h.counted)
	}
	t.countStrangersLocked()
}

// Check is Room for a guest that asks for amounts alone.
func (t *Tracker) Check(r topology.Resources) error {
	_, err := t.Room(r, nil, nil)
	return err
}

// Room answers whether a claim of this size, topology and devices could be had
// now by a guest that is not here, with what Claim would choose, and takes
// nothing: fault.DoesNotFit with every reason, fault.Invalid for what no Claim
// would be given for anywhere, fault.Unavailable after Refuse.
func (t *Tracker) Room(r topology.Resources, guest *topology.GuestTopology, devices []topology.PCIRequest) (topology.Assignment, error) {
	ask, doing := Request{Resources: r, Topology: guest, PCI: devices}, fmt.Sprintf("claim %s on %s", r, t.host)
	if err := ask.invalidDemand(doing); err != nil {
		return topology.Assignment{}, err
	}
	return t.ask(doing, ask)
}

// ask answers a question about room on a copy of the machine: under the claim lock
// it is only copied.
func (t *Tracker) ask(doing string, r Request) (topology.Assignment, error) {
	m, err := t.machineFor(doing, r)
	if err != nil {
		return topology.Assignment{}, err
	}
	return m.room(doing, r)
}

// machineFor is a copy of the machine as this request shall see it;
// fault.Unavailable after Refuse. A resize or rebuild sees what its own instance
// holds here as free: the instance uses one or the other, never both. What an
// instance without a claim uses here is free for its claim.
func (t *Tracker) machineFor(doing string, r Request) (*machine, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refusal != "" {
		return nil, t.refusedLocked(doing)
	}
	if len(r.PCI) > 0 {
		t.machine.freePools() // for the next question too
	}
	m, o := t.machine.copy(), r.Owner
	if own, ok := t.holdings[o.Instance]; ok && (o.Kind == KindResize || o.Kind == KindRebuild) {
		m.remove(o.Instance, own.counted)
	}
	if s, ok := t.strangers[o.Instance]; ok {
		m.remove(o.Instance, s.counted)
	}
	return m, nil
}

// Claim holds resources for an owner, pending under a lease, with its
// MigrationContext in the same commit, and a ticket for a migration's. Which
// cells, CPUs, pages and devices they are is chosen under the claim lock, and
// stands in the claim's Assignment.
//
// Repeated by the same owner for the same it gives the same claim, in whatever
// state it is by now. Refusals: fault.DoesNotFit with every class, cell and
// device that is short; fault.Exists when the owner holds other amounts, or the instance
// lives here already; fault.Busy while another move of the instance has a claim
// here, and while as many guests as the request allows are on their way; fault.Forbidden when the claim was aborted (a tombstone stands), or when
// its migration has brought the guest here before;
// fault.Unavailable after Refuse, and while the disk of the ledger is full.
func (t *Tracker) Claim(ctx context.Context, r Request) (Claim, error) {
	return t.measured(r.Owner.Kind, func() (Claim, error) { return t.claim(ctx, r) })
}

func (t *Tracker) claim(ctx context.Context, r Request) (Claim, error) {
	if err := r.validate(); err != nil {
		return Claim{}, err
	}
	var answer Claim
	full := t.storeRoom()
	err := t.change(ctx, subjects(r.Owner.Instance, r.Owner.Migration), func() (plan, error) {
		existing, a, err := t.admitLocked(r)
		if err != nil {
			return plan{}, err
		}
		if existing != nil {
			answer = existing.claim.clone()
			return plan{}, nil
		}
		if full != nil {
			return plan{}, fault.New(fault.KindOf(full), "claim %s for instance %s on %s: %w", r.Resources, r.Owner.Instance, t.host, full)
		}
		c, err := t.newClaimLocked(r, a)
		if err != nil {
			return plan{}, err
		}
		answer = c.clone()
		return t.insertLocked(c), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// storeRoom is why the store takes no more: nil while it does, and for a store that
// has no bound. It may wait for a disk, and is asked outside the lock.
func (t *Tracker) storeRoom() error {
	if s, bounded := t.store.(interface{ Room() error }); bounded {
		return s.Room()
	}
	return nil
}

// insertLocked counts a new claim at once and shows it when it is durable.
func (t *Tracker) insertLocked(c Claim) plan {
	e := &entry{claim: c}
	t.enterLocked(e)
	return plan{
		mutations: []store.Mutation{put(bucketClaims, c.ID, c)},
		apply:     func() { e.told = true },
		revert:    func() { t.leaveLocked(e) },
	}
}

// admitLocked decides on a request: the claim that its owner has already, or
// nil and what a new one may have.
func (t *Tracker) admitLocked(r Request) (*entry, topology.Assignment, error) {
	var none topology.Assignment
	doing := fmt.Sprintf("claim %s for instance %s on %s", r.Resources, r.Owner.Instance, t.host)
	if ref := r.ref(); t.buriedLocked(ref) {
		return nil, none, late(ref)
	}
	if c := t.migrations[r.Owner.Migration].gone(); c != nil && c.Instance == r.Owner.Instance {
		return nil, none, fault.Refuse(fault.Forbidden, doing, hasLeft(*c))
	}
	if e := t.findLocked(r.Owner); e != nil {
		if what, want, have := r.differs(e.claim); what != "" {
			return nil, none, fault.Refuse(fault.Exists, doing, fault.Reason{
				Code:    "claim_differs",
				Message: fmt.Sprintf("the same owner holds %s already", what),
				Want:    want, Have: have,
				Change: "abort or release that claim first",
			})
		}
		return e, none, nil
	}
	if accepted := t.migrations[r.Owner.Migration].Accepted; accepted > 0 {
		return nil, none, fault.Refuse(fault.Forbidden, doing, goneOn(r.Owner.Migration, accepted))
	}
	if err := t.admitOwnerLocked(doing, r.Owner, r.Context); err != nil {
		return nil, none, err
	}
	if err := t.admitInboundLocked(doing, r); err != nil {
		return nil, none, err
	}
	a, err := t.roomLocked(doing, r)
	return nil, a, err
}

// admitOwnerLocked refuses what would give an instance two claims for one thing.
// A resize or rebuild on its own host holds a second one beside the instance's;
// a guest that comes from elsewhere, as its context or its token says, may have none
// here yet.
func (t *Tracker) admitOwnerLocked(doing string, o Owner, x *MigrationContext) error {
	i, known := t.instances[o.Instance]
	comes := o.Kind == KindLiveMigration || o.Kind == KindEvacuation
	if o.Kind == KindResize {
		comes = x != nil && x.Source != "" && x.Source != t.host || known && i.Token.State != TokenHere
	}
	if known && comes && i.Token.State == TokenHere {
		return livesHere(doing, o.Instance, "this host owns it")
	}
	if !comes && o.Migration != "" {
		// What it came with, and may go back to, is not to be changed under it.
		if err := t.otherMoveLocked(doing, migration.Ref{Migration: o.Migration, Instance: o.Instance}); err != nil {
			return err
		}
	}
	for _, e := range t.entriesLocked(o.Instance) {
		other := e.claim.Owner
		switch {
		case other.Kind == KindInstance && (comes || o.Kind == KindInstance):
			return livesHere(doing, o.Instance, "it has a claim here, "+string(e.claim.State))
		case other.Kind != KindInstance:
			return fault.Refuse(fault.Busy, doing, holds(e.claim))
		}
	}
	return nil
}

func livesHere(doing, instance, how string) error {
	return fault.Refuse(fault.Exists, doing, fault.Reason{
		Code: "instance_lives_here", Message: "the instance lives here already: " + how,
		Have: instance, Change: "choose another host, or clean up what is left of it here",
	})
}

// findLocked gives the claim that an owner was given, also when it has become the
// instance's. After an exchange the owner holds another one.
func (t *Tracker) findLocked(o Owner) *entry {
	for _, e := range t.entriesLocked(o.Instance) {
		if e.claim.cameBy(o) {
			return e
		}
	}
	return t.exactLocked(o)
}

// newClaimLocked makes a pending claim of what was chosen.
func (t *Tracker) newClaimLocked(r Request, a topology.Assignment) (Claim, error) {
	id, err := uuid.NewRandomFromReader(t.random)
	if err != nil {
		return Claim{}, fault.New(fault.Internal, "make claim uuid: %w", err)
	}
	if _, taken := t.claims[id.String()]; taken {
		return Claim{}, fault.New(fault.Internal, "make claim uuid: the source of random numbers repeats itself (%s)", id)
	}
	boot := t.runtime.Boot()
	c := Claim{
		ID: id.String(), Owner: r.Owner, State: Pending, Resources: r.Resources,
		Lease: &Lease{Length: r.Lease}, CreatedAt: t.runtime.Now().UTC(), Boot: boot.ID,
		Topology: r.Topology.Clone(), PCI: cloneRequests(r.PCI), Assignment: a,
	}
	if c.Lease.Length == 0 {
		c.Lease.Length = t.lease
	}
	c.Lease.renew(boot)
	if r.Context != nil {
		side := c.Holding(r.Context.NewFlavor)
		x := r.Context.WithNew(side)
		c.Context = &x
	}
	if r.Owner.Migration != "" {
		secret := make([]byte, 32)
		if _, err := io.ReadFull(t.random, secret); err != nil {
			return Claim{}, fault.New(fault.Internal, "make ticket: %w", err)
		}
		c.Ticket = hex.EncodeToString(secret)
	}
	return c, nil
}
