package fleettest

import (
	"errors"
	"testing"
	"time"

	"berth/fleet"
	"berth/internal/fault"
)

// Leased is a store with leases.
type Leased interface {
	fleet.Store
	fleet.Leases
}

// TestLeases is what every store with leases must do. length is the shortest that the store
// takes as it is said, and elapse lets time go by.
func TestLeases(t *testing.T, open Open, length fleet.Seconds, elapse func(time.Duration)) {
	ctx := t.Context()
	client := open(t)
	s, other := client().(Leased), client().(Leased)
	lease := func(s Leased, key, value string) {
		t.Helper()
		if err := s.Lease(ctx, key, []byte(value), length); err != nil {
			t.Fatalf("lease %s: %v", key, err)
		}
	}
	whole := time.Duration(length) * time.Second
	lease(s, "alive/kept", "boot")
	lease(s, "alive/silent", "boot")
	lease(s, "alive/released", "boot")
	lease(s, "alive/taken", "boot")
	lease(s, "alive/deleted", "boot")
	first := mustGet(t, other, "alive/kept")
	if string(first.Value) != "boot" {
		t.Errorf("leased with %q", first.Value)
	}
	mustConflict(t, other, []fleet.Condition{{Key: "alive/silent"}}, put("deaths/silent", "x"))
	if err := s.Release(ctx, "alive/released"); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := s.Release(ctx, "alive/never"); err != nil {
		t.Errorf("release what is not there: %v", err)
	}
	mustCommit(t, other, []fleet.Condition{{Key: "alive/released"}})
	// Another process of the same host comes with a lease of its own, and the old one's end is
	// no matter any more.
	lease(other, "alive/taken", "boot 2")
	if err := s.Release(ctx, "alive/taken"); err != nil {
		t.Errorf("release what another has now: %v", err)
	}
	if got := mustGet(t, s, "alive/taken"); string(got.Value) != "boot 2" {
		t.Errorf("after another took it: %q", got.Value)
	}
	mustCommit(t, other, nil, fleet.Change{Key: "alive/deleted"})
	lease(s, "alive/deleted", "again")
	if got := mustGet(t, other, "alive/deleted"); string(got.Value) != "again" {
		t.Errorf("after it was deleted and leased: %q", got.Value)
	}
	// Four thirds of a length: what is renewed at each third stays, the rest is gone.
	for range 4 {
		elapse(whole / 3)
		lease(s, "alive/kept", "boot")
		lease(other, "alive/taken", "boot 2")
	}
	if got := mustGet(t, other, "alive/kept"); got.Revision != first.Revision {
		t.Errorf("a renewal wrote: revision %d after %d", got.Revision, first.Revision)
	}
	// An expired key goes a moment later, at the latest.
	gone := func(key string) bool {
		_, err := other.Get(ctx, key)
		return errors.Is(err, fault.NotFound)
	}
	for range 100 {
		if gone("alive/silent") && gone("alive/deleted") {
			break
		}
		elapse(whole / 20)
		lease(s, "alive/kept", "boot")
		lease(other, "alive/taken", "boot 2")
	}
	mustCommit(t, other, []fleet.Condition{{Key: "alive/silent"}}, put("deaths/silent", "x"))
	lease(s, "alive/silent", "boot 3")
	lease(s, "alive/kept", "boot 3")
	if got := mustGet(t, other, "alive/kept"); string(got.Value) != "boot 3" || got.Revision == first.Revision {
		t.Errorf("another value was leased, and there is %q with revision %d", got.Value, got.Revision)
	}
	if got := keys(mustList(t, s, "alive/")); got != "alive/kept alive/silent alive/taken" {
		t.Errorf("there is %s", got)
	}
	if _, err := s.NoQuorum(ctx); err == nil {
		t.Error("a store that serves says that it does not")
	}
}
