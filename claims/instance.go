package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/fault"
	"berth/internal/store"
)

// Instance gives what the ledger knows about a guest.
func (t *Tracker) Instance(uuid string) (Instance, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.instances[uuid]
	return i.clone(), ok
}

// InstanceByName gives the guest of that name whose token is here.
func (t *Tracker) InstanceByName(name string) (Instance, bool) {
	for _, i := range t.Instances() {
		if i.Name == name && i.Token.State == TokenHere {
			return i, true
		}
	}
	return Instance{}, false
}

// Instances gives all guests that the ledger knows, surrendered ones included,
// in order of name and uuid.
func (t *Tracker) Instances() []Instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Instance, 0, len(t.instances))
	for _, i := range t.instances {
		out = append(out, i.clone())
	}
	slices.SortFunc(out, func(a, b Instance) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	return out
}

// Own makes this host the owner of a guest that was created or found here, and
// records it. The token's epoch is one more than that of i.Token, which a caller
// who read it from the domain's metadata fills in: 1 for a new guest. Repeated
// it gives the token that is here, unchanged, with the record of the first time.
// fault.Exists when another guest of that name lives here; fault.Forbidden when
// the token was surrendered by this host: it comes back by AcceptToken only.
func (t *Tracker) Own(ctx context.Context, i Instance) (Instance, error) {
	if err := validInstance("own", i); err != nil {
		return Instance{}, err
	}
	var answer Instance
	err := t.change(ctx, []string{ofInstance(i.UUID), ofName(i.Name)}, func() (plan, error) {
		p, owned, err := t.ownLocked("own", i)
		answer = owned
		return p, err
	})
	if err != nil {
		return Instance{}, err
	}
	return answer, nil
}

func (t *Tracker) ownLocked(doing string, i Instance) (plan, Instance, error) {
	if old, ok := t.instances[i.UUID]; ok {
		if old.Token.State == TokenHere {
			return plan{}, old.clone(), nil
		}
		return plan{}, Instance{}, fault.Refuse(fault.Forbidden, doing+" instance "+i.UUID, surrendered(old.Token))
	}
	if err := t.nameFreeLocked(doing, i); err != nil {
		return plan{}, Instance{}, err
	}
	i = i.clone()
	i.Token, i.Hidden = Token{Epoch: i.Token.Epoch + 1, State: TokenHere, Holder: t.host}, false
	if i.CreatedAt.IsZero() {
		i.CreatedAt = t.runtime.Now().UTC()
	}
	return t.writeInstance(i), i.clone(), nil
}

// writeInstance plans the record of an instance. Of a guest that lives here there is no
// copy any more.
func (t *Tracker) writeInstance(i Instance) plan {
	p := plan{
		mutations: []store.Mutation{put(bucketInstances, i.UUID, i)},
		apply:     func() { t.instances[i.UUID] = i },
	}
	if i.Token.State == TokenHere {
		p = p.and(t.dropCopyLocked(i.UUID))
	}
	return p
}

func surrendered(k Token) fault.Reason {
	if k.State == TokenDoubt {
		return fault.Reason{
			Code: "token_in_doubt", Message: "whose it is is in doubt since the ledger was lost", Have: fmt.Sprintf("epoch %d", k.Epoch),
			Change: "if it is nowhere else, berth instance adopt; else leave it to the host that has it",
		}
	}
	return fault.Reason{
		Code:    "token_surrendered",
		Message: fmt.Sprintf("its ownership token was surrendered to %s (epoch %d, migration %s)", k.Holder, k.Epoch, k.Migration),
		Have:    fmt.Sprintf("epoch %d", k.Epoch),
		Change:  "ask " + k.Holder + ", or move it back",
	}
}

// nameFreeLocked refuses a name that another guest has which lives here, or is to come.
func (t *Tracker) nameFreeLocked(doing string, i Instance) error {
	for _, c := range t.copies {
		if other := c.Instance; other.Name == i.Name && other.UUID != i.UUID {
			return fault.Refuse(fault.Exists, fmt.Sprintf("%s instance %s on %s", doing, i.UUID, t.host), fault.Reason{
				Code:    "name_taken",
				Message: fmt.Sprintf("the name %q is taken by instance %s, which migration %s brings here", i.Name, other.UUID, c.Migration),
				Want:    i.Name, Have: other.UUID, Change: "choose another name",
			})
		}
	}
	for _, other := range t.instances {
		if other.Name == i.Name && other.UUID != i.UUID && other.Token.State == TokenHere {
			return fault.Refuse(fault.Exists, fmt.Sprintf("%s instance %s on %s", doing, i.UUID, t.host), fault.Reason{
				Code:    "name_taken",
				Message: fmt.Sprintf("the name %q is taken by instance %s", i.Name, other.UUID),
				Want:    i.Name, Have: other.UUID, Change: "choose another name",
			})
		}
	}
	return nil
}

