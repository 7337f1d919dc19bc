package agent

import (
	"context"
	"errors"
	"testing"

	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/migration"
)

// TestKeeper_HandsTheRecordOver: the host that an instance has left writes that into its record, so
// that a store which lets only the holder write knows the next one.
func TestKeeper_HandsTheRecordOver(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "a", "b")
	b.round("a")
	id := b.guest("a", "web")
	b.round("a")
	if in := b.record(id); in.Host != "a" || !describes(in) {
		t.Fatalf("%+v", in)
	}
	c, err := b.up["a"].tracker.ReleaseOwnership(t.Context(), migration.Ref{Migration: "m", Instance: id, Attempt: 1, Step: "commit"}, "b")
	b.must(err)
	b.round("a")
	in := b.record(id)
	if in.Host != "b" || in.Epoch != c.Epoch || len(in.Guest) == 0 {
		t.Errorf("handed over: %+v, want host b with epoch %d", in, c.Epoch)
	}
	if describes(in) {
		t.Error("what host a has written of itself is taken for host b's own")
	}
}

// TestKeeper_WaitsForTheRecordOfTheHostBefore: a store that does not let it write yet is no fault of
// the instance's, for a while.
func TestKeeper_WaitsForTheRecordOfTheHostBefore(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "a")
	b.round("a")
	id := b.guest("a", "web")
	refused := fault.Refuse(fault.Forbidden, "write the fleet's records", fault.Reason{Code: permit.ReasonNotYours, Message: "host z has the instance"})
	k := b.up["a"].keeper
	k.records = fleet.New(notTheirs{b.store.Client("a"), refused}, b.rt)
	inst, _ := b.up["a"].tracker.Instance(id)
	if named, err := k.put(t.Context(), inst); named || !errors.Is(err, fault.Busy) || len(fault.ReasonsOf(err)) != 1 {
		t.Errorf("named %t, %v, want %v with its reason", named, err, fault.Busy)
	}
}

// notTheirs is a store that lets nobody write.
type notTheirs struct {
	fleet.Store
	err error
}

func (r notTheirs) Commit(context.Context, []fleet.Condition, ...fleet.Change) error { return r.err }
