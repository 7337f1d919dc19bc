package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// Arrive makes a pending claim arriving: durable before the destination lets
// libvirt begin, and without a lease, since from now on a domain may come at any
// moment. Safe to repeat. fault.Forbidden when the claim was aborted,
// fault.NotFound when there is none (its lease may have ended).
func (t *Tracker) Arrive(ctx context.Context, o Owner) (Claim, error) {
	return t.update(ctx, "make arriving", o, func(c *Claim) error {
		switch c.State {
		case Pending:
			c.State, c.Lease, c.Boot = Arriving, nil, t.runtime.Boot().ID
		case Arriving, Bound:
		default:
			return wrongState(c, Arriving)
		}
		return nil
	})
}

// Bind makes a claim the one of a defined domain. The claim of a guest that came
// from another host, or back to it, becomes the instance's own: its owner is of
// kind instance and names no migration (a later move claims again), its ticket
// is revoked. Its uuid stays; BoundFrom remembers the migration, so that the same Bind
// again gives the same answer. The context of a guest that came by live migration or
// evacuation goes, since its new side is now simply the truth; that of one that may go
// back (kind resize) is kept beside the claim until DropContext, as RecordContext would
// have. Claims of other kinds keep their owner. fault.Exists when the instance has a
// claim of its own here already; fault.Forbidden for what is held of a guest that has left.
func (t *Tracker) Bind(ctx context.Context, o Owner) (Claim, error) {
	var beside plan
	return t.updateWith(ctx, "bind", o, func(c *Claim) error {
		beside = plan{}
		switch c.Owner.Kind {
		case KindLiveMigration, KindEvacuation, KindResize:
			from, own := c.Owner, Owner{Instance: c.Owner.Instance, Kind: KindInstance}
			if t.findLocked(own) != nil {
				return livesHere("bind claim "+c.ID, own.Instance, "it has another claim here")
			}
			if c.State == Held && t.instances[own.Instance].Token.State == TokenSurrendered {
				return wrongState(c, Bound) // the guest is elsewhere: AwaitReturn first
			}
			if x := c.Context; x != nil && from.Kind == KindResize {
				h := t.migrations[from.Migration].clone()
				h.keep(x, from.Attempt, x.Source)
				beside = t.writeHalf(from.Migration, h)
			}
			c.Owner, c.BoundFrom, c.Context, c.Ticket = own, &from, nil, ""
		}
		c.State, c.Lease = Bound, nil
		return nil
	}, func() plan { return beside })
}

// Hold keeps a claim for a story without deadline, such as what a change on one host
// has claimed until it is exchanged. Safe to repeat. fault.Forbidden while a domain may
// arrive for it, and once it has become the instance's own.
func (t *Tracker) Hold(ctx context.Context, o Owner) (Claim, error) {
	return t.update(ctx, "hold", o, func(c *Claim) error {
		if c.State == Arriving || c.Owner != o {
			return wrongState(c, Held)
		}
		c.State, c.Lease = Held, nil
		return nil
	})
}

func wrongState(c *Claim, to State) error {
	return fault.New(fault.Forbidden, "claim %s of instance %s is %s and cannot become %s", c.ID, c.Owner.Instance, c.State, to)
}

// update changes one claim. A claim that f leaves as it was is durable already.
func (t *Tracker) update(ctx context.Context, doing string, o Owner, f func(*Claim) error) (Claim, error) {
	return t.updateWith(ctx, doing, o, f, func() plan { return plan{} })
}

