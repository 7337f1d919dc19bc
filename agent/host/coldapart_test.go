package host_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
)

const vm1Disk = "/images/vm1.raw"

// apart is a cold move between two hosts that share nothing but what a test lets them
// share; host c conducts.
type apart struct {
	*cold
	world *diskstest.World
	seals map[string]*signer // by host
}

// signer implements host.Seals with a signature that everybody can make and read.
type signer struct {
	name  string
	count int
	err   error
}

func (s *signer) Seal(c migration.Commit) (*migration.Seal, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.count++
	return &migration.Seal{Signature: []byte(signature(c)), At: time.Unix(int64(s.count), 0)}, nil
}

func (s *signer) Check(c migration.Commit) error {
	if string(c.Seal.Signature) != signature(c) {
		return fault.New(fault.Forbidden, "it is another's")
	}
	return nil
}

func signature(c migration.Commit) string {
	return fmt.Sprint(c.From, c.To, c.Instance, c.Migration, c.Attempt, c.Epoch, c.Power)
}

// newApart has a guest with a disk on a, for which all is planned.
func newApart(t *testing.T) *apart {
	t.Helper()
	l := newLab(t, "a", "b")
	x := &apart{cold: &cold{lab: l}, world: diskstest.NewWorld(), seals: map[string]*signer{"a": {name: "a"}, "b": {name: "b"}}}
	x.world.Share("/shared", "a", "b")
	x.world.OnWriters(func(on, path string) []string { return nil })
	for name := range l.hosts {
		x.reboot(name)
	}
	l.fleet.SetStorage(func(host string) drivertest.Storage { return x.world.Host(host) })
	v := l.storedGuest(small)
	x.world.Host("a").Write(vm1Disk, "old")
	x.cold = newCold(t, l, v.UUID, &large)
	return x
}

// reboot kills a host's agent and starts it again.
func (x *apart) reboot(name string) *node {
	n := x.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	n.files = x.world.Host(name)
	x.boot(name, func(o *host.Options) { o.Seals = x.seals[name] })
	if x.a != nil {
		x.a, x.b = x.hosts["a"], x.hosts["b"]
	}
	return n
}

func (x *apart) conducted() migration.Context {
	mc := x.context()
	mc.Conductor = "c"
	return mc
}

