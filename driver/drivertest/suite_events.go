package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// await reads events until one of the kind about the domain comes; a resync
// ends the wait too where it is what is waited for.
func await(t testing.TB, ch <-chan driver.Event, kind driver.EventKind, id string) driver.Event {
	t.Helper()
	timeout := time.After(patience(t))
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				t.Fatalf("events ended while waiting for %s of %s", kind, id)
			}
			if e.Kind == kind && e.UUID == id {
				return e
			}
		case <-timeout:
			t.Fatalf("no event %s of %q within %v", kind, id, patience(t))
		}
	}
}

func (b *bench) events(t testing.TB) <-chan driver.Event {
	t.Helper()
	// A driver that is not connected yet answers Events too; connected, nothing
	// that the test does can be missed.
	eventually(t, "Health", func() bool { return b.d.Health() == nil })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ch, err := b.d.Events(ctx)
	must(t, "Events", err)
	return ch
}

func events() []property {
	return []property{
		{"Events_TellTheLifecycle", func(t testing.TB, b *bench) {
			ch := b.events(t)
			id := b.guest(t)
			await(t, ch, driver.EventDefined, id)
			must(t, "Start", b.d.Start(within(t), id, false))
			if e := await(t, ch, driver.EventStarted, id); e.Name != "conf-"+id[:8] || e.Detail != "booted" || e.At.IsZero() {
				t.Errorf("unexpected event %+v", e)
			}
			must(t, "Suspend", b.d.Suspend(within(t), id))
			await(t, ch, driver.EventSuspended, id)
			must(t, "Resume", b.d.Resume(within(t), id))
			await(t, ch, driver.EventResumed, id)
			must(t, "Destroy", b.d.Destroy(within(t), id))
			await(t, ch, driver.EventStopped, id)
			must(t, "Undefine", b.d.Undefine(within(t), id))
			await(t, ch, driver.EventUndefined, id)
		}},
		{"Events_TellOfChanges", func(t testing.TB, b *bench) {
			id := b.running(t)
			ch := b.events(t)
			b.Change(t, id)
			await(t, ch, driver.EventChanged, id)
			wantState(t, b.d, id, driver.Running)
		}},
		{"Events_EndWithTheirContext", func(t testing.TB, b *bench) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ch, err := b.d.Events(ctx)
			must(t, "Events", err)
			cancel()
			wantClosed(t, ch)
		}},
		{"Events_EndWithTheDriver", func(t testing.TB, b *bench) {
			d := b.New(t)
			ch, err := d.Events(context.Background())
			must(t, "Events", err)
			must(t, "Close", d.Close())
			wantClosed(t, ch)
			_, err = d.Events(context.Background())
			wantKind(t, "Events after Close", err, fault.Unavailable)
		}},
		{"Events_ASlowReaderBlocksNobody", func(t testing.TB, b *bench) {
			slow, fast := b.events(t), b.events(t)
			id := b.running(t)
			// Events may come long after their calls; when the fast reader has the
			// last of them, the slow one's have all been there. On a busy machine it
			// may be slow too, and does what it is then told to: it looks.
			last := make(chan struct{})
			ctx := within(t)
			go func() {
				defer close(last)
				for e := range fast {
					if e.Kind == driver.EventStopped && e.UUID == id {
						return
					}
					if e.Kind == driver.EventResync {
						if v, err := b.d.Domain(ctx, id); err == nil && !v.Active() {
							return
						}
					}
				}
			}()
			for range 150 {
				must(t, "Suspend", b.d.Suspend(within(t), id))
				must(t, "Resume", b.d.Resume(within(t), id))
			}
			must(t, "Destroy", b.d.Destroy(within(t), id))
			select {
			case <-last:
			case <-time.After(patience(t)):
				t.Fatal("a reader that is fast did not get the last event")
			}
			// 300 events were not read: the reader is told to read everything again.
			await(t, slow, driver.EventResync, "")
		}},
	}
}

func wantClosed[E any](t testing.TB, ch <-chan E) {
	t.Helper()
	timeout := time.After(patience(t))
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the channel was not closed")
		}
	}
}

func outages() []property {
	return []property{
		{"Restart_ReconnectsAndResyncs", func(t testing.TB, b *bench) {
			id := b.running(t)
			ch := b.events(t)
			b.Restart(t)
			await(t, ch, driver.EventResync, "")
			eventually(t, "Health", func() bool { return b.d.Health() == nil })
			wantState(t, b.d, id, driver.Running)
			must(t, "Suspend", b.d.Suspend(within(t), id))
			await(t, ch, driver.EventSuspended, id)
		}},
		{"Hang_CostsADeadlineAndNoMore", func(t testing.TB, b *bench) {
			id := b.guest(t)
			release := b.Hang(t)
			released := false
			defer func() {
				if !released {
					release()
				}
			}()
			short := func() context.Context {
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				t.Cleanup(cancel)
				return ctx
			}
			began := time.Now()
			_, err := b.d.Domains(short())
			wantKind(t, "Domains", err, fault.Unavailable)
			_, err = b.d.Domain(short(), id)
			wantKind(t, "Domain", err, fault.Unavailable)
			// Whether the daemon got the order is not known, unless it could not be given.
			wantEither(t, "Start", b.d.Start(short(), id, false), fault.InDoubt, fault.Unavailable)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("three calls of 300 ms took %v", took)
			}
			release()
			released = true
			eventually(t, "an answer", func() bool { _, err := b.d.Domain(within(t), id); return err == nil })
		}},
		{"Hang_IsSeenByHealth", func(t testing.TB, b *bench) {
			eventually(t, "Health", func() bool { return b.d.Health() == nil })
			release := b.Hang(t)
			eventually(t, "Health of a hung daemon", func() bool { return errors.Is(b.d.Health(), fault.Unavailable) })
			release()
			eventually(t, "Health", func() bool { return b.d.Health() == nil })
		}},
	}
}
