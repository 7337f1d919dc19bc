package guard_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/guard"
	"berth/internal/runtime"
)

// ledger is a ledger that a test writes.
type ledger struct {
	mu   sync.Mutex
	rows []guard.Owner
}

func (l *ledger) set(rows ...guard.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = rows
}

func (l *ledger) read() []guard.Owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rows
}

func newOwners(t *testing.T) (*guard.Owners, *ledger, guard.Files) {
	l := &ledger{}
	f := guard.Files{Dir: filepath.Join(t.TempDir(), "guard"), Boot: "this-boot"}
	return guard.NewOwners(f, l.read, &runtime.System{}, slog.Default()), l, f
}

func states(t *testing.T, f guard.Files) map[string]guard.OwnerState {
	t.Helper()
	out := map[string]guard.OwnerState{}
	list, err := f.Owners()
	if err != nil {
		t.Fatal(err)
	}
	for _, uuid := range list {
		o, ok, why := f.Owner(uuid)
		if !ok {
			t.Errorf("%s: %s", uuid, why)
		}
		out[uuid] = o.State
	}
	return out
}

func require(t *testing.T, f guard.Files, want map[string]guard.OwnerState) {
	t.Helper()
	if diff := cmp.Diff(want, states(t, f)); diff != "" {
		t.Errorf("owner files (-want +got):\n%s", diff)
	}
}

func TestOwners_FollowTheLedger(t *testing.T) {
	o, l, f := newOwners(t)
	// What an earlier agent left goes, unless the ledger says it again.
	if err := f.SetOwner(guard.Owner{Instance: theirs, State: guard.OwnerHere}); err != nil {
		t.Fatal(err)
	}
	l.set(guard.Owner{Instance: instance, State: guard.OwnerHere}, guard.Owner{Instance: ours, State: guard.OwnerArriving, Migration: theirs})
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	require(t, f, map[string]guard.OwnerState{instance: guard.OwnerHere, ours: guard.OwnerArriving})
	l.set(guard.Owner{Instance: ours, State: guard.OwnerHere})
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	require(t, f, map[string]guard.OwnerState{ours: guard.OwnerHere})
}

func TestOwners_WithdrawComesBeforeTheLedger(t *testing.T) {
	o, l, f := newOwners(t)
	l.set(guard.Owner{Instance: instance, State: guard.OwnerHere})
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	first, err := o.Withdraw(instance)
	if err != nil {
		t.Fatal(err)
	}
	second, err := o.Withdraw(instance)
	if err != nil {
		t.Fatal(err)
	}
	require(t, f, map[string]guard.OwnerState{instance: guard.OwnerMoving})
	// The ledger says "here" until the surrender is durable; the file does not.
	for _, done := range []func(){func() {}, first, first} {
		done()
		if err := o.Sync(); err != nil {
			t.Fatal(err)
		}
		require(t, f, map[string]guard.OwnerState{instance: guard.OwnerMoving})
	}
	// It was not surrendered after all.
	second()
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	require(t, f, map[string]guard.OwnerState{instance: guard.OwnerHere})
	// It is gone: nothing of it stays.
	third, err := o.Withdraw(instance)
	if err != nil {
		t.Fatal(err)
	}
	l.set()
	third()
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	require(t, f, map[string]guard.OwnerState{})
}

func TestOwners_WithdrawSaysWhenItCannot(t *testing.T) {
	o, l, f := newOwners(t)
	l.set(guard.Owner{Instance: instance, State: guard.OwnerHere})
	// A folder that is not empty cannot be removed as a file.
	if err := os.MkdirAll(filepath.Join(f.Dir, "owners", instance, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Withdraw(instance); err == nil {
		t.Error("withdrawn, though the file is still there")
	}
	if o.Sync() == nil || o.Err() == nil {
		t.Error("synced, though the file cannot be written")
	}
	if err := os.RemoveAll(filepath.Join(f.Dir, "owners", instance)); err != nil {
		t.Fatal(err)
	}
	if err := o.Sync(); err != nil || o.Err() != nil {
		t.Errorf("sync after the fault is gone: %v", err)
	}
	require(t, f, map[string]guard.OwnerState{instance: guard.OwnerHere})
}

func TestOwners_RunLeavesTheFilesWhenItEnds(t *testing.T) {
	o, l, f := newOwners(t)
	l.set(guard.Owner{Instance: instance, State: guard.OwnerHere})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	o.Kick()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	require(t, f, map[string]guard.OwnerState{instance: guard.OwnerHere})
}
