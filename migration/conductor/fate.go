package conductor

import (
	"berth/migration"
	"berth/migration/task"
)

// Conducts says what the conductor has of an attempt. id is the name that hosts
// know it by.
func (c *Conductor) Conducts(id string, attempt int) migration.Conduct {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.calledLocked(id)
	switch {
	case s == nil && c.run == nil:
		return migration.ConductGoing // its journal has not been read yet
	case s == nil:
		return migration.ConductNone
	case s.rec.Attempt > attempt && s.rec.Moved != attempt:
		return migration.ConductOver
	case !s.rec.Done():
		if _, seen := s.state.Step(migration.StepCommit); seen && s.state.Phase == task.Doing {
			return migration.ConductSeen
		}
		return migration.ConductGoing
	case s.rec.Stage == migration.StageRevert && s.rec.Moved == attempt:
		return migration.ConductOver
	case s.rec.Outcome == migration.OutcomeCompleted, s.rec.Stage == migration.StageRevert:
		return migration.ConductDone // of a revert: the guest is back by it
	}
	return migration.ConductOver
}
