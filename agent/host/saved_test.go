package host_test

import (
	"slices"
	"strings"
	"testing"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// wantSaved checks that a verb was refused because libvirt keeps something, with a remedy.
func wantSaved(t *testing.T, what string, err error, code string) {
	t.Helper()
	i := slices.IndexFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == code })
	if i < 0 || !strings.Contains(fault.ReasonsOf(err)[i].Change, "virsh ") {
		t.Errorf("%s: %v, want %s with a remedy", what, err, code)
	}
}

// TestSaved_NothingIsMovedOrChangedBesideIt: libvirtd was restarted since, and says `shut off
// (unknown)`. Memory that was saved, snapshots and checkpoints are lost by no path.
func TestSaved_NothingIsMovedOrChangedBesideIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   string
		make   func(n *node, uuid string)
		forget func(n *node, uuid string)
	}{
		{"saved", func(n *node, uuid string) { n.fake.SaveMemory(uuid) }, func(n *node, uuid string) { _ = n.fake.DiscardSavedMemory(t.Context(), uuid) }},
		{"has_snapshot", func(n *node, uuid string) { n.fake.AddSnapshot(uuid, "s1") }, func(n *node, uuid string) { n.fake.DropSnapshots(uuid) }},
		{"has_checkpoint", func(n *node, uuid string) { n.fake.AddCheckpoint(uuid, "c1") }, func(n *node, uuid string) { n.fake.DropSnapshots(uuid) }},
	} {
		t.Run(c.code, func(t *testing.T) {
			l, v := coldLab(t)
			a := l.hosts["a"]
			move := newCold(t, l, v.UUID, &large)
			if c.code != "saved" {
				l.must("shut off", a.fake.Destroy(t.Context(), v.UUID))
			}
			c.make(a, v.UUID)
			a.fake.KillDaemon()
			l.must("restart libvirtd", a.fake.StartDaemon())
			if d, err := a.fake.Domain(t.Context(), v.UUID); err != nil || d.Reason != driver.ReasonUnknown {
				t.Fatalf("domain %+v, %v", d, err)
			}
			before := l.picture()
			wantSaved(t, "check of a cold move", move.check(), c.code)
			wantSaved(t, "delete", a.Delete(t.Context(), v.UUID, host.DeleteOptions{Force: true, Disks: true}), c.code)
			l.same("after what was refused", before)
			move.run(move.there()[1:], "prep resize")
			_, err := operation.PowerOff.Ask(t.Context(), a, move.ref, migration.PowerOffRequest{Kind: move.kind(), Destination: "b"})
			wantSaved(t, "power off", err, c.code)
			c.forget(a, v.UUID)
			move.run(move.there()[4:], "power off")
			// Made between power-off and hand-over.
			l.must("its user starts it", a.fake.Start(t.Context(), v.UUID, false))
			if c.code != "saved" {
				l.must("shut off", a.fake.Destroy(t.Context(), v.UUID))
			}
			c.make(a, v.UUID)
			_, err = operation.HandOver.Ask(t.Context(), a, move.ref, migration.HandOverRequest{To: "b"})
			wantSaved(t, "hand over", err, c.code)
			c.forget(a, v.UUID)
			move.run(move.there()[4:], "")
		})
	}
}

// TestSaved_MemoryIsDiscardedWhenAsked: the operator's option removes it first, and none of
// an instance that runs, also where libvirtd has lost its process.
func TestSaved_MemoryIsDiscardedWhenAsked(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	a := l.hosts["a"]
	l.must("discard of none", a.DiscardSavedState(t.Context(), v.UUID))
	a.fake.Forget(v.UUID)
	l.must("virsh start", a.fake.Start(t.Context(), v.UUID, false))
	a.fake.SaveMemory(v.UUID)
	wantRuns(t, "discard beside a process", a.DiscardSavedState(t.Context(), v.UUID))
	if s, err := a.fake.Saved(t.Context(), v.UUID); err != nil || !s.Memory {
		t.Errorf("saved %+v, %v", s, err)
	}
	a.fake.EndForgotten(v.UUID)
	l.must("discard", a.DiscardSavedState(t.Context(), v.UUID))
	if s, err := a.fake.Saved(t.Context(), v.UUID); err != nil || s.Memory {
		t.Errorf("saved %+v, %v", s, err)
	}
	l.must("start", a.Start(t.Context(), v.UUID, false))
	a.fake.SaveMemory(v.UUID)
	l.must("start goes on from it", a.Start(t.Context(), v.UUID, false))
	a.fake.SaveMemory(v.UUID)
	l.must("delete", a.Delete(t.Context(), v.UUID, host.DeleteOptions{DiscardSavedState: true}))
	if _, err := a.fake.Domain(t.Context(), v.UUID); fault.KindOf(err) != fault.NotFound {
		t.Errorf("domain after delete: %v", err)
	}
}

// TestSaved_AChangedInstanceDoesNotGoOnFromOldMemory: a change in place is neither applied nor
// started beside saved memory, which is of the disks before it. Memory that was saved of the changed
// instance goes when the change is taken back.
func TestSaved_AChangedInstanceDoesNotGoOnFromOldMemory(t *testing.T) {
	t.Parallel()
	b := newChange(t, floats2, driver.Running, migration.Change{Image: &migration.Image{Path: newImage, Format: "raw"}})
	b.look()
	verbs := b.verbs()
	apply := slices.IndexFunc(verbs, func(v verb) bool { return v.name == "apply" })
	for _, v := range verbs[:apply] {
		b.must(v.name, v.do())
	}
	save := func() {
		b.must("somebody starts it", b.a.fake.Start(t.Context(), b.uuid, false))
		b.a.fake.SaveMemory(b.uuid)
	}
	save()
	wantSaved(t, "apply", verbs[apply].do(), "saved")
	b.must("discard", b.a.fake.DiscardSavedMemory(t.Context(), b.uuid))
	b.must("apply", verbs[apply].do())
	save()
	wantSaved(t, "start", verbs[apply+1].do(), "saved")
	b.must("discard", b.a.fake.DiscardSavedMemory(t.Context(), b.uuid))
	b.must("start", verbs[apply+1].do())
	b.state("a", b.uuid, driver.Running)
	// Nor does the old instance go on from memory of the changed one.
	b.a.fake.SaveMemory(b.uuid)
	b.must("unapply", verbs[apply].undo())
	b.state("a", b.uuid, driver.ShutOff)
	if s, err := b.a.fake.Saved(t.Context(), b.uuid); err != nil || s.Memory {
		t.Errorf("after the change was taken back: saved %+v, %v", s, err)
	}
}

// TestSaved_SnapshotsStopALiveMove: libvirt's metadata of them would be lost with the source's
// definition.
func TestSaved_SnapshotsStopALiveMove(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	l.hosts["a"].fake.AddCheckpoint(v.UUID, "c1")
	_, err := operation.CheckSource.Ask(t.Context(), l.hosts["a"], refFor(v.UUID, 1), migration.CheckAnswer{Kind: migration.TypeLiveMigration, Destination: migration.Description{Name: "b"}})
	wantSaved(t, "check", err, "has_checkpoint")
}
