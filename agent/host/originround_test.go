package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/witness"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// slowPlacement answers after a while; 0 for never.
type slowPlacement struct {
	Placement
	Moved
	after time.Duration
	asked int
}

func (p *slowPlacement) SettledElsewhere(ctx context.Context, _, _ string) (bool, error) {
	p.asked++
	answer := time.After(p.after)
	if p.after == 0 {
		answer = nil
	}
	select {
	case <-answer:
		return false, nil
	case <-ctx.Done():
		return false, fault.New(fault.Unavailable, "no answer")
	}
}

func (p *slowPlacement) CountedHere(context.Context, string) (bool, error) { return true, nil }

// TestOriginRound_PlacementSilentOrSlow_IsBounded: the agent is ready only after the round, whatever
// the number of instances, and its service manager waits no longer than two minutes.
func TestOriginRound_PlacementSilentOrSlow_IsBounded(t *testing.T) {
	for name, after := range map[string]time.Duration{"silent": 0, "slow": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &slowPlacement{after: after}
				h := &Host{o: Options{Placement: p}, rt: &runtime.System{}}
				began := time.Now()
				round, end := newOriginRound(t.Context(), h.rt, askOwners)
				defer end()
				answered := 0
				for range 24 {
					if originCounted(h, pendingArrival{}, round) == witness.CountedHere {
						answered++
					}
				}
				if took := time.Since(began); took > askOwners+allocationPatience {
					t.Errorf("it took %v", took)
				}
				if after == 0 && p.asked != 1 || after > 0 && answered == 0 {
					t.Errorf("asked %d times, answered %d times", p.asked, answered)
				}
			})
		})
	}
}
