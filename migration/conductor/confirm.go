package conductor

import (
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// confirm gives up the source's half of a cold move. Only forward: what could be gone
// back to goes with its first step.
func (s coldSteps) confirm() stage {
	return stage{
		name: storyConfirm,
		steps: []step{
			{Step: task.Step{Name: migration.StepConfirmSource, Do: s.orderOfMove(s.undoAtSource, operation.ConfirmSource, migration.StepConfirmSource).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepConfirmDestination, Do: s.orderOfMove(s.undoAtDestination, operation.ConfirmDestination, migration.StepConfirmDestination).do, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: migration.StepDeleteAllocation, Do: s.placementSteps().deleteAllocation, Forward: true}, asks: asksPlacement},
		},
		shown: []shown{{migration.StepConfirmSource, migration.StatusConfirming}},
		done:  ends(migration.StatusConfirmed, migration.OutcomeCompleted), undone: never,
	}
}

// confirmInPlace gives up what a guest was that was resized where it is.
func (s inPlaceSteps) confirmInPlace() stage {
	return stage{
		name: storyConfirmInPlace,
		steps: []step{
			{Step: task.Step{Name: migration.StepFinishChange, Do: s.orderOfMove(s.sourceOnce, operation.FinishChange, migration.StepFinishChange).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepDeleteAllocation, Do: s.placementSteps().deleteAllocation, Forward: true}, asks: asksPlacement},
		},
		shown: []shown{{migration.StepFinishChange, migration.StatusConfirming}},
		done:  ends(migration.StatusConfirmed, migration.OutcomeCompleted), undone: never,
	}
}

// made names a verb that concerns what the attempt made that brought or changed the
// guest, whatever the current one is.
func (s *story) made(step string) migration.Ref {
	ref := s.ref(step)
	if s.rec.Stage != migration.StageMove {
		ref.Attempt = s.rec.Moved
	}
	return ref
}
