package conductor

import (
	"context"
	"fmt"
	"slices"

	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// shareNothing takes a guest that is off to a host that shares nothing with its own, and
// that it may have no way to: whoever conducts talks to both.
//
// It is coldMove with four things between: the instance's record goes ahead, hidden; the
// disks are held as they are before anybody reads them; the guest is taken from its
// networks and volumes before they are connected elsewhere; and which of the two records
// is seen changes last. On a restart it does as coldMove does.
//
// Before the guest is powered on again it must be connected and its files let go: those
// two undos may not lag. All that is at the destination and in Placement may.
func (s shareNothingSteps) shareNothing(name string) stage {
	copied := step{Step: task.Step{Name: migration.StepCopyInstance, Do: s.copyInstance, Undo: s.order(s.undoAtDestination, operation.RemoveCopy, migration.StepCopyInstance).undo, UndoMayLag: true}, asks: asksDestination, undoes: "remove_copy"}
	return stage{
		name: name,
		// The record goes ahead as soon as the claim is held.
		steps: append(slices.Insert(s.firstSteps().steps(), 4, copied),
			step{Step: task.Step{Name: migration.StepPrepResize, Do: s.coldSteps().prepResize, Undo: s.order(s.undoAtDestination, operation.RollbackPrepResize, migration.StepPrepResize).undo, UndoMayLag: true, UndoOnRestart: true},
				asks: asksDestination, undoes: "rollback_prep_resize"},
			step{Step: task.Step{Name: migration.StepPowerOff, Do: s.coldSteps().powerOff, Undo: s.order(s.sourceOnce, operation.PowerOn, migration.StepPowerOff).undo, UndoMayLag: true}, asks: asksSource, undoes: "power_on"},
			step{Step: task.Step{Name: migration.StepSnapshotDisks, Do: s.snapshotDisks, Undo: s.order(s.sourceOnce, operation.DropSnapshot, migration.StepSnapshotDisks).undo}, asks: asksSource, undoes: "drop_snapshot"},
			step{Step: task.Step{Name: migration.StepDisconnectSource, Do: s.order(s.sourceAnswers, operation.Disconnect, migration.StepDisconnectSource).do, Undo: s.order(s.sourceOnce, operation.Reconnect, migration.StepDisconnectSource).undo}, asks: asksSource, undoes: "reconnect_source"},
			step{Step: task.Step{Name: migration.StepShipDisks, Do: s.shipEitherWay}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepHandOver, Do: s.coldSteps().handOver, Undo: s.coldSteps().keepGuest, Final: true}, asks: asksSource, undoes: "keep_guest"},
			// The token has left.
			step{Step: task.Step{Name: migration.StepAcceptHanded, Do: s.coldSteps().acceptHanded, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepFinishResize, Do: s.coldSteps().finishResize, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepShowInstance, Do: s.showInstance, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepHideInstance, Do: s.hideInstance, Forward: true}, asks: asksSource},
		),
		shown:   []shown{{migration.StepInspectSource, migration.StatusPreMigrating}, {migration.StepPowerOff, migration.StatusMigrating}, {migration.StepAcceptHanded, migration.StatusPostMigrating}},
		lease:   migration.StepAcceptHanded,
		bounded: true,
		done:    s.coldSteps().coldMoved,
		undone:  s.endings().moveUndone,
	}
}

// copyInstance sets up the instance's record at the destination, which is shown there only
// once the guest lives there.
func (s shareNothingSteps) copyInstance(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return nil, err
	}
	g := src.wanted()
	i := migration.InstanceCopy{UUID: g.UUID, Name: g.Name, Flavor: g.Flavor, ProjectID: g.ProjectID, UserID: g.UserID, Autostart: g.Autostart, Epoch: g.Epoch}
	return nil, s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.CopyInstance.Ask(ctx, h, s.ref(migration.StepCopyInstance), i)
	})
}

// snapshotDisks holds the files that are to be shipped.
func (s shareNothingSteps) snapshotDisks(ctx context.Context, t *task.Task) (any, error) {
	var disks migration.SourceAnswer
	if err := t.Output(migration.StepCheckSource, &disks); err != nil {
		return nil, err
	}
	var out migration.Snapshot
	err := s.ask(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.SnapshotDisks.Ask(ctx, h, s.ref(migration.StepSnapshotDisks), migration.SnapshotRequest{Targets: disks.CopyDisks})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("hold the disks of %s: %w", s.instance, err)
	}
	return out, nil
}

// showInstance shows the copy at the destination, before the source's is hidden: for a
// moment both are seen, and never none. Not of a guest that cannot live there: it is
// taken back.
func (s shareNothingSteps) showInstance(ctx context.Context, t *task.Task) (any, error) {
	if unfitThere(t) {
		return nil, nil
	}
	return nil, s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.ShowInstance.Ask(ctx, h, s.ref(migration.StepShowInstance))
	})
}

func (s shareNothingSteps) hideInstance(ctx context.Context, t *task.Task) (any, error) {
	if unfitThere(t) {
		return nil, nil
	}
	return nil, s.undoAtSource(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.HideInstance.Ask(ctx, h, s.ref(migration.StepHideInstance))
	})
}

// unfitThere reports whether the guest could not be made live at its destination.
func unfitThere(t *task.Task) bool {
	var out finishedResize
	return t.Output(migration.StepFinishResize, &out) == nil && out.Unfit != nil
}