// PutInstance changes the record of a guest that is known here: name, flavor,
// project, user, wishes. Token, creation time and whether it is shown stay the ledger's
// own, whatever i says. It gives the record as it now is. fault.NotFound when it is not known
// (Own or AcceptToken first), fault.Exists for a name that is taken.
func (t *Tracker) PutInstance(ctx context.Context, i Instance) (Instance, error) {
	if err := validInstance("record", i); err != nil {
		return Instance{}, err
	}
	var answer Instance
	err := t.change(ctx, []string{ofInstance(i.UUID), ofName(i.Name)}, func() (plan, error) {
		old, ok := t.instances[i.UUID]
		if !ok {
			return plan{}, fault.New(fault.NotFound, "record instance %s on %s: it is not known here", i.UUID, t.host)
		}
		if old.Token.State == TokenHere {
			if err := t.nameFreeLocked("record", i); err != nil {
				return plan{}, err
			}
		}
		next := i.clone()
		next.Token, next.CreatedAt, next.Hidden = old.Token, old.CreatedAt, old.Hidden
		answer = next.clone()
		return t.writeInstance(next), nil
	})
	if err != nil {
		return Instance{}, err
	}
	return answer, nil
}

// DeleteInstance forgets a guest that was deleted here: its record, its token
// and its own claims, in one commit. Safe to repeat. fault.Busy while a move of
// it has a context or a claim here; fault.Forbidden when its token was
// surrendered: it is not this host's to delete, only to Forget.
func (t *Tracker) DeleteInstance(ctx context.Context, uuid string) error {
	if err := validUUIDs(uuid, ""); err != nil {
		return fault.New(fault.Invalid, "delete instance: %w", err)
	}
	return t.change(ctx, []string{ofInstance(uuid)}, func() (plan, error) {
		doing := fmt.Sprintf("delete instance %s on %s", uuid, t.host)
		i, known := t.instances[uuid]
		if known && i.Token.State != TokenHere {
			return plan{}, fault.Refuse(fault.Forbidden, doing, surrendered(i.Token))
		}
		var moving []fault.Reason
		for _, id := range slices.Sorted(maps.Keys(t.migrations)) {
			if h := t.migrations[id]; h.Context != nil && h.Context.Instance == uuid {
				moving = append(moving, isMoving(id, "has a context here"))
			}
		}
		for _, id := range slices.Sorted(maps.Keys(t.claims)) {
			e := t.claims[id]
			if o := e.claim.Owner; o.Instance == uuid && o.Kind != KindInstance {
				moving = append(moving, holds(e.claim))
			}
		}
		if len(moving) > 0 {
			return plan{}, fault.Refuse(fault.Busy, doing, moving...)
		}
		return t.dropInstanceLocked(uuid), nil
	})
}

// holds is the reason of a claim that a move has of an instance.
func holds(c Claim) fault.Reason {
	r := isMoving(c.Owner.Migration, "has a claim here, "+string(c.State))
	if c.State == Held {
		r.Change = "confirm or revert that migration first"
	}
	return r
}

func isMoving(id, how string) fault.Reason {
	return fault.Reason{
		Code: "instance_is_moving", Message: fmt.Sprintf("migration %s %s", id, how),
		Have: id, Change: "wait for that migration's end, or abort it",
	}
}

// dropInstanceLocked plans the end of an instance's record and its own claims.
func (t *Tracker) dropInstanceLocked(uuid string) plan {
	var p plan
	if _, known := t.instances[uuid]; known {
		p = plan{
			mutations: []store.Mutation{store.Delete(bucketInstances, uuid)},
			apply:     func() { delete(t.instances, uuid) },
		}
	}
	for _, e := range t.claims {
		if e.claim.Owner.Instance == uuid && e.claim.Owner.Kind == KindInstance {
			p = p.and(t.removeLocked(e))
		}
	}
	return p
}

func validInstance(doing string, i Instance) error {
	if err := validUUIDs(i.UUID, ""); err != nil {
		return fault.New(fault.Invalid, "%s instance: %w", doing, err)
	}
	if i.Name == "" || len(i.Name) > 255 || strings.ContainsAny(i.Name, "/\n\x00") {
		return fault.New(fault.Invalid, "%s instance %s: name %q", doing, i.UUID, i.Name)
	}
	return nil
}