// there are the steps that bring the guest to b.
func (x *apart) there() []step {
	ctx := x.t.Context()
	steps := x.cold.there()
	named := func(name string) step {
		return steps[slices.IndexFunc(steps, func(s step) bool { return s.name == name })]
	}
	return []step{
		named("check"),
		{"claim", func() error {
			_, err := operation.Claim.Ask(ctx, x.b, x.ref, migration.ClaimRequest{Guest: x.guest, Context: x.conducted(), Lease: time.Minute, Kind: x.kind()})
			return err
		}, func() error { return operation.AbortClaim.Ask(ctx, x.b, x.ref) }},
		{"record context", func() error { return operation.RecordContext.Ask(ctx, x.a, x.ref, x.conducted()) }, func() error { return operation.DropContext.Ask(ctx, x.a, x.ref) }},
		named("prep resize"),
		named("power off"),
		{"snapshot", func() error {
			_, err := operation.SnapshotDisks.Ask(ctx, x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
			return err
		}, func() error { return operation.DropSnapshot.Ask(ctx, x.a, x.ref) }},
		{"disconnect", func() error { return operation.Disconnect.Ask(ctx, x.a, x.ref) }, func() error { return operation.Reconnect.Ask(ctx, x.a, x.ref) }},
		{"ship disks", func() error {
			if far, err := operation.ShippedSoFar.Ask(ctx, x.b, x.ref); err == nil && len(far.Files) > 0 && far.Files[0].Sealed {
				return nil
			}
			return x.ship()
		}, nil},
		named("hand over"),
		named("accept handed"),
		named("finish resize"),
	}
}

// undo takes back all steps, in reverse.
func (x *apart) undo() {
	x.t.Helper()
	steps := x.there()
	for i := len(steps) - 1; i >= 0; i-- {
		if undo := steps[i].undo; undo != nil {
			x.must("undo "+steps[i].name, undo())
		}
	}
}

// TestApart_ThereAndBack asks each verb twice: the guest is there, comes back, and all is
// as before.
func TestApart_ThereAndBack(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	before := x.picture()
	files := x.world.Host("a").List()
	for _, s := range x.there() {
		x.must(s.name, s.do())
		x.must(s.name+" again", s.do())
	}
	x.lives(x.b, driver.Running, large, 2)
	if x.committed.Seal == nil {
		t.Error("the commit has no seal, though a third host conducts")
	}
	x.wantKind("a late undo of the snapshot", operation.DropSnapshot.Ask(t.Context(), x.a, x.ref), fault.Forbidden)
	x.wantKind("a late undo of the disconnection", operation.Reconnect.Ask(t.Context(), x.a, x.ref), fault.Forbidden)
	for _, s := range x.returning() {
		x.must(s.name, s.do())
		x.must(s.name+" again", s.do())
	}
	x.lives(x.a, driver.Running, small, 3)
	x.same("after the revert", before)
	if got := x.world.Host("a").List(); !slices.Equal(got, files) {
		t.Errorf("files %v, were %v", got, files)
	}
}

// TestApart_UndoneAfterEachStep breaks a move off after each of the new steps, with a
// restart of both agents: all is as before, and what comes late does nothing.
func TestApart_UndoneAfterEachStep(t *testing.T) {
	for i, name := range []string{"snapshot", "disconnect", "ship disks"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newApart(t)
			before := x.picture()
			x.run(x.there(), name)
			x.reboot("a")
			x.reboot("b")
			x.undo()
			x.undo()
			x.state("a", x.ref.Instance, driver.Running)
			x.same("left behind", before)
			for _, s := range x.there()[5 : 6+i] {
				x.wantKind(s.name+" late", s.do(), fault.Forbidden)
			}
			if _, err := operation.HandOver.Ask(t.Context(), x.a, x.ref, migration.HandOverRequest{To: "b"}); err == nil {
				t.Error("a late hand-over was done")
			}
			x.same("after late verbs", before)
		})
	}
}

// TestApart_PowerOnAloneConnects: whoever starts a guest again whose other undos have not
// come gives it all that it had.
func TestApart_PowerOnAloneConnects(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	log := x.a.path("/log")
	x.a.put(t, "/hooks/prep_snapshot_based_resize_at_source/10-detach", "#!/bin/sh\necho detach >>"+log+"\necho '{\"data\":{\"volume\":7}}'\n", 0o755)
	x.a.put(t, "/hooks/rollback_prep_snapshot_based_resize_at_source/10-attach", "#!/bin/sh\ngrep -o '\"volume\":7' >>"+log+"\ntest -e "+x.a.path("/good")+"\n", 0o755)
	before := x.picture()
	x.run(x.there(), "disconnect")
	x.must("disconnect again", operation.Disconnect.Ask(t.Context(), x.a, x.ref))
	x.must("reconnect, with a hook that fails", operation.Reconnect.Ask(t.Context(), x.a, x.ref))
	if err := operation.PowerOn.Ask(t.Context(), x.a, x.ref); err == nil {
		t.Error("the hook that failed was not told of")
	}
	x.state("a", x.ref.Instance, driver.Running)
	// Its user's own wish now: what an attempt that is undone has powered off does not leave.
	x.must("shut it off", x.a.fake.Destroy(t.Context(), x.ref.Instance))
	_, err := operation.HandOver.Ask(t.Context(), x.a, x.ref, migration.HandOverRequest{To: "b"})
	x.wantKind("a hand-over amid the undo", err, fault.Forbidden)
	_, err = operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	x.wantKind("a snapshot amid the undo", err, fault.Forbidden)
	x.must("start it", x.a.fake.Start(t.Context(), x.ref.Instance, false))
	x.a.put(t, "/good", "", 0o644)
	x.undo()
	x.same("left behind", before)
	raw, err := os.ReadFile(log)
	x.must("read the log", err)
	if got := strings.Fields(string(raw)); !slices.Equal(got, []string{"detach", `"volume":7`, `"volume":7`, `"volume":7`}) {
		t.Errorf("hooks said %q", got)
	}
}

