package host_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
	"berth/placementclient"
	"berth/topology"
)

// rebooted is a machine in another boot than the one in which its guests were made.
type rebooted struct {
	*clock
	boot string
}

func (r rebooted) Boot() runtime.BootTime {
	b := r.clock.Boot()
	b.ID = r.boot
	return b
}

// reboot starts a host's agent in another boot, with records to ask.
func (l *lab) reboot(name, boot string, changes ...func(*host.Options)) *node {
	l.t.Helper()
	n := l.rebootAlone(name, boot, changes...)
	l.must("await the records", n.AwaitRecords(l.t.Context(), false))
	return n
}

// rebootAlone starts a host's agent in another boot, without records.
func (l *lab) rebootAlone(name, boot string, changes ...func(*host.Options)) *node {
	l.t.Helper()
	n := l.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	rt := rebooted{l.rt, boot}
	var tracker *claims.Tracker
	n = l.boot(name, func(o *host.Options) {
		var err error
		tracker, err = claims.Open(l.t.Context(), claims.Options{
			Store: n.store, Runtime: rt, Host: name, Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}},
		})
		l.must("open the ledger", err)
		o.Runtime, o.Tracker = rt, tracker
		for _, change := range changes {
			change(o)
		}
	})
	n.tracker = tracker
	return n
}

func (l *lab) autostarts(on, uuid string) {
	l.t.Helper()
	inst, _ := l.hosts[on].tracker.Instance(uuid)
	inst.Autostart = true
	_, err := l.hosts[on].tracker.PutInstance(l.t.Context(), inst)
	l.must("wish", err)
}

const evacuatedBy = "99999999-9999-4999-8999-999999999999"

func TestReturned_NothingOfABootBeforeStartsUntilItIsConfirmed(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	wished, held, other := l.guest("a", "wished"), l.guest("a", "held"), l.guest("a", "other")
	for _, v := range []host.InstanceView{wished, held, other} {
		l.must("power failure", a.fake.Destroy(t.Context(), v.UUID))
	}
	l.must("settle", a.Settle(t.Context()))
	l.autostarts("a", wished.UUID)
	l.autostarts("a", held.UUID)

	a = l.reboot("a", "second")
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.InDoubt) || !cmp.Equal(codes(err), []string{"not_confirmed"}) {
			t.Errorf("%s: %v", what, err)
		}
	}
	l.must("settle", a.Settle(t.Context()))
	l.state("a", wished.UUID, driver.ShutOff)
	refused("start", a.Start(t.Context(), "other", false))
	refused("delete", a.Delete(t.Context(), "other", host.DeleteOptions{}))
	_, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: other.UUID})
	refused("inspect for a move", err)
	l.must("stop", a.Stop(t.Context(), "other", host.StopOptions{}))
	// What is made in this boot is nobody else's.
	fresh, err := a.Create(t.Context(), host.CreateRequest{Name: "fresh", Flavor: small, Kernel: "/boot/vmlinuz"})
	l.must("create", err)
	l.must("a claim of this boot", a.Start(t.Context(), fresh.UUID, false))

	if err := a.ConfirmByHand(t.Context(), "other", " ", "operator:o"); !errors.Is(err, fault.Invalid) {
		t.Errorf("a word without a reason: %v", err)
	}
	l.must("an operator's word", a.ConfirmByHand(t.Context(), "other", "I have looked", "operator:o"))
	l.must("start by it", a.Start(t.Context(), "other", false))
	refused("the others", a.Start(t.Context(), "wished", false))

	// It outlives the process, but not the boot.
	a = l.reboot("a", "second")
	if why, waits := a.Unconfirmed(other.UUID); waits {
		t.Errorf("the word is forgotten: %s", why)
	}
	changed, err := a.ConfirmBoot(t.Context(), map[string]string{held.UUID: "two have it"})
	if l.must("confirm", err); !changed {
		t.Error("nothing was confirmed")
	}
	commits := a.store.Commits()
	if changed, err = a.ConfirmBoot(t.Context(), map[string]string{held.UUID: "two have it"}); changed || err != nil || a.store.Commits() != commits {
		t.Errorf("confirmed again: %v, %v, commits %d", changed, err, a.store.Commits()-commits)
	}
	l.must("start what waited", a.StartConfirmed(t.Context()))
	l.state("a", wished.UUID, driver.Running)
	l.state("a", held.UUID, driver.ShutOff)
	refused("one that is held", a.Start(t.Context(), "held", false))
	_, err = a.ConfirmBoot(t.Context(), map[string]string{})
	l.must("it is its own after all", err)
	l.must("start what was held", a.StartConfirmed(t.Context()))
	l.state("a", held.UUID, driver.Running)
	a = l.reboot("a", "second")
	if !a.BootConfirmed() {
		t.Error("the agent's restart has undone the confirmation")
	}
	a = l.reboot("a", "third")
	if a.BootConfirmed() {
		t.Error("another boot is confirmed")
	}
	if _, waits := a.Unconfirmed(other.UUID); !waits {
		t.Error("a word of an earlier boot counts")
	}
}

