package host_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// refusesUnconfirmed requires that nothing is done to a guest before its move is
// confirmed or reverted, and that the refusal says what to type.
func refusesUnconfirmed(l *lab, on *node, when, uuid string, asked map[string]func() error) {
	l.t.Helper()
	for what, do := range asked {
		err := do()
		reasons := fault.ReasonsOf(err)
		if fault.KindOf(err) != fault.Busy || len(reasons) != 1 || reasons[0].Code != "unconfirmed" ||
			!strings.Contains(reasons[0].Change, "berth resize confirm vm") || !strings.Contains(reasons[0].Change, "berth resize revert vm") {
			l.t.Errorf("%s, %s on %s: %v %+v", when, what, on.name, err, reasons)
		}
	}
}

func (n *node) asked(l *lab, uuid string) map[string]func() error {
	ctx := l.t.Context()
	return map[string]func() error{
		"delete": func() error { return n.Delete(ctx, uuid, host.DeleteOptions{Force: true}) },
		"adopt":  func() error { _, err := n.Adopt(ctx, uuid); return err },
	}
}

func (n *node) used(l *lab, uuid string) map[string]func() error {
	ctx := l.t.Context()
	return map[string]func() error{
		"start": func() error { return n.Start(ctx, uuid, false) },
		"stop":  func() error { return n.Stop(ctx, uuid, host.StopOptions{Force: true}) },
	}
}

// A guest that waits to be confirmed is started and stopped where it lives, also after
// its host's reboot, and nowhere else; nothing else is done to it on either host.
func TestVerify_TheGuestLivesAtItsDestination(t *testing.T) {
	l, v := coldLab(t)
	ctx := t.Context()
	inst, _ := l.hosts["a"].tracker.Instance(v.UUID)
	inst.Autostart = true
	_, err := l.hosts["a"].tracker.PutInstance(ctx, inst)
	l.must("wish for autostart", err)
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "")

	refusesUnconfirmed(l, c.b, "finished", v.UUID, c.b.asked(l, v.UUID))
	refusesUnconfirmed(l, c.a, "finished", v.UUID, c.a.asked(l, v.UUID))
	refusesUnconfirmed(l, c.a, "finished", v.UUID, c.a.used(l, v.UUID))
	if !c.b.Lives(v.UUID) || c.a.Lives(v.UUID) {
		t.Errorf("lives on b: %v, on a: %v", c.b.Lives(v.UUID), c.a.Lives(v.UUID))
	}
	l.must("stop", c.b.Stop(ctx, v.UUID, host.StopOptions{Force: true}))
	l.state("b", v.UUID, driver.ShutOff)
	l.must("start", c.b.Start(ctx, v.UUID, false))
	l.state("b", v.UUID, driver.Running)

	// Both agents start for the first time since the hosts were booted: it is the
	// guest's wish to be started, and that is where it lives.
	before := l.picture()
	l.must("stop", c.b.Stop(ctx, v.UUID, host.StopOptions{Force: true}))
	for _, n := range []string{"a", "b"} {
		l.must("settle "+n, l.restart(n).Settle(ctx))
	}
	c.a, c.b = l.hosts["a"], l.hosts["b"]
	l.same("after both agents' start", before)
	l.must("stop again", c.b.Stop(ctx, v.UUID, host.StopOptions{Force: true}))

	// While it is taken back it is nobody's to use.
	c.run(c.returning(), "power off there")
	refusesUnconfirmed(l, c.b, "taken back", v.UUID, c.b.used(l, v.UUID))
	l.must("undo power off", operation.PowerOn.Ask(ctx, c.b, c.back))
	l.must("undo await return", operation.CancelReturn.Ask(ctx, c.a, c.back))
	l.must("start when the revert was given up", c.b.Start(ctx, v.UUID, false))
	l.state("b", v.UUID, driver.Running)

	c.run(c.confirm(), "")
	l.must("delete what is confirmed", c.b.Delete(ctx, v.UUID, host.DeleteOptions{Force: true}))
}

// What is kept of a guest at its source stays as it is: no start of the agent takes
// it, nobody starts it, and what somebody does to it by hand is not healed.
func TestVerify_TheKeptHalfIsLeftAlone(t *testing.T) {
	l, v := coldLab(t)
	ctx := t.Context()
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "")
	kept := c.a.tracker.List()
	l.must("undefine by hand", c.a.fake.Undefine(ctx, v.UUID))
	for range 2 {
		l.must("settle", c.a.Settle(ctx))
	}
	if diff := cmp.Diff(kept, c.a.tracker.List()); diff != "" || len(kept) != 1 || kept[0].State != claims.Held {
		t.Errorf("what is held (-before +after):\n%s", diff)
	}
	if _, known := c.a.tracker.Instance(v.UUID); !known {
		t.Error("its record is gone")
	}
	l.must("it may come back: its definition is on record", operation.AwaitReturn.Ask(ctx, c.a, c.back))
	l.state("b", v.UUID, driver.Running)
}

// The same where the guest stays: it is used while it waits.
func TestVerify_TheGuestIsUsedWhereItWasChanged(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
	ctx := t.Context()
	b.look()
	b.must("forward", b.forward(0))
	refusesUnconfirmed(b.lab, b.a, "changed", b.uuid, b.a.asked(b.lab, b.uuid))
	b.must("stop", b.a.Stop(ctx, b.uuid, host.StopOptions{Force: true}))
	b.must("start", b.a.Start(ctx, b.uuid, false))
	b.state("a", b.uuid, driver.Running)

	again := b.ref
	again.Attempt++
	_, err := operation.PowerOff.Ask(ctx, b.a, again, migration.PowerOffRequest{Kind: b.kind})
	b.must("power off to revert", err)
	refusesUnconfirmed(b.lab, b.a, "taken back", b.uuid, b.a.used(b.lab, b.uuid))
	b.must("undo power off", operation.PowerOn.Ask(ctx, b.a, again))
	b.finish()
	b.must("stop what is confirmed", b.a.Stop(ctx, b.uuid, host.StopOptions{Force: true}))
	b.must("delete it", b.a.Delete(ctx, b.uuid, host.DeleteOptions{}))
}
