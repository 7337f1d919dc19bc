package conductor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/migration/options"
)

var (
	completed = []migration.Outcome{migration.OutcomeCompleted}
	undone    = []migration.Outcome{migration.OutcomeUndone}
	refused   = []migration.Outcome{migration.OutcomeRefused}
)

// scenarios are the ways a live migration can go by itself; crashes and lost
// messages are laid over each.
var scenarios = []struct {
	name   string
	script script
	paused bool // by the guest's user
	gone   bool // a transient domain
}{
	{name: "completes", script: script{want: completed}},
	{name: "completes, named destination", script: script{named: "b", want: completed}},
	{name: "completes, guest paused by its user", script: script{want: completed}, paused: true},
	{name: "completes, transient domain", script: script{want: completed}, gone: true},
	{name: "second candidate takes it", script: script{hosts: []string{"a", "b", "c"}, refuse: []string{"b"}, want: completed}},
	{name: "all refuse", script: script{hosts: []string{"a", "b", "c"}, refuse: []string{"b", "c"}, want: refused}},
	{name: "hook fails", script: script{hookFails: true, want: undone}},
	{name: "link cut", script: script{stallAt: 3, want: undone}},
	{name: "timeout", script: script{options: migration.Options{Timeout: 4 * time.Second, TimeoutAction: "abort"}, want: undone}},
	{name: "destination QEMU dies", script: script{failAt: 4, want: undone}},
	{name: "guest crashes", script: script{crashAt: 4, want: undone}},
	{name: "transient guest crashes", script: script{crashAt: 4, want: undone}, gone: true},
	{name: "libvirtd forgets why the guest is off", script: script{forgets: true, want: completed}},
	{name: "reply to Finish lost", script: script{finishLost: true, want: undone}},
	{name: "reply to Finish lost, guest paused", script: script{finishLost: true, want: undone}, paused: true},
	{name: "aborted in the stream", script: script{abortAfter: 5 * time.Second, want: undone}},
	{name: "aborted near the end", script: script{abortAfter: 9540 * time.Millisecond}},
	{name: "destination unreachable for a while", script: script{failAt: 2, cut: map[string][2]time.Duration{"b": {2 * time.Second, 40 * time.Second}}, want: undone}},
	{name: "destination unreachable at the commit", script: script{cut: map[string][2]time.Duration{"b": {5 * time.Second, 90 * time.Second}}, want: completed}},
	{name: "aborted while the source's libvirtd is silent", script: script{abortAfter: 9300 * time.Millisecond, deaf: [2]time.Duration{9200 * time.Millisecond, time.Minute}, want: completed}},
	{name: "post-copy by schedule", script: script{options: postCopyAfterStalls, busy: true, want: completed}},
	{name: "post-copy because somebody forces it, transient domain", script: script{options: postCopyPermitted, busy: true, forceAfter: 5 * time.Second, want: completed}, gone: true},
	{name: "post-copy that breaks", script: script{options: postCopyAfterStalls, busy: true, breakAt: 2, brokenFor: 20 * time.Second, want: completed}},
	{name: "post-copy that does not begin", script: script{options: postCopyAfterStalls, busy: true, secondFails: true, want: undone}},
	{name: "post-copy permitted, and not needed", script: script{options: postCopyPermitted, want: completed}},
	{name: "suspended because somebody forces it", script: script{busy: true, forceAfter: 5 * time.Second, want: completed}},
	{name: "source's libvirtd silent for a while", script: script{deaf: [2]time.Duration{4 * time.Second, 90 * time.Second}, want: completed}},
}

var (
	postCopyPermitted   = migration.Options{PostCopy: options.On}
	postCopyAfterStalls = migration.Options{PostCopy: options.On, Schedule: "2:post-copy"}
)

// play runs one scenario once.
func play(t testing.TB, i int, seed uint64, f faults, prepare func(*world)) (*world, migration.Migration) {
	sc := scenarios[i]
	w := newWorld(t, seed, sc.script, f)
	if sc.paused {
		w.power = migration.PowerPaused
		*w.hosts["a"].domain = simDomain{"paused", "user"}
	}
	w.transient = sc.gone
	if len(f.crash)+len(f.answers)+len(f.requests) > 0 || f.chance > 0 {
		// A restart or a lost answer may turn a success into an honest undo.
		w.script.want = nil
	}
	if prepare != nil {
		prepare(w)
	}
	return w, w.run()
}