func TestReturned_ALostLedgerIsNotOfThisBoot(t *testing.T) {
	l := newLab(t, "a")
	v := l.guest("a", "vm1")
	a := l.boot("a", nil)
	if _, waits := a.Unconfirmed(v.UUID); waits || !a.BootConfirmed() {
		t.Error("a host without records waits for them")
	}
	l.must("await", a.AwaitRecords(t.Context(), true))
	if _, waits := a.Unconfirmed(v.UUID); !waits {
		t.Error("what was put back counts as made in this boot")
	}
}

// evacuated has host b have vm1 by the records and in Placement, while host a was dead.
func evacuated(l *lab, running bool) (v host.InstanceView, own string) {
	l.t.Helper()
	v = l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	if !running {
		l.must("off", l.hosts["a"].fake.Destroy(l.t.Context(), v.UUID))
	}
	had, err := l.placement.Allocations(l.t.Context(), v.UUID)
	l.must("read", err)
	there := had.Clone()
	there.Allocations = map[string]placementclient.Resources{"rp-b": {"VCPU": 1}}
	half := had.Clone()
	half.ConsumerGeneration = nil
	l.must("swap", l.placement.PostAllocations(l.t.Context(), map[string]placementclient.Allocations{v.UUID: there, evacuatedBy: half}))
	return v, "/images/vm1-vda.qcow2"
}

// giveWayAll is what the keeper of the records does about it; again asks after a crash.
func giveWayAll(l *lab, v host.InstanceView, there migration.Guest, again func()) {
	l.t.Helper()
	ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
	for _, step := range []func(a *node) error{
		func(a *node) error { _, err := a.GiveWay(l.t.Context(), ref, 2, "b", true); return err },
		func(a *node) error { return a.CleanUpReturned(l.t.Context(), ref, there) },
		func(a *node) error { return a.Cleaned(l.t.Context(), ref) },
	} {
		var err error
		for range 4 {
			if err = step(l.hosts["a"]); err == nil {
				break
			}
			again()
		}
		l.must("give way", err)
	}
}

