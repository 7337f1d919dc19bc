package conductor

import (
	"context"

	"berth/internal/fault"
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

// missingThere is why a move may not be confirmed: its destination does not say that it
// has the instance, and what the source keeps may be all that is left. None for a change in place.
func (s coldSteps) missingThere(ctx context.Context) []fault.Reason {
	s.c.mu.Lock()
	to, ref, inPlace := s.rec.DestCompute, s.made(migration.StepConfirmSource), s.rec.InPlace
	s.c.mu.Unlock()
	if inPlace {
		return nil
	}
	var there migration.DestinationStatus
	err := s.askOnce(ctx, s.c.cfg.VerbTimeout, s.host(to), func(ctx context.Context, h migration.Host) (err error) {
		there, err = operation.DestinationStatus.Ask(ctx, h, ref)
		return err
	})
	switch {
	case err != nil:
		return []fault.Reason{{
			Code: migration.ReasonHostSilent, Message: "host " + to + " does not say whether it has instance " + s.instance + ": " + err.Error(), Have: to,
			Change: "start its agent (systemctl start berth on " + to + ")",
		}}
	case !there.Domain.Exists, there.Ledger != migration.LedgerHere && (there.Ledger != migration.LedgerAccepted || there.Claim == ""):
		return []fault.Reason{{
			Code: "not_there", Message: "host " + to + " does not have instance " + s.instance + " any more, and what " + s.from + " keeps of it may be all that is left", Have: to,
			Change: "look for the instance on " + to + " (virsh list --all); if it is lost there, keep what " + s.from + " has of it: nothing is removed meanwhile",
		}}
	}
	return nil
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
