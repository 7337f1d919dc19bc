package conductor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
)

var (
	lost        = conductor.Request{Type: migration.TypeEvacuation}
	lostStopped = conductor.Request{Type: migration.TypeEvacuation, Stopped: true}
	lostData    = conductor.Request{Type: migration.TypeEvacuation, AcceptLoss: true}
)

// otherUUID is of another migration of the same guest.
const otherUUID = "33333333-3333-4333-8333-333333333333"

// evacuations are the ways of evacuations; faults are laid over each. Host a is dead, and
// b or c conducts.
var evacuations = []struct {
	name   string
	script script
	power  migration.PowerState // of the guest; running where empty
	unsure int                  // see simFleet
}{
	{name: "a candidate takes it, and conducts", script: script{request: lost, local: "b", want: completed}},
	{name: "a named host takes it, another conducts", script: script{request: lostStopped, named: "c", hosts: three, local: "b", want: completed}},
	{name: "a paused one", script: script{request: lost, named: "b", hosts: three, local: "c", want: completed}, power: migration.PowerPaused},
	{name: "the first candidate refuses", script: script{request: lost, hosts: four, local: "c", refuse: []string{"b"}, want: completed}},
	{name: "the first finds out too late", script: script{request: to(lost, "d"), named: "b", hosts: four, local: "c", unready: []string{"b"}, want: completed}},
	{name: "the first does not have the disks", script: script{request: lost, hosts: three, local: "b", blind: []string{"b"}, want: completed}},
	{name: "nobody has the disks", script: script{request: lost, hosts: three, local: "b", blind: three, want: refused}},
	{name: "nobody has the disks, the loss is accepted", script: script{request: lostData, local: "b", blind: three, want: completed}},
	{name: "a hook fails", script: script{request: lost, named: "b", hosts: three, local: "c", hookFails: true, want: undone}},
	{name: "nobody knows at first whether it was given away", script: script{request: lost, local: "b", want: completed}, unsure: 3},
	{name: "the records are silent at the take-over", script: script{request: lost, local: "b", silent: [2]time.Duration{time.Second, 90 * time.Second}, want: completed}},
	{name: "its host comes back first", script: script{request: lost, local: "b", silent: [2]time.Duration{time.Second, time.Minute}, returns: 30 * time.Second, want: undone}},
	{name: "its host comes back later", script: script{request: lost, local: "b", returns: 20 * time.Second, want: completed}},
	{name: "the destination is silent once it was given", script: script{request: lost, named: "b", hosts: three, local: "c", want: completed,
		cut: map[string][2]time.Duration{"b": {1750 * time.Millisecond, 90 * time.Second}}}},
}

// each is how far apart the points are at which a scenario is broken: all of the plainest and
// of one that goes to a second destination, some of the others, which do mostly the same.
func each(i int) int {
	if evacuations[i].script.unready == nil && i > 0 {
		return max(5, min(stride, 55))
	}
	return min(stride, 55)
}

// playLost runs one of them once. Calls take a while, so that what happens at an instant
// happens amid it.
func playLost(t testing.TB, i int, seed uint64, f faults) (*world, migration.Migration) {
	sc := evacuations[i]
	w := newWorld(t, seed, sc.script, f)
	w.latency = 400 * time.Millisecond
	if sc.power != "" {
		w.power, w.fleet.record.guest.PowerState = sc.power, sc.power
	}
	w.fleet.unsure = sc.unsure
	if len(f.crash)+len(f.answers)+len(f.requests)+len(f.fails)+len(f.breaks) > 0 || f.chance > 0 {
		w.script.want = nil
	}
	if f.mutate != nil {
		w.mutate = func(*world) conductor.Mutation { return f.mutate }
	}
	return w, w.run()
}

