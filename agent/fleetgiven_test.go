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
	c, err := a.tracker.ReleaseOwnership(t.Context(), migration.Ref{Migration: "m", Instance: given, Attempt: 1, Step: "commit"}, "host-b")
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

// TestKeeper_TokenGivenUpOnOneHostsWord_TheRecordIsNotHandedOver: it is the second witness that is waited for.
func TestKeeper_TokenGivenUpOnOneHostsWord_TheRecordIsNotHandedOver(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	id := b.guest("host-a", "web")
	b.round("host-a")
	a := b.up["host-a"]
	b.must(a.tracker.Remember(t.Context(), migration.Ref{Migration: "yielded-" + id, Instance: id, Attempt: 1, Step: "yielded"},
		map[string]any{"instance_uuid": id, "name": "web", "migration": "m", "attempt": 1, "host": "host-b", "epoch": 99}))
	gave, err := a.tracker.Yield(t.Context(), migration.Ref{Migration: "m", Instance: id, Attempt: 1}, 99, "host-b")
	if b.must(err); !gave {
		t.Fatal("kept")
	}
	b.round("host-a")
	b.must(a.keeper.handBack(t.Context()))
	if in := b.record(id); in.Host != "host-a" || in.Epoch != 1 {
		t.Errorf("record %s", briefly(in))
	}
}
