package drivertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
)

// trickle is a migration that waits for post-copy: it cannot end by itself.
func (l *lab) trickle() {
	l.m.Paused, l.m.PostCopy = false, true
	l.m.Bandwidth, l.m.MaxDowntime, l.m.PostCopyBandwidth = 1<<20, time.Millisecond, 10<<20
	l.migrate()
	l.wait(time.Second)
	if err := l.a.StartPostCopy(context.Background(), labGuest); err != nil {
		l.t.Error(err)
	}
	l.wait(time.Second)
	l.want("in post-copy", halves)
}

const (
	halves     = "paused (post-copy) running (post-copy)"
	halfBroken = "paused (post-copy failed) running (post-copy)"
	allBroken  = "paused (post-copy failed) running (post-copy failed)"
	whole      = "shut off (migrated) running (migrated)"
)

// A link that is cut tells nobody. Only when both ends of the connection are closed it can
// be made again, and only where there is a way.
func TestFleet_ACutPostCopyIsRecoveredWhenBothEndsKnow(t *testing.T) {
	inLab(t, never, func(l *lab) {
		ctx := context.Background()
		recoverIt := func() error { return l.a.RecoverPostCopy(ctx, labGuest, l.m) }
		doubt := func(what string) {
			t.Helper()
			if err := recoverIt(); !errors.Is(err, fault.InDoubt) {
				t.Errorf("%s: %v, want in doubt", what, err)
			}
		}
		l.trickle()
		l.CutData("a", "b")
		l.wait(5 * time.Minute)
		l.want("nobody notices", halves)
		if l.over {
			t.Errorf("Migrate ended: %v", l.err)
		}
		if err := recoverIt(); !errors.Is(err, fault.Busy) {
			t.Errorf("recovered while in flight: %v, want busy", err)
		}
		if err := l.a.FailPostCopy(ctx, labGuest); err != nil {
			t.Fatal(err)
		}
		l.wait(time.Second)
		l.want("the source was told", halfBroken)
		if err := recoverIt(); l.over || !errors.Is(err, fault.Busy) {
			t.Errorf("the destination does not know: %v, and Migrate is over: %v", err, l.over)
		}
		l.BreakPostCopy(labGuest)
		l.want("both know", allBroken)
		l.wait(time.Second)
		l.ended(fault.InDoubt, 5*time.Minute+4*time.Second)
		doubt("there is no way")
		l.CutManagement("a", "b")
		doubt("the destination's libvirt is not reached")
		l.HealManagement("a", "b")
		l.HealData("a", "b")
		l.a.KillDaemon()
		if err := l.a.StartDaemon(); err != nil {
			t.Fatal(err)
		}
		l.want("a new libvirtd finds it as it was", allBroken)
		if err := recoverIt(); err != nil {
			t.Fatal(err)
		}
		l.want("recovered", whole)
		if bad := l.Violations(); len(bad) > 0 {
			t.Errorf("violations %q", bad)
		}
	})
}

func TestFleet_ARecoveredPostCopyBreaksAgain(t *testing.T) {
	inLab(t, never, func(l *lab) {
		ctx := context.Background()
		l.trickle()
		for range 3 {
			l.BreakPostCopy(labGuest)
			l.want("broken", allBroken)
			over := false
			l.p.Go("recover", func() {
				err := l.a.RecoverPostCopy(ctx, labGuest, l.m)
				if over = true; err != nil && !errors.Is(err, fault.InDoubt) {
					t.Errorf("RecoverPostCopy: %v", err)
				}
			})
			l.wait(time.Second)
			l.want("recovered", halves)
			if j, err := l.a.Job(ctx, labGuest); err != nil || !j.InFlight() || j.PageRequests == 0 || over {
				t.Errorf("job %+v, %v, and the call is over: %v", j, err, over)
			}
		}
		before, _ := l.a.Job(ctx, labGuest)
		if err := l.a.SetBandwidth(ctx, labGuest, 0); err != nil {
			t.Error(err)
		}
		l.wait(time.Minute)
		l.want("the end", whole)
		if j, err := l.a.CompletedJob(ctx, labGuest); err != nil || j.MemoryProcessed <= before.MemoryProcessed {
			t.Errorf("completed job %+v, %v, want more sent than before, %d", j, err, before.MemoryProcessed)
		}
		if err := l.a.RecoverPostCopy(ctx, labGuest, l.m); !errors.Is(err, fault.Invalid) {
			t.Errorf("what is over: %v, want invalid", err)
		}
	})
}

// A guest that outruns its link converges where it is slowed down, and not else; what is
// told of it on the way is what a controller goes by.
func TestFleet_TellsHowAJobConverges(t *testing.T) {
	series := func(t *testing.T, pace drivertest.Pace, m func(*driver.Migration)) (jobs []driver.Job, over bool) {
		inLab(t, pace, func(l *lab) {
			m(&l.m)
			l.migrate()
			for range 60 {
				l.wait(time.Second)
				if j, err := l.a.Job(context.Background(), labGuest); err == nil && j.InFlight() && j.Iteration > 0 {
					jobs = append(jobs, j)
				}
			}
			over = l.over
		})
		return jobs, over
	}
	pace := never
	pace.WorkingSet = 64 << 20
	t.Run("a guest that is left alone", func(t *testing.T) {
		jobs, over := series(t, pace, func(*driver.Migration) {})
		last := jobs[len(jobs)-1]
		if over || last.Iteration < 10 || last.DirtyRate != pace.DirtyRate || last.MemoryRemaining == 0 || last.Throttle != 0 {
			t.Errorf("over %v; its last job %+v", over, last)
		}
		if want := time.Duration(float64(pace.WorkingSet) / float64(pace.Rate) * float64(time.Second)); last.Downtime != want {
			t.Errorf("expected downtime %v, want %v", last.Downtime, want)
		}
		if jobs[0].DirtyRate != 0 {
			t.Errorf("a dirty rate of %d in the first pass, which nobody can know", jobs[0].DirtyRate)
		}
	})
	t.Run("one that is slowed down", func(t *testing.T) {
		jobs, over := series(t, pace, func(m *driver.Migration) {
			m.AutoConverge, m.Throttle = true, driver.Throttle{Initial: 30, Increment: 30}
		})
		last := jobs[len(jobs)-1]
		if !over || last.Throttle < 60 || last.DirtyRate >= pace.DirtyRate {
			t.Errorf("over %v; its last job %+v", over, last)
		}
	})
}
