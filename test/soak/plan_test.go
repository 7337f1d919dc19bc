package soak

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/migration"
	"berth/migration/task"
)

func TestFaults_HaveNamesOfTheirOwnAndOneWayToStrike(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Faults() {
		if f.Name == "" || seen[f.Name] {
			t.Errorf("the name %q is empty or there twice", f.Name)
		}
		seen[f.Name] = true
		if (f.strike == nil) == (f.arm == nil) || len(f.touches) == 0 || f.least > f.most {
			t.Errorf("%s: strike %v, arm %v, touches %v, %s to %s", f.Name, f.strike != nil, f.arm != nil, f.touches, f.least, f.most)
		}
	}
}

func TestPlanOf_IsTheSameForASeedAndLeavesNoRowOut(t *testing.T) {
	table := Faults()
	first, stories := map[string]bool{}, map[Kind]int{}
	pairs := 0
	for seed := uint64(1000); seed < 1000+3*uint64(len(table)); seed++ {
		p := PlanOf(seed, table, Kinds)
		if d := cmp.Diff(p, PlanOf(seed, Faults(), Kinds)); d != "" {
			t.Fatalf("seed %d gives two plans:\n%s", seed, d)
		}
		first[p.Strikes[0].Fault] = true
		stories[p.Story.kind()]++
		for _, s := range p.Strikes {
			if f, _ := find(s.Fault); !f.strikes(p.Story.kind()) {
				t.Errorf("seed %d: %s has nothing to break in a %s", seed, s.Fault, p.Story)
			}
		}
		if len(p.Strikes) == 1 {
			continue
		}
		pairs++
		a, _ := find(p.Strikes[0].Fault)
		b, _ := find(p.Strikes[1].Fault)
		if slices.ContainsFunc(a.touches, func(part string) bool { return slices.Contains(b.touches, part) }) {
			t.Errorf("seed %d breaks the same thing twice: %s", seed, p)
		}
	}
	if len(first) != len(table) || pairs == 0 || len(stories) != len(Kinds) {
		t.Errorf("%d of %d rows, %d pairs, stories %v", len(first), len(table), pairs, stories)
	}
}

func TestStory_HasTheStepsOfItsStages(t *testing.T) {
	for _, tc := range []struct {
		story       Story
		first, last Moment
	}{
		{Story{}, Moment{Step: migration.StepInspectSource}, Moment{Step: migration.StepDeleteAllocation}},
		{Story{Kind: Cold, End: Confirm}, Moment{Step: migration.StepInspectSource}, Moment{Step: migration.StepDeleteAllocation, Stage: migration.StageConfirm}},
		{Story{Kind: Resize, End: Revert}, Moment{Step: migration.StepInspectSource}, Moment{Step: migration.StepRevertAllocations, Stage: migration.StageRevert}},
		{Story{Kind: ResizeIn, End: Window}, Moment{Step: migration.StepInspectSource}, Moment{Step: migration.StepDeleteAllocation, Stage: migration.StageConfirm}},
		{Story{Kind: Rebuild}, Moment{Step: migration.StepInspectSource}, Moment{Step: migration.StepDeleteAllocation}},
	} {
		all := tc.story.moments()
		if len(all) == 0 || all[0] != tc.first || all[len(all)-1] != tc.last {
			t.Errorf("%s: %v, want %v to %v", tc.story, all, tc.first, tc.last)
		}
		seen := map[Moment]bool{}
		for _, m := range all {
			if seen[m] {
				t.Errorf("%s: %s twice", tc.story, m)
			}
			seen[m] = true
		}
	}
}

func TestMoment_ComesOnceAndNotAfterTheEnd(t *testing.T) {
	at := func(phase task.Phase, names ...string) migration.Migration {
		m := migration.Migration{Phase: phase}
		for _, n := range names {
			m.Steps = append(m.Steps, migration.StepRecord{Name: n})
		}
		return m
	}
	over := migration.Migration{Outcome: migration.OutcomeCompleted}
	flows := migration.Migration{Phase: task.Doing, Progress: migration.Progress{MemoryProcessed: enough + 1}}
	for name, tc := range map[string]struct {
		moment      Moment
		rec         migration.Migration
		come, never bool
	}{
		"the other struck":     {Moment{With: true}, at(task.Undoing, "claim"), true, false},
		"step begun":           {Moment{Step: "claim"}, at(task.Doing, "inspect_source", "claim"), true, false},
		"step not begun":       {Moment{Step: "claim"}, at(task.Doing, "inspect_source"), false, false},
		"step of another part": {Moment{Step: "claim", Stage: migration.StageRevert}, at(task.Doing, "claim"), false, false},
		"step begun, undone":   {Moment{Step: "claim"}, at(task.Undoing, "claim"), false, true},
		"undo begun":           {Moment{Undo: true}, at(task.Undoing, "claim"), true, false},
		"undo not begun":       {Moment{Undo: true}, at(task.Doing, "claim"), false, false},
		"over without an undo": {Moment{Undo: true}, over, false, true},
		"memory flows":         {Moment{Memory: true}, flows, true, false},
		"memory does not flow": {Moment{Memory: true}, at(task.Doing, "stream"), false, false},
		"over":                 {Moment{Memory: true}, over, false, true},
	} {
		if come, never := tc.moment.come(tc.rec, true); come != tc.come || never != tc.never {
			t.Errorf("%s: %v, never %v; want %v, %v", name, come, never, tc.come, tc.never)
		}
	}
}

func TestReport_SaysWhatFailedAndTheLongestRecovery(t *testing.T) {
	plan := func(seed uint64) Plan {
		return Plan{Seed: seed, Strikes: []Strike{{Fault: "kill -9 Placement", At: Moment{Memory: true}}}}
	}
	r := Report{Took: time.Minute, Rounds: []Result{
		{Plan: plan(7), Outcome: Completed, Struck: []bool{true}, Settle: time.Second},
		{Plan: plan(8), Outcome: Undone, Struck: []bool{true}, Settle: 3 * time.Second},
		{Plan: plan(9), Outcome: Failed, Struck: []bool{true}, Err: errors.New("two copies ran")},
		{Plan: plan(10), Outcome: Completed, Struck: []bool{false}},
	}}
	var out bytes.Buffer
	r.Write(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := strings.Fields(lines[1]), strings.Fields("kill -9 Placement 3 1 0 1 0 0 1 3.0 s 3.0 s 0.0 s 1"); !slices.Equal(got, want) {
		t.Errorf("row %q, want %q", got, want)
	}
	if !strings.Contains(out.String(), "FAILED seed 9: kill -9 Placement mid-stream\n  two copies ran") {
		t.Errorf("the failed round is not named:\n%s", &out)
	}
	want := "soak: 4 rounds, 3 faults struck: 2 completed, 0 reverted, 1 undone, 0 refused, 0 in doubt and settled, 1 FAILED; longest recovery 3.0 s (seed 8: kill -9 Placement mid-stream); 60 s"
	if last := lines[len(lines)-1]; last != want {
		t.Errorf("the last line is\n%s, want\n%s", last, want)
	}
}
