package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func document(name, id string) string {
	return fmt.Sprintf("<domain type='kvm'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>128</memory><vcpu>1</vcpu></domain>", name, id)
}

// newFleet is a fleet whose actors have ended when the test has.
func newFleet(t testing.TB) *drivertest.Fleet {
	rt := &runtime.System{}
	f := drivertest.NewFleet(rt)
	f.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond})
	t.Cleanup(func() { f.Close(); rt.Wait() })
	return f
}

// mover is a fleet of two with a guest that runs on a.
type mover struct {
	*drivertest.Fleet
	a, b *drivertest.Fake
	id   string
	m    driver.Migration
}

func newMover(t *testing.T) *mover {
	f := newFleet(t)
	id := uuid.NewString()
	v := &mover{Fleet: f, a: f.Host("a"), b: f.Host("b"), id: id, m: driver.Migration{
		DestinationURI: "qemu+tls://b/system", DestinationXML: document("g", id), PersistentXML: document("g", id), Paused: true,
	}}
	if err := errors.Join(v.a.Define(t.Context(), document("g", id)), v.a.Start(t.Context(), id, false)); err != nil {
		t.Fatal(err)
	}
	return v
}

// states is both hosts' view, "-" where there is no domain.
func (v *mover) states(t *testing.T) string {
	t.Helper()
	out := ""
	for _, h := range []*drivertest.Fake{v.a, v.b} {
		d, err := h.Domain(context.Background(), v.id)
		switch {
		case errors.Is(err, fault.NotFound):
			out += " -"
		case err != nil:
			out += " ?"
		default:
			out += fmt.Sprintf(" %s/%s", d.State, d.Reason)
		}
	}
	return out[1:]
}

// The rows are libvirt's measured answers to each failure.
func TestFleet_FailsAsLibvirtDoes(t *testing.T) {
	boom := errors.New("boom")
	at := func(phase string) func(v *mover) {
		return func(v *mover) {
			v.FaultPhase(func(p, _ string) error {
				if p == phase {
					return boom
				}
				return nil
			})
		}
	}
	during := func(do func(v *mover)) func(v *mover) {
		return func(v *mover) {
			ticks := 0
			v.FaultPhase(func(p, _ string) error {
				if ticks++; p == drivertest.PhasePerform && ticks == 4 {
					do(v)
				}
				return nil
			})
			v.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond, Rate: 100 << 20, Keepalive: 10 * time.Millisecond})
		}
	}
	for _, tt := range []struct {
		name   string
		break_ func(v *mover)
		kind   fault.Kind
		states string
		copies int
	}{
		{"nothing fails", func(*mover) {}, "", "shut off/migrated paused/user", 0},
		{"destination refuses", at(drivertest.PhaseBegin), fault.Undone, "running/booted -", 1},
		{"transfer fails", at(drivertest.PhasePerform), fault.Undone, "running/booted -", 1},
		{"finish fails", at(drivertest.PhaseFinish), fault.Undone, "running/migration canceled -", 1},
		{"finish's reply is lost", at(drivertest.PhaseFinishReply), fault.Undone, "running/migration canceled paused/user", 1},
		{"client's reply is lost", func(v *mover) { v.a.LoseReply("Migrate") }, fault.InDoubt, "shut off/migrated paused/user", 0},
		{"destination is down", func(v *mover) { v.b.KillDaemon() }, fault.Undone, "running/booted ?", 1},
		{"destination's daemon dies", during(func(v *mover) { v.b.KillDaemon(); v.b.StartDaemon() }), fault.Undone, "running/booted -", 1},
		{"destination's guest dies", during(func(v *mover) { v.b.CrashGuest(v.id) }), fault.Undone, "running/booted -", 1},
		{"management link is cut", during(func(v *mover) { v.CutManagement("a", "b") }), fault.Undone, "running/booted -", 1},
		{"destination crashes", during(func(v *mover) { v.b.Crash() }), fault.Undone, "running/booted ?", 1},
		{"source's daemon dies", during(func(v *mover) { v.a.KillDaemon(); v.a.StartDaemon() }), fault.InDoubt, "running/booted -", 1},
		{"source crashes", during(func(v *mover) { v.a.Crash() }), fault.InDoubt, "? -", 0},
		{"source's guest dies", during(func(v *mover) { v.a.CrashGuest(v.id) }), fault.InDoubt, "shut off/crashed -", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newMover(t)
			tt.break_(v)
			if err := v.a.Migrate(t.Context(), v.id, v.m); fault.KindOf(err) != tt.kind {
				t.Errorf("Migrate: %v (kind %q), want kind %q", err, fault.KindOf(err), tt.kind)
			}
			if got := v.states(t); got != tt.states {
				t.Errorf("source and destination are %q, want %q", got, tt.states)
			}
			if got := v.RunningCopies(v.id); got != tt.copies || len(v.Violations()) > 0 {
				t.Errorf("%d running copies, want %d; violations %v", got, tt.copies, v.Violations())
			}
		})
	}
}

