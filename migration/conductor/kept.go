package conductor

import (
	"berth/migration"
	"berth/migration/halves"
	"berth/migration/task"
	"berth/placementclient"
)

// Halves are what the two consumers of a move hold between its swap and its end.
type Halves struct {
	Instance  placementclient.Allocations // on the destination
	Migration placementclient.Allocations // on the source; none where there was nothing to keep
}

// Halves gives what an unfinished migration's journal says that its consumers hold in
// Placement: from the end of the swap until the step that ends it, which deletes the
// migration's or gives it back; also while it is finished, and while a revert is given
// up. A move that is being undone, or that writes at this moment, has none. Generations
// are not kept: they are Placement's.
func (c *Conductor) Halves(uuid string) (Halves, bool) {
	c.mu.Lock()
	s := c.stories[uuid]
	var t *task.Task
	var h *held
	if s != nil && !s.rec.Done() {
		t, h = s.task, s.held
	}
	c.mu.Unlock()
	if t != nil {
		st := t.State()
		_, deleting := st.Step(migration.StepDeleteAllocation)
		_, reverting := st.Step(migration.StepRevertAllocations)
		if deleting || reverting {
			return Halves{}, false
		}
		if h == nil { // the move itself
			swapped, _ := st.Step(migration.StepSwapAllocations)
			if st.Phase != task.Doing || swapped.State != task.StepEnded {
				return Halves{}, false
			}
			var err error
			if h, err = s.placementSteps().heldBy(t); err != nil {
				return Halves{}, false
			}
		}
	}
	if h == nil {
		return Halves{}, false
	}
	kept, next := h.Held.Clone(), h.Held.Clone()
	kept.Allocations, kept.ConsumerGeneration, kept.ConsumerType = halves.Split(h.Held.Allocations, h.Next), nil, placementclient.ConsumerMigration
	next.Allocations, next.ConsumerGeneration, next.ConsumerType = h.Next, nil, placementclient.ConsumerInstance
	return Halves{Instance: next, Migration: kept}, true
}