// updateWith is update with what f wants written beside the claim, in the same commit.
func (t *Tracker) updateWith(ctx context.Context, doing string, o Owner, f func(*Claim) error, beside func() plan) (Claim, error) {
	if err := validUUIDs(o.Instance, o.Migration); err != nil {
		return Claim{}, fault.New(fault.Invalid, "%s claim: %w", doing, err)
	}
	var answer Claim
	err := t.change(ctx, subjects(o.Instance, o.Migration), func() (plan, error) {
		e := t.findLocked(o)
		if e == nil {
			return plan{}, t.missingLocked(doing, o)
		}
		next := e.claim.clone()
		if err := f(&next); err != nil {
			return plan{}, err
		}
		answer = next.clone()
		if next.State == e.claim.State && next.Owner == e.claim.Owner {
			return plan{}, nil
		}
		return t.rewriteLocked(e, next).and(beside()), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// missingLocked says why an owner has no claim.
func (t *Tracker) missingLocked(doing string, o Owner) error {
	if ref := (migration.Ref{Migration: o.Migration, Instance: o.Instance, Attempt: o.Attempt, Step: StepClaim}); t.buriedLocked(ref) {
		return late(ref)
	}
	return fault.Refuse(fault.NotFound, fmt.Sprintf("%s claim of instance %s on %s", doing, o.Instance, t.host), fault.Reason{
		Code:    "no_claim",
		Message: "there is no such claim; it was never made, its lease has ended, or the host was rebooted",
		Want:    fmt.Sprintf("%s %s attempt %d", o.Kind, o.Migration, o.Attempt),
		Change:  "claim again",
	})
}

// Abort is the undo of Claim: it removes the pending or arriving claim of this
// instance, migration and attempt, and leaves a tombstone for the step
// ("" for StepClaim), also where there was no claim, so that a late Claim or
// Arrive is refused. Who aborts an arriving claim has seen that nothing can
// arrive any more. A change on one host holds its claim while the guest still uses
// the other: that one is aborted too. Without a migration it aborts the instance's own
// pending claim and leaves no tombstone. Safe to repeat. fault.Forbidden once the claim
// is bound or was exchanged, once the token has come by the attempt, and for what a source holds of a guest that has left.
func (t *Tracker) Abort(ctx context.Context, ref migration.Ref) error {
	ref.Step = stepOr(ref.Step, StepClaim)
	if err := validRef(ref, "abort claim", ref.Migration != ""); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		var remove *entry
		own := t.ownLockedOf(ref.Instance)
		for _, e := range t.entriesLocked(ref.Instance) {
			from := e.claim.BoundFrom
			switch o := e.claim.Owner; {
			case from != nil && from.Migration == ref.Migration && from.Attempt == ref.Attempt:
				return plan{}, wrongState(&e.claim, "aborted")
			case o.Migration == ref.Migration && o.Attempt == ref.Attempt:
				remove = e
			}
		}
		if h, k := t.migrations[ref.Migration], t.instances[ref.Instance].Token; remove != nil && ref.Migration != "" &&
			k.State == TokenHere && k.Migration == ref.Migration && h.Accepted == ref.Attempt {
			return plan{}, fault.Refuse(fault.Forbidden, fmt.Sprintf("abort claim %s of instance %s", remove.claim.ID, ref.Instance), fault.Reason{
				Code: "arrived", Message: "the guest has arrived: its token is here", Change: "finish that migration",
			})
		}
		if remove != nil {
			c := t.migrations[ref.Migration].gone()
			// A host that gave way to a higher epoch has the commit of the very attempt whose
			// arrival it ends.
			yielded := remove.claim.State == Arriving && c != nil && c.Attempt == ref.Attempt
			left := ref.Migration != "" && c != nil && c.Instance == ref.Instance && !yielded
			spare := remove.claim.State == Held && own != nil && own != remove
			if left || remove.claim.State == Bound || remove.claim.State == Held && !spare {
				return plan{}, wrongState(&remove.claim, "aborted")
			}
		}
		var p plan
		if ref.Migration != "" {
			p = t.buryLocked(ref)
		}
		if remove != nil && remove.claim.Context != nil && remove.claim.Context.apart() != "" {
			// It goes on asking, and an operator may have to settle what it asked for.
			h := t.migrations[ref.Migration].clone()
			if h.HasTombstone == nil {
				h.HasTombstone = map[string]int{}
			}
			h.HasTombstone[ref.Step], h.Conductor = max(h.HasTombstone[ref.Step], ref.Attempt), remove.claim.Context.apart()
			if remove.claim.Owner.Kind == KindEvacuation {
				h.lapse(remove.claim)
			}
			p = t.writeHalf(ref.Migration, h)
		}
		return p.and(t.removeLocked(remove)), nil
	})
}

// Release gives back a bound or held claim; once it returns nil its resources
// can be claimed. Safe to repeat: an owner without a claim has nothing to give
// back. fault.Forbidden for a pending or arriving claim: Abort it.
func (t *Tracker) Release(ctx context.Context, o Owner) error {
	if err := validUUIDs(o.Instance, o.Migration); err != nil {
		return fault.New(fault.Invalid, "release claim: %w", err)
	}
	return t.change(ctx, subjects(o.Instance, o.Migration), func() (plan, error) {
		for _, e := range t.entriesLocked(o.Instance) {
			if e.claim.Owner != o {
				continue
			}
			if e.claim.State != Bound && e.claim.State != Held {
				return plan{}, wrongState(&e.claim, "released")
			}
			return t.removeLocked(e), nil
		}
		return plan{}, nil
	})
}

// removeLocked plans the removal of claims, and of the copies that were made for them.
// They stay counted, and shown, until it is durable.
func (t *Tracker) removeLocked(entries ...*entry) plan {
	var p plan
	for _, e := range entries {
		if e == nil {
			continue
		}
		p = p.and(plan{
			mutations: []store.Mutation{store.Delete(bucketClaims, e.claim.ID)},
			apply:     func() { t.leaveLocked(e) },
		}).and(t.dropCopyOfLocked(e.claim.Owner))
	}
	return p
}

// and joins two plans into one commit.
func (p plan) and(q plan) plan {
	return plan{
		mutations: append(p.mutations[:len(p.mutations):len(p.mutations)], q.mutations...),
		apply:     both(p.apply, q.apply),
		revert:    both(p.revert, q.revert),
	}
}

func both(f, g func()) func() {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func() { f(); g() }
}
