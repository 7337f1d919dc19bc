package conductor_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

var (
	larger = migration.Change{Flavor: &topology.Flavor{Name: "m2", VCPUs: wantedSize.VCPUs, MemoryMB: wantedSize.MemoryMB, DiskGB: wantedSize.DiskGB}}
	image  = migration.Change{Image: &migration.Image{Path: "/images/b.qcow2"}}

	reverted = []migration.Outcome{migration.OutcomeReverted}

	cold    = conductor.Request{Type: migration.TypeMigration}
	resize  = conductor.Request{Type: migration.TypeResize, Change: larger}
	rebuild = conductor.Request{Type: migration.TypeRebuild, Change: image}

	// By host c, of a guest on host a.
	apartCold   = conductor.Request{Type: migration.TypeMigration, Source: "a", ShareNothing: true}
	apartResize = conductor.Request{Type: migration.TypeResize, Change: larger, Source: "a", ShareNothing: true}
	three       = []string{"a", "b", "c"}
	four        = []string{"a", "b", "c", "d"}
)

// to names alternates.
func to(r conductor.Request, alternates ...string) conductor.Request {
	r.Alternates = alternates
	return r
}

// coldScenarios are the ways of moves and changes of guests that are off; faults are laid
// over each.
var coldScenarios = []struct {
	name   string
	script script
	power  migration.PowerState // of the guest; running where empty
	full   bool                 // its own host has no room for more
}{
	{name: "migrate, confirm", script: script{request: cold, words: []string{"confirm"}, want: completed}},
	{name: "resize to a named host, confirm", script: script{request: resize, named: "b", words: []string{"confirm"}, want: completed}},
	{name: "resize, its own host is full", script: script{request: resize, hosts: []string{"a", "b", "c"}, refuse: []string{"b"}, words: []string{"confirm"}, want: completed}, full: true},
	{name: "resize, its own host has lost its room", script: script{request: resize, refuse: []string{"a"}, words: []string{"confirm"}, want: completed}},
	{name: "migrate, revert", script: script{request: cold, words: []string{"revert"}, want: reverted}},
	{name: "resize elsewhere, revert", script: script{request: resize, named: "b", words: []string{"revert"}, want: reverted}, power: migration.PowerPaused},
	{name: "migrate, revert fails, confirm", script: script{request: cold, words: []string{"revert", "confirm"}, spoilt: true, want: completed}},
	{name: "migrate one that is off, revert", script: script{request: cold, words: []string{"revert"}, want: reverted}, power: migration.PowerShutOff},
	{name: "migrate, hook fails", script: script{request: cold, hookFails: true, want: undone}},
	{name: "migrate, the guest cannot live there", script: script{request: cold, unfit: true, want: undone}},
	{name: "migrate, nobody says a word", script: script{request: cold, rests: true}},
	{name: "resize in place, confirm", script: script{request: resize, words: []string{"confirm"}, want: completed}},
	{name: "resize in place, revert", script: script{request: resize, named: "a", words: []string{"revert"}, want: reverted}},
	{name: "resize in place one that is off, revert", script: script{request: resize, words: []string{"revert"}, want: reverted}, power: migration.PowerShutOff},
	{name: "resize in place, the guest cannot live so", script: script{request: resize, unfit: true, want: undone}},
	{name: "resize in place, hook fails", script: script{request: resize, hookFails: true, want: undone}},
	{name: "rebuild", script: script{request: rebuild, want: completed}},
	{name: "rebuild one that is paused", script: script{request: rebuild, want: completed}, power: migration.PowerPaused},
	{name: "rebuild, the guest cannot live so", script: script{request: rebuild, unfit: true, want: undone}},
	{name: "apart, by relay, confirm", script: script{request: apartResize, named: "b", hosts: three, local: "c", apart: true, words: []string{"confirm"}, want: completed}},
	{name: "apart, straight, revert", script: script{request: apartResize, named: "b", hosts: three, local: "c", words: []string{"revert"}, want: reverted}},
	{name: "apart, an alternate takes it", script: script{request: to(apartCold, "d"), named: "b", hosts: four, local: "c", apart: true, refuse: []string{"b"}, words: []string{"confirm"}, want: completed}},
	{name: "apart, the guest cannot live there", script: script{request: apartCold, named: "b", hosts: three, local: "c", apart: true, unfit: true, want: undone}, power: migration.PowerPaused},
	{name: "apart, conducted by its source, revert fails, confirm", script: script{request: apartCold, named: "b", stays: true, words: []string{"revert", "confirm"}, want: completed}},
}

// playCold runs one of them once.
func playCold(t testing.TB, i int, seed uint64, f faults) (*world, migration.Migration) {
	sc := coldScenarios[i]
	w := newWorld(t, seed, sc.script, f)
	if sc.power != "" {
		w.power = sc.power
		*w.hosts["a"].domain = simDomain{string(sc.power), "user"}
	}
	if sc.full {
		w.hosts["a"].capacity = guestSize
	}
	if len(f.crash)+len(f.answers)+len(f.requests)+len(f.fails)+len(f.breaks) > 0 || f.chance > 0 {
		w.script.want = nil
	}
	if f.mutate != nil {
		w.mutate = func(*world) conductor.Mutation { return f.mutate }
	}
	if (len(f.fails)+len(f.breaks) > 0 || f.chance > 0) && len(sc.script.words) > 0 {
		w.script.words = append(slices.Clone(sc.script.words), "confirm") // where the first word comes to nothing
	}
	if f.embedded {
		w.embedded = newEmbedded(t, w)
	}
	return w, w.run()
}

