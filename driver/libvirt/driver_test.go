package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// withIn is a deadline that a test's own hung call is given up at.
func withIn(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCall_ThatIsNeverAnsweredEndsAtItsDeadline(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		call         func(context.Context, *Driver) error
		kind         fault.Kind
	}{
		{"a reading one", "State", func(ctx context.Context, l *Driver) error { _, err := l.Domain(ctx, guestUUID); return err }, fault.Unavailable},
		{"a changing one", "Create", func(ctx context.Context, l *Driver) error { return l.Start(ctx, guestUUID, false) }, fault.InDoubt},
	} {
		for _, given := range []time.Duration{0, 300 * time.Millisecond, 3 * time.Second} {
			t.Run(fmt.Sprintf("%s, given %v", tt.name, given), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := &daemon{answer: map[string]func(*scripted) error{tt.method: hang}}
					l := drive(t, d)
					ctx, want := context.Background(), time.Second
					if given > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, given)
						defer cancel()
						want = given
					}
					began := time.Now()
					err := tt.call(ctx, l)
					if !errors.Is(err, tt.kind) {
						t.Errorf("error %v, want kind %s", err, tt.kind)
					}
					if took := time.Since(began); took != want {
						t.Errorf("it took %v, want %v", took, want)
					}
					synctest.Wait()
					if _, open := d.count(); open != 1 {
						t.Errorf("%d connections open, want only that of events", open)
					}
				})
			})
		}
	}
}

// One hung call must not make the outcome of its neighbours unknown.
func TestCall_ThatHangsLeavesItsNeighboursTheirAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{answer: map[string]func(*scripted) error{
			"Create":  hang,
			"Suspend": func(*scripted) error { time.Sleep(2 * time.Second); return nil },
		}}
		l := drive(t, d)
		done := make(chan error, 1)
		go func() { done <- l.Suspend(withIn(t, 10*time.Second), guestUUID) }()
		synctest.Wait()
		if err := l.Start(withIn(t, time.Second), guestUUID, false); !errors.Is(err, fault.InDoubt) {
			t.Errorf("Start: %v, want in doubt", err)
		}
		if _, open := d.count(); open != 2 {
			t.Errorf("%d connections open, want the neighbour's and that of events", open)
		}
		// The next call does not queue behind the hung one.
		if err := l.Undefine(withIn(t, time.Second), guestUUID); err != nil {
			t.Errorf("Undefine: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Suspend: %v", err)
		}
		synctest.Wait()
		if made, open := d.count(); made != 3 || open != 2 {
			t.Errorf("%d connections made, %d open; want 3, and 2 once the neighbour was answered", made, open)
		}
	})
}

// On storage that hosts share, the firmware variables of a guest that has moved
// are in use at its new host.
func TestUndefine_KeepsFirmwareVariables(t *testing.T) {
	d := &daemon{}
	l := drive(t, d)
	if err := l.Undefine(withIn(t, time.Second), guestUUID); err != nil {
		t.Fatal(err)
	}
	const removes, keeps = 1 << 2, 1 << 3 // VIR_DOMAIN_UNDEFINE_NVRAM, _KEEP_NVRAM
	if d.flags&removes != 0 || d.flags&keeps == 0 {
		t.Errorf("flags %#x", d.flags)
	}
}

func TestCall_CancelledByItsCallerReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, &daemon{answer: map[string]func(*scripted) error{"Create": hang}})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- l.Start(ctx, guestUUID, false) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, fault.InDoubt) || !errors.Is(err, context.Canceled) {
			t.Errorf("Start: %v, want in doubt, cancelled", err)
		}
	})
}

func TestCall_ThatWasNotSentIsUnavailable(t *testing.T) {
	d := &daemon{answer: map[string]func(*scripted) error{"Create": func(*scripted) error { return ErrNotSent }}}
	l := drive(t, d)
	if err := l.Start(t.Context(), guestUUID, false); !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.InDoubt) {
		t.Errorf("Start: %v, want unavailable", err)
	}
	d.set(func() { d.refuse = errDial })
	d.lose()
	if err := l.Start(t.Context(), guestUUID, false); !errors.Is(err, fault.Unavailable) || !errors.Is(err, errDial) {
		t.Errorf("Start with no daemon: %v, want unavailable, with the cause", err)
	}
}

