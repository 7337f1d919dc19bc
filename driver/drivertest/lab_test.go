package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
)

// lab is two hosts with a guest that runs on a, on simulated time and with libvirt's
// own patience.
type lab struct {
	*drivertest.Fleet
	t    *testing.T
	sim  *simruntime.Simulation
	p    *simruntime.Process
	a, b *drivertest.Fake
	m    driver.Migration

	began time.Duration
	took  time.Duration // of Migrate, once it is over
	err   error
	over  bool
}

const labGuest = "0c5a3e3e-5d0b-4c58-9d29-1c1f9dd3c001"

// never is a pace at which a guest of 128 MiB does not converge.
var never = drivertest.Pace{Tick: 100 * time.Millisecond, Rate: 20 << 20, DirtyRate: 60 << 20, HandOver: 100 * time.Millisecond, Orphan: time.Second}

// quick is one at which it does, in a second.
var quick = drivertest.Pace{Tick: 100 * time.Millisecond, Rate: 256 << 20, HandOver: 100 * time.Millisecond, Orphan: time.Second}

// inLab runs f as an actor beside the fleet.
func inLab(t *testing.T, pace drivertest.Pace, f func(l *lab)) {
	t.Helper()
	sim := simruntime.New(1)
	p := sim.Process("world", "boot")
	l := &lab{Fleet: drivertest.NewFleet(p), t: t, sim: sim, p: p}
	l.SetPace(pace)
	l.a, l.b = l.Host("a"), l.Host("b")
	l.m = driver.Migration{
		DestinationURI: "qemu+tls://b/system", DestinationXML: document("g", labGuest), PersistentXML: document("g", labGuest), Paused: true,
	}
	done := false
	p.Go("test", func() {
		ctx := context.Background()
		if err := errors.Join(l.a.Define(ctx, document("g", labGuest)), l.a.Start(ctx, labGuest, false)); err != nil {
			t.Error(err)
		}
		f(l)
		done = true
		l.Close()
	})
	if err := sim.Run(time.Hour, func() bool { return done }); err != nil {
		t.Error(err)
	}
	if !done {
		t.Errorf("stands still: %v", sim.Waiting())
	}
	sim.Shutdown()
}

// migrate begins a migration; the client can be killed without ending it.
func (l *lab) migrate() (client *simruntime.Process) {
	client = l.sim.Process("client", "boot")
	l.began = l.sim.Elapsed()
	client.Go("migrate", func() {
		l.err = l.a.Migrate(context.Background(), labGuest, l.m)
		l.took, l.over = l.sim.Elapsed()-l.began, true
	})
	return client
}

func (l *lab) wait(d time.Duration) { _ = l.p.Sleep(context.Background(), d) }

// when runs do, once, at a phase.
func (l *lab) when(phase string, do func() error) {
	done := false
	l.FaultPhase(func(p, _ string) error {
		if p != phase || done {
			return nil
		}
		done = true
		return do()
	})
}

func (l *lab) states() string {
	out := ""
	for _, h := range []*drivertest.Fake{l.a, l.b} {
		d, err := h.Domain(context.Background(), labGuest)
		switch {
		case errors.Is(err, fault.NotFound):
			out += " -"
		case err != nil:
			out += " ?"
		default:
			out += fmt.Sprintf(" %s (%s)", d.State, d.Reason)
		}
	}
	return out[1:]
}

func (l *lab) want(what, states string) {
	l.t.Helper()
	if got := l.states(); got != states {
		l.t.Errorf("%s: %q, want %q", what, got, states)
	}
}

// ended wants the call over, with a kind, after a time of within ± a second.
func (l *lab) ended(kind fault.Kind, within time.Duration) {
	l.t.Helper()
	if !l.over || fault.KindOf(l.err) != kind || l.took < within-time.Second || l.took > within+time.Second {
		l.t.Errorf("Migrate: over %v after %s: %v, want kind %q after %s", l.over, l.took, l.err, kind, within)
	}
}

func (l *lab) inFlight() bool {
	j, err := l.a.Job(context.Background(), labGuest)
	return err == nil && j.Kind == driver.JobUnbounded
}

const (
	runsHere  = "running (booted) -"
	moving    = "running (booted) paused (migrating)"
	goneThere = "shut off (migrated) paused (user)"
	canceled  = "running (migration canceled) -"
	doubled   = "running (migration canceled) paused (user)"
)
