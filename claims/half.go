package claims

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/migration"
)

// validRef refuses a reference that names nothing, or something that is no name.
func validRef(r migration.Ref, doing string, ofMigration bool) error {
	err := validUUIDs(r.Instance, r.Migration)
	switch {
	case err != nil:
	case ofMigration && r.Migration == "":
		err = fmt.Errorf("no migration is named")
	case ofMigration && r.Attempt < 1:
		err = fmt.Errorf("attempt %d of migration %s", r.Attempt, r.Migration)
	case r.Step != "" && !validName(r.Step):
		err = fmt.Errorf("step %q is not a name", r.Step)
	default:
		return nil
	}
	return fault.New(fault.Invalid, "%s: %w", doing, err)
}

// half is what this host remembers of one migration, as source or destination:
// one record.
type half struct {
	// Context is the source's MigrationContext, and after Bind that of a destination
	// from which the guest may go back; until then the destination's is in its claim,
	// as is that of a change on one host. Nil when there is none.
	Context        *MigrationContext `json:"context,omitempty"`
	ContextAttempt int               `json:"context_attempt,omitempty"` // that recorded it
	// Peer is the other host that a context named last, and Guest whose context it
	// was: that host may ask what became of the move when the context is gone.
	Peer  string `json:"peer,omitempty"`
	Guest string `json:"guest,omitempty"`
	// Conductor is the host that conducts it, where that is not its source: it goes on
	// asking when the context is gone.
	Conductor string `json:"conductor,omitempty"`

	// Commit is by which the token left, and Refused the highest attempt whose
	// commit is refused. An attempt is in both only when a later one has brought the
	// guest back: see gone.
	Commit  *migration.Commit `json:"commit,omitempty"`
	Refused int               `json:"refused,omitempty"`

	// Accepted is the attempt by which the token came here, or back; 0 when it did not.
	// A migration brings a guest once: its verbs are late from then on.
	Accepted int               `json:"accepted,omitempty"`
	Came     *migration.Commit `json:"came,omitempty"` // the commit of it; nil in records of older agents
	Word     *Word             `json:"word,omitempty"` // by which an operator has settled it here; see word.go
	// Evacuated: it came from a dead host, whose half in Placement stays until that host has
	// cleaned up.
	Evacuated bool `json:"evacuated,omitempty"`
	// Lapsed is the last claim of a move that another host conducts whose lease was over: that
	// host may have counted the guest here already.
	Lapsed *lapsed `json:"lapsed,omitempty"`

	// HasTombstone is the highest attempt of each step whose undo has run.
	HasTombstone map[string]int `json:"buried,omitempty"`

	// Written is when it last changed: TombstoneKeep runs from then.
	Written runtime.BootTime `json:"written"`
}

// gone is the commit by which the token is away; nil also when it is back.
func (h half) gone() *migration.Commit {
	if h.Commit != nil && h.Came != nil && h.Came.Epoch > h.Commit.Epoch {
		return nil
	}
	return h.Commit
}

// keep makes a context the one that is kept of a migration, with the other host of it.
func (h *half) keep(c *MigrationContext, attempt int, peer string) {
	h.Context, h.ContextAttempt, h.Peer, h.Guest = c, attempt, peer, c.Instance
	h.Conductor = c.apart()
}

func (h half) clone() half {
	if h.Context != nil {
		c := h.Context.clone()
		h.Context = &c
	}
	if h.Commit != nil {
		c := *h.Commit
		h.Commit = &c
	}
	if h.Came != nil {
		c := *h.Came
		h.Came = &c
	}
	if h.Word != nil {
		w := h.Word.clone()
		h.Word = &w
	}
	h.HasTombstone = maps.Clone(h.HasTombstone)
	return h
}

// TombstoneKeep is how long tombstones and decisions of a migration are kept
// after the last of them was written, on the boot clock; after a reboot it
// starts anew with each start of the agent: longer than needed, never shorter. A message can be late by at most the deadline of a request, seconds; a
// conductor that was down may repeat a verb when it comes back. A week is longer
// than any such outage that nobody has looked into.
const TombstoneKeep = 7 * 24 * time.Hour

// writeHalf plans the record of one migration's half.
func (t *Tracker) writeHalf(id string, h half) plan {
	h.Written = t.runtime.Boot()
	return plan{
		mutations: []store.Mutation{put(bucketHalves, id, h)},
		apply:     func() { t.migrations[id] = h },
	}
}

