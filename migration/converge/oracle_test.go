package converge

import (
	"math/rand/v2"
	"testing"
	"time"
)

// steadily is a job by chance whose guest writes as fast all the time, over a link that wobbles:
// clearly slower than that or clearly faster.
func steadily(seed uint64) *job {
	r := rand.New(rand.NewPCG(seed, 2))
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	speed, total, wobble := between(10, 120), between(64, 1024), between(0, 0.4)
	noise := rand.New(rand.NewPCG(r.Uint64(), 0))
	part := between(0, 1.5)
	if part > 0.85 {
		part += 0.25
	}
	rate := part * speed * (1 - wobble/2)
	return &job{
		total: total * mib, setup: time.Duration(between(0, 2.5) * 1e9), told: r.IntN(2) == 0, dirty: writes(between(1, total), rate),
		link: func(time.Duration) float64 { return speed * mib * (1 - wobble*noise.Float64()) },
	}
}

// TestSee_AgainstWhoKnowsTheFuture: of guests that do what they do all the time none is given up
// that comes to its end by itself, and each that does not, after some passes.
func TestSee_AgainstWhoKnowsTheFuture(t *testing.T) {
	const most, slow = 5 * time.Minute, 12
	var ended, gone int
	p := Plan{Schedule: schedule(t, "3:abort")}
	for seed := range uint64(150) {
		future, j := steadily(seed), steadily(seed)
		play(future, Plan{}, quarter, most)
		looks := play(j, p, quarter, most)
		last := looks[len(looks)-1]
		switch {
		case future.ended:
			if ended++; !j.ended {
				t.Errorf("seed %d: %s, and it would have ended at %s by itself", seed, told(looks), future.at)
			}
		case j.aborted:
			gone++
		case last.s.passes >= slow && last.s.row > 3:
			t.Errorf("seed %d: nothing is done after %d passes: %s", seed, last.s.passes, last.s.situation())
		}
	}
	if t.Logf("%d ended, %d were given up", ended, gone); ended < 50 || gone < 30 {
		t.Error("that proves nothing")
	}
}
