package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/migration"
)

// A move that is confirmed later keeps what the guest held at its source: the claim
// there is the migration's, held, until it is released or the guest comes back.
//
//	source's claim                 by
//	instance's, bound              –
//	migration's, held              ReleaseHeldOwnership; CancelReturn
//	migration's, arriving          AwaitReturn, of the next attempt
//	instance's, bound              AcceptToken of that attempt, then Bind
//	gone                           Release (confirmed)

// ReleaseHeldOwnership is ReleaseOwnershipAs of a guest that may come back: in the same commit the
// instance's own claim becomes the migration's, of ref's attempt and this kind, held.
// The same attempt asking again gets the same Commit. Errors are ReleaseOwnership's, and
// fault.Busy while another move has a claim of the instance here; fault.NotFound when
// the instance has no bound claim of its own.
func (t *Tracker) ReleaseHeldOwnership(ctx context.Context, ref migration.Ref, kind Kind, to string, power migration.PowerState) (migration.Commit, error) {
	if err := validChange(ref, "surrender token", kind); err != nil {
		return migration.Commit{}, err
	}
	return t.surrender(ctx, ref, to, power, func(doing string) (plan, error) {
		own := t.ownLockedOf(ref.Instance)
		for _, e := range t.entriesLocked(ref.Instance) {
			if e != own {
				return plan{}, fault.Refuse(fault.Busy, doing, holds(e.claim))
			}
		}
		switch {
		case own == nil:
			return plan{}, t.missingLocked("surrender", Owner{Instance: ref.Instance, Kind: KindInstance})
		case own.claim.State != Bound:
			return plan{}, wrongState(&own.claim, Held)
		}
		kept := own.claim.clone()
		kept.Owner, kept.State, kept.BoundFrom = ownerOf(ref, kind), Held, nil
		return t.rewriteLocked(own, kept), nil
	})
}

// AwaitReturn makes a half that is held here since ReleaseHeldOwnership wait for its guest: it
// is arriving, and of ref's attempt, which is above the one that took the guest away. So
// AcceptToken takes the commit of that attempt, and Bind makes the claim the instance's
// own again. Safe to repeat, also after Bind. fault.Forbidden when the step was undone,
// the attempt is too low, or the guest has not left by this migration; fault.Busy while
// another attempt waits; fault.NotFound when the half was released.
func (t *Tracker) AwaitReturn(ctx context.Context, ref migration.Ref, kind Kind) (Claim, error) {
	if err := validChange(ref, "await return", kind); err != nil {
		return Claim{}, err
	}
	var answer Claim
	err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		doing := fmt.Sprintf("await return of instance %s (migration %s, attempt %d)", ref.Instance, ref.Migration, ref.Attempt)
		if t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		if e := t.findLocked(ownerOf(ref, kind)); e != nil && e.claim.State != Held {
			answer = e.claim.clone()
			return plan{}, nil
		}
		c := t.migrations[ref.Migration].gone()
		k := t.instances[ref.Instance].Token
		if c == nil || c.Instance != ref.Instance || k.State != TokenSurrendered || k.Migration != ref.Migration {
			return plan{}, fault.New(fault.Forbidden, "%s: the guest has not left by this migration", doing)
		}
		if ref.Attempt <= c.Attempt {
			return plan{}, fault.Refuse(fault.Forbidden, doing, hasLeft(*c))
		}
		e := t.halfLocked(ref, kind)
		switch {
		case e == nil:
			return plan{}, t.missingLocked("await return", ownerOf(c.Ref(), kind))
		case e.claim.State != Held:
			return plan{}, fault.New(fault.Busy, "%s: attempt %d waits for it", doing, e.claim.Owner.Attempt)
		}
		next := e.claim.clone()
		next.Owner, next.State, next.Boot = ownerOf(ref, kind), Arriving, t.runtime.Boot().ID
		answer = next.clone()
		return t.rewriteLocked(e, next), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// CancelReturn is the undo of AwaitReturn: the half is held as before. It leaves the
// tombstone of ref's step in the same commit, where one is named. Safe to repeat, also
// where nothing waits. fault.Forbidden once the token is back by this attempt.
func (t *Tracker) CancelReturn(ctx context.Context, ref migration.Ref, kind Kind) error {
	if err := validChange(ref, "cancel return", kind); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		h := t.migrations[ref.Migration]
		if h.Accepted == ref.Attempt {
			return plan{}, fault.Refuse(fault.Forbidden, fmt.Sprintf("cancel return of instance %s", ref.Instance), goneOn(ref.Migration, h.Accepted))
		}
		var p plan
		if ref.Step != "" {
			p = t.buryLocked(ref)
		}
		e, c := t.exactLocked(ownerOf(ref, kind)), h.gone()
		if e == nil || e.claim.State != Arriving || c == nil || c.Instance != ref.Instance {
			return p, nil
		}
		next := e.claim.clone()
		next.Owner, next.State = ownerOf(c.Ref(), kind), Held
		return p.and(t.rewriteLocked(e, next)), nil
	})
}

// halfLocked gives the claim that a migration has of an instance here, of whatever attempt.
func (t *Tracker) halfLocked(ref migration.Ref, kind Kind) *entry {
	for _, e := range t.entriesLocked(ref.Instance) {
		if o := e.claim.Owner; o.Migration == ref.Migration && o.Kind == kind {
			return e
		}
	}
	return nil
}
