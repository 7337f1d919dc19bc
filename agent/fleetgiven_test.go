package agent

import (
	"testing"

	"berth/fleet"
	"berth/migration"
)

// TestKeeper_InstanceGivenAwayAndForgotten_KeepsItsRecord: the source may clean up before the
// destination has written its own record. A host that dies then must not leave an instance without.
func TestKeeper_InstanceGivenAwayAndForgotten_KeepsItsRecord(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	given, deleted := b.guest("host-a", "given"), b.guest("host-a", "deleted")
	b.round("host-a")
	a := b.up["host-a"]
	c, err := a.tracker.Surrender(t.Context(), migration.Ref{Migration: "m", Instance: given, Attempt: 1, Step: "commit"}, "host-b")
	b.must(err)
	b.must(a.tracker.Forget(t.Context(), given)) // before the keeper's next round
	b.must(a.tracker.DeleteInstance(t.Context(), deleted))
	b.round("host-a")
	if in := b.record(given); in.Host != "host-b" || in.Epoch != c.Epoch || len(in.Guest) == 0 {
		t.Errorf("record of host %s, epoch %d, %d bytes; want host-b, epoch %d", in.Host, in.Epoch, len(in.Guest), c.Epoch)
	}
	if all, err := fleet.New(b.store.Client("test"), b.rt).Instances(t.Context(), ""); err != nil || len(all) != 1 {
		t.Errorf("%d records, %v; want that of the instance which was deleted to be gone", len(all), err)
	}
}