func TestEvacuation_ScenariosEndAsTheyShould(t *testing.T) {
	for i, sc := range evacuations {
		t.Run(sc.name, func(t *testing.T) {
			w, m := playLost(t, i, 1, faults{})
			if w.accepted != nil {
				t.Fatalf("not accepted: %v", w.accepted)
			}
			w.report(sc.name)
			t.Logf("%s/%s attempt %d at %s, %d points, %s: %v", m.Status, m.Outcome, m.Attempt, m.DestCompute, w.points, w.sim.Elapsed(), m.Error)
		})
	}
}

// TestEvacuation_EveryCrashPoint stops the conductor's process at every journal write and
// before and after every verb, every write to Placement and to the records.
func TestEvacuation_EveryCrashPoint(t *testing.T) {
	runs := 0
	for i, sc := range evacuations {
		reference, _ := playLost(t, i, 1, faults{})
		for point := i % each(i); point < reference.points; point += each(i) {
			w, m := playLost(t, i, 1, faults{crash: map[int]bool{point: true}})
			w.report(fmt.Sprintf("%s: crash at point %d (%s)", sc.name, point, reference.trace[point]))
			if runs++; sc.script.cut == nil && sc.script.want[0] == migration.OutcomeCompleted && m.Outcome != migration.OutcomeCompleted && m.Outcome != migration.OutcomeNone {
				t.Errorf("%s: crash at point %d (%s): %s, %v; the guest is down until somebody asks again", sc.name, point, reference.trace[point], m.Outcome, m.Error)
			}
		}
	}
	t.Logf("%d crash points of %d scenarios", runs, len(evacuations))
}

// TestEvacuation_EveryLostMessage loses every request, to arrive late, every answer, and every
// write of the store.
func TestEvacuation_EveryLostMessage(t *testing.T) {
	runs := 0
	for i, sc := range evacuations {
		reference, _ := playLost(t, i, 1, faults{})
		for point, what := range reference.trace {
			if point%each(i) != i%each(i) {
				continue
			}
			one := map[int]bool{point: true}
			kinds := map[string]faults{"answer": {answers: one}}
			if strings.HasPrefix(what, "before ") && !strings.Contains(what, " journal ") && !strings.Contains(what, " delete ") {
				kinds["request"] = faults{requests: one}
			}
			for kind, f := range kinds {
				w, _ := playLost(t, i, 1, f)
				w.report(fmt.Sprintf("%s: %s lost at point %d (%s)", sc.name, kind, point, what))
				runs++
			}
		}
	}
	t.Logf("%d lost messages of %d scenarios", runs, len(evacuations))
}

// TestEvacuation_EveryFailedVerb lets every verb fail for a while, without its effect and with
// it.
func TestEvacuation_EveryFailedVerb(t *testing.T) {
	for i, sc := range evacuations {
		reference, _ := playLost(t, i, 1, faults{})
		verbs := map[string]bool{}
		for _, what := range reference.trace {
			if verb, ok := strings.CutPrefix(what, "before "); ok && (strings.Contains(verb, " on ") || strings.Contains(verb, " in ")) {
				verbs[verb] = true
			}
		}
		for n, verb := range slices.Sorted(maps.Keys(verbs)) {
			if n%min(stride, 15) != i%min(stride, 15) {
				continue
			}
			for _, f := range []faults{{fails: map[string]int{verb: 4}}, {breaks: map[string]int{verb: 4}}} {
				w, m := playLost(t, i, 1, f)
				w.report(fmt.Sprintf("%s: %s fails, with effect %v", sc.name, verb, f.breaks != nil))
				if m.Outcome == migration.OutcomeNone {
					t.Errorf("%s: %s fails: not over", sc.name, verb)
				}
			}
		}
	}
}

func TestEvacuation_AbortAtEveryMoment(t *testing.T) {
	ended := map[migration.Status]int{}
	for _, sc := range evacuations {
		for d := 30 * time.Millisecond; d < 4*time.Second; d += 80 * time.Millisecond * time.Duration(min(stride, 20)) {
			w := newWorld(t, 1, sc.script, faults{})
			w.script.want, w.script.abortAfter, w.latency = nil, d, 400*time.Millisecond
			m := w.run()
			w.report(fmt.Sprintf("%s: abort after %s", sc.name, d))
			ended[m.Status]++
		}
	}
	if t.Logf("%v", ended); stride == 1 && (ended[migration.StatusCancelled] == 0 || ended[migration.StatusDone] == 0) {
		t.Errorf("ended %v, want some of each", ended)
	}
}

