package sim

import (
	"slices"
	"strings"
	"testing"

	"berth/migration"
)

// TestHostile_HostThatIsNoParty_ChangesNothing plays the stories of a hostile host, and the mutants
// of hosts and of a store of records that let it do what it asks for.
func TestHostile_HostThatIsNoParty_ChangesNothing(t *testing.T) {
	mutants := []Mutant{
		{Name: "party-not-checked", What: "a host does what any host with a good certificate asks for", NoParty: true},
		{Name: "writer-not-checked", What: "the fleet's records are written by whoever asks", NoPermit: true},
	}
	noticed := map[string]bool{}
	for _, s := range hostileStories() {
		completed := 0
		for seed := range uint64(6) {
			r := Run(Options{Seed: 1 + seed, Story: s, KeepTrace: true})
			if len(r.Violations) > 0 {
				t.Errorf("%s, seed %d: %s\n%s", s.Name, 1+seed, strings.Join(r.Violations, "\n"), r.Trace)
			}
			if len(r.Outcomes) > 0 && slices.Contains([]migration.Outcome{migration.OutcomeCompleted, migration.OutcomeReverted}, r.Outcomes[0]) {
				completed++
			}
		}
		if len(s.Moves) > 0 && completed == 0 {
			t.Errorf("%s: no move comes to its end beside the hostile host", s.Name)
		}
		for _, m := range mutants {
			r := Run(Options{Seed: 1, Story: s, Mutant: &m})
			noticed[m.Name] = noticed[m.Name] || len(r.Violations) > 0
		}
	}
	for _, m := range mutants {
		if !noticed[m.Name] {
			t.Errorf("not noticed: %s", m.What)
		}
	}
}
