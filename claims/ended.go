package claims

import (
	"context"
	"slices"
	"strings"

	"berth/topology"
)

// lapsed is what is kept of a claim whose lease was over.
type lapsed struct {
	Attempt int                `json:"attempt"`
	Old     topology.Resources `json:"old_resources"`
}

// lapseLocked plans the tombstone of a claim whose lease is over, where another host that is
// not the guest's conducts the move: the source may know nothing of the move yet. So does what
// was claimed for an evacuation and is given up: its source is dead.
func (t *Tracker) lapseLocked(c Claim) plan {
	if c.Context == nil || c.Owner.Migration == "" || c.Context.apart() == "" || c.Context.apart() == t.host {
		return plan{}
	}
	h := t.migrations[c.Owner.Migration].clone()
	h.lapse(c)
	return t.writeHalf(c.Owner.Migration, h)
}

// lapse keeps of a claim what its host needs to count the guest back.
func (h *half) lapse(c Claim) {
	h.Peer, h.Guest, h.Conductor = c.Context.Source, c.Owner.Instance, c.Context.apart()
	h.Lapsed = &lapsed{Attempt: c.Owner.Attempt, Old: c.Context.OldResources}
}

// Ended is a move that another host conducts and that is over for this one, by which a guest
// came here or came back, or was to come with a claim whose lease was over. What its two consumers hold in Placement is its conductor's to
// write still, and that may be gone for good.
type Ended struct {
	Migration string
	Instance  string
	Attempt   int    // by which the guest came, or was to come
	Conductor string // host
	Other     string // the other host of the move; empty where no context named one
	// Old is what the guest held before, where it has not come; nil where it has.
	Old *topology.Resources
}

// Ended gives them, in order of migration, for as long as their tombstones are kept. A guest
// that was evacuated is not among them: what its dead host holds in Placement is ended by that
// host when it is back, or by an operator who has it forgotten.
func (t *Tracker) Ended() []Ended {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Ended
	for id, h := range t.migrations {
		switch {
		case h.Evacuated || !t.endedLocked(id):
		case h.Came != nil && h.gone() == nil:
			out = append(out, Ended{Migration: id, Instance: h.Came.Instance, Attempt: h.Accepted, Conductor: h.Conductor, Other: h.Peer})
		case h.Came == nil && h.Commit == nil && h.Lapsed != nil && !t.remembersLocked(id):
			old := h.Lapsed.Old
			out = append(out, Ended{Migration: id, Instance: h.Guest, Attempt: h.Lapsed.Attempt, Conductor: h.Conductor, Other: h.Peer, Old: &old})
		}
	}
	slices.SortFunc(out, func(a, b Ended) int { return strings.Compare(a.Migration, b.Migration) })
	return out
}

// remembersLocked reports whether verbs of a migration remember anything.
func (t *Tracker) remembersLocked(id string) bool {
	for key := range t.verbs {
		if strings.HasPrefix(key, id+"/") {
			return true
		}
	}
	return false
}

// endedLocked reports whether another host conducts a migration, and no context, claim, copy
// or hidden record of it is left.
func (t *Tracker) endedLocked(id string) bool {
	h := t.migrations[id]
	if h.Conductor == "" || h.Conductor == t.host || h.Context != nil {
		return false
	}
	for _, e := range t.claims {
		if e.claim.Owner.Migration == id {
			return false
		}
	}
	for _, c := range t.copies {
		if c.Migration == id {
			return false
		}
	}
	for _, i := range t.instances {
		if i.Token.Migration == id && i.Token.State != TokenHere {
			return false
		}
	}
	return true
}

// ForgetEnded drops what verbs of moves remembered that another host conducts and that are
// over here: the verb that was to forget it was cut off, and its conductor, which would
// repeat it, may be gone. It gives those migrations, in order. What is remembered of a guest that
// was evacuated stays: it may not be finished.
func (t *Tracker) ForgetEnded(ctx context.Context) (ended []string, err error) {
	for _, id := range t.endedMigrations() {
		if err := t.ForgetMigration(ctx, id); err != nil {
			return nil, err
		}
		ended = append(ended, id)
	}
	return ended, nil
}

// endedMigrations gives the migrations that ForgetEnded forgets, in order.
func (t *Tracker) endedMigrations() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []string
	for key := range t.verbs {
		id, _, _ := strings.Cut(key, "/")
		if h := t.migrations[id]; !h.Evacuated && (h.Came != nil || h.Commit != nil) && !slices.Contains(ended, id) && t.endedLocked(id) {
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	return ended
}
