package main

import (
	"strings"
	"time"

	"berth/migration"
	"berth/migration/conductor"
)

// phaseTime is for how long the steps of one status were at work.
type phaseTime struct {
	status migration.Status
	took   time.Duration
}

// phaseTimes are those of a move, in order, by what its steps took; of its last attempt, and
// of the one that moved the guest before. Steps that this program does not know are left out.
func phaseTimes(m migration.Migration) []phaseTime {
	if m.Moved == 0 || m.Attempt == m.Moved {
		moved := m
		moved.Stage = migration.StageMove
		return stageTimes(moved, m.Steps)
	}
	before, last := m, m
	before.Stage, before.InPlace = migration.StageMove, m.SourceCompute == m.DestCompute
	if last.Stage == migration.StageFinished { // a revert that was given up
		last.Stage = migration.StageRevert
	}
	return append(stageTimes(before, m.MoveSteps), stageTimes(last, m.Steps)...)
}

// stageTimes are those of one attempt, whose story is found by what the record says of it.
func stageTimes(m migration.Migration, steps []migration.StepRecord) []phaseTime {
	var out []phaseTime
	for _, s := range steps {
		status := statusOf(m, s.Name)
		if status == "" || s.Duration == 0 {
			continue
		}
		if n := len(out); n == 0 || out[n-1].status != status {
			out = append(out, phaseTime{status: status})
		}
		out[len(out)-1].took += s.Duration
	}
	return out
}

// statusOf is what a migration's record shows from a step on; empty for an unknown one. A cold
// migration is told in the steps of a resize where it has none of its own.
func statusOf(m migration.Migration, step string) migration.Status {
	var other migration.Status
	for _, story := range conductor.Stories() {
		if story.Stage != m.Stage || (story.Type == migration.TypeLiveMigration) != (typeOf(m) == migration.TypeLiveMigration) {
			continue
		}
		for _, s := range story.Steps {
			switch {
			case s.Name != step:
			case story.Type == typeOf(m) && story.InPlace == m.InPlace && story.ShareNothing == m.ShareNothing:
				return s.Status
			case other == "":
				other = s.Status
			}
		}
	}
	return other
}

// phaseWords are the times of a move's phases in one line; empty where no step has ended.
func phaseWords(m migration.Migration) string {
	var words []string
	if m.Waited > 0 {
		words = append(words, string(migration.StatusQueued)+" "+rough(m.Waited))
	}
	for _, p := range phaseTimes(m) {
		words = append(words, string(p.status)+" "+rough(p.took))
	}
	return strings.Join(words, ", ")
}