func TestEvacuation_SeveralFaultsTogether(t *testing.T) {
	for seed := range uint64(20) {
		for i, sc := range evacuations {
			if (int(seed)+i)%min(stride, 15) != 0 {
				continue
			}
			w, _ := playLost(t, i, seed, faults{chance: 0.1, budget: 6})
			w.report(fmt.Sprintf("%s, seed %d", sc.name, seed))
		}
	}
}

// lostMutants are deliberate breakages, each of which must be caught. fails is what has to go
// wrong for it to show.
var lostMutants = []struct {
	name   string
	mutate conductor.Mutation
	fails  string
}{
	{"the claim not aborted", notUndone(migration.StepClaim), "PrepEvacuation on b"},
	{"the swap not undone", notUndone(migration.StepSwapAllocations), "PrepEvacuation on b"},
	{"the preparation not rolled back", notUndone(migration.StepPrepEvacuation), "TakeOver in the records"},
	{"not swapped", skipped(migration.StepSwapAllocations), ""},
	{"not taken over", skipped(migration.StepTakeOver), ""},
	{"not accepted", skipped(migration.StepAcceptEvacuated), ""},
	{"not finished", skipped(migration.StepFinishEvacuation), ""},
	{"disks not looked at", change(migration.StepCheckDestination, func(s *task.Step) {
		do := s.Do
		s.Do = func(ctx context.Context, t *task.Task) (any, error) { out, _ := do(ctx, t); return out, nil }
	}), ""},
	{"a take-over of which nobody knows taken for none", change(migration.StepTakeOver, func(s *task.Step) {
		do := s.Do
		answerLost(s)
		lost := s.Do
		s.Do = func(ctx context.Context, t *task.Task) (any, error) {
			if out, err := lost(ctx, t); err == nil {
				return out, nil
			}
			_ = do
			return nil, fault.New(fault.Forbidden, "lost")
		}
		s.Undo = nil
	}), ""},
	{"undone before the records have answered", change(migration.StepTakeOver, func(s *task.Step) {
		answerLost(s)
		s.UndoMayLag = true
	}), "GiveUp in the records"},
}

func TestEvacuationMutants_AreAllCaught(t *testing.T) {
	for n, mutant := range lostMutants {
		if n%min(stride, 15) != 0 {
			continue
		}
		t.Run(mutant.name, func(t *testing.T) {
			for i, sc := range evacuations {
				f := faults{mutate: mutant.mutate}
				if mutant.fails != "" {
					f.fails = map[string]int{mutant.fails: 5}
				}
				w, _ := playLost(t, i, 1, faults{fails: maps.Clone(f.fails)})
				w.report(sc.name) // nothing is found where nothing is broken
				if w, _ := playLost(t, i, 1, f); len(w.violations) > 0 {
					t.Logf("caught in %s: %s", sc.name, w.violations[0])
					return
				}
			}
			t.Error("no run noticed it")
		})
	}
}

// lostWorld runs a test beside the conductor c of a guest of the dead host a.
func lostWorld(t *testing.T, sc script, f func(w *world, p *simruntime.Process, c *conductor.Conductor)) {
	w := newWorld(t, 1, sc, faults{})
	w.latency = 50 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) { f(w, p, c) })
	w.report(t.Name())
}

func TestEvacuation_SaysWhatBecameOfEachDisk(t *testing.T) {
	lostWorld(t, script{request: lostData, hosts: three, local: "c", blind: three}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(lostData, "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		want := &migration.Evacuation{
			Proof: &migration.DeathProof{Proof: "fenced", By: "user:root", Because: "it is off"}, AcceptLoss: true,
			EvacuatedDisks:     migration.EvacuatedDisks{Made: []string{"vda"}, Lost: []string{"vda"}},
			FinishedEvacuation: migration.FinishedEvacuation{Started: true},
		}
		if diff := cmp.Diff(want, m.Evacuation); diff != "" || m.Err() != nil || m.Status != migration.StatusDone {
			t.Errorf("%s, %v (-want +got):\n%s", m.Status, m.Err(), diff)
		}
	})
}

