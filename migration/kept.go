package migration

import (
	"berth/migration/task"
	"berth/placementclient"
)

// Halves are what the two consumers of a move hold between its swap and its end.
type Halves struct {
	Instance  placementclient.Allocations // on the destination
	Migration placementclient.Allocations // on the source
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
	source, destination, err := swapSides(t)
	if err != nil {
		return Halves{}, false
	}
	source.ConsumerGeneration, destination.ConsumerGeneration = nil, nil
	source.ConsumerType, destination.ConsumerType = placementclient.ConsumerMigration, placementclient.ConsumerInstance
	return Halves{Instance: destination, Migration: source}, true
}

// swapSides are what the instance held on the source, and what it holds on the
// destination, as the swap has written them.
func swapSides(t *task.Task) (source, destination placementclient.Allocations, err error) {
	var src inspectedSource
	var dst CheckAnswer
	var claim ClaimAnswer
	if err := outputs(t, StepInspectSource, &src, StepCheckDestination, &dst, StepClaim, &claim); err != nil {
		return source, destination, err
	}
	destination = on(dst.Destination.ProviderUUID, claim.Resources, src.Held, src.Guest)
	if claim.Allocations != nil {
		destination.Allocations = claim.Allocations
	}
	return src.Held, destination, nil
}
