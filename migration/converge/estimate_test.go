package converge

import (
	"math"
	"testing"
	"time"
)

// at is the first look at or after a time.
func at(looks []look, t time.Duration) look {
	for _, l := range looks {
		if l.x.Elapsed >= t {
			return l
		}
	}
	return looks[len(looks)-1]
}

// near reports whether two numbers differ by a tenth at most.
func near[T ~int64 | ~uint64 | ~float64](a, b T) bool {
	return math.Abs(float64(a)-float64(b)) <= math.Abs(float64(b))/10
}

func TestSee_EstimatesHowItGoesOn(t *testing.T) {
	plan := Plan{MaxDowntime: 500 * time.Millisecond}
	for _, told := range []bool{false, true} {
		// 8 MiB/s of 20: each pass leaves two fifths of the one before it.
		j := steady(100, 8)
		j.told = told
		looks := play(j, plan, quarter, time.Minute)
		end := looks[len(looks)-1].x.Elapsed
		if l := at(looks, time.Second); l.est != (Estimate{}) {
			t.Errorf("before the first byte: %+v", l.est)
		}
		if l := at(looks, 4*time.Second); l.est.Never || !near(l.est.Remaining, 3900*time.Millisecond) || l.est.Downtime != 0 {
			t.Errorf("in the first pass: %+v", l.est)
		}
		l := at(looks, 9*time.Second)
		if !near(l.est.Rate, 20*mib) || !near(l.est.DirtyRate, 8*mib) || l.est.Never || l.est.Stalls != 0 {
			t.Errorf("in the second pass: %+v", l.est)
		}
		if want := end - l.x.Elapsed; l.est.Remaining < want/2 || l.est.Remaining > want*2 {
			t.Errorf("%s before its end it is to last %s", want, l.est.Remaining)
		}
		// 49 MiB, which changed in the first, and 8 that it had left.
		if !near(l.est.Downtime, 2850*time.Millisecond) {
			t.Errorf("downtime %s", l.est.Downtime)
		}

		j = steady(64, 60)
		j.told = told
		l = at(play(j, plan, quarter, 30*time.Second), 25*time.Second)
		if !l.est.Never || l.est.Remaining != 0 || l.est.Stalls < 3 || !near(l.est.Downtime, 3200*time.Millisecond) {
			t.Errorf("one that does not converge: %+v", l.est)
		}
	}
}

func TestSee_OneThatFitsEndsThoughItChangesFaster(t *testing.T) {
	// 4 MiB are written again and again at 60 MiB/s; 500 ms have room for 10 of 20.
	var s State
	var e Estimate
	for i, x := range []Sample{
		{At: 1 * time.Second, Phase: "memory", Iteration: 1, MemoryTotal: 128 * mib, MemoryProcessed: 0, MemoryRemaining: 128 * mib},
		{At: 7 * time.Second, Phase: "memory", Iteration: 1, MemoryTotal: 128 * mib, MemoryProcessed: 116 * mib, MemoryRemaining: 12 * mib},
		{At: 7250 * time.Millisecond, Phase: "memory", Iteration: 2, MemoryTotal: 128 * mib, MemoryProcessed: 121 * mib, MemoryRemaining: 4 * mib, DirtyRate: 60 * mib},
	} {
		if s, _, e = s.See(x, Plan{MaxDowntime: 500 * time.Millisecond}); i == 2 && (e.Never || e.Remaining == 0 || e.Remaining > time.Second) {
			t.Errorf("%+v", e)
		}
	}
}

func TestSee_EstimatesAGuestThatStandsStill(t *testing.T) {
	j := steady(64, 60)
	looks := play(j, Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineSuspend, UnderReported: true}, quarter, time.Minute)
	// What it wrote in the pass in which it was stopped counts before it is found; how much of it
	// was the same memory again is not known.
	first := at(looks, 20*time.Second+quarter)
	if took := looks[len(looks)-1].x.Elapsed - first.x.Elapsed; !first.x.Suspended || first.est.Remaining < took*3/4 || first.est.Remaining > took*5/4 {
		t.Errorf("it took %s, and was to take %s", took, first.est.Remaining)
	}
	l := looks[len(looks)-3]
	left := span(float64(l.x.MemoryRemaining), 20*mib)
	if !l.x.Suspended || l.est.Never || l.est.DirtyRate != 0 || !near(l.est.Remaining, left) || l.est.Downtime != l.est.Remaining || !l.est.Unreliable {
		t.Errorf("%s left: %+v", left, l.est)
	}
}

func TestSee_DisksAreCountedWhileTheyAreCopied(t *testing.T) {
	j := &job{total: 128 * mib, disk: 400 * mib, dirty: writes(0, 0), link: always(20 * mib)}
	l := at(play(j, Plan{}, quarter, time.Minute), 10*time.Second)
	if l.x.Phase != "disk" || !near(l.est.Rate, 20*mib) || !near(l.est.Remaining, 10*time.Second) || l.est.Never {
		t.Errorf("%+v: %+v", l.x, l.est)
	}
}

func TestState_WithDowntimeCountsForWhatHelps(t *testing.T) {
	p := Plan{Schedule: schedule(t, "2:max-downtime=2s, 3:abort")}
	var s State
	s = s.WithDowntime(5 * time.Second)
	j := steady(64, 60)
	j.ceiling = 100 * time.Millisecond // of which the state knows nothing: the job goes on
	for range 200 {
		var due []Action
		s, due, _ = s.See(j.sample(), p)
		for _, a := range due {
			if a.Do == ActDowntime {
				t.Fatalf("5s are allowed, and then: %+v", a)
			}
		}
		j.run(quarter)
	}
}
