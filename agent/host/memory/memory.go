package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Ledger keeps records and tombstones, by migration, attempt and step. claims.Tracker
// does, and says what each promises.
type Ledger interface {
	Remember(ctx context.Context, ref migration.Ref, v any) error
	Recall(ref migration.Ref, v any) (bool, error)
	Unremember(ctx context.Context, ref migration.Ref) error
	WriteTombstone(ctx context.Context, ref migration.Ref) error
	HasTombstone(ref migration.Ref) bool
	Remembering(step string) []migration.Ref
}

// Memory is that of one host. Safe for concurrent use.
type Memory struct {
	ledger Ledger
	rt     runtime.Runtime

	// mu guards the maps. Nothing but map work happens under it, and no other lock is
	// taken.
	mu      sync.Mutex
	working map[string]chan struct{}           // by instance: a verb works on it; closed when it is done
	running map[string]context.CancelCauseFunc // by Key: ends a verb that its undo may end
}

// New makes a Memory over what is on record.
func New(ledger Ledger, rt runtime.Runtime) *Memory {
	return &Memory{ledger: ledger, rt: rt, working: map[string]chan struct{}{}, running: map[string]context.CancelCauseFunc{}}
}

// Key names an attempt in maps.
func Key(ref migration.Ref) string { return fmt.Sprintf("%s/%d", ref.Migration, ref.Attempt) }

// At is where the ledger keeps what a step remembers, and its tombstone. The steps are
// a host's own, so that a verb and its undo meet whatever a conductor calls the step of
// each.
func At(ref migration.Ref, step string) migration.Ref {
	ref.Step = step
	return ref
}

// Recall reads a step's record; false when there is none.
func Recall[T any](m *Memory, ref migration.Ref, step string) (T, bool, error) {
	var v T
	ok, err := m.ledger.Recall(At(ref, step), &v)
	if err != nil {
		return v, false, fault.New(fault.KindOf(err), "read the record of %s of migration %s: %w", step, ref.Migration, err)
	}
	return v, ok, nil
}

// RecallEarlier reads what a step of this attempt remembers, or of the last one before
// it that has anything, and says of which; of ref where none has.
func RecallEarlier[T any](m *Memory, ref migration.Ref, step string) (v T, of migration.Ref, err error) {
	for _, of := range m.Attempts(ref, step) {
		v, found, err := Recall[T](m, of, step)
		if err != nil || found {
			return v, of, err
		}
	}
	return v, ref, nil
}

// Attempts are those of a migration that remember a step, from ref's down to the first.
// They are looked up, not counted down to: a peer names what attempt it likes.
func (m *Memory) Attempts(ref migration.Ref, step string) []migration.Ref {
	var out []migration.Ref
	for _, r := range m.ledger.Remembering(step) {
		if r.Migration == ref.Migration && r.Attempt <= ref.Attempt {
			of := ref
			of.Attempt = r.Attempt
			out = append(out, of)
		}
	}
	slices.SortFunc(out, func(a, b migration.Ref) int { return b.Attempt - a.Attempt })
	return out
}

// Remembering are all attempts of all migrations of which a step remembers something. They
// name no instance.
func (m *Memory) Remembering(step string) []migration.Ref {
	return m.ledger.Remembering(step)
}

// Remember makes a step's record durable before it returns.
func (m *Memory) Remember(ctx context.Context, ref migration.Ref, step string, v any) error {
	if err := m.ledger.Remember(ctx, At(ref, step), v); err != nil {
		return fault.New(fault.KindOf(err), "record %s of migration %s: %w", step, ref.Migration, err)
	}
	return nil
}

// Forget drops a step's record; success where there is none.
func (m *Memory) Forget(ctx context.Context, ref migration.Ref, step string) error {
	return m.ledger.Unremember(ctx, At(ref, step))
}

// WriteTombstone makes durable that a step is undone: nothing of it is begun any more.
func (m *Memory) WriteTombstone(ctx context.Context, ref migration.Ref, step string) error {
	return m.ledger.WriteTombstone(ctx, At(ref, step))
}

// HasTombstone reports whether a step of this attempt, or of a later one, is undone.
func (m *Memory) HasTombstone(ref migration.Ref, step string) bool {
	return m.ledger.HasTombstone(At(ref, step))
}

// Late refuses a verb whose undo has been here already.
func (m *Memory) Late(ref migration.Ref, step string) error {
	if !m.HasTombstone(ref, step) {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code:    "late_verb",
		Message: "migration " + ref.Migration + ": " + step + " was undone, and a message that asks for it came late",
	})
}
