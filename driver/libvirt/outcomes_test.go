package libvirt

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// told is a connection with some answers of a test's own.
type told struct {
	*scripted
	d *toldDaemon
}

type toldDaemon struct {
	*daemon
	define error
	holder string // of every name
	stats  State
}

func (c told) Define(string) error                 { return c.d.define }
func (c told) LookupName(name string) (Ref, error) { return Ref{UUID: c.d.holder, Name: name}, nil }
func (c told) Stats(uint32, uint32) ([]Stats, error) {
	return []Stats{{UUID: guestUUID, Values: map[string]any{
		"state.state": uint64(c.d.stats.State), "state.reason": uint64(c.d.stats.Reason),
	}}}, nil
}
func tell(t *testing.T, d *toldDaemon) *Driver {
	t.Helper()
	l := New(Options{CallTimeout: time.Second, Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, to Target) (Conn, error) {
		c, err := d.dial(ctx, to)
		if err != nil {
			return nil, err
		}
		return told{c.(*scripted), d}, nil
	}})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestKinds_OfAnAnswerThatCouldNotBeRead(t *testing.T) {
	if got := kindOf(code(errRPC), true); got != fault.InDoubt {
		t.Errorf("of a change: %s, want in doubt", got)
	}
	if got := kindOf(code(errRPC), false); got != fault.Unavailable {
		t.Errorf("of a look: %s, want unavailable", got)
	}
}

// A guest that has panicked and is kept has its process, its number and its memory.
func TestDomain_ThatCrashedAndIsKeptIsActive(t *testing.T) {
	l := drive(t, &daemon{state: State{6, 1}})
	v, err := l.Domain(t.Context(), guestUUID)
	if err != nil || v.State != driver.Crashed || v.Reason != driver.ReasonGuestPanicked || !v.Active() || v.ID != 3 {
		t.Errorf("domain %+v, %v; want it crashed (panicked), active with its number", v, err)
	}
}

func TestDomains_IsReadAgainWhenADomainStartsMeanwhile(t *testing.T) {
	d := &toldDaemon{daemon: &daemon{refs: [][]Ref{{{UUID: guestUUID, ID: -1}}, {{UUID: guestUUID, ID: 7}}}}, stats: State{1, 1}}
	got, err := tell(t, d).Domains(t.Context())
	if err != nil || len(got) != 1 || got[0].ID != 7 || got[0].State != driver.Running {
		t.Errorf("domains %+v, %v; want it running with its number", got, err)
	}
}

func TestSuspend_OfWhatDoesNotRunIsInvalid(t *testing.T) {
	d := &daemon{state: State{5, 1}, answer: map[string]func(*scripted) error{"Suspend": func(*scripted) error { return code(errInternal) }}}
	l := drive(t, d)
	if err := l.Suspend(t.Context(), guestUUID); !errors.Is(err, fault.Invalid) {
		t.Errorf("Suspend of a stopped domain: %v, want invalid", err)
	}
	d.set(func() { d.state = State{1, 1} })
	if err := l.Suspend(t.Context(), guestUUID); !errors.Is(err, fault.Internal) {
		t.Errorf("Suspend that libvirt failed: %v, want internal", err)
	}
}

func TestDefine_SaysWhoHasTheName(t *testing.T) {
	const other = "11111111-2222-4333-8444-555555555555"
	doc := "<domain type='test'><name>g</name><uuid>" + guestUUID + "</uuid><memory>1024</memory><vcpu>1</vcpu></domain>"
	for holder, want := range map[string]fault.Kind{other: fault.Exists, guestUUID: fault.Internal} {
		l := tell(t, &toldDaemon{daemon: &daemon{}, define: code(errOperationFailed), holder: holder})
		if err := l.Define(t.Context(), doc); !errors.Is(err, want) {
			t.Errorf("Define failed, and %s has its name: %v, want %s", holder, err, want)
		}
	}
}

func TestEvents_ReaderThatLeftIsForgotten(t *testing.T) {
	l := drive(t, &daemon{})
	ctx, cancel := context.WithCancel(t.Context())
	ch, err := l.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range ch {
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.events.readers); n != 0 {
		t.Errorf("%d readers are kept, want none", n)
	}
}

// A connection that comes when the driver is closed already is closed too.
func TestClose_WhileConnectingLeavesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, come := &daemon{}, make(chan struct{})
		l := New(Options{Logger: slog.New(slog.DiscardHandler), Dial: func(_ context.Context, to Target) (Conn, error) {
			<-come // a binding that does not heed its context
			return d.dial(context.Background(), to)
		}})
		read := make(chan error, 1)
		go func() { _, err := l.Domain(context.Background(), guestUUID); read <- err }()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		close(come)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := <-read; !errors.Is(err, fault.Unavailable) {
			t.Errorf("Domain: %v, want unavailable", err)
		}
		if made, open := d.count(); made != 2 || open != 0 {
			t.Errorf("%d connections were made, %d are open; want 2 and none", made, open)
		}
	})
}

// A daemon whose client goes away while it registers events for it may crash.
func TestClose_LetsTheDaemonRegisterEvents(t *testing.T) {
	for name, c := range map[string]struct {
		answers time.Duration // 0: never
		want    time.Duration
	}{
		"that takes a moment":  {answers: 40 * time.Millisecond, want: 40 * time.Millisecond},
		"that does not answer": {want: registerPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cut := make(chan bool, 1)
				d := &daemon{answer: map[string]func(*scripted) error{"Subscribe": func(s *scripted) error {
					if c.answers == 0 {
						return hang(s)
					}
					time.Sleep(c.answers)
					select {
					case <-s.done:
						cut <- true
					default:
						cut <- false
					}
					return nil
				}}}
				l := New(Options{Logger: slog.New(slog.DiscardHandler), Dial: d.dial})
				synctest.Wait()
				began := time.Now()
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != c.want {
					t.Errorf("Close took %v, want %v", took, c.want)
				}
				if c.answers > 0 && <-cut {
					t.Error("the connection was closed while the daemon registered")
				}
			})
		})
	}
}