// TestEvacuation_IsCompletedOnceItsHostHasCleanedUp, and the guest may move before.
func TestEvacuation_IsCompletedOnceItsHostHasCleanedUp(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		_ = p.Sleep(ctx, 2*time.Minute)
		if m, _ = c.Get(ctx, moveUUID); m.Status != migration.StatusDone {
			t.Errorf("%s though its host has not cleaned up", m.Status)
		}
		again := lost
		again.Instance, again.Migration = guestUUID, otherUUID
		if _, err := c.Start(ctx, again); errors.Is(err, fault.Busy) || !slices.Equal(codes(err), []string{"not_dead"}) {
			t.Errorf("another evacuation: %v; want that b is not dead", err)
		}
		w.comesBack()
		until(t, p, c, "completed", func(m migration.Migration) bool { return m.Status == migration.StatusCompleted })
	})
}

// TestEvacuation_OfAGuestWhoseDestinationDiesToo: by the very conductor that waits for it.
func TestEvacuation_OfAGuestWhoseDestinationDiesToo(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: four, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "taken over", func(m migration.Migration) bool { return m.Step == migration.StepAcceptEvacuated })
		w.hosts["b"].cut = true
		_ = p.Sleep(ctx, time.Minute)
		if m, _ := c.Get(ctx, moveUUID); m.Done() {
			t.Errorf("%s while nobody knows that b is dead", m.Status)
		}
		w.fleet.deaths["b"] = w.fleet.next()
		w.hosts["b"].unasked, w.hosts["b"].domain = false, nil
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.Evacuation.Started || !strings.Contains(m.Evacuation.NotStarted, "b died") {
			t.Errorf("%+v", m.Evacuation)
		}
		second := lost
		second.Instance, second.Destination, second.Migration = guestUUID, "d", otherUUID
		if _, err := c.Start(ctx, second); err != nil {
			t.Fatal(err)
		}
		for m.UUID != otherUUID || !m.Done() {
			_ = p.Sleep(ctx, 100*time.Millisecond)
			m, _ = c.Get(ctx, otherUUID)
		}
		d := w.hosts["d"]
		if m.Status != migration.StatusDone || m.SourceCompute != "b" || !d.owns() || d.token.epoch != 3 || d.domain == nil || d.domain.state != "running" {
			t.Errorf("%s from %s: token %+v, domain %+v: %v", m.Status, m.SourceCompute, d.token, d.domain, m.Error)
		}
		for id, on := range map[string]string{guestUUID: "rp-d", moveUUID: "rp-a", otherUUID: "rp-b"} {
			if a := w.placement.consumers[id]; a == nil || a.Allocations[on] == nil {
				t.Errorf("consumer %s: %+v, want it on %s", id, a, on)
			}
		}
	})
}

// TestEvacuation_GoesPastADestinationThatCountsAsDead, though its agent answers.
func TestEvacuation_GoesPastADestinationThatCountsAsDead(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: four, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		w.fleet.deaths["b"] = w.fleet.next()
		if _, err := c.Start(context.Background(), asked(to(lost, "d"), "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.DestCompute != "d" || m.Attempt != 2 || m.Status != migration.StatusDone || len(m.Refusals) != 1 || m.Refusals[0].DestCompute != "b" {
			t.Errorf("%s at %s in attempt %d, refusals %+v", m.Status, m.DestCompute, m.Attempt, m.Refusals)
		}
		if b := w.hosts["b"]; len(b.claims)+len(b.made) > 0 {
			t.Errorf("b is left with claims %v and disks of %v", b.claims, b.made)
		}
	})
}