// TestReturned_GivesWayWhateverBreaks: the copy ends, its own file stays and is named until somebody
// removes it, and nothing else is counted or kept, also when the process dies at any write, or any call fails.
func TestReturned_GivesWayWhateverBreaks(t *testing.T) {
	requireQemuImg(t)
	for _, running := range []bool{true, false} {
		for _, breaks := range []string{"nothing", "store", "store, written", "hypervisor", "hypervisor, done", "placement"} {
			t.Run(fmt.Sprintf("running %t, %s", running, breaks), func(t *testing.T) {
				for nth, reached := 1, true; reached; nth++ {
					reached = false
					l := newLab(t, "a", "b")
					v, own := evacuated(l, running)
					n := 0
					hit := func() bool { n++; reached = reached || n == nth; return n == nth }
					broken := func(call, _ string) error {
						if (call == "Destroy" || call == "Undefine" || call == "XML" || call == "Domain") && hit() {
							return fault.New(fault.Unavailable, "%s: broken", call)
						}
						return nil
					}
					switch breaks {
					case "store", "store, written":
						l.hosts["a"].store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
							switch {
							case !hit():
								return storetest.Commit
							case breaks == "store":
								return storetest.Fail
							}
							return storetest.FailWritten
						})
					case "hypervisor":
						l.hosts["a"].fake.Fault(broken)
					case "hypervisor, done":
						l.hosts["a"].fake.FaultReply(broken)
					case "placement":
						if hit() {
							l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
						}
					}
					giveWayAll(l, v, migration.Guest{Epoch: 2, Disks: []migration.Disk{{Target: "vda", Path: own, Filesystem: "kernel/other/1"}}}, func() {
						l.placement.breakWith(nil)
						l.restart("a")
					})
					l.hosts["a"].fake.Fault(nil)
					l.hosts["a"].fake.FaultReply(nil)
					l.hosts["a"].store.OnCommit(nil)
					l.oldDisks("a", own)
					l.must("rm", os.Remove(l.hosts["a"].path(own)))
					l.oldDisks("a")
					l.same(fmt.Sprintf("after the %dth", nth), picture{
						"a files": {"/images"}, "b files": {"/images"}, "allocations": {v.UUID + " rp-b VCPU"},
					})
					if left, err := l.hosts["a"].GivingWay(); len(left) > 0 || err != nil {
						t.Errorf("%dth: remembered still: %v, %v", nth, left, err)
					}
					if nth > 40 {
						t.Fatal("it does not end")
					}
				}
			})
		}
	}
}

// TestReturned_SavedMemoryOfTheOldCopy_IsGivenUpNotStarted: the instance runs elsewhere, so no
// remedy may start what is saved here.
func TestReturned_SavedMemoryOfTheOldCopy_IsGivenUpNotStarted(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v, _ := evacuated(l, true)
	ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
	a.fake.SaveMemory(v.UUID)
	_, err := a.GiveWay(t.Context(), ref, 2, "b", true)
	l.must("give way", err)
	err = a.CleanUpReturned(t.Context(), ref, migration.Guest{Epoch: 2})
	reasons := fault.ReasonsOf(err)
	if len(reasons) != 1 || reasons[0].Code != "saved" || strings.Contains(reasons[0].Change, "virsh start") || !strings.HasPrefix(reasons[0].Change, "virsh managedsave-remove vm1 ") {
		t.Fatalf("got %v: %+v", err, reasons)
	}
	l.must("virsh managedsave-remove", a.fake.DiscardSavedMemory(t.Context(), v.UUID))
	l.must("clean up", a.CleanUpReturned(t.Context(), ref, migration.Guest{Epoch: 2}))
}

func TestReturned_FilesThatOthersHaveStay(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v, own := evacuated(l, true)
	g, err := operation.Inspect.Ask(t.Context(), l.hosts["a"], migration.Ref{Instance: v.UUID})
	l.must("inspect", err)
	there := migration.Guest{Epoch: 2, Disks: g.Disks} // the very file
	giveWayAll(l, v, there, func() { l.restart("a") })
	l.same("shared", picture{"a files": {"/images", own}, "b files": {"/images"}, "allocations": {v.UUID + " rp-b VCPU"}})
	l.oldDisks("a")
}

