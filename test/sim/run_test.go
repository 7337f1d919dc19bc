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

// stories are those of which make test breaks every point, make check every fourth.
var stories = []string{"named", "copied disk", "second candidate", "aborted", "aborted while it leaves"}

// coldStories are those of which a fourth of that is broken.
var coldStories = []string{
	"resize, local disk, running, confirm", "resize, shared disk, running, revert", "resize in place, local disk, running, revert",
	"rebuild, local disk, running", "resize, cannot start there", "share nothing, resize, local disk, running, revert",
	"post-copy, its connection is reset", "queue, one leaves at a time",
	"evacuation, shared disk, comes back", "evacuation, disk made anew", "evacuation, cut off, fences itself", "evacuation, cut off, and a wrong word",
}

const thin = 4

// less is by how much less is played: in make check, and under the race detector.
func less() int {
	if testing.Short() {
		return max(few, 4)
	}
	return few
}

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
	report(t, sim.Many(len(cases)/less(), 0, func(i int) sim.Options { return cases[i*less()].Options() }, nil))
}

// TestEveryWriteOfADrain_AgentDies stops the agent before and after everything that it writes of
// a drain of which one guest is refused, and of one that is aborted.
func TestEveryWriteOfADrain_AgentDies(t *testing.T) {
	drains := slices.DeleteFunc(sim.Stories(), func(s *sim.Story) bool {
		return !slices.Contains([]string{"drain, one is refused", "drain, aborted"}, s.Name)
	})
	cases := slices.DeleteFunc(sim.CasesOf(drains, sim.Hows()[:1]), func(c sim.Case) bool {
		return !strings.Contains(c.Place.What, " drains/") && !strings.Contains(c.Place.What, " door/")
	})
	if len(cases) < 40 {
		t.Errorf("%d writes of drains: a drain writes less than it did", len(cases))
	}
	report(t, sim.Many(len(cases), 0, func(i int) sim.Options { return cases[i].Options() }, nil))
}

func TestRandom_RunsHoldTheLaws(t *testing.T) {
	report(t, sim.Many(1500/less(), 0, func(i int) sim.Options { return sim.Options{Seed: uint64(i) + 1, Chaos: true} }, nil))
}

// patience is how many runs may pass without noticing a mutant that is not rare. Most are noticed
// by one of the first ten; which one changes with every draw that the runs get.
const patience = 300

// TestMutants_AreNoticed breaks what runs must notice soon; the rare ones are left to
// make sim.
func TestMutants_AreNoticed(t *testing.T) {
	if few > 1 {
		return // a mutant is none the better noticed under the race detector
	}
	if n := len(sim.Mutants()); n < 15 {
		t.Errorf("%d mutants, want 15 at least", n)
	}
	for i, m := range sim.Mutants() {
		if m.Rare || testing.Short() && i%less() != 0 {
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
