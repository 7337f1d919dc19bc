package sim

import (
	"strings"
	"testing"

	"berth/migration"
	"berth/migration/conductor"
)

// A conductor that was taken over brings commits that nobody wrote, and each is refused: what
// the hosts check is what keeps the laws, not that conductors are honest.
func TestForgedCommits_AreRefused(t *testing.T) {
	m := Mutant{Apart: true, Verbs: over(func(v verbs) migration.Host { return forger{v} })}
	for seed := range uint64(20) {
		if r := Run(Options{Seed: seed + 1, Chaos: true, Mutant: &m}); len(r.Violations) > 0 {
			t.Errorf("seed %d:\n  %s", r.Seed, strings.Join(r.Violations, "\n  "))
		}
	}
}

// A destination that refuses at any task before the hand-over is followed by the next, and a
// move of which nobody is the next leaves its guest where it was.
func TestApart_TheNextDestinationTakesTheGuest(t *testing.T) {
	for _, next := range []bool{true, false} {
		asked := 0
		for _, st := range conductor.Stories() {
			if st.Name != "share-nothing-migration" {
				continue
			}
			for _, step := range st.Steps {
				if step.Forward || step.Asks != "destination" {
					continue
				}
				asked++
				s := StoriesOf(st.Name)[0]
				if !next {
					s.Moves[0].Alternates = nil
				}
				r := Run(Options{Seed: 1, Story: s, Spoil: &Spoil{Step: step.Name, Way: FailBefore, In: PartOf(st.Name)}})
				// Disks that break off once go on; else nobody is left to take the guest.
				completes := next || step.Name == migration.StepShipDisks
				if len(r.Violations) > 0 || !r.Spoiled || len(r.Outcomes) != 1 || (r.Outcomes[0] == migration.OutcomeCompleted) != completes {
					t.Errorf("%s, another host is there: %v: ended %v\n%s", step.Name, next, r.Outcomes, strings.Join(r.Violations, "\n"))
				}
			}
		}
		if asked < 4 {
			t.Errorf("%d steps ask a destination before the hand-over", asked)
		}
	}
}
