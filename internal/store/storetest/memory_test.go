package storetest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
)

func list(t *testing.T, m *storetest.Memory) map[string]string {
	t.Helper()
	records, err := m.List(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for k, v := range records {
		out[k] = string(v)
	}
	return out
}

func TestMemory_CrashDropsWhatNobodyWaitedFor(t *testing.T) {
	m := storetest.NewMemory()
	if err := m.Put(t.Context(), "b", "durable", []byte("1")); err != nil {
		t.Fatal(err)
	}
	lost := m.Enqueue(store.Put("b", "lost", nil), store.Delete("b", "durable"))
	after := m.Crash()
	if err := lost.Wait(); !errors.Is(err, fault.Unavailable) {
		t.Errorf("waiter of a lost write: %v", err)
	}
	if diff := cmp.Diff(map[string]string{"durable": "1"}, list(t, after)); diff != "" {
		t.Errorf("after the crash (-want +got):\n%s", diff)
	}
	if err := m.Put(t.Context(), "b", "k", nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("write by the dead: %v", err)
	}
}

func TestMemory_OneWaitCommitsAllThatIsQueued(t *testing.T) {
	m := storetest.NewMemory()
	first := m.Enqueue(store.Put("b", "k", []byte("1")))
	if err := m.Enqueue(store.Put("b", "k", []byte("2"))).Wait(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil || m.Commits() != 1 || list(t, m)["k"] != "2" {
		t.Errorf("%v after %d commits, k=%q", err, m.Commits(), list(t, m)["k"])
	}
}

func TestMemory_AFailedCommitIsNotSeenAndIsUndoneByTheNext(t *testing.T) {
	for _, outcome := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		m := storetest.NewMemory()
		if err := m.Put(t.Context(), "b", "k", []byte("old")); err != nil {
			t.Fatal(err)
		}
		m.OnCommit(func(int, []store.Mutation) storetest.Outcome { return outcome })
		if err := m.Put(t.Context(), "b", "k", []byte("new")); !errors.Is(err, storetest.ErrCommit) {
			t.Errorf("outcome %d: error %v", outcome, err)
		}
		if got := list(t, m)["k"]; got != "old" {
			t.Errorf("outcome %d: readers see %q", outcome, got)
		}
		m.OnCommit(nil)
		if err := m.Put(t.Context(), "b", "next", nil); err != nil {
			t.Fatal(err)
		}
		if got := list(t, m.Crash())["k"]; got != "old" {
			t.Errorf("outcome %d: after the next commit and a crash %q", outcome, got)
		}
	}
}

func TestMemory_FailWrittenShowsAfterACrash(t *testing.T) {
	m := storetest.NewMemory()
	m.OnCommit(func(int, []store.Mutation) storetest.Outcome { return storetest.FailWritten })
	if err := m.Put(t.Context(), "b", "k", []byte("new")); err == nil {
		t.Fatal("reported as committed")
	}
	if got := list(t, m.Crash())["k"]; got != "new" {
		t.Errorf("after a crash %q, want what reached the disk", got)
	}
}
