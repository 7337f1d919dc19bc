package conductor

import (
	"context"
	"fmt"
	"slices"

	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// revert takes a guest back to the host that it left cold. It is the same hand-over the
// other way, under the next attempt: here the destination decides, by hand_back or its
// undo, and past it nothing but forward is left.
func (s revertSteps) revert() stage {
	return stage{
		name: storyRevert,
		steps: []step{
			{Step: task.Step{Name: migration.StepAwaitReturn, Do: s.order(s.sourceAnswers, operation.AwaitReturn, migration.StepAwaitReturn).do, Undo: s.order(s.undoAtSource, operation.CancelReturn, migration.StepAwaitReturn).undo, UndoMayLag: true}, asks: asksSource, undoes: "cancel_return"},
			{Step: task.Step{Name: migration.StepRevertPowerOff, Do: s.revertPowerOff, Undo: s.order(s.undoAtDestination, operation.PowerOn, migration.StepRevertPowerOff).undo, UndoMayLag: true}, asks: asksDestination, undoes: "power_on"},
			// What it makes durable at the source goes with cancel_return.
			{Step: task.Step{Name: migration.StepCarryVolumes, Do: s.carryVolumes}, asks: asksDestination},
			{Step: task.Step{Name: migration.StepHandBack, Do: s.handBack, Undo: s.keepThere, Final: true}, asks: asksDestination, undoes: "keep_guest"},
			// The token has left the destination.
			{Step: task.Step{Name: migration.StepAcceptHanded, Do: s.acceptReturned, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepFinishRevert, Do: s.order(s.sourceOnce, operation.FinishRevert, migration.StepFinishRevert).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepCleanUpReverted, Do: s.order(s.undoAtDestination, operation.CleanUpReverted, migration.StepCleanUpReverted).do, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: migration.StepRevertAllocations, Do: s.revertAllocations, Forward: true}, asks: asksPlacement},
		},
		shown:   []shown{{migration.StepAwaitReturn, migration.StatusReverting}},
		bounded: true,
		done:    ends(migration.StatusReverted, migration.OutcomeReverted),
		undone:  backToFinished,
	}
}

// revertByItself is the revert of a move whose guest cannot live at its destination. There
// is nothing to fall back to, so every step is retried until it is done.
func (s revertSteps) revertByItself() stage {
	g := s.revert()
	g.name, g.bounded, g.undone = storyRevertItself, false, never
	// The guest has never lived there: nobody has given it anything.
	g.steps = slices.DeleteFunc(g.steps, func(st step) bool { return st.Name == migration.StepCarryVolumes })
	for i := range g.steps {
		g.steps[i].Forward, g.steps[i].Final, g.steps[i].Undo, g.steps[i].undoes = true, false, nil, ""
	}
	g.done = func(rec *migration.Migration, _ task.State) ending {
		rec.Status, rec.Outcome, rec.Error = migration.StatusFailed, migration.OutcomeUndone, rec.Unfit
		return over
	}
	return g
}

// revertInPlace gives a guest that was resized where it is what it was before.
func (s inPlaceSteps) revertInPlace() stage {
	return stage{
		name: storyRevertInPlace,
		steps: []step{
			{Step: task.Step{Name: migration.StepRevertPowerOff, Do: s.revertSteps().revertPowerOff, Undo: s.order(s.undoAtDestination, operation.PowerOn, migration.StepRevertPowerOff).undo}, asks: asksSource, undoes: "power_on"},
			// The change is taken back whatever happens.
			{Step: task.Step{Name: migration.StepUnapplyChange, Do: s.orderOfMove(s.sourceOnce, operation.UnapplyChange, migration.StepApplyChange).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepPowerOn, Do: s.orderOfMove(s.sourceOnce, operation.PowerOn, migration.StepPowerOff).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepReleaseClaim, Do: s.orderOfMove(s.sourceOnce, operation.AbortClaim, migration.StepClaim).do, Forward: true}, asks: asksSource},
			{Step: task.Step{Name: migration.StepRevertAllocations, Do: s.revertSteps().revertAllocations, Forward: true}, asks: asksPlacement},
		},
		shown:   []shown{{migration.StepRevertPowerOff, migration.StatusReverting}},
		bounded: true,
		done:    ends(migration.StatusReverted, migration.OutcomeReverted),
		undone:  backToFinished,
	}
}

// backToFinished is the end of a revert that was given up: the guest is where it was
// moved to, and waits for another word. Not for its time: somebody wanted it back, and
// what he would go back to is not given up behind his back.
func backToFinished(rec *migration.Migration, st task.State) ending {
	rec.Stage, rec.Status, rec.Outcome, rec.Error = migration.StageFinished, migration.StatusFinished, migration.OutcomeNone, st.Cause
	return rests
}

// there finds the host that the guest was brought to; its own, where it stayed.
func (s *story) there() finder { return s.host(s.rec.DestCompute) }

func (s revertSteps) revertPowerOff(ctx context.Context, _ *task.Task) (any, error) {
	to := s.from
	if s.rec.InPlace {
		to = ""
	}
	return s.coldSteps().powersOff(ctx, s.there(), migration.StepRevertPowerOff, to)
}

// carryVolumes tells the source what the instance was given and lost since it left, so that it comes
// back with that.
func (s revertSteps) carryVolumes(ctx context.Context, _ *task.Task) (any, error) {
	var out migration.VolumeChanges
	err := s.ask(ctx, s.c.cfg.VerbTimeout, s.there(), func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.ReadVolumes.Ask(ctx, h, s.ref(migration.StepCarryVolumes))
		return err
	})
	if err == nil {
		err = s.ask(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
			return operation.CarryVolumes.Ask(ctx, h, s.ref(migration.StepCarryVolumes), out)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("carry the volumes of %s back: %w", s.instance, err)
	}
	return out, nil
}

func (s revertSteps) handBack(ctx context.Context, _ *task.Task) (any, error) {
	return asOutput(s.coldSteps().handsOver(ctx, s.there(), migration.StepHandBack, s.from))
}

func (s revertSteps) keepThere(ctx context.Context, _ *task.Task) error {
	return s.coldSteps().keeps(ctx, s.there(), migration.StepHandBack)
}

func (s revertSteps) acceptReturned(ctx context.Context, t *task.Task) (any, error) {
	var c migration.Commit
	if err := t.Output(migration.StepHandBack, &c); err != nil {
		return nil, err
	}
	return nil, s.coldSteps().accepts(ctx, c, s.there(), migration.StepHandBack, func(c migration.Commit) error {
		return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
			return operation.AcceptHanded.Ask(ctx, h, s.ref(migration.StepAcceptHanded), c)
		})
	})
}

// revertAllocations gives both halves back to the instance. The migration's consumer goes
// in the same write.
func (s revertSteps) revertAllocations(ctx context.Context, t *task.Task) (any, error) {
	return nil, s.placementSteps().swapBack(ctx, t)
}
