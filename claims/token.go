package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/migration"
)

// ReleaseOwnership gives an instance's token away, for the attempt that ref names, to
// the host named. Once it returns, the guest is no longer this host's: that is
// the move's point of no return. The same attempt asking again gets the same
// Commit. fault.Forbidden when the token is not here, when RefuseCommit was
// first, or when another attempt of the migration has committed; fault.NotFound
// when the instance is not known. Of ReleaseOwnership and RefuseCommit for one attempt
// exactly one ever succeeds. Its claim stays the instance's: see ReleaseHeldOwnership for a
// guest that may come back.
func (t *Tracker) ReleaseOwnership(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	return t.ReleaseOwnershipAs(ctx, ref, to, "")
}

// ReleaseOwnershipAs is ReleaseOwnership with what the guest's user has chosen for it, which is kept
// in the commit: whoever finishes the move has nobody else to ask.
func (t *Tracker) ReleaseOwnershipAs(ctx context.Context, ref migration.Ref, to string, power migration.PowerState) (migration.Commit, error) {
	if err := validRef(ref, "surrender token", true); err != nil {
		return migration.Commit{}, err
	}
	return t.surrender(ctx, ref, to, power, func(string) (plan, error) { return plan{}, nil })
}

// surrender gives the token away, with what becomes of the guest's claim in the same
// commit.
func (t *Tracker) surrender(ctx context.Context, ref migration.Ref, to string, power migration.PowerState, claimLocked func(doing string) (plan, error)) (migration.Commit, error) {
	if to == "" || to == t.host {
		return migration.Commit{}, fault.New(fault.Invalid, "surrender token of instance %s: receiver %q", ref.Instance, to)
	}
	var answer migration.Commit
	err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		doing := fmt.Sprintf("surrender token of instance %s to %s (migration %s, attempt %d)", ref.Instance, to, ref.Migration, ref.Attempt)
		h := t.migrations[ref.Migration].clone()
		if c := h.gone(); c != nil {
			// A guest that has come back since has a higher epoch: then the old
			// answer would be given to a receiver of long ago.
			k := t.instances[ref.Instance].Token
			back := k.State == TokenHere && k.Epoch >= c.Epoch
			if c.Instance == ref.Instance && c.Attempt == ref.Attempt && c.To == to && !back {
				answer = *c
				return plan{}, nil
			}
			return plan{}, fault.Refuse(fault.Forbidden, doing, hasLeft(*c))
		}
		if h.Refused >= ref.Attempt {
			return plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code:    "commit_refused",
				Message: fmt.Sprintf("the source has decided to keep the guest: commits up to attempt %d are refused", h.Refused),
				Change:  "start another attempt",
			})
		}
		if ref.Step != "" && t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		i, ok := t.instances[ref.Instance]
		if !ok {
			return plan{}, fault.New(fault.NotFound, "%s: the instance is not known on %s", doing, t.host)
		}
		if i.Token.State != TokenHere {
			return plan{}, fault.Refuse(fault.Forbidden, doing, surrendered(i.Token))
		}
		c := migration.Commit{
			Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt,
			Epoch: i.Token.Epoch + 1, From: t.host, To: to, Power: power,
		}
		p, err := claimLocked(doing)
		if err != nil {
			return plan{}, err
		}
		answer = c
		h.Commit = &c
		next := i.clone()
		next.Token = Token{Epoch: c.Epoch, State: TokenSurrendered, Holder: to, Migration: ref.Migration}
		return t.writeHalf(ref.Migration, h).and(t.writeInstance(next)).and(p), nil
	})
	if err != nil {
		return migration.Commit{}, err
	}
	return answer, nil
}

func hasLeft(c migration.Commit) fault.Reason {
	return fault.Reason{
		Code:    "token_has_left",
		Message: fmt.Sprintf("the token has left to %s with attempt %d (epoch %d)", c.To, c.Attempt, c.Epoch),
		Have:    fmt.Sprintf("epoch %d", c.Epoch),
		Change:  "finish that hand-over: there is no way back",
	}
}

