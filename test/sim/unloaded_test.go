package sim

import (
	"strings"
	"testing"

	"berth/driver"
)

// TestUnloaded_HostThatBelievesTheList_IsNoticed is a mutant in the stories of definitions that
// were not loaded: one that releases on libvirt's list alone.
func TestUnloaded_HostThatBelievesTheList_IsNoticed(t *testing.T) {
	m := Mutant{Name: "list-believed", What: "what libvirt does not list was undefined",
		Calls: func(_ *agent, l libvirt) driver.Driver { return believesList{l} }}
	for _, s := range unloadedStories() {
		if r := Run(Options{Seed: 1, Story: s}); len(r.Violations) > 0 {
			t.Errorf("%s: %s\n%s", s.Name, strings.Join(r.Violations, "\n"), r.Trace)
		}
		r := Run(Options{Seed: 1, Story: s, Mutant: &m})
		if !strings.Contains(strings.Join(r.Violations, "\n"), "and its claim was released") {
			t.Errorf("%s: the mutant is not noticed: %v", s.Name, r.Violations)
		}
	}
}
