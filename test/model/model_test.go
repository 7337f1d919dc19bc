package model

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A mutant that no model knows is the model itself, and is never caught; one that no
// check names is never run.
func TestChecks_NameEveryMutantOfTheModels(t *testing.T) {
	macro := regexp.MustCompile(`M_([A-Z_]+)`)
	for _, name := range []string{"move", "ledger", "cold", "apart", "evacuation"} {
		text, err := sources.ReadFile(name + ".pml")
		if err != nil {
			t.Fatal(err)
		}
		inModel, inChecks := map[string]bool{}, map[string]bool{}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") {
				continue
			}
			for _, m := range macro.FindAllStringSubmatch(line, -1) {
				inModel[m[1]] = true
			}
		}
		for _, c := range Mutants() {
			if c.Model == name {
				inChecks[c.Name] = true
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(inModel)), slices.Sorted(maps.Keys(inChecks))); diff != "" {
			t.Errorf("mutants of %s.pml (-model +checks):\n%s", name, diff)
		}
	}
}

func TestChecks_EveryLawHasAModelAndAMutant(t *testing.T) {
	models, caught := map[int]bool{}, map[int]bool{}
	names := map[string]bool{}
	for _, c := range (Runner{}).Checks() {
		if names[c.Name] {
			t.Errorf("two checks are called %s", c.Name)
		}
		names[c.Name] = true
		for _, n := range c.laws() {
			if c.Mutant {
				caught[n] = true
			} else {
				models[n] = true
			}
		}
	}
	for _, l := range Laws {
		if !models[l.Number] || !caught[l.Number] {
			t.Errorf("law %s: in a model: %v, caught by a mutant: %v", lawName(l.Number), models[l.Number], caught[l.Number])
		}
	}
}

func TestResult_AnIncompleteSearchShowsNothing(t *testing.T) {
	const found = "State-vector 108 byte, depth reached 12, errors: 1\n     7 states, stored\nWarning: Search not completed\n"
	const held = "State-vector 108 byte, depth reached 12, errors: 0\n     7 states, stored\n"
	for _, tt := range []struct {
		name, out  string
		broken, ok bool
	}{
		{"holds", held, false, true},
		{"found", found, true, true},
		{"cut off", "error: max search depth too small\n" + held, false, false},
		{"nothing", "", false, false},
	} {
		var r Result
		err := r.read([]byte(tt.out))
		if r.Broken != tt.broken || (err == nil) != tt.ok {
			t.Errorf("%s: broken %v, error %v", tt.name, r.Broken, err)
		}
	}
}

func TestWords_SayWhatNumbersStandFor(t *testing.T) {
	out := "ltl settles: <> (quiet)\n              source: journal: {step 6} begins\n<<<<<START OF CYCLE>>>>>\n\t** a late {verb abort_} of attempt 1 lands\nspin: trail ends after 12 steps\n#processes: 6\n"
	want := []string{"source: journal: commit begins", "and from here on for ever:", "** a late abort of attempt 1 lands"}
	if diff := cmp.Diff(want, words([]byte(out))); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}
