package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// Copy is the hidden copy of an instance at the host to which it moves: what that host
// must know of it when its token comes. It is a record of its own, since nobody who asks
// for an instance of this host may take it for one: it owns nothing, holds nothing, and
// nothing is started, followed or reported on account of it.
//
//	from \ to  none                            there                 shown
//	(none)     RemoveCopy¹                     PutCopy, of a claim   –
//	there      RemoveCopy; with its claim;     PutCopy²              AcceptToken: it becomes the
//	           ForgetMigration                                       instance, Hidden until Show
//
// ¹ leaves its tombstone. ² safe to repeat, and by a later attempt.
type Copy struct {
	// Instance is the record as it will be. Its token is the one of the source, by the word
	// of who conducts the move: proof of nothing, and never counted as this ledger's.
	Instance  Instance `json:"instance"`
	Migration string   `json:"migration"`
	Attempt   int      `json:"attempt"`
}

func (c Copy) clone() Copy {
	c.Instance = c.Instance.clone()
	return c
}

// PutCopy makes an instance's copy durable, for the claim that waits here for the attempt
// of ref. It lives no longer than that claim. Safe to repeat. fault.Exists when the guest
// lives here or another one has its name; fault.Busy while another migration has a copy;
// fault.Forbidden without such a claim, and when the step was undone.
func (t *Tracker) PutCopy(ctx context.Context, ref migration.Ref, i Instance) error {
	if err := validVerb(ref, "copy instance"); err != nil {
		return err
	}
	if err := validInstance("copy", i); err != nil {
		return err
	}
	if i.UUID != ref.Instance {
		return fault.New(fault.Invalid, "copy instance %s: the record is of %s", ref.Instance, i.UUID)
	}
	return t.change(ctx, append(subjects(ref.Instance, ref.Migration), ofName(i.Name)), func() (plan, error) {
		doing := fmt.Sprintf("copy instance %s to %s", ref.Instance, t.host)
		if t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		if k := t.instances[ref.Instance].Token; k.State == TokenHere {
			if k.Migration == ref.Migration {
				return plan{}, nil // it has come since
			}
			return plan{}, livesHere(doing, ref.Instance, "its token is here")
		}
		old, there := t.copies[ref.Instance]
		switch {
		case there && old.Migration != ref.Migration:
			return plan{}, fault.Refuse(fault.Busy, doing, isMoving(old.Migration, "has a copy of it here"))
		case there && old.Attempt > ref.Attempt:
			return plan{}, late(ref)
		case !t.claimedLocked(ref):
			return plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code: "no_claim", Message: "no claim here names this migration and attempt", Want: ref.Migration, Change: "claim first",
			})
		}
		if err := t.nameFreeLocked(doing, i); err != nil {
			return plan{}, err
		}
		next := Copy{Instance: i.clone(), Migration: ref.Migration, Attempt: ref.Attempt}
		next.Instance.Hidden, next.Instance.CreatedAt = true, old.Instance.CreatedAt
		if next.Instance.CreatedAt.IsZero() {
			next.Instance.CreatedAt = t.runtime.Now().UTC()
		}
		return plan{
			mutations: []store.Mutation{put(bucketCopies, ref.Instance, next)},
			apply:     func() { t.copies[ref.Instance] = next },
		}, nil
	})
}

// claimedLocked reports whether a claim here waits for the attempt of ref.
func (t *Tracker) claimedLocked(ref migration.Ref) bool {
	return slices.ContainsFunc(t.entriesLocked(ref.Instance), func(e *entry) bool {
		o := e.claim.Owner
		return o.Migration == ref.Migration && o.Attempt == ref.Attempt && (e.claim.State == Pending || e.claim.State == Arriving)
	})
}

// RemoveCopy is the undo of PutCopy, and leaves its tombstone. Safe to repeat.
// fault.Forbidden once the token has come here by that attempt or a later one: then there is no copy any
// more, there is the instance.
func (t *Tracker) RemoveCopy(ctx context.Context, ref migration.Ref) error {
	if err := validVerb(ref, "remove copy"); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		h, k := t.migrations[ref.Migration], t.instances[ref.Instance].Token
		if k.State == TokenHere && k.Migration == ref.Migration && h.Accepted >= ref.Attempt {
			return plan{}, fault.Refuse(fault.Forbidden, "remove copy of instance "+ref.Instance, fault.Reason{
				Code: "arrived", Message: "the guest has arrived: its token is here", Change: "finish that migration",
			})
		}
		p := t.buryLocked(ref)
		if c, there := t.copies[ref.Instance]; there && c.Migration == ref.Migration && c.Attempt <= ref.Attempt {
			p = p.and(t.dropCopyLocked(ref.Instance))
		}
		return p, nil
	})
}