// TestApart_AHookKeepsNobodyOffWhoCameBack: the guest that was handed back runs, and the
// revert is not over before the hook has succeeded.
func TestApart_AHookKeepsNobodyOffWhoCameBack(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	x.a.put(t, "/hooks/rollback_prep_snapshot_based_resize_at_source/10-attach", "#!/bin/sh\ntest -e "+x.a.path("/good")+"\n", 0o755)
	before := x.picture()
	x.run(x.there(), "")
	x.run(x.returning(), "accept back")
	if err := operation.FinishRevert.Ask(t.Context(), x.a, x.back); err == nil {
		t.Error("the hook that failed was not told of")
	}
	x.lives(x.a, driver.Running, small, 3)
	x.a.put(t, "/good", "", 0o644)
	x.run(x.returning()[4:], "")
	x.same("after the revert", before)
}

// TestApart_KilledAtAWrite ends the source's agent at each of its commits, lost or written
// and not answered, in a move that is undone and in one that is reverted.
func TestApart_KilledAtAWrite(t *testing.T) {
	for _, what := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		t.Run(fmt.Sprint(what), func(t *testing.T) {
			t.Parallel()
			for nth, reached := 1, true; reached; nth += 2 {
				reached = false
				x := newApart(t)
				before := x.picture()
				x.run(x.there(), "power off")
				n := 0
				x.a.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
					if n++; n == nth {
						reached = true
						return what
					}
					return storetest.Commit
				})
				all := func() []func() error {
					s := x.there()
					return []func() error{s[5].do, s[6].do, s[6].undo, s[5].undo, s[4].undo}
				}
				for i := range all() {
					err := all()[i]()
					if err != nil {
						x.reboot("a") // the hosts are others from here on
						err = all()[i]()
					}
					x.must(fmt.Sprint("verb ", i), err)
				}
				x.a.store.OnCommit(nil)
				x.undo()
				x.state("a", x.ref.Instance, driver.Running)
				x.same(fmt.Sprintf("after commit %d failed", nth), before)
			}
		})
	}
}

// TestSnapshot_NamesWhoWrites: a process that has a disk open for writing is named, and
// nothing is held; so is nothing of a guest that runs, or by a wrong target.
func TestSnapshot_NamesWhoWrites(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	x.run(x.there(), "prep resize")
	_, err := operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	x.wantKind("snapshot of a guest that runs", err, fault.Forbidden)
	x.run(x.there()[4:], "power off")
	_, err = operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: []string{"vdz"}})
	x.wantKind("snapshot of a disk that is not there", err, fault.Invalid)

	x.world.OnWriters(func(on, path string) []string {
		if on == "a" && path == vm1Disk {
			return []string{"qemu-img"}
		}
		return nil
	})
	_, err = operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	if got := fault.ReasonsOf(err); len(got) != 1 || got[0].Code != "disk_open_for_writing" || !strings.Contains(got[0].Message, "qemu-img (pid 1)") || got[0].Change == "" {
		t.Errorf("reasons %+v", got)
	}
	err = operation.Disconnect.Ask(t.Context(), x.a, x.ref)
	if got := codes(err); len(got) != 1 || got[0] != "disk_open_for_writing" {
		t.Errorf("disconnect beside a writer: %v", err)
	}
	x.world.OnWriters(nil)
	x.must("its user starts it", x.a.fake.Start(t.Context(), x.ref.Instance, false))
	_, err = operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	x.wantKind("snapshot of a guest that was started again", err, fault.Forbidden)
	x.wantKind("disconnection of a guest that was started again", operation.Disconnect.Ask(t.Context(), x.a, x.ref), fault.Forbidden)
	x.must("its user ends it", x.a.fake.Destroy(t.Context(), x.ref.Instance))
	s, err := operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	x.must("snapshot", err)
	if len(s.Files) != 1 || s.Files[0].Target != "vda" || s.Files[0].Path != vm1Disk || s.Files[0].Size < 1<<30 || s.Files[0].Allocated < 1 || s.Files[0].Version == "" {
		t.Errorf("snapshot %+v", s)
	}
	x.must("drop it", operation.DropSnapshot.Ask(t.Context(), x.a, x.ref))
	_, err = operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	x.wantKind("a late snapshot", err, fault.Forbidden)
}

