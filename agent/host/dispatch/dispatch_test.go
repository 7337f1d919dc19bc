package dispatch_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"berth/agent/host/dispatch"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ref = migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: "11111111-1111-4111-8111-111111111111", Attempt: 1}

// bed is a dispatcher of one operation that makes something, and of its undo.
type bed struct {
	*dispatch.Dispatcher
	observes error
	done     bool
	refuses  error
	calls    []string
	at       func(ctx context.Context) // while the operation is at work
}

// host is the dispatcher as operations ask it.
type host struct {
	migration.Host
	*bed
}

func (h host) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	return h.bed.Ask(ctx, ref, op, in)
}

func newBed(t *testing.T) *bed {
	t.Helper()
	rt := new(runtime.System)
	tracker, err := claims.Open(t.Context(), claims.Options{Store: storetest.NewMemory(), Runtime: rt, Host: "a"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{}
	b.Dispatcher = &dispatch.Dispatcher{
		Memory: memory.New(tracker, rt), Managing: func() error { return b.observes },
		Handlers: operation.Handle(
			operation.PrepChange.By(func(ctx context.Context, _ migration.Ref, _ migration.PrepRequest) error {
				b.calls = append(b.calls, "prepare")
				if b.at != nil {
					b.at(ctx)
				}
				return context.Cause(ctx)
			}).UnlessDone(func(migration.Ref) (bool, error) { return b.done, nil }),
			operation.RollbackPrepChange.By(func(context.Context, migration.Ref) error {
				b.calls = append(b.calls, "roll back")
				return nil
			}).Unless(func(context.Context, migration.Ref) error { return b.refuses }),
		),
	}
	return b
}

func (b *bed) prepare(ctx context.Context) error {
	return operation.PrepChange.Ask(ctx, host{bed: b}, ref, migration.PrepRequest{})
}

func (b *bed) rollBack(ctx context.Context) error {
	return operation.RollbackPrepChange.Ask(ctx, host{bed: b}, ref)
}

func TestAsk_UnknownOperation_IsInvalid(t *testing.T) {
	if err := operation.DropContext.Ask(t.Context(), host{bed: newBed(t)}, ref); fault.KindOf(err) != fault.Invalid {
		t.Errorf("%v, want invalid", err)
	}
}

func TestAsk_ListsOutOfBounds_AreInvalidBeforeAnyLock(t *testing.T) {
	b := newBed(t)
	unlock, err := b.Memory.Lock(t.Context(), ref.Instance)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	err = operation.PrepChange.Ask(t.Context(), host{bed: b}, ref, migration.PrepRequest{CopyDisks: []string{"vda", "vda"}})
	if !errors.Is(err, fault.Invalid) || len(b.calls) > 0 {
		t.Errorf("%v, calls %v", err, b.calls)
	}
}

func TestAsk_AnotherWorksOnTheInstance_IsBusy(t *testing.T) {
	b := newBed(t)
	unlock, err := b.Memory.Lock(t.Context(), ref.Instance)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.prepare(ctx); fault.KindOf(err) != fault.Busy || len(b.calls) > 0 {
		t.Errorf("%v after %v, want busy and nothing done", err, b.calls)
	}
}

func TestAsk_AfterItsUndo_IsRefused(t *testing.T) {
	b := newBed(t)
	if err := b.rollBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.done = true
	if err := b.prepare(t.Context()); fault.KindOf(err) != fault.Forbidden || len(b.calls) != 1 {
		t.Errorf("%v after %v, want forbidden and nothing prepared", err, b.calls)
	}
}

func TestAsk_UndoWhileItWorks_EndsIt(t *testing.T) {
	b := newBed(t)
	undone := make(chan error)
	b.at = func(ctx context.Context) {
		go func() { undone <- b.rollBack(t.Context()) }()
		<-ctx.Done()
	}
	if err := b.prepare(t.Context()); !errors.Is(err, fault.Undone) {
		t.Errorf("the operation: %v, want undone", err)
	}
	if err := <-undone; err != nil {
		t.Errorf("the undo: %v", err)
	}
}

func TestAsk_UndoThatIsRefused_WritesNoTombstone(t *testing.T) {
	b := newBed(t)
	b.refuses = fault.New(fault.Forbidden, "the instance has arrived")
	if err := b.rollBack(t.Context()); !errors.Is(err, b.refuses) {
		t.Fatalf("the undo: %v, want %v", err, b.refuses)
	}
	if err := b.prepare(t.Context()); err != nil {
		t.Errorf("the operation after it: %v", err)
	}
}

func TestAsk_HostObserves_AnswersOnlyWhatWasDone(t *testing.T) {
	b := newBed(t)
	b.observes = fault.New(fault.Forbidden, "the host only observes")
	if err := b.prepare(t.Context()); !errors.Is(err, b.observes) || len(b.calls) > 0 {
		t.Errorf("%v after %v, want a refusal and nothing done", err, b.calls)
	}
	b.done = true
	if err := b.prepare(t.Context()); err != nil {
		t.Errorf("what was done: %v", err)
	}
	if err := b.rollBack(t.Context()); err != nil {
		t.Errorf("the undo: %v, want none of the mode's business", err)
	}
}
