package conductor

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// TestLeaves_OnlyWhatASilentDestinationHolds: an attempt is left to itself where nothing
// else is still to be undone, and another destination can be tried.
func TestLeaves_OnlyWhatASilentDestinationHolds(t *testing.T) {
	silent := func(by string, kind fault.Kind) *task.Error {
		return task.Keep(task.By(by, fault.New(kind, "no answer")))
	}
	// The attempt failed at prep_resize of b, which does not answer since.
	state := func() task.State {
		st := task.State{ID: "m/1", Phase: task.Undoing, Cause: silent("b", fault.Unavailable)}
		for _, name := range []string{migration.StepInspectSource, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepClaim, migration.StepSwapAllocations, migration.StepCheckSource, migration.StepRecordContext, migration.StepPrepResize} {
			one := task.StepState{Name: name, State: task.StepUndone}
			switch name {
			case migration.StepClaim, migration.StepPrepResize:
				one.State, one.Undo = task.StepEnded, silent("b", fault.Unavailable)
			}
			st.Steps = append(st.Steps, one)
		}
		st.Steps[len(st.Steps)-1].Error = silent("b", fault.Unavailable)
		return st
	}
	step := func(st *task.State, name string) *task.StepState {
		for i := range st.Steps {
			if st.Steps[i].Name == name {
				return &st.Steps[i]
			}
		}
		return nil
	}
	for name, tt := range map[string]struct {
		change func(*story, *task.State)
		want   bool
	}{
		"it is silent":                  {func(*story, *task.State) {}, true},
		"it may have done it":           {func(_ *story, st *task.State) { step(st, migration.StepClaim).Undo.Kind = fault.InDoubt }, true},
		"it refuses to undo":            {func(_ *story, st *task.State) { step(st, migration.StepClaim).Undo.Kind = fault.Forbidden }, false},
		"it has not been asked yet":     {func(_ *story, st *task.State) { step(st, migration.StepClaim).Undo = nil }, false},
		"another is silent":             {func(_ *story, st *task.State) { step(st, migration.StepClaim).Undo.By = "c" }, false},
		"the allocations are not back":  {func(_ *story, st *task.State) { lags(step(st, migration.StepSwapAllocations)) }, false},
		"the source has its context":    {func(_ *story, st *task.State) { lags(step(st, migration.StepRecordContext)) }, false},
		"a step of no story":            {func(_ *story, st *task.State) { step(st, migration.StepCheckSource).Name = "x"; lags(step(st, "x")) }, false},
		"it was aborted":                {func(_ *story, st *task.State) { st.Cause = task.Keep(task.By("b", errAborted)) }, false},
		"an abort was asked for since":  {func(s *story, _ *task.State) { s.rec.AbortRequested = true }, false},
		"no other is named":             {func(s *story, _ *task.State) { s.next = nil }, false},
		"all others have refused":       {func(s *story, _ *task.State) { s.rec.Refusals = []migration.Refusal{{DestCompute: "d"}} }, false},
		"the source was at fault":       {func(_ *story, st *task.State) { st.Cause.By = "a" }, false},
		"the guest may have left by it": {func(_ *story, st *task.State) { step(st, migration.StepPrepResize).Name = migration.StepHandOver }, false},
		"nobody was chosen":             {func(s *story, _ *task.State) { s.rec.DestCompute = "" }, false},
	} {
		s := newStory(New(Config{}), stored{Named: "b", Alternates: []string{"d"}, Migration: migration.Migration{
			UUID: "m", SourceCompute: "a", DestCompute: "b", MigrationType: migration.TypeMigration, ShareNothing: true, Attempt: 1,
		}})
		st := state()
		tt.change(s, &st)
		if got := s.undosLeft().leaves(st); got != tt.want {
			t.Errorf("%s: left %v, want %v", name, got, tt.want)
		}
	}
}

// lags makes an undo one that b does not answer.
func lags(one *task.StepState) {
	one.State, one.Undo = task.StepEnded, task.Keep(task.By("b", fault.New(fault.Unavailable, "no answer")))
}

// deletes is a store of which records are deleted.
type deletes struct{ task.Store }

func (deletes) Delete(context.Context, string, string) error { return nil }

// TestPrune_KeepsWhatLags: whoever is to end it finds it by its record.
func TestPrune_KeepsWhatLags(t *testing.T) {
	c := New(Config{KeepFinished: 1, Store: deletes{}})
	for i, id := range []string{"a", "b", "c", "d"} {
		s := newStory(c, stored{Migration: migration.Migration{UUID: id, Outcome: migration.OutcomeCompleted, CreatedAt: time.Unix(int64(i), 0)}})
		c.stories[id] = s
		if id == "a" || id == "b" {
			s.lagging[id+"/1"] = &lagging{attempt: 1, over: id == "b"}
		}
	}
	c.prune(t.Context())
	if diff := cmp.Diff([]string{"a", "d"}, slices.Sorted(maps.Keys(c.stories))); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}
