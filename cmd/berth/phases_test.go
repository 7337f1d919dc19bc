package main

import (
	"testing"
	"time"

	"berth/migration"
	"berth/migration/task"
)

// TestPhaseWords_ForHowLongEachStatusWasShown of moves that are over, have rested or go on.
func TestPhaseWords_ForHowLongEachStatusWasShown(t *testing.T) {
	step := func(name string, took time.Duration) migration.StepRecord {
		return migration.StepRecord{Name: name, State: task.StepEnded, Duration: took}
	}
	live := migration.Migration{MigrationType: migration.TypeLiveMigration, Attempt: 1, Waited: 5 * time.Second, Steps: []migration.StepRecord{
		step(migration.StepInspectSource, time.Second), step(migration.StepClaim, 2*time.Second), step(migration.StepStream, time.Minute),
		step(migration.StepCommit, 20*time.Millisecond), step(migration.StepAcceptToken, 30*time.Millisecond),
	}}
	older := live
	older.MigrationType, older.Waited = "", 0 // live, from agents that knew no other
	confirmed := migration.Migration{
		MigrationType: migration.TypeMigration, SourceCompute: "host-a", DestCompute: "host-b", Stage: migration.StageConfirm, Attempt: 2, Moved: 1,
		MoveSteps: []migration.StepRecord{step(migration.StepClaim, time.Second), step(migration.StepPowerOff, 9*time.Second), step(migration.StepFinishResize, 3*time.Second)},
		Steps:     []migration.StepRecord{step(migration.StepConfirmSource, 40*time.Millisecond)},
	}
	later := live
	later.Steps = append(later.Steps, step("what a later release does", time.Hour))
	for _, tt := range []struct {
		name string
		m    migration.Migration
		want string
	}{
		{"live", live, "queued 5.0s, preparing 3.0s, running 1m0s, post-migrating 30ms"},
		{"live, of long ago", older, "preparing 3.0s, running 1m0s, post-migrating 30ms"},
		{"with a step that is not known", later, "queued 5.0s, preparing 3.0s, running 1m0s, post-migrating 30ms"},
		{"cold, confirmed", confirmed, "pre-migrating 1.0s, migrating 9.0s, post-migrating 3.0s, confirming 40ms"},
		{"refused before anything", migration.Migration{MigrationType: migration.TypeLiveMigration}, ""},
	} {
		if got := phaseWords(tt.m); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNewestOver_KeepsWhatIsNotOver(t *testing.T) {
	over, open := migration.Migration{Outcome: migration.OutcomeCompleted}, migration.Migration{Status: migration.StatusFinished}
	kept, left := newestOver([]migration.Migration{over, over, over, open, over, open}, 2)
	if len(kept) != 4 || left != 2 || kept[2].Done() || kept[3].Done() {
		t.Errorf("%d are kept, %d left", len(kept), left)
	}
	if kept, left = newestOver([]migration.Migration{over, open}, 30); len(kept) != 2 || left != 0 {
		t.Errorf("%d are kept, %d left", len(kept), left)
	}
}