func TestFleet_ACutDataLinkStallsUntilAborted(t *testing.T) {
	v := newMover(t)
	v.Manual()
	v.SetPace(drivertest.Pace{Tick: time.Millisecond, Rate: 100 << 20})
	done := make(chan error, 1)
	go func() { done <- v.a.Migrate(context.Background(), v.id, v.m) }()
	for v.states(t) != "running/booted paused/migrating" {
		<-time.After(time.Millisecond)
	}
	v.Advance(10 * time.Millisecond) // the destination starts
	v.Advance(500 * time.Millisecond)
	before, err := v.a.Job(t.Context(), v.id)
	if err != nil || before.MemoryProcessed == 0 || before.MemoryRemaining == 0 {
		t.Fatalf("job %+v, %v, want one half way", before, err)
	}
	v.CutData("b", "a")
	v.Advance(time.Hour)
	after, err := v.a.Job(t.Context(), v.id)
	if err != nil || after.Kind != driver.JobUnbounded || after.MemoryProcessed != before.MemoryProcessed || after.Elapsed <= before.Elapsed {
		t.Errorf("job %+v, %v, want %d bytes still and time gone by", after, err, before.MemoryProcessed)
	}
	if err := v.a.AbortJob(t.Context(), v.id); err != nil {
		t.Fatal(err)
	}
	v.Advance(time.Millisecond)
	if err := <-done; !errors.Is(err, fault.Undone) {
		t.Errorf("Migrate: %v, want undone", err)
	}
	if got := v.states(t); got != "running/booted -" {
		t.Errorf("states %q", got)
	}
}

func TestFleet_AHungDaemonStopsTheJobUntilItGoesOn(t *testing.T) {
	for _, host := range []string{"a", "b"} {
		v := newMover(t)
		v.Manual()
		done := make(chan error, 1)
		go func() { done <- v.a.Migrate(context.Background(), v.id, v.m) }()
		for v.states(t) != "running/booted paused/migrating" {
			<-time.After(time.Millisecond)
		}
		v.Host(host).Hang(true)
		v.Advance(7 * time.Second) // less than the keepalive
		v.Host(host).Hang(false)
		if got := v.states(t); got != "running/booted paused/migrating" {
			t.Errorf("%s hung: states %q, want the job where it was", host, got)
		}
		for range 10 {
			v.Advance(time.Second)
		}
		if err := <-done; err != nil {
			t.Errorf("%s hung: Migrate: %v", host, err)
		}
	}
}

func TestFleet_SeesAGuestThatRunsTwice(t *testing.T) {
	v := newMover(t)
	v.m.Paused = false
	v.FaultPhase(func(p, _ string) error {
		if p == drivertest.PhaseFinishReply {
			return errors.New("lost")
		}
		return nil
	})
	if err := v.a.Migrate(t.Context(), v.id, v.m); !errors.Is(err, fault.Undone) {
		t.Errorf("Migrate: %v, want undone", err)
	}
	if n := v.RunningCopies(v.id); n != 2 || len(v.Violations()) != 1 {
		t.Errorf("%d running copies and violations %v, want 2 and one", n, v.Violations())
	}
}

func TestFleet_KilledSourceLeavesAPausedHalf(t *testing.T) {
	v := newMover(t)
	v.FaultPhase(func(p, _ string) error {
		if p == drivertest.PhaseFinishReply {
			v.a.KillDaemon()
		}
		return nil
	})
	if err := v.a.Migrate(t.Context(), v.id, v.m); !errors.Is(err, fault.InDoubt) {
		t.Errorf("Migrate: %v, want in doubt", err)
	}
	v.a.StartDaemon()
	if got, want := v.states(t), "paused/migrating paused/user"; got != want {
		t.Errorf("states %q, want %q", got, want)
	}
}

func TestFleet_MaxDowntimeForcesConvergence(t *testing.T) {
	v := newMover(t)
	v.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond, Rate: 100 << 20, DirtyRate: 200 << 20})
	done := make(chan error, 1)
	go func() { done <- v.a.Migrate(context.Background(), v.id, v.m) }()
	for {
		if j, err := v.a.Job(t.Context(), v.id); err != nil || j.Iteration > 0 {
			break
		}
		<-time.After(time.Millisecond)
	}
	if err := v.a.SetMaxDowntime(t.Context(), v.id, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Migrate: %v", err)
	}
}

func TestFake_FaultStopsBeforeTheEffectAndReplyAfterIt(t *testing.T) {
	v := newMover(t)
	v.a.Fault(func(call, _ string) error {
		if call == "Suspend" {
			return fault.New(fault.Unavailable, "no")
		}
		return nil
	})
	if err := v.a.Suspend(t.Context(), v.id); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Suspend: %v", err)
	}
	if got := v.states(t); got != "running/booted -" {
		t.Errorf("states %q after a call that was stopped", got)
	}
	v.a.Fault(nil)
	v.a.LoseReply("Suspend")
	if err := v.a.Suspend(t.Context(), v.id); !errors.Is(err, fault.InDoubt) {
		t.Errorf("Suspend: %v, want in doubt", err)
	}
	if got := v.states(t); got != "paused/user -" {
		t.Errorf("states %q after a lost reply", got)
	}
}

func TestFake_BootStartsAutostart(t *testing.T) {
	v := newMover(t)
	if err := v.a.SetAutostart(t.Context(), v.id, true); err != nil {
		t.Fatal(err)
	}
	v.a.Crash()
	if _, err := v.a.Domain(t.Context(), v.id); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a machine that is off answers %v", err)
	}
	v.a.Boot()
	if n := v.RunningCopies(v.id); n != 1 {
		t.Errorf("%d running copies after boot, want 1", n)
	}
}

func TestFake_CheckCPUNamesEveryMissingFeature(t *testing.T) {
	v := newMover(t)
	v.b.LackFeatures("avx512f", "vmx", "sse2")
	const doc = `<domain><name>g</name><cpu><feature policy='require' name='avx512f'/><feature name='vmx'/><feature policy='disable' name='sse2'/></cpu></domain>`
	err := v.b.CheckCPU(t.Context(), doc)
	if reasons := fault.ReasonsOf(err); len(reasons) != 2 || reasons[0].Want != "avx512f" || reasons[1].Want != "vmx" || !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("CheckCPU: %v, reasons %v; want avx512f and vmx", err, reasons)
	}
	if err := v.a.CheckCPU(t.Context(), doc); err != nil {
		t.Errorf("CheckCPU of a host that has them: %v", err)
	}
}