// TestEvacuation_EndsWhereAnotherHasTakenTheGuestOn: its conductor was away meanwhile.
func TestEvacuation_EndsWhereAnotherHasTakenTheGuestOn(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: four, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "taken over", func(m migration.Migration) bool { return m.Step == migration.StepAcceptEvacuated })
		r := &w.fleet.record
		r.host, r.epoch, r.migration, r.attempt, r.revision = "d", r.epoch+1, otherUUID, 1, w.fleet.next()
		m := until(t, p, c, "done", migration.Migration.Done)
		if !strings.Contains(m.Evacuation.NotStarted, "host d has it") {
			t.Errorf("%+v", m.Evacuation)
		}
	})
}

// TestEvacuation_DoesNotWaitForAnAnswerOfADeadDestination: the call hangs, as on a host that is
// cut off while it works.
func TestEvacuation_DoesNotWaitForAnAnswerOfADeadDestination(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		w.hosts["b"].deafens = true
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finishing", func(m migration.Migration) bool { return m.Step == migration.StepFinishEvacuation })
		began := w.sim.Elapsed()
		_ = p.Sleep(context.Background(), 40*time.Second)
		if m, _ := c.Get(context.Background(), moveUUID); m.Done() {
			t.Errorf("%s while b may answer still", m.Status)
		}
		w.fleet.deaths["b"] = w.fleet.next()
		m := until(t, p, c, "done", migration.Migration.Done)
		if took := w.sim.Elapsed() - began; took > time.Minute || m.Evacuation.Started || !strings.Contains(m.Evacuation.NotStarted, "b died") {
			t.Errorf("after %s: %+v", took, m.Evacuation)
		}
	})
}

// TestEvacuation_AsksTheRecordsUntilTheySay: neither that they are busy nor that nobody knows
// is an answer, and nothing is given up for it.
func TestEvacuation_AsksTheRecordsUntilTheySay(t *testing.T) {
	for _, tt := range []struct {
		name  string
		say   func(*simFleet)
		asked int
	}{
		{"busy", func(f *simFleet) { f.busy = 3 }, 4},
		{"in doubt, and given away", func(f *simFleet) { f.unsure = 1 }, 2},
		{"a host whose agent restarts", func(f *simFleet) { f.silent = 3 }, 4},
	} {
		lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
			tt.say(w.fleet)
			if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
				t.Fatal(err)
			}
			m := until(t, p, c, "done", migration.Migration.Done)
			if m.Status != migration.StatusDone || m.Attempt != 1 || w.fleet.asked != tt.asked || w.fleet.givenUp > 0 {
				t.Errorf("%s: %s in attempt %d, %d take-overs asked, %d given up: %v", tt.name, m.Status, m.Attempt, w.fleet.asked, w.fleet.givenUp, m.Error)
			}
		})
	}
}

// TestEvacuation_AHostThatStaysSilent_IsNotWaitedForWithoutEnd: its take-over takes no abort and has no deadline.
func TestEvacuation_AHostThatStaysSilent_IsNotWaitedForWithoutEnd(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: three, local: "c", want: undone}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		w.fleet.silent = 1 << 30
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.Status != migration.StatusFailed || m.Outcome != migration.OutcomeUndone || w.fleet.givenUp == 0 || m.Error == nil ||
			!slices.ContainsFunc(m.Error.Reasons, func(r fault.Reason) bool { return r.Code == migration.ReasonHostSilent }) {
			t.Errorf("%s %s, %d take-overs asked, %d given up: %v", m.Status, m.Outcome, w.fleet.asked, w.fleet.givenUp, m.Error)
		}
	})
}

// TestEvacuation_BeginsAnewWhenItsClaimIsGone, since Placement took longer than its lease.
func TestEvacuation_BeginsAnewWhenItsClaimIsGone(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "claiming", func(m migration.Migration) bool { return m.Step == migration.StepClaim })
		w.latency = time.Minute
		until(t, p, c, "swapping", func(m migration.Migration) bool { return m.Step == migration.StepSwapAllocations })
		_ = p.Sleep(context.Background(), time.Millisecond) // it is on its way
		w.latency = 50 * time.Millisecond
		w.hosts["b"].claims = map[string]*simClaim{}
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.Status != migration.StatusDone || m.Attempt != 2 || m.DestCompute != "b" {
			t.Errorf("%s at %s in attempt %d: %v", m.Status, m.DestCompute, m.Attempt, m.Error)
		}
	})
}

