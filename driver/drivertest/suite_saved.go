package drivertest

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

func saved() []property {
	is := func(t testing.TB, b *bench, id string, want driver.Saved) {
		t.Helper()
		s, err := b.d.Saved(within(t), id)
		must(t, "Saved", err)
		if s.Memory != want.Memory || !slices.Equal(s.Snapshots, want.Snapshots) || !slices.Equal(s.Checkpoints, want.Checkpoints) {
			t.Errorf("saved %+v, want %+v", s, want)
		}
	}
	stays := func(t testing.TB, b *bench, id string, codes ...string) {
		t.Helper()
		err := b.d.Undefine(within(t), id)
		wantKind(t, "Undefine", err, fault.Forbidden)
		var got []string
		for _, r := range fault.ReasonsOf(err) {
			if r.Change == "" {
				t.Errorf("no remedy in %+v", r)
			}
			got = append(got, r.Code)
		}
		if !slices.Equal(got, codes) {
			t.Errorf("Undefine is refused for %v, want %v", got, codes)
		}
		wantState(t, b.d, id, driver.ShutOff)
	}
	return []property{
		{"Saved_NothingAtFirst", func(t testing.TB, b *bench) {
			id := b.running(t)
			is(t, b, id, driver.Saved{})
			must(t, "Destroy", b.d.Destroy(within(t), id))
			is(t, b, id, driver.Saved{})
			for range 2 {
				must(t, "DiscardSavedMemory of none", b.d.DiscardSavedMemory(within(t), id))
			}
			_, err := b.d.Saved(within(t), "33333333-3333-4333-8333-333333333333")
			wantKind(t, "Saved of nothing", err, fault.NotFound)
		}},
		{"Saved_MemoryIsSeenAndStaysUntilItIsDiscarded", func(t testing.TB, b *bench) {
			id := b.running(t)
			b.Save(t, id)
			is(t, b, id, driver.Saved{Memory: true})
			stays(t, b, id, "saved")
			is(t, b, id, driver.Saved{Memory: true})
			for range 2 {
				must(t, "DiscardSavedMemory", b.d.DiscardSavedMemory(within(t), id))
			}
			is(t, b, id, driver.Saved{})
			must(t, "Undefine", b.d.Undefine(within(t), id))
		}},
		{"Saved_MemoryGoesWithTheNextStart", func(t testing.TB, b *bench) {
			id := b.running(t)
			b.Save(t, id)
			must(t, "Start", b.d.Start(within(t), id, false))
			is(t, b, id, driver.Saved{})
		}},
		{"Restart_SavedMemoryIsSeenWhenTheReasonIsForgotten", func(t testing.TB, b *bench) {
			id := b.running(t)
			b.Save(t, id)
			b.Restart(t)
			eventually(t, "the daemon", func() bool { _, err := b.d.Domain(within(t), id); return err == nil })
			is(t, b, id, driver.Saved{Memory: true})
			stays(t, b, id, "saved")
			must(t, "DiscardSavedMemory", b.d.DiscardSavedMemory(within(t), id))
		}},
		{"Saved_SnapshotsAreNamedAndKept", func(t testing.TB, b *bench) {
			id := snapshotted(t, b, b.Snapshot, "second", "first")
			is(t, b, id, driver.Saved{Snapshots: []string{"first", "second"}})
			stays(t, b, id, "has_snapshot", "has_snapshot")
		}},
		{"Saved_CheckpointsAreNamedAndKept", func(t testing.TB, b *bench) {
			id := snapshotted(t, b, b.Checkpoint, "only")
			is(t, b, id, driver.Saved{Checkpoints: []string{"only"}})
			stays(t, b, id, "has_checkpoint")
		}},
	}
}

// snapshotted is a domain that is off, of which something was made by name while it ran.
func snapshotted(t testing.TB, b *bench, make func(t testing.TB, uuid, name string), names ...string) string {
	t.Helper()
	id := uuid.NewString()
	b.define(t, id, b.SavedXML(t, "conf-"+id[:8], id))
	must(t, "Start", b.d.Start(within(t), id, false))
	for _, name := range names {
		make(t, id, name)
		t.Cleanup(func() { b.Unsnapshot(t, id, name) })
	}
	must(t, "Destroy", b.d.Destroy(within(t), id))
	return id
}
