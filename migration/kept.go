package migration

import (
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
// Placement: from the end of the swap until the step that deletes the migration's. A
// move that is being undone, or that writes at this moment, has none. Generations are
// not kept: they are Placement's.
func (c *Conductor) Halves(uuid string) (Halves, bool) {
	c.mu.Lock()
	s := c.stories[uuid]
	var t *task.Task
	if s != nil && !s.rec.Done() {
		t = s.task
	}
	c.mu.Unlock()
	if t == nil {
		return Halves{}, false
	}
	st := t.State()
	swapped, _ := st.Step(StepSwapAllocations)
	_, deleting := st.Step(StepDeleteAllocation)
	if st.Phase != task.Doing || swapped.State != task.StepEnded || deleting {
		return Halves{}, false
	}
	u, err := s.sides(t)
	if err != nil {
		return Halves{}, false
	}
	kept, next := u.Start.Held.Clone(), u.Start.Held.Clone()
	kept.Allocations, kept.ConsumerGeneration, kept.ConsumerType = halves.Split(u.Start.Held.Allocations, u.Next), nil, placementclient.ConsumerMigration
	next.Allocations, next.ConsumerGeneration, next.ConsumerType = u.Next, nil, placementclient.ConsumerInstance
	return Halves{Instance: next, Migration: kept}, true
}
