package migration

import (
	"context"
	"fmt"

	"berth/migration/task"
)

// The steps that only a move between hosts that share nothing has. The names are in
// journals and in the tombstones of hosts.
const (
	StepCopyInstance     = "copy_instance"
	StepSnapshotDisks    = "snapshot_disks"
	StepDisconnectSource = "disconnect_source"
	StepShowInstance     = "show_instance"
	StepHideInstance     = "hide_instance"

	// Of every revert to another host that somebody asked for.
	StepCarryVolumes = "carry_volumes"
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
func (s *story) shareNothing(name string) stage {
	return stage{
		name: name,
		steps: []step{
			{Step: task.Step{Name: StepInspectSource, Do: s.inspectSource}, asks: asksSource},
			{Step: task.Step{Name: StepChooseDestination, Do: s.chooseDestination}, asks: asksPlacement},
			{Step: task.Step{Name: StepCheckDestination, Do: s.checkDestination}, asks: asksDestination},
			{Step: task.Step{Name: StepClaim, Do: s.claim, Undo: s.abortClaim, UndoMayLag: true}, asks: asksDestination, undoes: "abort_claim"},
			{Step: task.Step{Name: StepCopyInstance, Do: s.copyInstance, Undo: s.removeCopy, UndoMayLag: true}, asks: asksDestination, undoes: "remove_copy"},
			{Step: task.Step{Name: StepSwapAllocations, Do: s.swap, Undo: s.swapBack, UndoMayLag: true}, asks: asksPlacement, undoes: "swap_allocations_back"},
			{Step: task.Step{Name: StepCheckSource, Do: s.checkSource}, asks: asksSource},
			{Step: task.Step{Name: StepRecordContext, Do: s.recordContext, Undo: s.dropContext}, asks: asksSource, undoes: "drop_context"},
			{Step: task.Step{Name: StepPrepResize, Do: s.prepResize, Undo: s.rollbackPrepResize, UndoMayLag: true, UndoOnRestart: true},
				asks: asksDestination, undoes: "rollback_prep_resize"},
			{Step: task.Step{Name: StepPowerOff, Do: s.powerOff, Undo: s.powerOn, UndoMayLag: true}, asks: asksSource, undoes: "power_on"},
			{Step: task.Step{Name: StepSnapshotDisks, Do: s.snapshotDisks, Undo: s.dropSnapshot}, asks: asksSource, undoes: "drop_snapshot"},
			{Step: task.Step{Name: StepDisconnectSource, Do: s.disconnectSource, Undo: s.reconnectSource}, asks: asksSource, undoes: "reconnect_source"},
			{Step: task.Step{Name: StepShipDisks, Do: s.shipEitherWay}, asks: asksDestination},
			{Step: task.Step{Name: StepHandOver, Do: s.handOver, Undo: s.keepGuest, Final: true}, asks: asksSource, undoes: "keep_guest"},
			// The token has left.
			{Step: task.Step{Name: StepAcceptHanded, Do: s.acceptHanded, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: StepFinishResize, Do: s.finishResize, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: StepShowInstance, Do: s.showInstance, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: StepHideInstance, Do: s.hideInstance, Forward: true}, asks: asksSource},
		},
		shown:   []shown{{StepInspectSource, StatusPreMigrating}, {StepPowerOff, StatusMigrating}, {StepAcceptHanded, StatusPostMigrating}},
		lease:   StepAcceptHanded,
		bounded: true,
		done:    s.coldMoved,
		undone:  s.moveUndone,
	}
}

// ReasonPeerTooOld is the code of a refusal by which whoever asked an agent says that it does
// not know the verb.
const ReasonPeerTooOld = "peer_too_old"

// undoApart is for undos: an agent that does not know the verb has never done what is to be
// undone.
func undoApart(f func(context.Context, Host) error) func(context.Context, Host) error {
	return func(ctx context.Context, h Host) error {
		if err := f(ctx, h); !hasReason(err, ReasonPeerTooOld) {
			return err
		}
		return nil
	}
}

// copyInstance sets up the instance's record at the destination, which is shown there only
// once the guest lives there.
func (s *story) copyInstance(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	if err := t.Output(StepInspectSource, &src); err != nil {
		return nil, err
	}
	g := src.wanted()
	i := InstanceCopy{UUID: g.UUID, Name: g.Name, Flavor: g.Flavor, ProjectID: g.ProjectID, UserID: g.UserID, Autostart: g.Autostart, Epoch: g.Epoch}
	return nil, s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h Host) error {
		return h.CopyInstance(ctx, s.ref(StepCopyInstance), i)
	})
}

func (s *story) removeCopy(ctx context.Context, t *task.Task) error {
	return s.undoAtDestination(ctx, t, undoApart(func(ctx context.Context, h Host) error {
		return h.RemoveCopy(ctx, s.ref(StepCopyInstance))
	}))
}

// snapshotDisks holds the files that are to be shipped.
func (s *story) snapshotDisks(ctx context.Context, t *task.Task) (any, error) {
	var disks SourceAnswer
	if err := t.Output(StepCheckSource, &disks); err != nil {
		return nil, err
	}
	var out Snapshot
	err := s.ask(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h Host) (err error) {
		out, err = h.SnapshotDisks(ctx, s.ref(StepSnapshotDisks), disks.CopyDisks)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("hold the disks of %s: %w", s.instance, err)
	}
	return out, nil
}

func (s *story) dropSnapshot(ctx context.Context, _ *task.Task) error {
	return s.atSource(ctx, s.c.cfg.SlowVerbTimeout, undoApart(func(ctx context.Context, h Host) error {
		return h.DropSnapshot(ctx, s.ref(StepSnapshotDisks))
	}))
}

func (s *story) disconnectSource(ctx context.Context, _ *task.Task) (any, error) {
	err := s.ask(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h Host) error {
		return h.Disconnect(ctx, s.ref(StepDisconnectSource))
	})
	if err != nil {
		return nil, fmt.Errorf("disconnect instance %s: %w", s.instance, err)
	}
	return nil, nil
}

func (s *story) reconnectSource(ctx context.Context, _ *task.Task) error {
	return s.atSource(ctx, s.c.cfg.SlowVerbTimeout, undoApart(func(ctx context.Context, h Host) error {
		return h.Reconnect(ctx, s.ref(StepDisconnectSource))
	}))
}

// showInstance shows the copy at the destination, before the source's is hidden: for a
// moment both are seen, and never none. Not of a guest that cannot live there: it is
// taken back.
func (s *story) showInstance(ctx context.Context, t *task.Task) (any, error) {
	if unfitThere(t) {
		return nil, nil
	}
	return nil, s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h Host) error {
		return h.ShowInstance(ctx, s.ref(StepShowInstance))
	})
}

func (s *story) hideInstance(ctx context.Context, t *task.Task) (any, error) {
	if unfitThere(t) {
		return nil, nil
	}
	return nil, s.undoAtSource(ctx, func(ctx context.Context, h Host) error {
		return h.HideInstance(ctx, s.ref(StepHideInstance))
	})
}

// unfitThere reports whether the guest could not be made live at its destination.
func unfitThere(t *task.Task) bool {
	var out finishedResize
	return t.Output(StepFinishResize, &out) == nil && out.Unfit != nil
}
