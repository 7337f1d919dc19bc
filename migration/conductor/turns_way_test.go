package conductor

import (
	"encoding/json"
	"testing"

	"berth/migration"
	"berth/migration/task"
)

// TestOnTheWay: a turn is kept exactly as long as the guest's memory may be going over the link.
func TestOnTheWay(t *testing.T) {
	ended, begun, failed, undone := task.StepEnded, task.StepBegun, task.StepFailed, task.StepUndone
	step := func(name string, p task.StepPhase) task.StepState { return task.StepState{Name: name, State: p} }
	stream := func(postCopy bool) task.StepState {
		raw, err := json.Marshal(streamEnd{PostCopy: postCopy})
		if err != nil {
			t.Fatal(err)
		}
		return task.StepState{Name: migration.StepStream, State: ended, Output: raw}
	}
	for _, c := range []struct {
		name  string
		phase task.Phase
		steps []task.StepState
		want  bool
	}{
		{"just begun", task.Doing, nil, true},
		{"claims", task.Doing, []task.StepState{step(migration.StepClaim, begun)}, true},
		{"sends", task.Doing, []task.StepState{step(migration.StepStream, begun)}, true},
		{"commits", task.Doing, []task.StepState{stream(false), step(migration.StepCommit, begun)}, true},
		{"is accepted", task.Doing, []task.StepState{stream(false), step(migration.StepCommit, ended), step(migration.StepAcceptToken, begun)}, false},
		{"cleans up", task.Doing, []task.StepState{stream(false), step(migration.StepCommit, ended), step(migration.StepCleanUpSource, begun)}, false},
		{"leaves by post-copy", task.Doing, []task.StepState{stream(true), step(migration.StepPostCopy, begun)}, true},
		{"is followed", task.Doing, []task.StepState{stream(true), step(migration.StepPostCopy, ended), step(migration.StepCommit, ended), step(migration.StepFollowPostCopy, begun)}, true},
		{"was followed", task.Doing, []task.StepState{stream(true), step(migration.StepCommit, ended), step(migration.StepFollowPostCopy, ended), step(migration.StepFinishDestination, begun)}, false},
		{"is refused", task.Undoing, []task.StepState{step(migration.StepClaim, failed)}, false},
		{"is to be reclaimed", task.Undoing, []task.StepState{step(migration.StepPreLiveMigration, ended), step(migration.StepStream, failed)}, true},
		{"is reclaimed", task.Undoing, []task.StepState{step(migration.StepPreLiveMigration, ended), step(migration.StepStream, undone)}, false},
		{"failed to go by post-copy", task.Undoing, []task.StepState{stream(true), step(migration.StepPostCopy, failed)}, true},
		{"undone", task.Undone, []task.StepState{step(migration.StepStream, undone)}, false},
		{"done", task.Done, []task.StepState{step(migration.StepCommit, ended)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := onTheWay(task.State{Phase: c.phase, Steps: c.steps}); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