// prune drops halves that are past their use: nothing was written for
// TombstoneKeep, and no context, claim, copy or surrendered instance of the migration
// is left that would still need them, nor what one of its verbs remembers, nor an
// operator's word that a host has not heard.
func (t *Tracker) prune(ctx context.Context) error {
	old := t.prunable()
	if len(old) == 0 {
		return nil
	}
	var about []string
	for _, id := range old {
		about = append(about, ofMigration(id))
	}
	return t.change(ctx, about, func() (plan, error) {
		var p plan
		for _, id := range old {
			if !t.pastUseLocked(id) {
				continue
			}
			p = p.and(plan{
				mutations: []store.Mutation{store.Delete(bucketHalves, id)},
				apply:     func() { delete(t.migrations, id) },
			})
		}
		return p, nil
	})
}

func (t *Tracker) prunable() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var old []string
	for id := range t.migrations {
		if t.pastUseLocked(id) {
			old = append(old, id)
		}
	}
	slices.Sort(old)
	return old
}

func (t *Tracker) pastUseLocked(id string) bool {
	h, ok := t.migrations[id]
	if !ok || h.Context != nil || t.runtime.Boot().Since-h.Written.Since < TombstoneKeep {
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
	for key := range t.verbs {
		if strings.HasPrefix(key, id+"/") {
			return false // what it remembers is judged by what is kept here
		}
	}
	// Also of a guest that has gone on, with the epoch that it has then: the other host
	// may take it for its own.
	of := func(c *migration.Commit, w *Word) bool { return c != nil && c.Instance == w.Instance }
	for _, told := range t.migrations {
		if w := told.Word; w.untold() && (w.Migration == id || of(h.Commit, w) || of(h.Came, w)) {
			return false
		}
	}
	for _, i := range t.instances {
		if i.Token.Migration == id && i.Token.State == TokenSurrendered {
			return false
		}
	}
	return true
}

// WriteTombstone leaves the tombstone of an undo: from now on a verb of this step is late
// at this attempt and below. An undo leaves it before it takes anything away, so
// that a late verb cannot build it up again behind it. Safe to repeat.
func (t *Tracker) WriteTombstone(ctx context.Context, ref migration.Ref) error {
	if err := validRef(ref, "bury step", true); err != nil {
		return err
	}
	if ref.Step == "" {
		return fault.New(fault.Invalid, "bury step: no step is named")
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		return t.buryLocked(ref), nil
	})
}

// buryLocked plans a tombstone, if it does not stand yet.
func (t *Tracker) buryLocked(ref migration.Ref) plan {
	if t.buriedLocked(ref) {
		return plan{}
	}
	h := t.migrations[ref.Migration].clone()
	if h.HasTombstone == nil {
		h.HasTombstone = map[string]int{}
	}
	h.HasTombstone[ref.Step] = ref.Attempt
	return t.writeHalf(ref.Migration, h)
}

// HasTombstone reports whether a verb is late: its step was undone at this attempt or
// a later one.
func (t *Tracker) HasTombstone(ref migration.Ref) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buriedLocked(ref)
}

func (t *Tracker) buriedLocked(ref migration.Ref) bool {
	attempt, ok := t.migrations[ref.Migration].HasTombstone[ref.Step]
	return ok && attempt >= ref.Attempt
}

// late is the refusal of a verb that its undo has overtaken.
func late(ref migration.Ref) error {
	return fault.Refuse(fault.Forbidden, fmt.Sprintf("%s of instance %s", ref.Step, ref.Instance), fault.Reason{
		Code:    "undone",
		Message: fmt.Sprintf("attempt %d of migration %s has been undone; this request is late", ref.Attempt, ref.Migration),
		Have:    fmt.Sprintf("attempt %d", ref.Attempt),
		Change:  "start another attempt",
	})
}