func TestLive_ScenariosEndAsTheyShould(t *testing.T) {
	for i, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			w, m := play(t, i, 1, faults{}, nil)
			if w.accepted != nil {
				t.Fatalf("not accepted: %v", w.accepted)
			}
			w.report(sc.name)
			t.Logf("%s/%s attempt %d, %d points, %s, hand-over %s", m.Status, m.Outcome, m.Attempt, w.points, w.sim.Elapsed(), m.HandoverDowntime)
		})
	}
}

// TestLive_EveryCrashPoint stops the conductor's process at every journal write
// and before and after every verb and every write to Placement, of every
// scenario, and starts it again.
func TestLive_EveryCrashPoint(t *testing.T) {
	runs := 0
	for i, sc := range scenarios {
		reference, _ := play(t, i, 1, faults{}, nil)
		for point := i % stride; point < reference.points; point += stride {
			w, _ := play(t, i, 1, faults{crash: map[int]bool{point: true}}, nil)
			w.report(fmt.Sprintf("%s: crash at point %d (%s)", sc.name, point, reference.trace[point]))
			runs++
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d crash points of %d scenarios", runs, len(scenarios))
}

// TestLive_EveryLostMessage loses every request, to arrive late, and every
// answer.
func TestLive_EveryLostMessage(t *testing.T) {
	runs := 0
	for i, sc := range scenarios {
		reference, _ := play(t, i, 1, faults{}, nil)
		for point, what := range reference.trace {
			if point%stride != i%stride || !strings.HasPrefix(what, "before ") || strings.Contains(what, "journal") || strings.Contains(what, "delete ") && !strings.Contains(what, "allocations") {
				continue
			}
			one := map[int]bool{point: true}
			for _, f := range []faults{{requests: one}, {answers: one}} {
				w, _ := play(t, i, 1, f, nil)
				w.report(fmt.Sprintf("%s: message lost at point %d (%s), request %v", sc.name, point, reference.trace[point], f.requests != nil))
				runs++
				if t.Failed() {
					return
				}
			}
		}
	}
	t.Logf("%d lost messages of %d scenarios", runs, len(scenarios))
}

// TestLive_EveryFailedJournalWrite lets every write and deletion of the store fail
// once, without having happened, and having happened all the same. Nothing of it stays.
func TestLive_EveryFailedJournalWrite(t *testing.T) {
	runs := 0
	for i, sc := range scenarios {
		reference, _ := play(t, i, 1, faults{}, nil)
		for point, what := range reference.trace {
			deletes := strings.Contains(what, " delete ")
			if point%stride != i%stride || !deletes && !strings.Contains(what, " journal ") {
				continue
			}
			w, _ := play(t, i, 1, faults{answers: map[int]bool{point: true}}, nil)
			w.report(fmt.Sprintf("%s: journal write failed at point %d (%s)", sc.name, point, what))
			runs++
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d failed writes of %d scenarios", runs, len(scenarios))
}

// TestLive_AbortAtEveryMomentOfTheHandOver aborts in steps of 2 ms around the
// end of the stream: the guest must end up in one place, and both ends occur.
func TestLive_AbortAtEveryMomentOfTheHandOver(t *testing.T) {
	outcomes := map[migration.Outcome]int{}
	for d := 9480 * time.Millisecond; d < 9640*time.Millisecond; d += 2 * time.Millisecond * time.Duration(min(stride, 5)) {
		w := newWorld(t, uint64(d), script{abortAfter: d}, faults{})
		w.latency = 3 * time.Millisecond
		m := w.run()
		w.report(fmt.Sprintf("abort at %s", d))
		outcomes[m.Outcome]++
		if (m.Status == migration.StatusCancelled) != (m.Outcome == migration.OutcomeUndone) {
			t.Errorf("abort at %s: status %s, outcome %s", d, m.Status, m.Outcome)
		}
	}
	if outcomes[migration.OutcomeCompleted] == 0 || outcomes[migration.OutcomeUndone] == 0 {
		t.Errorf("outcomes %v, want both", outcomes)
	}
}

// TestSimulation_OneSeedReplaysExactly keeps failures reproducible.
func TestSimulation_OneSeedReplaysExactly(t *testing.T) {
	for seed := uint64(0); seed < 20; seed += uint64(min(stride, 5)) {
		a, _ := play(t, int(seed)%len(scenarios), seed, faults{chance: 0.08, budget: 6}, nil)
		b, _ := play(t, int(seed)%len(scenarios), seed, faults{chance: 0.08, budget: 6}, nil)
		if !slices.Equal(a.trace, b.trace) || a.sim.Elapsed() != b.sim.Elapsed() {
			t.Errorf("seed %d gave two runs:\n%v\n%v", seed, a.trace, b.trace)
		}
	}
}
