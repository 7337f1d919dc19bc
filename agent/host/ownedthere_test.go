package host_test

import (
	"testing"

	"berth/claims"
	"berth/migration"
)

// TestSilence_AnOldSealProvesNoHigherEpoch: the source has sealed that the token is there
// before it handed it over, and a conductor that kept that says so with a higher epoch.
func TestSilence_AnOldSealProvesNoHigherEpoch(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "accept handed")
	old := migration.Commit{Instance: s.ref.Instance, Migration: s.ref.Migration, Attempt: s.ref.Attempt, Epoch: 1, From: "a", To: "a"}
	seal, err := s.seals["a"].Seal(old)
	s.must("seal", err)
	old.Seal = seal
	s.answers(func(migration.Ref) (migration.AttemptFate, error) {
		return migration.AttemptFate{Fate: migration.FateKept, Why: "it is back", Epoch: 9, Holder: "a", Commit: &old}, nil
	})
	s.boots("b", longSilence)
	s.follows("the destination to doubt it, or to give way", func() bool {
		inst, known := s.b.tracker.Instance(s.ref.Instance)
		return len(s.b.Waiting()) == 1 || !known || inst.Token.State != claims.TokenHere
	}, s.b)
	if inst, known := s.b.tracker.Instance(s.ref.Instance); !known || inst.Token.State != claims.TokenHere {
		t.Errorf("it gave way by an old seal: %+v", inst.Token)
	}
}