// oldDisks requires that these files on a host are named as old disks of vm1, which went to b.
func (l *lab) oldDisks(on string, want ...string) {
	l.t.Helper()
	all, err := host.KeptOldDisks(l.t.Context(), l.hosts[on].Host)
	l.must("old disks", err)
	var got []string
	for _, o := range all {
		if o.Name != "vm1" || o.To != "b" {
			l.t.Errorf("old disks of %+v", o)
		}
		for _, f := range o.Files {
			got = append(got, f.Path)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		l.t.Errorf("old disks on %s (-want +got):\n%s", on, diff)
	}
}

// TestOldDisks_FileThatIsUsedAgain_IsNotNamed: an operator is told to remove what is named.
func TestOldDisks_FileThatIsUsedAgain_IsNotNamed(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v, own := evacuated(l, true)
	a := l.hosts["a"]
	text, err := a.fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("definition", err)
	giveWayAll(l, v, migration.Guest{Epoch: 2, Disks: []migration.Disk{{Target: "vda", Path: own, Filesystem: "kernel/other/1"}}}, func() { l.restart("a") })
	named := func(want bool) {
		t.Helper()
		kept, err := host.KeptOldDisks(t.Context(), a.Host)
		l.must("kept", err)
		unused, remedies, err := host.UnusedOldDisks(t.Context(), a.Host, kept)
		l.must("unused", err)
		if len(kept) != 1 || (len(unused) == 1) != want || want && remedies[own] != "rm "+own+" when nobody needs it" {
			t.Errorf("kept %+v, named %+v, remedies %v", kept, unused, remedies)
		}
	}
	named(true)
	l.must("define", a.fake.Define(t.Context(), text))
	named(false)
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	named(true)
	a.fake.Fault(func(string, string) error { return fault.New(fault.Unavailable, "libvirt is down") })
	if _, _, err := host.UnusedOldDisks(t.Context(), a.Host, []host.OldDisks{{}}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("libvirt is silent: %v", err)
	}
}

// TestReturned_ARecordAlone_EndsNothingThatRuns: any host of an etcd can write one.
func TestReturned_ARecordAlone_EndsNothingThatRuns(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	a := l.hosts["a"]
	ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
	gave, err := a.GiveWay(t.Context(), ref, 9, "b", false)
	if l.wantKind("without a death", err, fault.InDoubt); gave {
		t.Error("gave way")
	}
	l.state("a", v.UUID, driver.Running)
	if inst, _ := a.tracker.Instance(v.UUID); inst.Token.State != claims.TokenHere || inst.Token.Epoch != 1 {
		t.Errorf("token %+v", inst.Token)
	}
	if left, err := a.GivingWay(); len(left) > 0 || err != nil {
		t.Errorf("remembered: %v, %v", left, err)
	}
	gave, err = a.GiveWay(t.Context(), ref, 9, "b", true)
	if l.must("by its death", err); !gave {
		t.Error("kept")
	}
	l.state("a", v.UUID, driver.ShutOff)
}

// TestReturned_AnEvacuationOfWhatTheLedgerDoesNotKnow_NeedsADeath: the record may name any domain that
// libvirt has here. With a death of this host on record its ledger may have been lost.
func TestReturned_AnEvacuationOfWhatTheLedgerDoesNotKnow_NeedsADeath(t *testing.T) {
	for _, running := range []bool{true, false} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		a := l.hosts["a"]
		if !running {
			l.must("off", a.fake.Destroy(t.Context(), v.UUID))
		}
		l.must("unmanaged", a.tracker.DeleteInstance(t.Context(), v.UUID))
		ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
		gave, err := a.GiveWay(t.Context(), ref, 9, "b", false)
		if l.wantKind("without a death", err, fault.InDoubt); gave {
			t.Error("gave way")
		}
		if left, err := a.GivingWay(); len(left) > 0 || err != nil {
			t.Errorf("remembered: %v, %v", left, err)
		}
		if d, err := a.fake.Domain(t.Context(), v.UUID); err != nil || d.Active() != running {
			t.Errorf("domain %+v, %v", d, err)
		}
		for _, died := range []bool{true, false} { // forgotten before it is cleaned up after
			gave, err = a.GiveWay(t.Context(), ref, 9, "b", died)
			if l.must("by its death", err); !gave {
				t.Error("kept")
			}
		}
		l.state("a", v.UUID, driver.ShutOff)
	}
}

