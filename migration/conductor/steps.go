package conductor

import (
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// The parts of a migration in memory. Each has the whole of it, and calls the others by these
// methods.
type (
	firstSteps        struct{ *story } // of every workflow: inspect, choose, check, claim, record
	placementSteps    struct{ *story } // allocations: swap, swap back, delete
	liveSteps         struct{ *story }
	coldSteps         struct{ *story } // of an instance that is off
	revertSteps       struct{ *story }
	inPlaceSteps      struct{ *story } // of an instance that stays on its host
	shareNothingSteps struct{ *story }
	evacuationSteps   struct{ *story }
	thirdHost         struct{ *story } // what a conductor does that is not the source
	queueSteps        struct{ *story } // waiting for a slot
	decisions         struct{ *story } // operators' decisions
	undosLeft         struct{ *story } // attempts whose undos go on beside the next attempt
	timeLimits        struct{ *story } // of an attempt, and of the wait for a confirmation
	endings           struct{ *story } // what follows an attempt
)

func (s *story) firstSteps() firstSteps               { return firstSteps{s} }
func (s *story) placementSteps() placementSteps       { return placementSteps{s} }
func (s *story) liveSteps() liveSteps                 { return liveSteps{s} }
func (s *story) coldSteps() coldSteps                 { return coldSteps{s} }
func (s *story) revertSteps() revertSteps             { return revertSteps{s} }
func (s *story) inPlaceSteps() inPlaceSteps           { return inPlaceSteps{s} }
func (s *story) shareNothingSteps() shareNothingSteps { return shareNothingSteps{s} }
func (s *story) evacuationSteps() evacuationSteps     { return evacuationSteps{s} }
func (s *story) thirdHost() thirdHost                 { return thirdHost{s} }
func (s *story) queueSteps() queueSteps               { return queueSteps{s} }
func (s *story) decisions() decisions                 { return decisions{s} }
func (s *story) undosLeft() undosLeft                 { return undosLeft{s} }
func (s *story) timeLimits() timeLimits               { return timeLimits{s} }
func (s *story) endings() endings                     { return endings{s} }

// steps are those with which every move to another host begins, up to the context on its source.
func (s firstSteps) steps() []step {
	return []step{
		{Step: task.Step{Name: migration.StepInspectSource, Do: s.inspectSource}, asks: asksSource},
		{Step: task.Step{Name: migration.StepChooseDestination, Do: s.chooseDestination}, asks: asksPlacement},
		{Step: task.Step{Name: migration.StepCheckDestination, Do: s.checkDestination}, asks: asksDestination},
		{Step: task.Step{Name: migration.StepClaim, Do: s.claim, Undo: s.order(s.undoAtDestination, operation.AbortClaim, migration.StepClaim).undo, UndoMayLag: true}, asks: asksDestination, undoes: "abort_claim"},
		{Step: task.Step{Name: migration.StepSwapAllocations, Do: s.placementSteps().swap, Undo: s.placementSteps().swapBack, UndoMayLag: true}, asks: asksPlacement, undoes: "swap_allocations_back"},
		{Step: task.Step{Name: migration.StepCheckSource, Do: s.checkSource}, asks: asksSource},
		{Step: task.Step{Name: migration.StepRecordContext, Do: s.recordContext, Undo: s.order(s.sourceOnce, operation.DropContext, migration.StepRecordContext).undo}, asks: asksSource, undoes: "drop_context"},
	}
}
