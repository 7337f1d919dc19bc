package soak

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/migration"
	"berth/migration/task"
)

// Moment is when a fault strikes. The zero value is the moment at which the move
// was asked for.
type Moment struct {
	Step   string // the beginning of this step of the journal
	Stage  migration.Stage
	Memory bool          // memory flows
	Undo   bool          // the move is being undone
	With   bool          // the round's first fault has struck
	After  time.Duration // and so much later
}

// String is the moment in a table.
func (m Moment) String() string {
	out := "at the request"
	switch {
	case m.Step != "":
		out = "at " + m.Step
		if m.Stage != migration.StageMove {
			out += " of the " + string(m.Stage)
		}
	case m.Memory:
		out = "mid-stream"
	case m.Undo:
		out = "in the undo"
	case m.With:
		out = "with it"
	}
	if m.After > 0 {
		out += fmt.Sprintf(" + %d ms", m.After.Milliseconds())
	}
	return out
}

// enough is how much memory flows before "memory flows" is true.
const enough = 2 << 20

// come says whether the moment is there, and whether it can no longer come. struck
// is whether the round's first fault has.
func (m Moment) come(rec migration.Migration, struck bool) (come, never bool) {
	undoing := rec.Phase == task.Undoing || rec.Phase == task.Undone
	switch {
	case m.With:
		return struck, rec.Done()
	case m.Undo:
		return undoing, rec.Done()
	case m.Step != "":
		come = rec.Stage == m.Stage && slices.ContainsFunc(rec.Steps, func(s migration.StepRecord) bool { return s.Name == m.Step })
	case m.Memory:
		come = rec.Progress.MemoryProcessed > enough
	default:
		come = true
	}
	return come && !undoing, rec.Done() || undoing
}

// Steps of a live migration, in order.
var steps = []string{
	migration.StepInspectSource, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepClaim,
	migration.StepSwapAllocations, migration.StepCheckSource, migration.StepRecordContext, migration.StepPreLiveMigration,
	migration.StepStream, migration.StepCommit, migration.StepAcceptToken, migration.StepFinishDestination,
	migration.StepCleanUpSource, migration.StepDeleteAllocation,
}

// Strike is one fault of a round, at a moment, for a while.
type Strike struct {
	Fault string
	At    Moment
	For   time.Duration
}

// String is the strike as people read it.
func (s Strike) String() string {
	f, ok := find(s.Fault)
	if !ok {
		return s.Fault
	}
	out := s.Fault
	if f.arm == nil {
		out += " " + s.At.String()
	}
	if s.For > 0 {
		out += fmt.Sprintf(", for %.1f s", s.For.Seconds())
	}
	return out
}

// Plan is all that a round does.
type Plan struct {
	Seed      uint64
	Story     Story
	Strikes   []Strike
	Bandwidth uint64 // of the stream, or of the disks that are shipped, bytes a second; 0 for no bound
}

// String is one line.
func (p Plan) String() string {
	var parts []string
	for _, s := range p.Strikes {
		parts = append(parts, s.String())
	}
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	out := strings.Join(parts, "; and ")
	if p.Story.cold() {
		out = p.Story.String() + ": " + out
	}
	return out
}