// TestReturned_AHigherEpochIsKept: what comes back here later than it was evacuated stays, and only the
// migration's half goes.
func TestReturned_AHigherEpochIsKept(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	a := l.hosts["a"]
	ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
	gave, err := a.GiveWay(t.Context(), ref, 1, "b", true)
	if gave || err != nil {
		t.Errorf("gave way to its own epoch: %v, %v", gave, err)
	}
	l.must("clean up", a.CleanUpReturned(t.Context(), ref, migration.Guest{}))
	l.state("a", v.UUID, driver.Running)
	inst, _ := a.tracker.Instance(v.UUID)
	if inst.Token.State != claims.TokenHere {
		t.Errorf("token %+v", inst.Token)
	}
	if left, err := a.GivingWay(); len(left) > 0 || err != nil {
		t.Errorf("remembered: %v, %v", left, err)
	}
}

// TestReturned_ADefinitionThatWasNotLoaded_IsNotForgotten: libvirt would have it again, without a mark of
// Berth's, and the guard lets in what nobody knows. Nor are its old disks left unnamed.
func TestReturned_ADefinitionThatWasNotLoaded_IsNotForgotten(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v, own := evacuated(l, false)
	a := l.hosts["a"]
	ref := migration.Ref{Migration: evacuatedBy, Instance: v.UUID, Attempt: 1}
	a.fake.UnmountDefinitions(true)
	a.restartLibvirt(l)
	a = l.restart("a")
	_, err := a.GiveWay(t.Context(), ref, 2, "b", true)
	l.must("give way", err)
	for range 2 {
		err := a.CleanUpReturned(t.Context(), ref, migration.Guest{Epoch: 2})
		if reasons := fault.ReasonsOf(err); !errors.Is(err, fault.InDoubt) || len(reasons) != 1 || reasons[0].Code != "definitions_unreadable" || strings.Contains(reasons[0].Change, "berth instance delete") {
			t.Fatalf("not mounted: %v", err)
		}
		if inst, known := a.tracker.Instance(v.UUID); !known || inst.Token.State == claims.TokenHere {
			t.Fatalf("it is forgotten: known %t, %+v", known, inst.Token)
		}
		a = l.restart("a")
	}
	a.fake.UnmountDefinitions(false)
	a.restartLibvirt(l)
	l.must("clean up", a.CleanUpReturned(t.Context(), ref, migration.Guest{Epoch: 2}))
	l.oldDisks("a", own)
	if _, known := a.tracker.Instance(v.UUID); known {
		t.Error("the ledger still has it")
	}
}

// TestReturned_WithoutADefinition_IsForgotten: one that was undefined by hand, and one that the ledger
// does not know.
func TestReturned_WithoutADefinition_IsForgotten(t *testing.T) {
	requireQemuImg(t)
	t.Run("undefined by hand while no agent ran", func(t *testing.T) {
		l := newLab(t, "a", "b")
		v, _ := evacuated(l, false)
		l.must("undefine", l.hosts["a"].fake.Undefine(t.Context(), v.UUID))
		giveWayAll(l, v, migration.Guest{Epoch: 2}, func() { l.restart("a") })
	})
	t.Run("not in the ledger", func(t *testing.T) {
		l := newLab(t, "a", "b")
		v, _ := evacuated(l, false)
		a := l.hosts["a"]
		l.must("forget", a.tracker.DeleteInstance(t.Context(), v.UUID))
		a.fake.UnmountDefinitions(true)
		a.restartLibvirt(l)
		giveWayAll(l, v, migration.Guest{Epoch: 2}, func() { l.restart("a") })
	})
}
