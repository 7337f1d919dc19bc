package conductor

import (
	"context"

	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// inPlace are the steps that a resize on its own host and a rebuild share. No token moves:
// the claim for what the guest is to hold is exchanged for what it holds, by
// apply_change, and what is new lies ready beside what is old. Nothing is past return
// before the old is given up.
func (s inPlaceSteps) inPlace() []step {
	return []step{
		{Step: task.Step{Name: migration.StepInspectSource, Do: s.firstSteps().inspectSource}, asks: asksSource},
		{Step: task.Step{Name: migration.StepClaim, Do: s.firstSteps().claim, Undo: s.order(s.undoAtDestination, operation.AbortClaim, migration.StepClaim).undo, UndoMayLag: true}, asks: asksSource, undoes: "abort_claim"},
		{Step: task.Step{Name: migration.StepSwapAllocations, Do: s.placementSteps().swap, Undo: s.placementSteps().swapBack, UndoMayLag: true}, asks: asksPlacement, undoes: "swap_allocations_back"},
		{Step: task.Step{Name: migration.StepPrepChange, Do: s.prepChange, Undo: s.order(s.sourceOnce, operation.RollbackPrepChange, migration.StepPrepChange).undo, UndoMayLag: true, UndoOnRestart: true},
			asks: asksSource, undoes: "rollback_prep_change"},
		// Its undo may not lag: what the host remembers of the guest's power goes with the claim.
		{Step: task.Step{Name: migration.StepPowerOff, Do: s.coldSteps().powerOff, Undo: s.order(s.sourceOnce, operation.PowerOn, migration.StepPowerOff).undo}, asks: asksSource, undoes: "power_on"},
		{Step: task.Step{Name: migration.StepApplyChange, Do: s.order(s.sourceAnswers, operation.ApplyChange, migration.StepApplyChange).do, Undo: s.order(s.sourceOnce, operation.UnapplyChange, migration.StepApplyChange).undo}, asks: asksSource, undoes: "unapply_change"},
		// Undone by unapply_change, which ends the domain that it may have started.
		{Step: task.Step{Name: migration.StepStartChanged, Do: s.order(s.sourceAnswers, operation.StartChanged, migration.StepStartChanged).do}, asks: asksSource},
	}
}

var shownInPlace = []shown{{migration.StepInspectSource, migration.StatusPreMigrating}, {migration.StepPowerOff, migration.StatusMigrating}, {migration.StepStartChanged, migration.StatusPostMigrating}}

// resizeInPlace is the resize of a guest that stays where it is.
func (s inPlaceSteps) resizeInPlace() stage {
	return stage{
		name: storyResizeInPlace, steps: s.inPlace(), shown: shownInPlace, lease: migration.StepApplyChange, bounded: true,
		done: s.endings().finished, undone: s.endings().moveUndone,
	}
}

// rebuild gives a guest another image. Nobody confirms it: what was there before is
// given up as soon as the rebuilt guest has started.
func (s inPlaceSteps) rebuild() stage {
	return stage{
		name: storyRebuild,
		steps: append(s.inPlace(),
			// The point of no return.
			step{Step: task.Step{Name: migration.StepFinishChange, Do: s.orderOfMove(s.sourceOnce, operation.FinishChange, migration.StepFinishChange).do, Forward: true}, asks: asksSource},
			step{Step: task.Step{Name: migration.StepDeleteAllocation, Do: s.placementSteps().deleteAllocation, Forward: true}, asks: asksPlacement},
		),
		shown: shownInPlace, lease: migration.StepApplyChange, bounded: true,
		done: ends(migration.StatusDone, migration.OutcomeCompleted), undone: s.endings().moveUndone,
	}
}

// checkRoom asks the guest's host whether there is room for what it is to be.
func (s firstSteps) checkRoom(ctx context.Context, src inspectedSource) error {
	return s.askOnce(ctx, s.c.cfg.VerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
		_, err := operation.CheckDestination.Ask(ctx, h, s.ref(migration.StepCheckDestination), s.checkRequest(src))
		return err
	})
}

func (s inPlaceSteps) prepChange(ctx context.Context, t *task.Task) (any, error) {
	r, err := s.firstSteps().prepRequest(t)
	if err != nil {
		return nil, err
	}
	return nil, s.ask(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
		return operation.PrepChange.Ask(ctx, h, s.ref(migration.StepPrepChange), r)
	})
}
