package host

import (
	"context"

	"berth/migration"
	"berth/migration/operation"
)

// handlers are the operations that this host does. A new one is a line here.
func (h *Host) handlers() operation.Handlers {
	return operation.Handle(
		operation.PrepEvacuation.By(h.prepEvacuation).UnlessDone(h.preparedEvacuation),
		operation.RollbackPrepEvacuation.By(h.rollbackPrepEvacuation).Unless(h.notEvacuated),
		operation.AcceptEvacuated.By(h.acceptCommitted),
		operation.FinishEvacuation.By(h.finishEvacuation),

		operation.Reaches.By(h.reaches),
		operation.SnapshotDisks.By(func(ctx context.Context, ref migration.Ref, r migration.SnapshotRequest) (migration.Snapshot, error) {
			return h.snapshotDisks(ctx, ref, r.Targets)
		}),
		operation.DropSnapshot.By(h.dropSnapshot).Unless(h.notGone),
		operation.Disconnect.By(h.disconnect),
		operation.Reconnect.By(h.reconnect).Unless(h.notGone),
		operation.SendDisks.By(h.dock.Send),
		operation.HideInstance.By(h.hideInstance),
		operation.CarryVolumes.By(h.carryVolumes),
		operation.CopyInstance.By(h.copyInstance).UnlessDone(h.copied),
		operation.RemoveCopy.By(h.removeCopy).Unless(h.notHere),
		operation.ShowInstance.By(h.showInstance),
		operation.ReadVolumes.By(h.readVolumes),
		operation.PlanChange.By(func(ctx context.Context, ref migration.Ref, c migration.Change) (migration.Wanted, error) {
			return h.changer.Plan(ctx, ref.Instance, c)
		}),
		operation.PowerOff.By(h.powerOff).UnlessDone(h.powersOff),
		operation.PowerOn.By(h.powerOn).Unless(h.mayPowerOn),
		operation.HandOver.By(func(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
			return h.handOver(ctx, ref, r.To)
		}),
		operation.KeepGuest.By(h.keepGuest),
		operation.ConfirmSource.By(h.confirmSource),
		operation.AwaitReturn.By(h.awaitReturn).UnlessDone(h.returnAccepted),
		operation.CancelReturn.By(h.cancelReturn),
		operation.FinishRevert.By(h.finishRevert),
		operation.ReadDisk.By(h.dock.ReadDisk),
		operation.PrepResize.By(h.prepResize).UnlessDone(h.preparedCold),
		operation.RollbackPrepResize.By(h.rollbackPrepResize).Unless(h.notAccepted),
		operation.ShippedSoFar.By(h.dock.ShippedSoFar),
		operation.WriteDisk.By(h.dock.WriteDisk),
		operation.SealDisks.By(h.dock.SealDisks),
		operation.AcceptHanded.By(h.acceptProven),
		operation.FinishResize.By(h.finishResize),
		operation.ConfirmDestination.By(h.confirmDestination),
		operation.CleanUpReverted.By(h.cleanUpReverted),
		operation.PrepChange.By(h.changer.Prepare).UnlessDone(h.changer.Prepared),
		operation.RollbackPrepChange.By(h.changer.RollbackPrepare).Unless(h.changer.NotChanged),
		operation.ApplyChange.By(h.changer.Apply),
		operation.UnapplyChange.By(h.changer.Unapply).Unless(h.changer.NotFinished),
		operation.StartChanged.By(h.changer.Start),
		operation.FinishChange.By(h.changer.Finish),

		operation.Inspect.By(h.inspectRef),
		operation.CheckSource.By(h.checkAnySource),
		operation.RecordContext.By(h.recordContext),
		operation.DropContext.By(h.dropContext),
		operation.StartStream.By(h.streams.Start),
		operation.StreamStatus.By(h.streamStatus),
		operation.TuneStream.By(h.streams.Tune),
		operation.Commit.By(h.commit),
		operation.Reclaim.By(h.reclaim),
		operation.CleanUpSource.By(h.cleanUpSource),
		operation.CheckDestination.By(h.checkAnyDestination),
		operation.Claim.Then(operation.Claim.By(h.claimAny), h.countClaim),
		operation.RenewClaim.By(h.renewClaim),
		operation.AbortClaim.By(h.abortClaim),
		operation.PreLiveMigration.By(h.preLiveMigration).UnlessDone(h.preparedLive),
		operation.RollbackPreLiveMigration.By(h.rollbackPreLiveMigration).Unless(h.notArrived),
		operation.AcceptToken.By(h.acceptToken),
		operation.DestinationStatus.By(h.destinationStatus),
		operation.FinishDestination.By(h.finishDestination),
	)
}

// Ask implements migration.Host. The dispatcher does before each operation what its value says. The
// conductor of the attempt is not silent, and an error names the operation, what it is of and the
// host.
func (h *Host) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if op.Access != migration.AccessLook && ref.Migration != "" {
		defer h.attend(ref)()
	}
	out, err := h.operations.Ask(ctx, ref, op, in)
	return out, wrap(err, "%s of instance %s (migration %s, attempt %d) on %s", op.Name, ref.Instance, ref.Migration, ref.Attempt, h.o.Name)
}

// unasked is this host as it asks itself: no conductor is heard of by that.
type unasked struct{ *Host }

// Ask implements migration.Host.
func (u unasked) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	return u.operations.Ask(ctx, ref, op, in)
}
