package migration

import (
	"context"

	"berth/migration/task"
)

// The steps of a confirmation.
const (
	StepConfirmSource      = "confirm_source"
	StepConfirmDestination = "confirm_destination"
)

// confirm gives up the source's half of a cold move. Only forward: what could be gone
// back to goes with its first step.
func (s *story) confirm() stage {
	return stage{
		name: storyConfirm,
		steps: []step{
			{Step: task.Step{Name: StepConfirmSource, Do: s.confirmSource, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: StepConfirmDestination, Do: s.confirmDestination, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: StepDeleteAllocation, Do: s.deleteAllocation, Forward: true}, asks: asksPlacement},
		},
		shown: []shown{{StepConfirmSource, StatusConfirming}},
		done:  ends(StatusConfirmed, OutcomeCompleted), undone: never,
	}
}

// confirmInPlace gives up what a guest was that was resized where it is.
func (s *story) confirmInPlace() stage {
	return stage{
		name: storyConfirmInPlace,
		steps: []step{
			{Step: task.Step{Name: StepFinishChange, Do: s.finishChange, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: StepDeleteAllocation, Do: s.deleteAllocation, Forward: true}, asks: asksPlacement},
		},
		shown: []shown{{StepFinishChange, StatusConfirming}},
		done:  ends(StatusConfirmed, OutcomeCompleted), undone: never,
	}
}

// made names a verb that concerns what the attempt made that brought or changed the
// guest, whatever the current one is.
func (s *story) made(step string) Ref {
	ref := s.ref(step)
	if s.rec.Stage != StageMove {
		ref.Attempt = s.rec.Moved
	}
	return ref
}

func (s *story) confirmSource(ctx context.Context, _ *task.Task) (any, error) {
	return nil, s.undoAtSource(ctx, func(ctx context.Context, h Host) error {
		return h.ConfirmSource(ctx, s.made(StepConfirmSource))
	})
}

func (s *story) confirmDestination(ctx context.Context, t *task.Task) (any, error) {
	return nil, s.undoAtDestination(ctx, t, func(ctx context.Context, h Host) error {
		return h.ConfirmDestination(ctx, s.made(StepConfirmDestination))
	})
}