// TestEvacuation_LeavesAGuestOfAnotherHost: it was evacuated by others after it was accepted, to
// a host that died too. Whoever wants it from there has to say so.
func TestEvacuation_LeavesAGuestOfAnotherHost(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: four, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		r := &w.fleet.record
		r.host, r.epoch, r.migration, r.attempt, r.revision = "d", r.epoch+1, otherUUID, 1, w.fleet.next()
		w.fleet.deaths["d"] = w.fleet.next()
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.Outcome != migration.OutcomeRefused || !slices.Equal(codes(m.Err()), []string{"not_its_host"}) {
			t.Errorf("%s %s: %v", m.Status, m.Outcome, m.Err())
		}
	})
}

func TestEvacuation_RefusesWhatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ask     conductor.Request
		script  script
		prepare func(*world)
		kind    fault.Kind
		codes   []string
	}{
		{"a host that is not dead", asked(lost, "b"), script{}, func(w *world) { delete(w.fleet.deaths, "a") }, fault.Forbidden, []string{"not_dead"}},
		{"a guest on a move", asked(lost, "b"), script{}, func(w *world) { w.fleet.record.moving = otherUUID }, fault.Forbidden, []string{"on_a_move"}},
		{"to its dead host", asked(to(lost, "a"), "b"), script{}, nil, fault.Invalid, []string{"dest_compute"}},
		{"of another host", conductor.Request{Type: migration.TypeEvacuation, Instance: guestUUID, Source: "d"}, script{}, nil, fault.Invalid, []string{"source_compute"}},
		{"by its dead host itself", asked(lost, "b"), script{local: "a"}, nil, fault.Invalid, []string{"is_not_dead"}},
		{"disks that nobody has and nobody can make", asked(lost, "b"), script{imageless: true, blind: three}, nil, fault.Forbidden, []string{"disk_unreachable"}},
		{"data that would be lost", asked(lost, "b"), script{blind: three}, nil, fault.Forbidden, []string{"data_would_be_lost"}},
		{"a guest that Placement does not have", asked(lost, "b"), script{}, func(w *world) { delete(w.placement.consumers, guestUUID) }, fault.Forbidden, []string{"allocation_missing"}},
		{"a guest that is counted at a host that has it", asked(lost, "b"), script{}, func(w *world) {
			w.placement.consumers[guestUUID].Allocations = w.hosts["c"].place(guestSize)
			w.hosts["c"].domain = &simDomain{"running", "booted"}
		}, fault.Forbidden, []string{"allocation_elsewhere", "allocation_elsewhere", "guest_there", "on_a_move"}},
		{"records that are silent", asked(lost, "b"), script{}, func(w *world) { w.fleet.down = true }, fault.Unavailable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.script.request, tt.script.hosts = lost, three
			if tt.script.local == "" {
				tt.script.local = "c"
			}
			w := newWorld(t, 1, tt.script, faults{})
			if tt.prepare != nil {
				tt.prepare(w)
			}
			before := w.picture()
			w.inProcess(func(_ *simruntime.Process, c *conductor.Conductor) {
				_, err := c.Start(context.Background(), tt.ask)
				if !errors.Is(err, tt.kind) {
					t.Errorf("error %v of kind %s, want %s", err, fault.KindOf(err), tt.kind)
				}
				if diff := cmp.Diff(tt.codes, codes(err)); diff != "" {
					t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
				}
				if all, _ := c.List(context.Background()); len(all) > 0 {
					t.Errorf("%d records", len(all))
				}
			})
			if diff := cmp.Diff(before, w.picture()); diff != "" {
				t.Errorf("left (-before +after):\n%s", diff)
			}
		})
	}
}