// RecordContext makes a source's MigrationContext durable, in place of that of
// an earlier attempt. fault.Forbidden when the step was undone; fault.Busy while another
// migration has a context of the instance, or holds a claim of it.
func (t *Tracker) RecordContext(ctx context.Context, ref migration.Ref, c MigrationContext) error {
	if err := validRef(ref, "record context", true); err != nil {
		return err
	}
	if c.Migration != ref.Migration || c.Instance != ref.Instance {
		return fault.New(fault.Invalid, "record context of migration %s: it is of instance %q and migration %q", ref.Migration, c.Instance, c.Migration)
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		if t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		h := t.migrations[ref.Migration].clone()
		if err := t.otherMoveLocked(fmt.Sprintf("record context of migration %s of instance %s", ref.Migration, ref.Instance), ref); err != nil {
			return plan{}, err
		}
		if h.ContextAttempt > ref.Attempt {
			return plan{}, fault.New(fault.Forbidden, "record context of migration %s: attempt %d has recorded its own", ref.Migration, h.ContextAttempt)
		}
		if h.ContextAttempt == ref.Attempt && h.Context != nil && reflect.DeepEqual(*h.Context, c) {
			return plan{}, nil
		}
		c := c.clone()
		h.keep(&c, ref.Attempt, c.Destination)
		return t.writeHalf(ref.Migration, h), nil
	})
}

// otherMoveLocked refuses what would have an instance leave, or change, by one migration
// while it waits to be confirmed by another, which could not take it back any more.
func (t *Tracker) otherMoveLocked(doing string, ref migration.Ref) error {
	for _, id := range slices.Sorted(maps.Keys(t.migrations)) {
		if h := t.migrations[id]; id != ref.Migration && h.Context != nil && h.Context.Instance == ref.Instance {
			return fault.Refuse(fault.Busy, doing, isMoving(id, "has a context here"))
		}
	}
	for _, e := range t.entriesLocked(ref.Instance) {
		if o := e.claim.Owner; o.Migration != "" && o.Migration != ref.Migration {
			return fault.Refuse(fault.Busy, doing, holds(e.claim))
		}
	}
	return nil
}

// DropContext removes the context of this attempt or an earlier one and, when a
// step is named, leaves its tombstone. Safe to repeat.
func (t *Tracker) DropContext(ctx context.Context, ref migration.Ref) error {
	if err := validRef(ref, "drop context", true); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		h := t.migrations[ref.Migration].clone()
		changed := false
		if h.Context != nil && h.ContextAttempt <= ref.Attempt {
			h.Context, h.ContextAttempt, changed = nil, 0, true
		}
		if ref.Step != "" && !t.buriedLocked(ref) {
			if h.HasTombstone == nil {
				h.HasTombstone = map[string]int{}
			}
			h.HasTombstone[ref.Step], changed = ref.Attempt, true
		}
		if !changed {
			return plan{}, nil
		}
		return t.writeHalf(ref.Migration, h), nil
	})
}

// Context gives the context that this host keeps as a migration's source, or as the
// destination of one that waits to be confirmed (MigrationContext says which).
func (t *Tracker) Context(id string) (MigrationContext, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.migrations[id].Context; c != nil {
		return c.clone(), true
	}
	return MigrationContext{}, false
}

// ContextAttempt is the attempt that recorded what Context gives; 0 for none.
func (t *Tracker) ContextAttempt(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.migrations[id].ContextAttempt
}

// Contexts gives all contexts that Context gives, in order of migration. Those that
// stand in claims, of guests that may yet come and of changes on one host, are theirs.
func (t *Tracker) Contexts() []MigrationContext {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []MigrationContext
	for _, h := range t.migrations {
		if h.Context != nil {
			out = append(out, h.Context.clone())
		}
	}
	slices.SortFunc(out, func(a, b MigrationContext) int { return strings.Compare(a.Migration, b.Migration) })
	return out
}

// verbKey is the key of one verb's memory.
func verbKey(r migration.Ref) string { return fmt.Sprintf("%s/%d/%s", r.Migration, r.Attempt, r.Step) }

// Remember makes durable what a host verb made or answered, as JSON, in place of
// what it remembered before: a repeated verb gives the same answer, and an undo
// knows exactly what to remove. fault.Forbidden when the step was undone.
func (t *Tracker) Remember(ctx context.Context, ref migration.Ref, v any) error {
	if err := validVerb(ref, "remember verb"); err != nil {
		return err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fault.New(fault.Invalid, "remember verb %s: %w", verbKey(ref), err)
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		key := verbKey(ref)
		if t.buriedLocked(ref) {
			return plan{}, late(ref)
		}
		if old, ok := t.verbs[key]; ok && string(old) == string(data) {
			return plan{}, nil
		}
		return plan{
			mutations: []store.Mutation{store.Put(bucketVerbs, key, data)},
			apply:     func() { t.verbs[key] = data },
		}, nil
	})
}

