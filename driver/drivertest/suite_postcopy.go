package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

func postCopies() []property {
	return []property{
		migration("PostCopy_RunsAtTheDestination", func(t testing.TB, v *move) {
			poster := found(t, v.Source, driver.PostCopy)
			v.m.PostCopy, v.m.Paused = true, false
			done, _ := v.begin(t)
			must(t, "StartPostCopy", poster.StartPostCopy(within(t), v.id))
			eventually(t, "the guest to run there", func() bool {
				d, err := v.Destination.Domain(within(t), v.id)
				return err == nil && d.State == driver.Running
			})
			if d := domainOf(t, v.Source, v.id); d.State == driver.Running {
				t.Errorf("the guest runs there, and here it is %s (%s)", d.State, d.Reason)
			}
			v.Fast()
			must(t, "Migrate", v.end(t, done))
			if d := wantState(t, v.Source, v.id, driver.ShutOff); d.Reason != driver.ReasonMigrated {
				t.Errorf("source is %+v, want shut off (migrated)", d)
			}
			wantState(t, v.Destination, v.id, driver.Running)
		}),
		migration("PostCopy_NeedsAMigrationThatPermitsIt", func(t testing.TB, v *move) {
			poster := found(t, v.Source, driver.PostCopy)
			wantKind(t, "StartPostCopy without a job", poster.StartPostCopy(within(t), v.id), fault.Invalid)
			done, _ := v.begin(t)
			wantKind(t, "StartPostCopy of a job that does not permit it", poster.StartPostCopy(within(t), v.id), fault.Invalid)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
		}),
		migration("PostCopy_ExcludesPaused", func(t testing.TB, v *move) {
			found(t, v.Source, driver.PostCopy)
			v.m.PostCopy, v.m.Paused = true, true
			wantKind(t, "Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Invalid)
			v.wantBack(t)
		}),
		migration("PostCopy_UnknownIsNotFound", func(t testing.TB, v *move) {
			poster := found(t, v.Source, driver.PostCopy)
			wantKind(t, "StartPostCopy", poster.StartPostCopy(within(t), uuid.NewString()), fault.NotFound)
		}),
		migrationOf("Recovery_GoesOnAfterABreak", heavy, func(t testing.TB, v *move) {
			recoverer := found(t, v.Source, driver.PostCopyRecovery)
			done := v.postCopied(t)
			for again := range 2 { // what broke once may break again
				if again > 0 {
					must(t, "FailPostCopy", recoverer.FailPostCopy(within(t), v.id))
				}
				v.Break(t, v.id)
				wantKind(t, "the broken call", v.end(t, done), fault.InDoubt)
				v.broken(t, v.Source)
				// A job is there still, for who recovers it.
				if j, err := v.src.Job(within(t), v.id); err != nil || !j.InFlight() {
					t.Errorf("job %+v, %v, want it in flight", j, err)
				}
				if again == 0 { // one that went on may not be called that again: see driver.PostCopyRecoverer
					v.broken(t, v.Destination)
				}
				wantState(t, v.Destination, v.id, driver.Running)
				done = v.recovered(t, recoverer)
			}
			must(t, "SetBandwidth in post-copy", v.src.SetBandwidth(within(t), v.id, 0))
			v.m.PostCopyBandwidth = 0 // nor has the next call a bound
			for times := 0; !v.over(t, v.end(t, done)); times++ {
				if times == 10 {
					t.Fatal("post-copy does not come to its end")
				}
				done = v.recovered(t, recoverer)
			}
			if d := wantState(t, v.Source, v.id, driver.ShutOff); d.Reason != driver.ReasonMigrated {
				t.Errorf("source is %+v, want shut off (migrated)", d)
			}
			eventually(t, "the guest to be whole there", func() bool {
				d := domainOf(t, v.Destination, v.id)
				return d.State == driver.Running && d.Reason == driver.ReasonMigrated && d.Persistent
			})
		}),
		migration("Recovery_FailsWhatIsDeadByOrder", func(t testing.TB, v *move) {
			recoverer := found(t, v.Source, driver.PostCopyRecovery)
			done := v.trickle(t)
			wantKind(t, "RecoverPostCopy of one in flight", recoverer.RecoverPostCopy(within(t), v.id, v.m), fault.Busy)
			for range 2 {
				must(t, "FailPostCopy", recoverer.FailPostCopy(within(t), v.id))
				if d := domainOf(t, v.Source, v.id); d.State != driver.Paused || d.Reason != driver.ReasonPostCopyFailed {
					t.Errorf("source is %s (%s), want paused (post-copy failed)", d.State, d.Reason)
				}
			}
			// The destination's end is closed too, now or by the one who forwards it.
			v.Break(t, v.id)
			v.broken(t, v.Destination)
			wantKind(t, "the broken call", v.end(t, done), fault.InDoubt)
		}),
		migration("Recovery_NeedsABrokenPostCopy", func(t testing.TB, v *move) {
			recoverer := found(t, v.Source, driver.PostCopyRecovery)
			m := v.m
			m.PostCopy, m.Paused = true, false
			wantKind(t, "FailPostCopy without a job", recoverer.FailPostCopy(within(t), v.id), fault.Invalid)
			wantKind(t, "RecoverPostCopy without a job", recoverer.RecoverPostCopy(within(t), v.id, m), fault.Invalid)
			done, _ := v.begin(t)
			wantKind(t, "FailPostCopy before post-copy", recoverer.FailPostCopy(within(t), v.id), fault.Invalid)
			wantKind(t, "RecoverPostCopy before post-copy", recoverer.RecoverPostCopy(within(t), v.id, m), fault.Busy)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
		}),
		migration("Recovery_UnknownIsNotFound", func(t testing.TB, v *move) {
			recoverer := found(t, v.Source, driver.PostCopyRecovery)
			m := v.m
			m.PostCopy, m.Paused = true, false
			wantKind(t, "FailPostCopy", recoverer.FailPostCopy(within(t), uuid.NewString()), fault.NotFound)
			wantKind(t, "RecoverPostCopy", recoverer.RecoverPostCopy(within(t), uuid.NewString(), m), fault.NotFound)
		}),
	}
}

func heavy(_ testing.TB, _ *bench, p Pair, name, id string) string { return p.HeavyXML(name, id) }

// postCopied is a guest that has run at the destination for a while, while most of its
// memory is still here, and comes through sockets.
func (v *move) postCopied(t testing.TB) (done <-chan error) {
	t.Helper()
	name := domainOf(t, v.Source, v.id).Name
	v.Filled(t, name)
	done = v.trickle(t)
	v.Warm(t, name)
	return done
}

// trickle sends a guest by post-copy, so slowly that it ends neither before nor soon after.
func (v *move) trickle(t testing.TB) (done <-chan error) {
	t.Helper()
	poster := found(t, v.Source, driver.PostCopy)
	v.Forward(t, v.id, &v.m)
	v.m.PostCopy, v.m.Paused = true, false
	v.m.Bandwidth, v.m.MaxDowntime, v.m.PostCopyBandwidth = 1<<20, time.Millisecond, 1<<20
	v.Fast() // its bounds alone make it last
	done, _ = v.start(t)
	must(t, "StartPostCopy", poster.StartPostCopy(within(t), v.id))
	v.inPostCopy(t)
	return done
}

// inPostCopy waits until the guest runs there.
func (v *move) inPostCopy(t testing.TB) {
	t.Helper()
	eventually(t, "post-copy", func() bool { return v.isInPostCopy(t) })
}

func (v *move) isInPostCopy(t testing.TB) bool {
	t.Helper()
	a, b := domainOf(t, v.Source, v.id), domainOf(t, v.Destination, v.id)
	return a.State == driver.Paused && a.Reason == driver.ReasonPostCopy && b.State == driver.Running && b.Reason == driver.ReasonPostCopy
}

// recovered goes on with a post-copy that broke, as often as the hypervisor says that it is
// in doubt, and returns when it goes on, or is over.
func (v *move) recovered(t testing.TB, recoverer driver.PostCopyRecoverer) (done <-chan error) {
	t.Helper()
	attempt := func() <-chan error {
		ch := make(chan error, 1)
		go func() { ch <- recoverer.RecoverPostCopy(context.Background(), v.id, v.m) }()
		return ch
	}
	current := attempt()
	eventually(t, "post-copy to go on", func() bool {
		select {
		case err := <-current:
			if v.over(t, err) {
				over := make(chan error, 1)
				over <- nil
				current = over
				return true
			}
			current = attempt()
		default:
		}
		return v.isInPostCopy(t)
	})
	return current
}

// over reports what a call came to that went on with a post-copy: false where it broke again.
// Then its connections are ended: one that the hypervisor has given up may be in use, and bring
// it to its end.
func (v *move) over(t testing.TB, err error) bool {
	t.Helper()
	if err == nil {
		return true
	}
	v.Break(t, v.id)
	if v.broken(t, v.Source).HasLeft() {
		return true
	}
	wantKind(t, "RecoverPostCopy", err, fault.InDoubt)
	return false
}

// broken waits until one side has noticed that its post-copy broke, or the guest has left it.
func (v *move) broken(t testing.TB, d driver.Driver) (dom driver.Domain) {
	t.Helper()
	eventually(t, "post-copy failed", func() bool {
		dom = domainOf(t, d, v.id)
		return dom.Reason == driver.ReasonPostCopyFailed || dom.HasLeft()
	})
	return dom
}