func TestClose_EndsCallsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, &daemon{state: State{1, 1}, answer: map[string]func(*scripted) error{"Create": hang, "Migrate": hang, "JobStats": nil}})
		done := make(chan error, 2)
		go func() { done <- l.Start(context.Background(), guestUUID, false) }()
		go func() {
			done <- l.Migrate(context.Background(), guestUUID, driver.Migration{DestinationURI: "x", DestinationXML: "x", PersistentXML: "x"})
		}()
		synctest.Wait()
		began := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-done; !errors.Is(err, fault.InDoubt) {
				t.Errorf("a call that was closed upon: %v, want in doubt", err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

func TestEvents_AreResyncedAfterEveryConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{refuse: errDial} // until the reader is there
		l := drive(t, d)
		ch, err := l.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.refuse = nil })
		next := func() driver.Event {
			t.Helper()
			select {
			case e := <-ch:
				return e
			case <-time.After(time.Minute):
				t.Fatal("no event within a minute")
				return driver.Event{}
			}
		}
		if e := next(); e.Kind != driver.EventResync {
			t.Errorf("first event %+v, want a resync", e)
		}
		if err := l.Health(); err != nil {
			t.Errorf("Health: %v", err)
		}
		d.conns[0].subscribe(Event{UUID: guestUUID, Name: "g", Event: 5, Detail: 3})
		if e := next(); e.Kind != driver.EventStopped || e.Detail != "migrated" || e.UUID != guestUUID || e.At.IsZero() {
			t.Errorf("event %+v, want stopped (migrated)", e)
		}
		d.set(func() { d.refuse = errDial })
		d.lose()
		synctest.Wait()
		if err := l.Health(); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Health of a daemon that died: %v, want unavailable", err)
		}
		time.Sleep(20 * time.Second)
		if err := l.Health(); !errors.Is(err, errDial) {
			t.Errorf("Health: %v, want the present cause", err)
		}
		d.set(func() { d.refuse = nil })
		began := time.Now()
		if e := next(); e.Kind != driver.EventResync {
			t.Errorf("event %+v, want a resync", e)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("reconnecting took %v, want no more than the longest wait", took)
		}
		// One that lived is awaited anew from the shortest wait.
		d.lose()
		began = time.Now()
		if e := next(); e.Kind != driver.EventResync {
			t.Errorf("event %+v, want a resync", e)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("reconnecting at once took %v, want the shortest wait", took)
		}
	})
}

func TestHealth_SeesADaemonThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{}
		l := drive(t, d)
		synctest.Wait()
		if err := l.Health(); err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.answer["LibVersion"], d.answer["Subscribe"] = hang, hang })
		time.Sleep(6100 * time.Millisecond) // a ping's interval and deadline
		if err := l.Health(); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Health: %v, want unavailable", err)
		}
		d.set(func() { delete(d.answer, "LibVersion"); delete(d.answer, "Subscribe") })
		time.Sleep(10 * time.Second)
		if err := l.Health(); err != nil {
			t.Errorf("Health once it goes on: %v", err)
		}
	})
}

func TestEvents_ASlowReaderGetsAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{}
		l := drive(t, d)
		synctest.Wait()
		ch, err := l.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range queueLength + 2 {
			d.conns[0].subscribe(Event{UUID: guestUUID, Event: 3})
			if i == 0 {
				synctest.Wait() // it is on its way
			}
		}
		var kinds []driver.EventKind
		for len(kinds) < 2 {
			kinds = append(kinds, (<-ch).Kind)
		}
		if kinds[0] != driver.EventSuspended || kinds[1] != driver.EventResync {
			t.Errorf("events %v, want one suspended, then a resync", kinds)
		}
	})
}

func TestKinds_OfLibvirtsNumbers(t *testing.T) {
	for n, want := range map[int]fault.Kind{
		errNoDomain: fault.NotFound, errDomExist: fault.Exists, errOperationTimeout: fault.Busy, errOperationAborted: fault.Undone,
		errXML: fault.Invalid, errOperationInvalid: fault.Invalid, errNoSupport: fault.Invalid, errMigrateUnsafe: fault.Forbidden,
		errAuthFailed: fault.Forbidden, errCPUIncompatible: fault.DoesNotFit, errNoConnect: fault.Unavailable,
		1: fault.Internal, 9: fault.Internal, 4711: fault.Internal,
	} {
		for _, changes := range []bool{true, false} {
			if got := kindOf(code(n), changes); got != want {
				t.Errorf("libvirt error %d is %s, want %s", n, got, want)
			}
		}
	}
}

func TestDomains_IsReadAgainWhenDomainsComeAndGo(t *testing.T) {
	a, b := Ref{UUID: "a", Name: "a", ID: -1}, Ref{UUID: "b", Name: "b", ID: -1}
	d := &daemon{refs: [][]Ref{{a, b}, {a}}}
	l := drive(t, d)
	got, err := l.Domains(t.Context())
	if err != nil || len(got) != 1 || got[0].UUID != "a" || got[0].State != driver.ShutOff || got[0].MemoryMB != 2 {
		t.Errorf("domains %+v, %v; want a alone, shut off, 2 MiB", got, err)
	}
	d.set(func() {
		d.refs = [][]Ref{{a, b}}
		d.answer["Info b"] = func(*scripted) error { return code(errNoDomain) }
	})
	if got, err := l.Domains(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("domains %+v, %v; want a alone: libvirt says that b is gone", got, err)
	}
	d.set(func() { d.answer["Info b"] = func(*scripted) error { return code(1) } })
	if got, err := l.Domains(t.Context()); err == nil {
		t.Errorf("domains %+v: a part of the truth, want an error", got)
	}
}

func TestFirstSocket_PrefersVirtqemud(t *testing.T) {
	dir := t.TempDir()
	modular, old := filepath.Join(dir, "virtqemud-sock"), filepath.Join(dir, "libvirt-sock")
	paths := []string{modular, old}
	if got := firstSocket(paths); got != old {
		t.Errorf("with none there: %s, want %s", got, old)
	}
	for _, p := range []string{old, modular} {
		s, err := net.Listen("unix", p)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }() // the folder goes anyway
		if got := firstSocket(paths); got != p {
			t.Errorf("with %s there: %s", p, got)
		}
	}
}