// TestSnapshot_WhoWritesLaterIsNoticed: the guest is not handed over, and the snapshot is
// not given anew.
func TestSnapshot_WhoWritesLaterIsNoticed(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	x.run(x.there(), "disconnect") // nothing of it was read yet: the snapshot alone knows
	x.world.Host("a").Write(vm1Disk, "another's")
	_, err := operation.SnapshotDisks.Ask(t.Context(), x.a, x.ref, migration.SnapshotRequest{Targets: x.copies})
	if got := codes(err); !slices.Contains(got, "disk_changed") {
		t.Errorf("snapshot again: %v", err)
	}
	_, err = operation.HandOver.Ask(t.Context(), x.a, x.ref, migration.HandOverRequest{To: "b"})
	if got := codes(err); !slices.Contains(got, "disk_changed") {
		t.Errorf("hand over: %v", err)
	}
	x.undo()
	x.state("a", x.ref.Instance, driver.Running)
}

// TestHandOver_WhatAThirdHostCarriesIsSealed: its receiver takes no commit on a
// conductor's word, and a host that cannot sign keeps the guest.
func TestHandOver_WhatAThirdHostCarriesIsSealed(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	ctx := t.Context()
	x.run(x.there(), "ship disks")
	x.seals["a"].err = fault.New(fault.Unavailable, "the key cannot be read")
	_, err := operation.HandOver.Ask(ctx, x.a, x.ref, migration.HandOverRequest{To: "b"})
	x.wantKind("hand over without a key", err, fault.Unavailable)
	if inst, _ := x.a.tracker.Instance(x.ref.Instance); inst.Token.State != claims.TokenHere {
		t.Errorf("the token has left without a seal: %+v", inst.Token)
	}
	x.seals["a"].err = nil
	first, err := operation.HandOver.Ask(ctx, x.a, x.ref, migration.HandOverRequest{To: "b"})
	x.must("hand over", err)
	again, err := operation.HandOver.Ask(ctx, x.a, x.ref, migration.HandOverRequest{To: "b"})
	x.must("hand over again", err)
	if first.Seal == nil || again.Seal == nil || !again.Seal.At.After(first.Seal.At) || first.Epoch != again.Epoch {
		t.Errorf("first %+v, again %+v: want one commit with a fresh seal", first, again)
	}
	unsealed, forged, other := first, first, first
	unsealed.Seal = nil
	forged.Epoch++
	other.From = "d"
	other.Seal = &migration.Seal{Signature: []byte(signature(other))}
	for name, c := range map[string]migration.Commit{"no seal": unsealed, "another commit": forged, "of another host": other} {
		err := operation.AcceptHanded.Ask(ctx, x.b, x.ref, c)
		x.wantKind(name, err, fault.Forbidden)
		if got := codes(err); len(got) != 1 || got[0] != "seal" {
			t.Errorf("%s: %v, want the reason seal", name, err)
		}
	}
	x.must("accept", operation.AcceptHanded.Ask(ctx, x.b, x.ref, again))

	// Who conducts itself, or gives the guest to its conductor, seals nothing.
	l, v := coldLab(t)
	own := newCold(t, l, v.UUID, nil)
	for _, name := range []string{"a", "b"} {
		l.hosts[name].Close()
		l.boot(name, func(o *host.Options) { o.Seals = &signer{name: name} })
	}
	own.run(own.there(), "")
	own.run(own.returning(), "")
	if own.committed.Seal != nil || own.handedBack.Seal != nil {
		t.Error("commits of a move that its source conducts are sealed")
	}
}