// Recall reads what Remember kept for exactly this verb into v; false when there
// is nothing. It answers after a tombstone too: the undo asks.
func (t *Tracker) Recall(ref migration.Ref, v any) (bool, error) {
	t.mu.Lock()
	data, ok := t.verbs[verbKey(ref)]
	t.mu.Unlock()
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return true, fault.New(fault.Internal, "recall verb %s: %w", verbKey(ref), err)
	}
	return true, nil
}

// Remembering gives every verb of this step of which something is kept, in order.
// Their refs name no instance: a memory is found by migration, attempt and step.
func (t *Tracker) Remembering(step string) []migration.Ref {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []migration.Ref
	for _, key := range slices.Sorted(maps.Keys(t.verbs)) {
		parts := strings.Split(key, "/")
		if len(parts) != 3 || parts[2] != step {
			continue
		}
		if attempt, err := strconv.Atoi(parts[1]); err == nil {
			out = append(out, migration.Ref{Migration: parts[0], Attempt: attempt, Step: step})
		}
	}
	return out
}

// Peer gives the other host that this host's last context of a migration named, and whose
// context that was, also when it is gone; empty where there was none. An older agent kept no
// instance.
func (t *Tracker) Peer(id string) (host, instance string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.migrations[id]
	return h.Peer, h.Guest
}

// Conductor gives the host whose agent conducts a migration by what is recorded here, also
// when the context is gone; empty where that is its source, or nothing is recorded.
func (t *Tracker) Conductor(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.migrations[id]
	if h.Context != nil {
		return h.Context.apart()
	}
	for _, e := range t.claims {
		if c := e.claim.Context; c != nil && e.claim.Owner.Migration == id {
			return c.apart()
		}
	}
	return h.Conductor
}

// Moves reports whether a migration is, or was, of this instance, by anything that is
// kept of it here.
func (t *Tracker) Moves(id, instance string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.migrations[id]
	for _, c := range []*migration.Commit{h.Commit, h.Came} {
		if c != nil && c.Instance == instance {
			return true
		}
	}
	for _, e := range t.claims {
		if o := e.claim.Owner; o.Migration == id && o.Instance == instance {
			return true
		}
	}
	if c, there := t.copies[instance]; there && c.Migration == id {
		return true
	}
	return h.Guest == instance || h.Context != nil && h.Context.Instance == instance
}

// Unremember drops what one verb remembered, when an undo has removed it all.
// Safe to repeat.
func (t *Tracker) Unremember(ctx context.Context, ref migration.Ref) error {
	if err := validVerb(ref, "forget verb"); err != nil {
		return err
	}
	return t.forgetVerbs(ctx, subjects(ref.Instance, ref.Migration), func(key string) bool { return key == verbKey(ref) })
}

// ForgetMigration drops everything that verbs of a migration remembered, and the copy of its
// guest, once it is over for this host. Tombstones and decisions stay for TombstoneKeep. Safe
// to repeat.
func (t *Tracker) ForgetMigration(ctx context.Context, id string) error {
	if !validName(id) {
		return fault.New(fault.Invalid, "forget migration %q: not a name", id)
	}
	if err := t.forgetVerbs(ctx, []string{ofMigration(id)}, func(key string) bool {
		return strings.HasPrefix(key, id+"/")
	}); err != nil {
		return err
	}
	for _, c := range t.Copies() {
		if c.Migration != id {
			continue
		}
		if err := t.change(ctx, subjects(c.Instance.UUID, id), func() (plan, error) {
			return t.dropCopyOfLocked(Owner{Instance: c.Instance.UUID, Migration: id, Attempt: c.Attempt}), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tracker) forgetVerbs(ctx context.Context, about []string, which func(key string) bool) error {
	return t.change(ctx, about, func() (plan, error) {
		var p plan
		for _, key := range slices.Sorted(maps.Keys(t.verbs)) {
			if which(key) {
				p = p.and(plan{
					mutations: []store.Mutation{store.Delete(bucketVerbs, key)},
					apply:     func() { delete(t.verbs, key) },
				})
			}
		}
		return p, nil
	})
}

func validVerb(r migration.Ref, doing string) error {
	if err := validRef(r, doing, true); err != nil {
		return err
	}
	if r.Step == "" {
		return fault.New(fault.Invalid, "%s: no step is named", doing)
	}
	return nil
}
