package host_test

import (
	"context"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// follows runs a host's Follow until f is true.
func (l *lab) follows(on, what string, f func() bool) {
	l.t.Helper()
	l.runs(l.hosts[on].Follow, what, f)
}

// runs runs one of a host's loops until f is true.
func (l *lab) runs(loop func(context.Context) error, what string, f func() bool) {
	l.t.Helper()
	ctx, stop := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- loop(ctx) }()
	patient, cancel := l.rt.WithTimeout(ctx, patience)
	defer cancel()
	for !f() {
		if l.rt.Sleep(patient, time.Millisecond) != nil {
			l.t.Errorf("%s: never", what)
			break
		}
	}
	stop()
	l.must("stop following", <-done)
}

// A guest that went to a host which asks nobody for its token (no Berth there, or
// its agent is down) still has its token here.
func TestLeft_GuestThatWasMovedAwayIsNotStartedHere(t *testing.T) {
	l := newLab(t, "a", "b")
	ctx := t.Context()
	v := l.guest("a", "vm1")
	a := l.hosts["a"]
	if a.LeftByHand(v.UUID) {
		t.Fatal("a guest that runs here has left")
	}
	l.byHand(v.UUID)
	l.wantKind("start before anybody has looked", a.Start(ctx, "vm1", false), fault.Forbidden)
	l.follows("a", "it is seen to have left", func() bool { return a.LeftByHand(v.UUID) })

	// libvirt forgets why it is off; the ledger does not.
	a = l.restart("a")
	l.must("libvirtd restarts", a.fake.Define(ctx, l.definition("a", v.UUID)))
	l.wantKind("start", a.Start(ctx, "vm1", false), fault.Forbidden)
	l.wantKind("remove the disks of a guest that runs", a.Delete(ctx, "vm1", host.DeleteOptions{Disks: true}), fault.Forbidden)
	_, err := a.Adopt(ctx, "")
	l.must("adopt all", err)
	if !a.LeftByHand(v.UUID) {
		t.Error("nobody has said that it is back")
	}

	// An operator ends the copy, and says so.
	l.must("end the copy", l.hosts["b"].fake.Destroy(ctx, v.UUID))
	l.must("undefine the copy", l.hosts["b"].fake.Undefine(ctx, v.UUID))
	_, err = a.Adopt(ctx, "vm1")
	l.must("adopt by name", err)
	if a.LeftByHand(v.UUID) {
		t.Error("an operator's word does not count")
	}
	l.must("start", a.Start(ctx, "vm1", false))
	l.follows("a", "the record goes when the guest runs here", func() bool { return len(l.picture()["a memories"]) == 0 })
}

func (l *lab) definition(on, uuid string) string {
	l.t.Helper()
	text, err := l.hosts[on].fake.XML(l.t.Context(), uuid, driver.Persistent)
	l.must("read the definition", err)
	return text
}

func TestLeft_AutostartAfterARebootLeavesItAlone(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	a := l.hosts["a"]
	inst, _ := a.tracker.Instance(v.UUID)
	inst.Autostart = true
	_, err := a.tracker.PutInstance(t.Context(), inst)
	l.must("wish for autostart", err)
	l.byHand(v.UUID)
	l.must("settle", a.Settle(t.Context()))
	l.state("a", v.UUID, driver.ShutOff)
	l.state("b", v.UUID, driver.Running)
}

func TestLeft_RecordGoesWithTheToken(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	a := l.hosts["a"]
	l.byHand(g.UUID)
	l.must("settle", a.Settle(ctx))
	if !a.LeftByHand(g.UUID) {
		t.Fatal("settling did not see that it left")
	}
	ref := migration.Ref{Migration: "33333333-3333-4333-8333-333333333333", Instance: g.UUID, Attempt: 1}
	_, err := a.External().ReleaseOwnership(ctx, ref, "b")
	l.must("surrender", err)
	if inst, _ := a.tracker.Instance(g.UUID); inst.Token.State != claims.TokenSurrendered || a.LeftByHand(g.UUID) {
		t.Errorf("a has %+v, left by hand %t", inst, a.LeftByHand(g.UUID))
	}
}

// What a foreign migration left of an instance is forgotten once its definition is gone. One that
// libvirtd did not load is not.
func TestLeft_ADefinitionThatWasNotLoaded_IsNotForgotten(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	a := l.hosts["a"]
	l.byHand(v.UUID)
	_, err := a.External().ReleaseOwnership(t.Context(), migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: v.UUID, Attempt: 1}, "b")
	l.must("surrender", err)
	a.fake.UnmountDefinitions(true)
	a.restartLibvirt(l)
	a = l.restart("a")
	l.runs(a.External().FollowArrivals, "it is named", func() bool { return a.Unsettled()[v.UUID] != nil })
	if inst, known := a.tracker.Instance(v.UUID); !known || inst.Token.Holder != "b" {
		t.Fatalf("forgotten: known %t, %+v", known, inst.Token)
	}
	a.fake.UnmountDefinitions(false)
	a.restartLibvirt(l)
	l.runs(a.External().FollowArrivals, "it is named no more", func() bool { return len(a.Unsettled()) == 0 })
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	l.runs(a.External().FollowArrivals, "it is forgotten", func() bool { _, known := a.tracker.Instance(v.UUID); return !known })
}
