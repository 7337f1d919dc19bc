package claims

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// Restored is a guest whose records were lost, as it is put back.
type Restored struct {
	// Instance is its record, with the token as it was found out to be. A token that
	// is not here or in doubt leaves no record where there was none (Arriving).
	Instance Instance
	Found    Found // what its domain uses
	// Absent: it has no domain here, and no claim of its own: what it had goes.
	Absent bool

	// Move is the open move that brings it, and its Context; zero for none. The claim
	// is that move's then, and arriving: what the conductor asks next finds it.
	Move    Owner
	Context *MigrationContext
	// Accepted says that the token has come here by that move.
	Accepted bool
	// Finished says that a cold move has made it live here, and waits to be confirmed:
	// the claim is the instance's own by it, and the context is kept beside it.
	Finished bool
	// Left is the commit by which a cold move has taken it from here; nil for none. Until
	// that is confirmed what it had here is the move's, held.
	Left *migration.Commit
}

// Restore puts back the claim and the record of a guest, in one commit. It never
// refuses for room and never after Refuse: like Adopt it counts what is there. Of what
// the ledger already has of the guest a claim stays as it is, and a token that was not
// in doubt gives way only to one of its epoch or a higher. Safe to repeat.
func (t *Tracker) Restore(ctx context.Context, r Restored) error {
	i := r.Instance
	if err := validInstance("restore", i); err != nil {
		return err
	}
	reasons := assignmentReasons(r.Found.Assignment)
	if !r.Absent {
		reasons = append(resourcesReasons(r.Found.Resources), reasons...)
	}
	if err := invalid("restore instance "+i.UUID, reasons); err != nil {
		return err
	}
	owner := Owner{Instance: i.UUID, Kind: KindInstance}
	if r.Move.Migration != "" {
		if owner = r.Move; owner.Instance != i.UUID {
			return fault.New(fault.Invalid, "restore instance %s: the move is of %q", i.UUID, owner.Instance)
		}
	}
	if (r.Finished || r.Left != nil) && (r.Move.Migration == "" || r.Context == nil) {
		return fault.New(fault.Invalid, "restore instance %s: of a move that may be reverted the context is needed", i.UUID)
	}
	return t.change(ctx, append(subjects(i.UUID, owner.Migration), ofName(i.Name)), func() (plan, error) {
		var p plan
		old, known := t.instances[i.UUID]
		better := old.Token.State == TokenDoubt || i.Token.Epoch >= old.Token.Epoch
		if i.Token.State != "" && (!known || better && i.Token != old.Token) {
			next := i.clone()
			if next.CreatedAt.IsZero() {
				next.CreatedAt = t.runtime.Now().UTC()
			}
			p = t.writeInstance(next)
		}
		h, changed := t.migrations[owner.Migration].clone(), false
		if r.Accepted && owner.Migration != "" && h.Accepted < owner.Attempt {
			h.Accepted, changed = owner.Attempt, true
			if r.Context != nil {
				h.Came = &migration.Commit{
					Instance: i.UUID, Migration: owner.Migration, Attempt: owner.Attempt, Epoch: i.Token.Epoch, From: r.Context.Source, To: t.host, Power: r.Context.OldPowerState,
				}
			}
		}
		inClaim := r.Context
		if r.Finished || r.Left != nil {
			inClaim = nil
			if h.Context == nil {
				x := r.Context.clone()
				peer := x.Source
				if r.Left != nil {
					peer = x.Destination
				}
				h.keep(&x, owner.Attempt, peer)
				changed = true
			}
			if r.Left != nil && h.Commit == nil {
				left := *r.Left
				h.Commit, changed = &left, true
			}
		}
		if changed {
			p = p.and(t.writeHalf(owner.Migration, h))
		}
		if r.Absent {
			if e := t.findLocked(Owner{Instance: i.UUID, Kind: KindInstance}); e != nil {
				p = p.and(t.removeLocked(e))
			}
			return p, nil
		}
		if t.restoredLocked(i.UUID, r.Left != nil) {
			return p, nil
		}
		c, err := t.newClaimLocked(Request{Owner: owner, Resources: r.Found.Resources, Topology: r.Found.Topology, PCI: r.Found.PCI, Context: inClaim}, r.Found.Assignment.Clone())
		if err != nil {
			return plan{}, err
		}
		c.State, c.Lease = Bound, nil
		switch {
		case owner.Migration == "":
		case r.Left != nil:
			c.State = Held
		case r.Finished:
			from := owner
			c.Owner, c.BoundFrom = Owner{Instance: i.UUID, Kind: KindInstance}, &from
		default:
			c.State = Arriving
		}
		t.forgetStrangerLocked(i.UUID)
		c.Forced = t.overLocked(nil, c)
		return p.and(t.insertLocked(c)), nil
	})
}

// restoredLocked reports whether a guest has the claim that counts what it uses. What a
// change on this host holds beside it is none.
func (t *Tracker) restoredLocked(instance string, left bool) bool {
	for _, e := range t.entriesLocked(instance) {
		if left || e.claim.Owner.Migration == "" || e.claim.State != Held {
			return true
		}
	}
	return false
}

// Decide takes an operator's word that a guest in doubt is this host's: its token is
// here from now on, by an epoch above all that was known of it. A guest that is not
// in doubt is left as it is. fault.NotFound when it is not known.
func (t *Tracker) Decide(ctx context.Context, uuid string) error {
	return t.change(ctx, []string{ofInstance(uuid)}, func() (plan, error) {
		i, ok := t.instances[uuid]
		if !ok {
			return plan{}, fault.New(fault.NotFound, "decide whose instance %s is: it is not known on %s", uuid, t.host)
		}
		if i.Token.State != TokenDoubt {
			return plan{}, nil
		}
		next := i.clone()
		next.Token = Token{Epoch: i.Token.Epoch + 1, State: TokenHere, Holder: t.host}
		return t.writeInstance(next), nil
	})
}

// Unread is a record of the ledger that makes no sense, though its seal is right.
type Unread struct {
	Bucket, Key string
	Err         error
}

func (u Unread) String() string { return fmt.Sprintf("%s/%s: %v", u.Bucket, u.Key, u.Err) }

// Unread gives the records that Open passed over because Options.Tolerant was set,
// in order of bucket and key.
func (t *Tracker) Unread() []Unread { return t.unread }

// bucketUnread keeps what nobody could read, for people.
const bucketUnread = "unread"

// SetUnreadAside moves the records that could not be read out of the way, byte for
// byte, so that the next start does not meet them again. It is called once what they
// may have said was put back from elsewhere.
func (t *Tracker) SetUnreadAside(ctx context.Context) error {
	var mutations []store.Mutation
	for _, u := range t.unread {
		records, err := t.store.List(ctx, u.Bucket)
		if err != nil {
			return fault.New(fault.KindOf(err), "set unreadable records aside: %w", err)
		}
		if data, there := records[u.Key]; there {
			mutations = append(mutations, store.Put(bucketUnread, u.Bucket+"/"+u.Key, data), store.Delete(u.Bucket, u.Key))
		}
	}
	if len(mutations) == 0 {
		return nil
	}
	if err := t.store.Enqueue(mutations...).Wait(); err != nil {
		return fault.New(fault.KindOf(err), "set unreadable records aside: %w", err)
	}
	return nil
}