// dropCopyLocked plans the end of an instance's copy; nothing where there is none.
func (t *Tracker) dropCopyLocked(instance string) plan {
	if _, there := t.copies[instance]; !there {
		return plan{}
	}
	return plan{
		mutations: []store.Mutation{store.Delete(bucketCopies, instance)},
		apply:     func() { delete(t.copies, instance) },
	}
}

// dropCopyOfLocked plans the end of the copy that a claim was made for.
func (t *Tracker) dropCopyOfLocked(o Owner) plan {
	if c, there := t.copies[o.Instance]; !there || o.Migration == "" || c.Migration != o.Migration || c.Attempt > o.Attempt {
		return plan{}
	}
	return t.dropCopyLocked(o.Instance)
}

// fromCopyLocked is the record of an instance whose token comes by a commit, with what its
// copy knows of it: it is hidden until the move shows it.
func (t *Tracker) fromCopyLocked(c migration.Commit, i Instance) Instance {
	i = i.clone()
	kept, there := t.copies[c.Instance]
	if i.Hidden = there && kept.Migration == c.Migration && kept.Attempt == c.Attempt; !i.Hidden {
		return i
	}
	k := kept.Instance
	i.ProjectID, i.UserID, i.Autostart = k.ProjectID, k.UserID, k.Autostart
	if i.Name == i.UUID {
		i.Name = k.Name // what else was known of it is lost
	}
	return i
}

// CopyOf gives the copy of an instance that is here; false for none.
func (t *Tracker) CopyOf(instance string) (Copy, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.copies[instance]
	return c.clone(), ok
}

// Copies gives all copies, in order of their instances' uuids.
func (t *Tracker) Copies() []Copy {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Copy
	for _, id := range slices.Sorted(maps.Keys(t.copies)) {
		out = append(out, t.copies[id].clone())
	}
	return out
}

// SetHidden says whether the record of a guest that came here, or left, by a migration is
// shown when guests are listed; of two records that are shown the higher epoch is right.
// Nothing else follows from it. Safe to repeat; nothing where the guest has gone on by
// another migration, or is not known. fault.Forbidden where it would hide a guest whose
// token is here.
func (t *Tracker) SetHidden(ctx context.Context, instance, id string, hidden bool) error {
	if err := validUUIDs(instance, id); err != nil {
		return fault.New(fault.Invalid, "hide or show instance: %w", err)
	}
	return t.change(ctx, subjects(instance, id), func() (plan, error) {
		i, known := t.instances[instance]
		switch {
		case !known || i.Token.Migration != id || i.Hidden == hidden:
			return plan{}, nil
		case hidden && i.Token.State == TokenHere:
			return plan{}, fault.New(fault.Forbidden, "hide instance %s on %s: its token is here", instance, t.host)
		}
		next := i.clone()
		next.Hidden = hidden
		return t.writeInstance(next), nil
	})
}

// HiddenInstances gives the records that are not shown, in order of uuid.
func (t *Tracker) HiddenInstances() []Instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Instance
	for _, i := range t.instances {
		if i.Hidden {
			out = append(out, i.clone())
		}
	}
	slices.SortFunc(out, func(a, b Instance) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// SweepCopies drops copies that no claim is here for: such as a ledger that was put
// together again may have. It gives them.
func (t *Tracker) SweepCopies(ctx context.Context) ([]Copy, error) {
	var gone []Copy
	for _, c := range t.Copies() {
		ref := migration.Ref{Migration: c.Migration, Instance: c.Instance.UUID, Attempt: c.Attempt}
		dropped := false
		err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
			now, there := t.copies[ref.Instance]
			if dropped = there && now.Migration == ref.Migration && now.Attempt == ref.Attempt && !t.claimedLocked(ref); !dropped {
				return plan{}, nil
			}
			return t.dropCopyLocked(ref.Instance), nil
		})
		if err != nil {
			return gone, err
		}
		if dropped {
			gone = append(gone, c)
		}
	}
	return gone, nil
}
