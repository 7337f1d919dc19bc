package conductor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
)

// TestEvacuation_WhoseConductorWasAwayForLong: it died once the records had given the guest to
// b, and before it heard so. b has finished alone, a has come back and cleaned up, and the guest
// has gone on to d when it is back.
func TestEvacuation_WhoseConductorWasAwayForLong(t *testing.T) {
	w := newWorld(t, 1, script{request: lost, hosts: four, local: "c"}, faults{})
	w.latency = 50 * time.Millisecond
	ctx := context.Background()
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(ctx, asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "preparing", func(m migration.Migration) bool { return m.Step == migration.StepPrepEvacuation })
		w.fleet.down = true
		until(t, p, c, "deciding", func(m migration.Migration) bool { return m.Step == migration.StepTakeOver })
	})
	f, b, d := w.fleet, w.hosts["b"], w.hosts["d"]
	ref := migration.Ref{Migration: moveUUID, Instance: guestUUID, Attempt: 1, Step: migration.StepTakeOver}
	g, err := f.Lost(ctx, guestUUID)
	if err != nil {
		t.Fatal(err)
	}
	commit, err := f.TakeOver(ctx, ref, g, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AcceptEvacuated(ctx, ref, commit); err != nil {
		t.Fatal(err)
	}
	if _, err := b.FinishEvacuation(ctx, ref); err != nil {
		t.Fatal(err)
	}
	w.comesBack()
	d.claims["instance"], d.domain, d.size = b.claims["instance"], b.domain, b.size
	d.token = &simToken{epoch: 3, here: true, migration: otherUUID, attempt: 1, power: migration.PowerRunning}
	b.claims, b.domain, b.token.here = map[string]*simClaim{}, nil, false
	r := &f.record
	r.host, r.epoch, r.migration, r.revision = "d", 3, otherUUID, f.next()
	w.placement.consumers[guestUUID].Allocations = d.place(guestSize)
	f.down = false
	w.boot()
	var m migration.Migration
	if err := w.sim.Run(time.Hour, func() bool {
		m, err = w.conductor.Get(ctx, moveUUID)
		return err == nil && m.Done()
	}); err != nil {
		t.Errorf("%s %s at %s: %v, %v", m.Status, m.Outcome, m.Step, m.Error, err)
	}
	if m.Status != migration.StatusDone && m.Status != migration.StatusCompleted || !strings.Contains(m.Evacuation.NotStarted, "host d has it") {
		t.Errorf("%s %s, %+v: %v", m.Status, m.Outcome, m.Evacuation, m.Error)
	}
	if d.domain == nil || d.domain.state != "running" || !d.owns() || len(d.claims) != 1 || b.domain != nil {
		t.Errorf("d has %+v, claims %v; b %+v", d.domain, d.claims, b.domain)
	}
	if held := w.placement.consumers[guestUUID]; held == nil || held.Allocations["rp-d"] == nil || len(w.placement.consumers) != 1 {
		t.Errorf("Placement: %+v of %d consumers", held, len(w.placement.consumers))
	}
	w.sim.Shutdown()
}