// RefuseCommit is the source's other decision: it keeps the guest, and ReleaseOwnership
// for this attempt or a lower one is refused from now on. nil means that the
// token is here and stays, so that the guest may be resumed. Safe to repeat.
// fault.Forbidden when the token has left, by this migration or another;
// fault.NotFound when the instance is not known.
func (t *Tracker) RefuseCommit(ctx context.Context, ref migration.Ref) error {
	if err := validRef(ref, "refuse commit", true); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		doing := fmt.Sprintf("keep instance %s (migration %s, attempt %d)", ref.Instance, ref.Migration, ref.Attempt)
		h := t.migrations[ref.Migration].clone()
		if c := h.gone(); c != nil {
			return plan{}, fault.Refuse(fault.Forbidden, doing, hasLeft(*c))
		}
		if h.Accepted > ref.Attempt {
			// That attempt took the guest away, and a later one has brought it back.
			return plan{}, fault.Refuse(fault.Forbidden, doing, goneOn(ref.Migration, h.Accepted))
		}
		i, ok := t.instances[ref.Instance]
		if !ok {
			return plan{}, fault.New(fault.NotFound, "%s: the instance is not known on %s", doing, t.host)
		}
		if i.Token.State != TokenHere {
			return plan{}, fault.Refuse(fault.Forbidden, doing, surrendered(i.Token))
		}
		if h.Refused >= ref.Attempt {
			return plan{}, nil
		}
		h.Refused = ref.Attempt
		return t.writeHalf(ref.Migration, h), nil
	})
}

// Committed gives the commit by which a migration took a token away from here; false
// also when a later attempt of the migration has brought it back.
func (t *Tracker) Committed(id string) (migration.Commit, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.migrations[id].gone(); c != nil {
		return *c, true
	}
	return migration.Commit{}, false
}

// Left gives the commit by which a migration took a token away from here, also when it
// is back.
func (t *Tracker) Left(id string) (migration.Commit, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.migrations[id].Commit; c != nil {
		return *c, true
	}
	return migration.Commit{}, false
}

// GaveAway gives the commit with the highest epoch by which an instance left this host, also after
// the instance was forgotten; false where none is known any more (see TombstoneKeep), and where the
// instance has come back since.
func (t *Tracker) GaveAway(instance string) (last migration.Commit, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var back uint64
	for _, h := range t.migrations {
		if c := h.Commit; c != nil && c.Instance == instance && c.Epoch > last.Epoch {
			last = *c
		}
		if c := h.Came; c != nil && c.Instance == instance {
			back = max(back, c.Epoch)
		}
	}
	if last.Epoch <= back {
		return migration.Commit{}, false
	}
	return last, true
}

// CommitRefused reports whether RefuseCommit has decided this attempt.
func (t *Tracker) CommitRefused(id string, attempt int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.migrations[id].Refused >= attempt
}

// AcceptToken takes the token that a commit names, with the record of the guest,
// in one commit. It needs a claim here, pending or arriving, of exactly the
// commit's migration and attempt. Safe to repeat, also after Bind.
// fault.Forbidden for a commit to another host, without such a claim, for one
// that was accepted before and whose guest has gone on, or when this ledger
// knows of the same or a higher epoch by another hand-over. A name
// that a guest here has already is no reason to refuse: past the source's commit
// there is only forward, and libvirt has let the domain in.
//
// A guest that left by this migration comes back by a later attempt of it (see
// AwaitReturn): then this host's own commit, of a lower epoch, is past, and that
// attempt counts as one whose commit is refused. i is its record as it is to be from
// then on: the one that was kept here, shown again.
//
// A copy of the instance by that attempt ends in the same commit: what it knows of project,
// user and wishes is the record's, which stays hidden until SetHidden shows it.
func (t *Tracker) AcceptToken(ctx context.Context, c migration.Commit, i Instance) error {
	doing := fmt.Sprintf("accept token of instance %s (migration %s, attempt %d, epoch %d)", c.Instance, c.Migration, c.Attempt, c.Epoch)
	if err := validRef(c.Ref(), "accept token", true); err != nil {
		return err
	}
	if err := validInstance("accept token of", i); err != nil {
		return err
	}
	if i.UUID != c.Instance || c.Epoch < 2 {
		return fault.New(fault.Invalid, "%s: record of instance %q", doing, i.UUID)
	}
	if c.To != t.host {
		return fault.New(fault.Forbidden, "%s: it was given to %q, this is %q", doing, c.To, t.host)
	}
	c.Seal = nil // its receiver has verified it; the ledger keeps what it says
	about := append(subjects(c.Instance, c.Migration), ofName(i.Name))
	return t.change(ctx, about, func() (plan, error) {
		old, known := t.instances[c.Instance]
		switch k := old.Token; {
		case !known, k.State == TokenDoubt && k.Epoch <= c.Epoch:
		case k.State == TokenHere && k.Epoch == c.Epoch && k.Migration == c.Migration:
			return plan{}, nil
		case k.State == TokenHere:
			return plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code: "token_is_here", Message: fmt.Sprintf("this host holds its token already, by another hand-over (epoch %d)", k.Epoch),
				Want: fmt.Sprintf("epoch %d", c.Epoch), Have: fmt.Sprintf("epoch %d", k.Epoch),
			})
		case k.Epoch >= c.Epoch:
			return plan{}, fault.Refuse(fault.Forbidden, doing, surrendered(k))
		}
		h := t.migrations[c.Migration].clone()
		if h.Accepted > 0 {
			return plan{}, fault.Refuse(fault.Forbidden, doing, goneOn(c.Migration, h.Accepted))
		}
		awaited := t.awaitedLocked(c)
		if awaited == nil {
			return plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code:    "no_claim",
				Message: "no claim here, pending or arriving, names this migration and attempt",
				Change:  "an arrival needs a claim; nothing starts without one",
			})
		}
		next := t.fromCopyLocked(c, i)
		next.Token = Token{Epoch: c.Epoch, State: TokenHere, Holder: t.host, Migration: c.Migration}
		if next.CreatedAt.IsZero() {
			next.CreatedAt = t.runtime.Now().UTC()
		}
		if gone := h.Commit; gone != nil {
			h.Refused = max(h.Refused, gone.Attempt)
		}
		h.Accepted, h.Came, h.Evacuated = c.Attempt, &c, awaited.claim.Owner.Kind == KindEvacuation
		if x := awaited.claim.Context; x != nil {
			h.Conductor = x.apart()
		}
		return t.writeInstance(next).and(t.writeHalf(c.Migration, h)), nil
	})
}

