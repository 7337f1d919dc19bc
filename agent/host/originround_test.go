package host

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/witness"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
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

// TestNextInTurn_OfMoreThanARound_EachHasATurn: those whose hosts answer late keep none from theirs.
func TestNextInTurn_OfMoreThanARound_EachHasATurn(t *testing.T) {
	uuids := []string{"a", "b", "c", "d", "e"}
	seen, last := map[string]int{}, ""
	for range 5 {
		turn := nextInTurn(uuids, last, 2)
		if len(turn) != 2 {
			t.Fatalf("a round of %v", turn)
		}
		for _, id := range turn {
			seen[id]++
			last = id
		}
	}
	for _, id := range uuids {
		if seen[id] != 2 {
			t.Errorf("%s had %d turns of ten for five", id, seen[id])
		}
	}
	if got := nextInTurn(uuids, "bb", 9); !slices.Equal(got, []string{"c", "d", "e", "a", "b"}) {
		t.Errorf("after one that waits no more: %v", got)
	}
	if got := nextInTurn(nil, "c", 2); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}

// fateAnswer is a host of which every question is answered so.
type fateAnswer struct {
	migration.Side
	err   error
	asked int
}

func (f *fateAnswer) AttemptFate(context.Context, migration.Ref) (migration.AttemptFate, error) {
	f.asked++
	return migration.AttemptFate{}, f.err
}

// TestOriginRound_AnAnswerThatDoesNotHelp_KeepsNoOtherFromItsQuestion: the first instance of a host
// may be one of which it will not speak, in every round.
func TestOriginRound_AnAnswerThatDoesNotHelp_KeepsNoOtherFromItsQuestion(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want int
	}{
		"it knows no such migration": {fault.New(fault.NotFound, "no such migration"), 3},
		"it refuses":                 {fault.New(fault.Forbidden, "not a party"), 3},
		"it has failed":              {fault.New(fault.Internal, "its ledger is damaged"), 3},
		"it does not answer":         {fault.New(fault.Unavailable, "no route to host"), 1},
		"its answer is lost":         {fault.New(fault.InDoubt, "the connection broke"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			there := &fateAnswer{err: tt.err}
			h := &Host{rt: &runtime.System{}, o: Options{Side: func(context.Context, string) (migration.Side, error) { return there, nil }}}
			round, end := newOriginRound(t.Context(), h.rt, askOwners)
			defer end()
			for range 3 {
				if got := round.ask(h, pendingArrival{source: "host-b"}); got != nil {
					t.Errorf("said %+v", got)
				}
			}
			if there.asked != tt.want {
				t.Errorf("asked %d times, want %d", there.asked, tt.want)
			}
		})
	}
}
