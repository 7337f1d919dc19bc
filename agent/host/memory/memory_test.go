package memory_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const step = "pre_live_migration"

var ref = migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: "11111111-1111-4111-8111-111111111111", Attempt: 2}

func newMemory(t *testing.T) *memory.Memory {
	t.Helper()
	rt := new(runtime.System)
	tracker, err := claims.Open(t.Context(), claims.Options{Store: storetest.NewMemory(), Runtime: rt, Host: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return memory.New(tracker, rt)
}

func never() error { return nil }

func TestLock_AVerbWaitsForTheOneThatWorksOnItsInstance(t *testing.T) {
	m := newMemory(t)
	done, err := m.Lock(t.Context(), ref.Instance)
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Lock(t.Context(), "another")
	if err != nil {
		t.Fatalf("another instance: %v", err)
	}
	other()
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Lock(impatient, ref.Instance); fault.KindOf(err) != fault.Busy {
		t.Errorf("a second verb: %v, want busy", err)
	}
	got := make(chan error)
	go func() {
		again, err := m.Lock(t.Context(), ref.Instance)
		if err == nil {
			again()
		}
		got <- err
	}()
	done()
	if err := <-got; err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

func TestBeginUndo_EndsTheVerbAndKeepsItFromComingLate(t *testing.T) {
	m := newMemory(t)
	done, err := m.Lock(t.Context(), ref.Instance)
	if err != nil {
		t.Fatal(err)
	}
	verb, over := m.Stoppable(t.Context(), ref)
	if err := m.Late(ref, step); err != nil {
		t.Fatalf("before its undo: %v", err)
	}
	undone := make(chan error)
	go func() {
		turn, err := m.BeginUndo(t.Context(), ref, step, never)
		if err == nil {
			turn()
		}
		undone <- err
	}()
	<-verb.Done()
	if !errors.Is(context.Cause(verb), fault.Undone) {
		t.Errorf("the verb was ended with %v, want undone", context.Cause(verb))
	}
	over()
	done()
	if err := <-undone; err != nil {
		t.Fatalf("the undo: %v", err)
	}
	if err := m.Late(ref, step); !errors.Is(err, fault.Forbidden) {
		t.Errorf("the verb after its undo: %v, want forbidden", err)
	}
	next := ref
	next.Attempt++
	if err := m.Late(next, step); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

func TestBeginUndo_ThatIsRefusedLeavesNoTrace(t *testing.T) {
	m := newMemory(t)
	no := errors.New("the guest is this host's")
	if _, err := m.BeginUndo(t.Context(), ref, step, func() error { return no }); !errors.Is(err, no) {
		t.Fatalf("the undo: %v, want %v", err, no)
	}
	if m.HasTombstone(ref, step) {
		t.Error("the step is buried")
	}
	asked := 0
	if _, err := m.BeginUndo(t.Context(), ref, step, func() error {
		if asked++; asked > 1 {
			return no // it has arrived while the undo waited for its turn
		}
		return nil
	}); !errors.Is(err, no) {
		t.Fatalf("the undo: %v, want %v", err, no)
	}
	done, err := m.Lock(t.Context(), ref.Instance)
	if err != nil {
		t.Fatalf("its turn was not given back: %v", err)
	}
	done()
}

func TestRecallEarlier_FindsTheLastAttemptThatRemembers(t *testing.T) {
	m := newMemory(t)
	type record struct{ Disks []string }
	var want record
	for _, attempt := range []int{1, 2, 5} {
		r := ref
		r.Attempt = attempt
		if attempt == 2 {
			want = record{Disks: []string{"vdb"}}
		}
		if err := m.Remember(t.Context(), r, step, record{Disks: want.Disks}); err != nil {
			t.Fatal(err)
		}
	}
	at := ref
	at.Attempt = 4
	got, of, err := memory.RecallEarlier[record](m, at, step)
	if err != nil || of.Attempt != 2 {
		t.Errorf("found at attempt %d, %v; want 2", of.Attempt, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	at.Attempt = 2
	for range 2 {
		if err := m.Forget(t.Context(), at, step); err != nil {
			t.Fatal(err)
		}
	}
	if _, found, err := memory.Recall[record](m, at, step); found || err != nil {
		t.Errorf("a forgotten record is found: %t, %v", found, err)
	}
}
