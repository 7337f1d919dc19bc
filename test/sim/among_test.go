package sim

import (
	"strings"
	"testing"
)

// TestMutants_AreNoticedInTheirStories plays the stories of mutants that are looked for in some alone:
// without the mutant nothing is violated there, and with it one story notices.
func TestMutants_AreNoticedInTheirStories(t *testing.T) {
	for _, m := range Mutants() {
		if m.Among == nil {
			continue
		}
		var by []string
		for _, s := range m.Among() {
			if r := Run(Options{Seed: 1, Story: s}); len(r.Violations) > 0 {
				t.Errorf("%s: %s", s.Name, strings.Join(r.Violations, "\n"))
			}
			if r := Run(Options{Seed: 1, Story: s, Mutant: &m}); len(r.Violations) > 0 {
				by = append(by, s.Name+": "+r.Violations[0])
			}
		}
		t.Logf("%s:\n  %s", m.Name, strings.Join(by, "\n  "))
		if len(by) == 0 {
			t.Errorf("no story notices %s: %s", m.Name, m.What)
		}
	}
}
