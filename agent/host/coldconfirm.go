package host

import (
	"context"
	"time"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// confirmSource does operation.ConfirmSource. The guest's record goes last but for the memories:
// while it is here a confirmation that broke off is repeated.
func (h *Host) confirmSource(ctx context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known || inst.Token.Migration != ref.Migration && inst.Token.State != claims.TokenHere {
		return h.tracker.ForgetMigration(ctx, ref.Migration) // done before
	}
	c, left := h.tracker.Committed(ref.Migration)
	if !left || c.Attempt != ref.Attempt || c.Instance != ref.Instance || inst.Token.State != claims.TokenSurrendered {
		return fault.New(fault.Forbidden, "its token has not left by attempt %d of this migration", ref.Attempt)
	}
	half, held := h.attempts.HeldFor(ref)
	if held && half.State != claims.Held {
		return fault.New(fault.Forbidden, "the guest is on its way back, by attempt %d", half.Owner.Attempt)
	}
	if _, err := witnessed(ctx, h, ref); err != nil {
		return err
	}
	rec, _, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return err
	}
	if err := endUnmarked(ctx, h, ref); err != nil {
		return err
	}
	shipped, err := h.dock.Left(ref)
	if err != nil {
		return err
	}
	if _, err := h.removeMoved(ctx, ref, shipped); err != nil {
		return err
	}
	if err := h.phases.Run(ctx, ref, phases.Request{
		Phase: hooks.ConfirmResize, Kind: rec.Kind, Source: h.o.Name, Destination: c.To, XML: rec.Definition, Power: rec.Power,
	}); err != nil {
		return err
	}
	return h.forgetHalf(ctx, ref, half)
}

// forgetHalf ends what this host holds of a guest that has left and does not come back:
// claim, record and context, and then what verbs remembered.
func (h *Host) forgetHalf(ctx context.Context, ref migration.Ref, half claims.Claim) error {
	if err := h.dropRecords(ctx, ref.Instance); err != nil {
		return err
	}
	if half.ID != "" {
		if err := h.tracker.Release(ctx, half.Owner); err != nil {
			return err
		}
	}
	if err := h.tracker.Forget(ctx, ref.Instance); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// askBeforeDrop bounds the questions to other hosts before old files of disks are dropped. It is
// well below what the operation has: what nobody has answered for by then stays, and the move ends.
const askBeforeDrop = 3 * time.Minute

// confirmDestination does operation.ConfirmDestination.
func (h *Host) confirmDestination(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	switch {
	case err != nil:
		return err
	case h.attempts.GoneOn(ref):
		return h.tracker.ForgetMigration(ctx, ref.Migration)
	case !h.attempts.Accepted(ref):
		return fault.New(fault.Forbidden, "the token did not come here by this migration")
	case found && !rec.Finished:
		return fault.New(fault.Forbidden, "the guest's arrival is not finished")
	}
	if len(rec.Grown) > 0 {
		survey, err := h.fileUsers(ctx)
		if err != nil {
			return err
		}
		asking, cancel := h.rt.WithTimeout(ctx, askBeforeDrop)
		defer cancel()
		for _, d := range rec.Grown {
			kept, err := survey.Drop(asking, h.files, d.Target, d.Replaced, ref.Instance)
			if err != nil {
				return err
			}
			if kept != nil {
				h.log.Warn("the old file of a disk stays", "instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", kept.Path, "why", kept.Reason, "remedy", kept.Change)
			}
		}
	}
	if err := h.dock.Keep(ctx, ref); err != nil {
		return err
	}
	if err := h.tracker.DropContext(ctx, memory.At(ref, "")); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}