func TestCold_ScenariosEndAsTheyShould(t *testing.T) {
	for i, sc := range coldScenarios {
		t.Run(sc.name, func(t *testing.T) {
			w, m := playCold(t, i, 1, faults{})
			if w.accepted != nil {
				t.Fatalf("not accepted: %v", w.accepted)
			}
			w.report(sc.name)
			t.Logf("%s/%s attempt %d at %s, %d points, %s", m.Status, m.Outcome, m.Attempt, m.DestCompute, w.points, w.sim.Elapsed())
		})
	}
}

// TestCold_EveryCrashPoint stops the conductor's process at every journal write and before
// and after every verb and every write to Placement, of every scenario, and starts it
// again.
func TestCold_EveryCrashPoint(t *testing.T) {
	runs := 0
	for i, sc := range coldScenarios {
		reference, _ := playCold(t, i, 1, faults{})
		for point := i % stride; point < reference.points; point += stride {
			w, _ := playCold(t, i, 1, faults{crash: map[int]bool{point: true}})
			w.report(fmt.Sprintf("%s: crash at point %d (%s)", sc.name, point, reference.trace[point]))
			runs++
		}
	}
	t.Logf("%d crash points of %d scenarios", runs, len(coldScenarios))
}

// TestCold_EveryLostMessage loses every request, to arrive late, every answer, and every
// write of the store.
func TestCold_EveryLostMessage(t *testing.T) {
	runs := 0
	for i, sc := range coldScenarios {
		reference, _ := playCold(t, i, 1, faults{})
		for point, what := range reference.trace {
			if point%stride != i%stride {
				continue
			}
			one := map[int]bool{point: true}
			kinds := map[string]faults{"answer": {answers: one}}
			if strings.HasPrefix(what, "before ") && !strings.Contains(what, " journal ") && !strings.Contains(what, " delete ") {
				kinds["request"] = faults{requests: one}
			}
			for kind, f := range kinds {
				w, _ := playCold(t, i, 1, f)
				w.report(fmt.Sprintf("%s: %s lost at point %d (%s)", sc.name, kind, point, what))
				runs++
			}
		}
	}
	t.Logf("%d lost messages of %d scenarios", runs, len(coldScenarios))
}

// TestCold_EveryFailedVerb lets every verb fail, without its effect and with it, and what
// is retried until it is done fail for a while.
func TestCold_EveryFailedVerb(t *testing.T) {
	runs := 0
	for i, sc := range coldScenarios {
		reference, _ := playCold(t, i, 1, faults{})
		verbs := map[string]bool{}
		for _, what := range reference.trace {
			if verb, ok := strings.CutPrefix(what, "before "); ok && strings.Contains(verb, " on ") {
				verbs[verb] = true
			}
		}
		for n, verb := range slices.Sorted(maps.Keys(verbs)) {
			if n%min(stride, 21) != i%min(stride, 21) || sc.script.spoilt && verb == "FinishResize on b" {
				continue // the second can neither stay there nor go back: in doubt, and tested below
			}
			for _, f := range []faults{{fails: map[string]int{verb: 5}}, {breaks: map[string]int{verb: 5}}} {
				w, m := playCold(t, i, 1, f)
				w.report(fmt.Sprintf("%s: %s fails, with effect %v", sc.name, verb, f.breaks != nil))
				if m.Outcome == migration.OutcomeNone && m.Stage != migration.StageFinished {
					t.Errorf("%s: %s fails: not over", sc.name, verb)
				}
				runs++
			}
		}
	}
	t.Logf("%d failed verbs of %d scenarios", runs, len(coldScenarios))
}

// TestCold_AbortAtEveryMoment gives moves and reverts up at moments all along their way.
func TestCold_AbortAtEveryMoment(t *testing.T) {
	ended := map[migration.Status]int{}
	givenUp := 0 // reverts
	for _, sc := range coldScenarios {
		if sc.power != "" || sc.script.rests || sc.script.unfit || sc.script.hookFails {
			continue
		}
		for d := 50 * time.Millisecond; d < 6*time.Second; d += 70 * time.Millisecond * time.Duration(min(stride, 20)) {
			w := newWorld(t, 1, sc.script, faults{})
			w.script.want, w.script.abortAfter, w.latency = nil, d, 60*time.Millisecond
			w.script.words = append(slices.Clone(sc.script.words), "confirm")
			if sc.full {
				w.hosts["a"].capacity = guestSize
			}
			m := w.run()
			w.report(fmt.Sprintf("%s: abort after %s", sc.name, d))
			if ended[m.Status]++; m.Status == migration.StatusConfirmed && len(sc.script.words) == 1 && sc.script.words[0] == "revert" {
				givenUp++
			}
		}
	}
	t.Logf("%v, %d reverts given up", ended, givenUp)
	if stride == 1 && (ended[migration.StatusCancelled] == 0 || givenUp == 0) {
		t.Errorf("ended %v, %d reverts given up; want some of each", ended, givenUp)
	}
}

// TestCold_SeveralFaultsTogether lays crashes and lost messages over each scenario by
// chance.
func TestCold_SeveralFaultsTogether(t *testing.T) {
	for seed := range uint64(20) {
		for i, sc := range coldScenarios {
			if (int(seed)+i)%min(stride, 25) != 0 {
				continue
			}
			w, _ := playCold(t, i, seed, faults{chance: 0.1, budget: 6})
			w.report(fmt.Sprintf("%s, seed %d", sc.name, seed))
		}
	}
}
