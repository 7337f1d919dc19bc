package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
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

func TestMemory_BehavesAsAStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) (storetest.Store, func() storetest.Store) {
		m := storetest.NewMemory()
		return m, func() storetest.Store { return m.Crash() }
	})
}

func TestDB_BehavesAsTheModelDoes(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (storetest.Store, func() storetest.Store) {
		path := filepath.Join(t.TempDir(), "berth.db")
		open := func() storetest.Store {
			db, err := store.Open(path, store.Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return db
		}
		return open(), open
	})
}

func TestMemory_WhenABatchFailsEachIsTriedByItself(t *testing.T) {
	m := storetest.NewMemory()
	m.OnCommit(func(_ int, batch []store.Mutation) storetest.Outcome {
		for _, mutation := range batch {
			if mutation.Value != nil {
				return storetest.Fail // a disk with no room for anything new
			}
		}
		return storetest.Commit
	})
	claim, release := m.Enqueue(store.Put("b", "new", []byte("1"))), m.Enqueue(store.Delete("b", "old"))
	if err := release.Wait(); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := claim.Wait(); !errors.Is(err, fault.Unavailable) {
		t.Errorf("claim: %v", err)
	}
}

func TestMemory_ADiskThatLiedLosesWholeCommits(t *testing.T) {
	m := storetest.NewMemory()
	for _, err := range []error{
		m.Put(t.Context(), "b", "k", []byte("1")),
		m.Enqueue(store.Put("b", "k", []byte("2")), store.Put("b", "with", []byte("2"))).Wait(),
		m.Delete(t.Context(), "b", "k"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	after := m.CrashLosing(1)
	if diff := cmp.Diff(map[string]string{"k": "2", "with": "2"}, list(t, after)); diff != "" {
		t.Errorf("one commit lost (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"k": "1"}, list(t, m.CrashLosing(2))); diff != "" {
		t.Errorf("two commits lost (-want +got):\n%s", diff)
	}
}

func TestMemory_ATornFileIsRefusedAndLeavesTheRest(t *testing.T) {
	m := storetest.NewMemory()
	for _, key := range []string{"a", "b", "c"} {
		if err := m.Put(t.Context(), "b", key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	left, err := m.CrashTorn(func(_, key string) bool { return key == "b" })
	if reasons := fault.ReasonsOf(err); len(reasons) != 1 || reasons[0].Code != "database_damaged" {
		t.Errorf("opening it: %v", err)
	}
	if diff := cmp.Diff(map[string]string{"a": "a", "c": "c"}, list(t, storetest.NewMemoryOf(left))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestMemory_FullRefusesWhoTakesAlone(t *testing.T) {
	m := storetest.NewMemory()
	m.SetFull(true)
	if err := m.Room(); !errors.Is(err, fault.Unavailable) {
		t.Errorf("room on a full disk: %v", err)
	}
	if err := m.Delete(t.Context(), "b", "k"); err != nil {
		t.Errorf("release on a full disk: %v", err)
	}
	m.SetFull(false)
	if err := m.Room(); err != nil {
		t.Error(err)
	}
}

// On a runtime, commits are shared, come in order, and stop at each of their points.
func TestLive_ACrashAtEachPointOfACommit(t *testing.T) {
	for _, tt := range []struct {
		at      storetest.Point
		durable bool
	}{
		{storetest.BeforeCommit, false}, {storetest.AfterCommit, true}, {storetest.BeforeAnswer, true},
	} {
		s := simruntime.New(1)
		p := s.Process("p", "boot")
		m := storetest.NewMemory()
		m.Live(p, func(at storetest.Point, batch []store.Mutation) storetest.Outcome {
			p.Yield()
			if at == tt.at && batch[0].Key == "last" {
				p.Die()
			}
			return storetest.Commit
		})
		told := []string{}
		p.Go("writes", func() {
			for _, key := range []string{"first", "last"} {
				if err := m.Put(context.Background(), "b", key, []byte("x")); err != nil {
					t.Error(err)
				}
				told = append(told, key)
			}
		})
		if err := s.Run(time.Hour, func() bool { return false }); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"first": "x"}
		if tt.durable {
			want["last"] = "x"
		}
		if diff := cmp.Diff(want, list(t, m.Crash())); diff != "" || !slices.Equal(told, []string{"first"}) {
			t.Errorf("%s: told %v, found (-want +got):\n%s", tt.at, told, diff)
		}
		s.Shutdown()
	}
}

func TestLive_CommitsAreSharedAndCarryOutWhatNobodyWaitsFor(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	m := storetest.NewMemory()
	m.Live(p, func(at storetest.Point, _ []store.Mutation) storetest.Outcome {
		if at == storetest.BeforeCommit {
			_ = p.Sleep(context.Background(), time.Second) // a disk
		}
		return storetest.Commit
	})
	for n := range 10 {
		p.Go("writes", func() {
			if err := m.Put(context.Background(), "b", fmt.Sprint(n), nil); err != nil {
				t.Error(err)
			}
			if list(t, m)[fmt.Sprint(n)] != "" {
				t.Error("told, and not there")
			}
			m.Enqueue(store.Put("b", fmt.Sprint("unwaited", n), nil))
		})
	}
	if err := s.Run(time.Hour, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	if got := len(list(t, m)); got != 20 || m.Commits() > 6 {
		t.Errorf("%d records by %d commits", got, m.Commits())
	}
	if left := s.Waiting(); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
}
