package host_test

import (
	"fmt"
	"testing"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
)

// saying is an operator's word.
func saying(at string, gone ...string) migration.Settlement {
	return migration.Settlement{GuestIsAt: at, Gone: gone, Why: "the rack burned", By: "alice"}
}

// counted is what both consumers of the move hold, by provider.
func (s *silenced) counted() map[string][]string {
	out := map[string][]string{}
	for consumer, a := range s.placement.all() {
		for rp := range a.Allocations {
			out[consumer] = append(out[consumer], rp)
		}
	}
	return out
}

func (s *silenced) countedAt(provider string) {
	s.t.Helper()
	got := s.counted()
	if len(got) != 1 || len(got[s.ref.Instance]) != 1 || got[s.ref.Instance][0] != provider {
		s.t.Errorf("Placement has %v, want the guest on %s and nothing else", got, provider)
	}
}

// finished brings the guest to b, shown there.
func (s *silenced) finished() {
	s.t.Helper()
	s.run(s.steps(), "")
	s.must("show", operation.ShowInstance.Ask(s.t.Context(), s.b, s.ref))
	s.must("hide", operation.HideInstance.Ask(s.t.Context(), s.a, s.ref))
}

// TestSettleApart_BothDecisionsAtBothHosts, at each stage of a move whose conductor is gone:
// the guest is where the operator has said, once, counted there, and nothing of the move is
// left on either host.
func TestSettleApart_BothDecisionsAtBothHosts(t *testing.T) {
	for _, last := range []string{"power off", "ship disks", "hand over", "accept handed", "finished", "await return"} {
		for _, at := range []string{"a", "b"} {
			if at == "b" && last == "power off" {
				continue // its disks have not come
			}
			t.Run(last+", at "+at, func(t *testing.T) {
				t.Parallel()
				s := newSilenced(t)
				ctx := t.Context()
				switch s.finished(); last {
				case "finished":
				case "await return":
					back := s.ref
					back.Attempt++
					s.must("await the return", operation.AwaitReturn.Ask(ctx, s.a, back))
				default:
					s = newSilenced(t)
					s.run(s.steps(), last)
				}
				first, second := s.a, s.b // who gives away is told first
				if at == "a" {
					first, second = s.b, s.a
				}
				if (last == "finished" || last == "await return") && at == "a" {
					s.must("end it there", s.b.fake.Destroy(ctx, s.ref.Instance)) // nothing where it does not run
				}
				for _, n := range []*node{first, second} {
					_, err := n.SettleApart(ctx, s.ref.Migration, saying(at, "a", "b", "c"))
					s.wantKind("a word that names the host itself", err, fault.Forbidden)
					other := map[string]string{"a": "b", "b": "a"}[n.name]
					for range 2 { // the first time its answer was lost
						_, err = n.SettleApart(ctx, s.ref.Migration, saying(at, other, "c"))
						s.must("settle at "+n.name, err)
					}
				}
				want, flavor := s.a, small
				if at == "b" {
					want, flavor = s.b, large
				}
				s.follows("the guest to run", s.is(want, driver.Running), s.a, s.b)
				inst, _ := want.tracker.Instance(s.ref.Instance)
				s.lives(want, driver.Running, flavor, inst.Token.Epoch)
				if n := s.fleet.RunningCopies(s.ref.Instance); n != 1 {
					t.Errorf("%d copies run", n)
				}
				s.countedAt("rp-" + at)
				p := s.picture()
				for _, key := range []string{"a contexts", "b contexts", "a memories", "b memories", first.name + " instances", first.name + " claims", first.name + " domains"} {
					if p[key] != nil {
						t.Errorf("%s: %v", key, p[key])
					}
				}
				if len(s.b.tracker.Copies())+len(s.a.tracker.HiddenInstances())+len(s.b.tracker.HiddenInstances()) != 0 {
					t.Error("a copy, or a hidden record, is left")
				}
			})
		}
	}
}

// TestSettleApart_RefusesWithEveryReason what the facts contradict.
func TestSettleApart_RefusesWithEveryReason(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	ctx := t.Context()
	s.run(s.steps(), "ship disks")
	try := func(n *node, w migration.Settlement) []string {
		t.Helper()
		_, err := n.SettleApart(ctx, s.ref.Migration, w)
		if err == nil {
			t.Fatalf("at %s %+v was taken", n.name, w)
		}
		return codes(err)
	}
	for name, tt := range map[string]struct {
		n    *node
		w    migration.Settlement
		want string
	}{
		"a third host":                {s.a, saying("c", "c"), "[not_a_party]"},
		"the conductor is not named":  {s.a, saying("a"), "[conductor_not_named]"},
		"somebody else is":            {s.a, saying("a", "c", "d"), "[not_a_party]"},
		"neither of the two is named": {s.b, saying("b"), "[conductor_not_named other_not_named]"},
	} {
		if got := fmt.Sprint(try(tt.n, tt.w)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	s.must("power on", operation.PowerOn.Ask(ctx, s.a, s.ref))
	if got := fmt.Sprint(try(s.a, saying("b", "c"))); got != "[runs_here]" {
		t.Errorf("it runs here: %s", got)
	}
	s.must("keep", operation.KeepGuest.Ask(ctx, s.a, s.ref))
	s.must("end", s.a.fake.Destroy(ctx, s.ref.Instance))
	if got := fmt.Sprint(try(s.a, saying("b", "c"))); got != "[source_keeps]" {
		t.Errorf("it was refused: %s", got)
	}
	s.answers(func(migration.Ref) (migration.AttemptFate, error) {
		return migration.AttemptFate{Fate: migration.FateGoing, Why: "it works"}, nil
	})
	if got := fmt.Sprint(try(s.a, saying("a", "c"))); got != "[conductor_answers]" {
		t.Errorf("its conductor answers: %s", got)
	}
	_, err := s.a.SettleApart(ctx, "99999999-9999-4999-8999-999999999999", saying("a", "c"))
	s.wantKind("an unknown one", err, fault.NotFound)
}

// TestSettleApart_GoesOnAcrossRestarts kills the host at each of its commits while it does
// what an operator has said, with Placement away at first: all of it is done in the end.
func TestSettleApart_GoesOnAcrossRestarts(t *testing.T) {
	for _, at := range []string{"a", "b"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			for nth, reached := 1, true; reached; nth += 2 {
				reached = false
				s := newSilenced(t)
				ctx := t.Context()
				s.run(s.steps(), "hand over")
				n, word := s.hosts[at], saying(at, map[string]string{"a": "b", "b": "a"}[at], "c")
				count := 0
				n.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
					if count++; count == nth {
						reached = true
						return storetest.FailWritten
					}
					return storetest.Commit
				})
				_, err := n.SettleApart(ctx, s.ref.Migration, word)
				n.store.OnCommit(nil)
				s.boots(at, longSilence)
				n = s.hosts[at]
				if _, said := n.tracker.Word(s.ref.Migration); !said || err != nil && nth <= 2 {
					_, err = n.SettleApart(ctx, s.ref.Migration, word) // whoever got no answer says it again
					s.must("settle again", err)
				}
				s.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
				s.follows("the guest to run", s.is(n, driver.Running), n)
				s.placement.breakWith(nil)
				s.follows("nothing to be left to do", func() bool { p := s.picture(); return p[at+" memories"] == nil && p[at+" contexts"] == nil }, n)
				s.countedAt("rp-" + at)
				inst, _ := n.tracker.Instance(s.ref.Instance)
				if inst.Token.State != claims.TokenHere || inst.Hidden {
					t.Errorf("commit %d: record %+v", nth, inst)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}
