package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// Exchange has a guest that is changed on its own host use what the change claimed:
// in one commit the claim of ref's migration and attempt becomes the instance's own,
// bound, and the instance's becomes the migration's, held with the MigrationContext
// until it is released or exchanged back. It gives the claim that the guest uses from
// then on. The uuids stay, and so does what is counted: both, until one of them ends.
// kind is KindResize or KindRebuild.
//
// Safe to repeat, also after the old half was released. fault.Forbidden when the step
// was undone, or the instance's claim is not bound; fault.NotFound when one of the two
// claims is not there.
func (t *Tracker) Exchange(ctx context.Context, ref migration.Ref, kind Kind) (Claim, error) {
	if err := validChange(ref, "exchange claims", kind); err != nil {
		return Claim{}, err
	}
	o := ownerOf(ref, kind)
	var answer Claim
	err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		if t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		own, other := t.ownLockedOf(ref.Instance), t.exactLocked(o)
		switch {
		case own != nil && own.claim.cameBy(o):
			answer = own.claim.clone()
			return plan{}, nil
		case other == nil:
			return plan{}, t.missingLocked("exchange", o)
		case own == nil:
			return plan{}, t.missingLocked("exchange", Owner{Instance: ref.Instance, Kind: KindInstance})
		case own.claim.State != Bound:
			return plan{}, wrongState(&own.claim, Held)
		}
		used, kept := other.claim.clone(), own.claim.clone()
		used.Owner, kept.Owner = kept.Owner, used.Owner
		used.BoundFrom, used.State, used.Lease, used.Ticket = &o, Bound, nil, ""
		used.Context, kept.Context, kept.State = nil, used.Context, Held
		answer = used.clone()
		return t.rewriteLocked(other, used).and(t.rewriteLocked(own, kept)), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// ExchangeBack is the undo: the instance's claim is again the one that it was, bound,
// and what the change claimed is the migration's, held with the context; Abort or
// Release ends it. It leaves the tombstone of ref's step in the same commit, where one
// is named, and gives the claim that the guest uses from then on. Where nothing was
// exchanged nothing changes. Safe to repeat. fault.Forbidden once the old half was
// released: there is no way back; fault.NotFound when the instance has no claim.
func (t *Tracker) ExchangeBack(ctx context.Context, ref migration.Ref, kind Kind) (Claim, error) {
	if err := validChange(ref, "exchange claims back", kind); err != nil {
		return Claim{}, err
	}
	o := ownerOf(ref, kind)
	var answer Claim
	err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		own, other := t.ownLockedOf(ref.Instance), t.exactLocked(o)
		var p plan
		if ref.Step != "" {
			p = t.buryLocked(ref)
		}
		switch {
		case own == nil:
			return plan{}, t.missingLocked("exchange back", Owner{Instance: ref.Instance, Kind: KindInstance})
		case !own.claim.cameBy(o):
			answer = own.claim.clone()
			return p, nil
		case other == nil:
			return plan{}, fault.Refuse(fault.Forbidden, fmt.Sprintf("exchange claims of instance %s back (migration %s)", ref.Instance, ref.Migration), fault.Reason{
				Code: "old_half_released", Message: "what the guest held before was given up: the change stands", Change: "change it anew",
			})
		}
		used, kept := other.claim.clone(), own.claim.clone()
		used.Owner, kept.Owner = kept.Owner, used.Owner
		used.State, used.Lease = Bound, nil
		used.Context, kept.Context, kept.State, kept.BoundFrom = nil, used.Context, Held, nil
		answer = used.clone()
		return p.and(t.rewriteLocked(other, used)).and(t.rewriteLocked(own, kept)), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

func validChange(r migration.Ref, doing string, kind Kind) error {
	if err := validRef(r, doing, true); err != nil {
		return err
	}
	if kind != KindResize && kind != KindRebuild {
		return fault.New(fault.Invalid, "%s of instance %s: kind %q", doing, r.Instance, kind)
	}
	return nil
}

// owner is who a claim of this attempt belongs to.
func ownerOf(r migration.Ref, kind Kind) Owner {
	return Owner{Instance: r.Instance, Migration: r.Migration, Attempt: r.Attempt, Kind: kind}
}

// cameBy reports whether the claim has become the instance's by this owner, and is it
// still: one that a later change has put aside is that change's.
func (c Claim) cameBy(o Owner) bool {
	return c.Owner.Migration == "" && c.BoundFrom != nil && *c.BoundFrom == o
}

// ownLockedOf gives the claim that an instance has of its own.
func (t *Tracker) ownLockedOf(instance string) *entry {
	return t.exactLocked(Owner{Instance: instance, Kind: KindInstance})
}

// exactLocked gives the claim that is this owner's now.
func (t *Tracker) exactLocked(o Owner) *entry {
	for _, e := range t.entriesLocked(o.Instance) {
		if e.claim.Owner == o {
			return e
		}
	}
	return nil
}

// rewriteLocked plans a claim's record anew, with what it holds as it was.
func (t *Tracker) rewriteLocked(e *entry, next Claim) plan {
	return plan{
		mutations: []store.Mutation{put(bucketClaims, next.ID, next)},
		apply:     func() { e.claim = next },
	}
}
