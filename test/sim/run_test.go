package sim_test

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"berth/test/sim"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1600) // runs are short and their memory is small
	goleak.VerifyTestMain(m)
}

// stories are those of which make check breaks every point.
var stories = []string{"named", "copied disk", "second candidate", "aborted", "aborted while it leaves"}

// coldStories are those of which it breaks every fourth.
var coldStories = []string{
	"resize, local disk, running, confirm", "resize, shared disk, running, revert", "resize in place, local disk, running, revert",
	"rebuild, local disk, running", "resize, cannot start there",
}

const thin = 4

// report fails the test with what a person needs to understand a run.
func report(t *testing.T, s sim.Summary) {
	t.Helper()
	t.Log(s)
	for i, r := range s.Failed {
		if i == 5 {
			t.Errorf("and %d more", s.Violations-i)
			break
		}
		t.Errorf("seed %d, %s (make sim SEED=%d RUNS=1 VERBOSE=1):\n  %s", r.Seed, r.Story, r.Seed, strings.Join(r.Violations, "\n  "))
	}
}

func TestStories_EndAsTheyShould(t *testing.T) {
	for _, s := range sim.Stories() {
		t.Run(s.Name, func(t *testing.T) {
			r := sim.Run(sim.Options{Seed: 1, Story: s, KeepPoints: true, KeepTrace: true})
			t.Logf("%d points, %d turns, %s, %v", r.Points, r.Turns, r.Elapsed, r.Outcomes)
			if len(r.Violations) > 0 {
				t.Errorf("%s\n%s", strings.Join(r.Violations, "\n"), r.Trace)
			}
		})
	}
}

// TestEveryPoint_AgentDies stops the agent that acts at every point of the main
// stories; the others, and the other ways in which something breaks, are left to make
// sim EVERY=1.
func TestEveryPoint_AgentDies(t *testing.T) {
	cases := slices.DeleteFunc(sim.Cases(sim.Hows()[:1]), func(c sim.Case) bool {
		return !slices.Contains(stories, c.Story.Name) && !(slices.Contains(coldStories, c.Story.Name) && c.At%thin == 0)
	})
	t.Logf("%d points of %d stories", len(cases), len(stories)+len(coldStories))
	report(t, sim.Many(len(cases)/few, 0, func(i int) sim.Options { return cases[i*few].Options() }, nil))
}

func TestRandom_RunsHoldTheLaws(t *testing.T) {
	report(t, sim.Many(1500/few, 0, func(i int) sim.Options { return sim.Options{Seed: uint64(i) + 1, Chaos: true} }, nil))
}

// patience is how many runs may pass without noticing a mutant that is not rare.
const patience = 100

// TestMutants_AreNoticed breaks what runs must notice soon; the rare ones are left to
// make sim.
func TestMutants_AreNoticed(t *testing.T) {
	if few > 1 {
		return // a mutant is none the better noticed under the race detector
	}
	if n := len(sim.Mutants()); n < 15 {
		t.Errorf("%d mutants, want 15 at least", n)
	}
	for _, m := range sim.Mutants() {
		if m.Rare {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			n := sim.Needed(&m, 1, patience, 0)
			if n == 0 {
				t.Errorf("%d runs did not notice: %s", patience, m.What)
			}
			t.Logf("noticed by run %d", n)
		})
	}
}

func TestRun_OneSeedIsOneRun(t *testing.T) {
	play := func(workers int) sim.Summary {
		return sim.Many(20, workers, func(i int) sim.Options { return sim.Options{Seed: uint64(i) + 500, Chaos: true} }, nil)
	}
	if a, b := play(1), play(3); a.String() != b.String() {
		t.Errorf("the same seeds gave two ends:\n%s\n%s", a, b)
	}
}
