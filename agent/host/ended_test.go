package host_test

import (
	"testing"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// ended brings the move to where its conductor has asked the last verb of its hosts, and has
// nothing left to do but to write to Placement: the guest is at b, or at a again.
func (s *silenced) ended(at string) {
	s.t.Helper()
	s.finished()
	if at == "a" {
		s.run(s.returning(), "")
	} else {
		s.run(s.confirm(), "")
	}
	if got := s.counted(); len(got) != 2 {
		s.t.Fatalf("Placement has %v, want both consumers", got)
	}
}

// TestEnded_IsCountedWithoutItsConductor: where the last step of a move is not done, and its
// conductor is silent for too long or said to be gone, the host that has the guest does it.
// While it answers it does it itself.
func TestEnded_IsCountedWithoutItsConductor(t *testing.T) {
	for _, at := range []string{"a", "b"} {
		for _, how := range []string{"silence", "word", "deleted"} {
			t.Run(how+", at "+at, func(t *testing.T) {
				t.Parallel()
				s := newSilenced(t)
				ctx := t.Context()
				s.ended(at)
				n := s.hosts[at]
				uncounted := func() bool { return len(n.Uncounted()) == 1 }
				s.follows("a look at Placement", uncounted, n)
				s.answers(func(migration.Ref) (migration.AttemptFate, error) {
					return migration.AttemptFate{Fate: migration.FateUnknown}, nil
				})
				if how == "word" {
					_, err := n.SettleApart(ctx, s.ref.Migration, saying(at, "c"))
					s.wantKind("a word while the conductor answers", err, fault.Forbidden)
				} else {
					s.boots(at, noPatience)
					n = s.hosts[at]
					s.follows("to say that it waits", func() bool { return len(n.Waiting()) == 1 }, n)
				}
				if got := s.counted(); len(got) != 2 {
					t.Errorf("while its conductor answers Placement has come to have %v", got)
				}
				s.answers(nil)
				switch how {
				case "word":
					_, err := n.SettleApart(ctx, s.ref.Migration, saying("elsewhere"))
					s.wantKind("a word that names neither host nor conductor", err, fault.Forbidden)
					for range 2 { // the first time its answer was lost
						_, err = n.SettleApart(ctx, s.ref.Migration, saying(at, "c"))
						s.must("settle", err)
					}
				case "deleted":
					s.must("destroy", n.fake.Destroy(ctx, s.ref.Instance))
					for _, c := range n.tracker.ByInstance(s.ref.Instance) {
						s.must("release", n.tracker.Release(ctx, c.Owner))
					}
					s.must("delete", n.tracker.DeleteInstance(ctx, s.ref.Instance))
				}
				s.follows("the migration to hold nothing", func() bool { return len(s.counted()) == 1 && len(n.Waiting())+len(n.Uncounted()) == 0 }, n)
				if how != "deleted" {
					s.countedAt("rp-" + at)
					s.state(at, s.ref.Instance, driver.Running)
				}
			})
		}
	}
}

// TestEnded_ForgetsWhatWasCutOff: a verb that was to forget the move at its very end, and
// whose conductor does not repeat it.
func TestEnded_ForgetsWhatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.ended("b")
	left := map[*node]migration.Ref{
		s.a: {Migration: s.ref.Migration, Instance: s.ref.Instance, Attempt: 1, Step: "powered_off"},
		s.b: {Migration: s.ref.Migration, Instance: s.ref.Instance, Attempt: 1, Step: "prepared_cold"},
	}
	for n, ref := range left {
		s.must("remember", n.tracker.Remember(t.Context(), ref, map[string]bool{"finished": true}))
	}
	s.follows("nothing to be remembered", func() bool {
		p := s.picture()
		return p["a memories"] == nil && p["b memories"] == nil
	}, s.a, s.b)
}

// TestEnded_ACountedGuestThatNeverCame: the lease of its claim is over, and its source knows
// nothing of the move; the destination counts it back, and only while it is counted there.
func TestEnded_ACountedGuestThatNeverCame(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	ctx := t.Context()
	_, err := operation.Claim.Ask(ctx, s.b, s.ref, migration.ClaimRequest{Guest: s.guest, Context: s.conducted(), Lease: time.Nanosecond, Kind: s.kind()})
	s.must("claim", err)
	for _, one := range s.steps() {
		if one.name == "swap" {
			s.must("swap", one.do())
		}
	}
	s.boots("b", noPatience)
	waitFor(t, "the lease to be over", func() bool {
		_, err := s.b.tracker.Expire(ctx)
		s.must("expire", err)
		return len(s.b.tracker.List()) == 0
	})
	_, err = s.b.SettleApart(ctx, s.ref.Migration, saying("b", "c"))
	s.wantKind("a word that it is where it never came", err, fault.Forbidden)
	s.follows("the guest to be counted where it is", func() bool { return len(s.counted()) == 1 }, s.b)
	s.countedAt("rp-a")
}