// Accepted is the attempt by which a migration has brought its guest here, also
// when the guest has gone on since; 0 when it has not, or when that was longer ago
// than tombstones are kept.
func (t *Tracker) Accepted(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.migrations[id].Accepted
}

// Came gives the commit by which a migration brought its guest here, for as long as
// tombstones are kept; false where it did not, or an older agent took it in.
func (t *Tracker) Came(id string) (migration.Commit, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.migrations[id].Came; c != nil {
		return *c, true
	}
	return migration.Commit{}, false
}

func goneOn(id string, attempt int) fault.Reason {
	return fault.Reason{
		Code:    "accepted_before",
		Message: fmt.Sprintf("migration %s has brought the guest here with attempt %d, and it has gone on since; this request is late", id, attempt),
		Have:    fmt.Sprintf("attempt %d", attempt),
		Change:  "look where the guest is now",
	}
}

// awaitedLocked gives the claim that waits for what this commit brings; nil for none.
func (t *Tracker) awaitedLocked(c migration.Commit) *entry {
	for _, e := range t.claims {
		o := e.claim.Owner
		if o.Instance == c.Instance && o.Migration == c.Migration && o.Attempt == c.Attempt &&
			(e.claim.State == Pending || e.claim.State == Arriving) {
			return e
		}
	}
	return nil
}

// Forget ends a guest that has left: its record, its own claim here, and context and
// copy of the migration that took it, in one commit. The commit itself is
// kept for as long as tombstones are. Safe to repeat. fault.Forbidden when its
// token is here; fault.Busy while that migration holds a claim of it here: the guest
// may come back until it is released.
func (t *Tracker) Forget(ctx context.Context, uuid string) error {
	if err := validUUIDs(uuid, ""); err != nil {
		return fault.New(fault.Invalid, "forget instance: %w", err)
	}
	// The migration is a subject too, and known only from the record; nothing
	// but Forget, AcceptToken and Own change it, and all of them wait for this
	// instance. So it is looked up first and held against the record then.
	i, _ := t.Instance(uuid)
	id := i.Token.Migration
	return t.change(ctx, subjects(uuid, id), func() (plan, error) {
		i, known := t.instances[uuid]
		switch {
		case !known:
			return plan{}, nil
		case i.Token.State == TokenHere:
			return plan{}, fault.New(fault.Forbidden, "forget instance %s: its token is here, on %s", uuid, t.host)
		case i.Token.Migration != id:
			return plan{}, fault.New(fault.Busy, "forget instance %s: its record is changing", uuid)
		}
		for _, e := range t.entriesLocked(uuid) {
			if o := e.claim.Owner; o.Migration != "" && o.Migration == id {
				return plan{}, fault.Refuse(fault.Busy, "forget instance "+uuid, holds(e.claim))
			}
		}
		p := t.dropInstanceLocked(uuid)
		if c, there := t.copies[uuid]; there && c.Migration == id {
			p = p.and(t.dropCopyLocked(uuid))
		}
		if h := t.migrations[id].clone(); h.Context != nil {
			h.Context, h.ContextAttempt = nil, 0
			p = p.and(t.writeHalf(id, h))
		}
		return p, nil
	})
}
