package host

import (
	"context"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Between hosts that share nothing an instance has a record on each of them while it
// moves, of which one is shown:
//
//	                        at its source           at its destination
//	before                  shown, token here       –
//	CopyInstance            shown, token here       a copy, hidden
//	HandOver, AcceptHanded  shown, surrendered      hidden, token here
//	ShowInstance            shown, surrendered      shown, token here: the higher epoch is right
//	HideInstance            hidden, surrendered     shown, token here
//	confirmed               –                       shown
//	reverted                shown, token here       –
//
// So there is no moment at which nobody shows it.

// copyInstance does operation.CopyInstance.
func (h *Host) copyInstance(ctx context.Context, ref migration.Ref, i migration.InstanceCopy) error {
	if i.UUID != ref.Instance {
		return fault.New(fault.Invalid, "the record is of instance %q", i.UUID)
	}
	if h.attempts.Accepted(ref) || h.attempts.GoneOn(ref) {
		return nil
	}
	var no refusal
	if err := h.checkNames(ctx, &no, migration.Guest{UUID: i.UUID, Name: i.Name}, ""); err != nil {
		return err
	}
	if err := no.err(""); err != nil {
		return err
	}
	mc, _ := h.attempts.ContextOf(ref)
	return h.tracker.PutCopy(ctx, memory.At(ref, operation.StepCopy), claims.Instance{
		UUID: i.UUID, Name: i.Name, Flavor: i.Flavor, ProjectID: i.ProjectID, UserID: i.UserID, Autostart: i.Autostart,
		Token: claims.Token{Epoch: i.Epoch, State: claims.TokenSurrendered, Holder: mc.Source, Migration: ref.Migration},
	})
}

// removeCopy does operation.RemoveCopy.
func (h *Host) removeCopy(ctx context.Context, ref migration.Ref) error {
	return h.tracker.RemoveCopy(ctx, memory.At(ref, operation.StepCopy))
}

// copied reports whether an attempt's copy has become the instance, here or beyond.
func (h *Host) copied(ref migration.Ref) (bool, error) {
	return h.attempts.Accepted(ref) || h.attempts.GoneOn(ref), nil
}

// notHere refuses to undo what an instance that has arrived needs.
func (h *Host) notHere(_ context.Context, ref migration.Ref) error {
	if h.attempts.Accepted(ref) {
		return fault.New(fault.Forbidden, "the guest has arrived: its token is here")
	}
	return nil
}

// showInstance does operation.ShowInstance.
func (h *Host) showInstance(ctx context.Context, ref migration.Ref) error {
	if h.tracker.Accepted(ref.Migration) < ref.Attempt {
		return fault.New(fault.Forbidden, "the token did not come here by this migration")
	}
	return h.tracker.SetHidden(ctx, ref.Instance, ref.Migration, false)
}

// hideInstance does operation.HideInstance.
func (h *Host) hideInstance(ctx context.Context, ref migration.Ref) error {
	switch c, left := h.tracker.Left(ref.Migration); {
	case !left || c.Instance != ref.Instance || c.Attempt < ref.Attempt:
		return fault.New(fault.Forbidden, "its token has not left by attempt %d of this migration", ref.Attempt)
	case h.attempts.Returned(ref):
		return nil // it has come back since, and is shown
	}
	return h.tracker.SetHidden(ctx, ref.Instance, ref.Migration, true)
}

// sweepCopies drops copies that nothing here waits for, and shows what nobody else will: a
// guest of this host whose move is over, or is one that this host has finished alone.
func (h *Host) sweepCopies(ctx context.Context) {
	gone, err := h.tracker.SweepCopies(ctx)
	for _, c := range gone {
		h.log.Info("drop the copy of an instance that no claim is here for", "instance", c.Instance.UUID, "migration", c.Migration)
	}
	for _, inst := range h.tracker.HiddenInstances() {
		if inst.Token.State != claims.TokenHere {
			continue
		}
		if _, moving := h.attempts.Moving(inst.UUID); moving {
			continue
		}
		if showErr := h.tracker.SetHidden(ctx, inst.UUID, inst.Token.Migration, false); showErr != nil {
			err = showErr
		}
	}
	if sweepErr := h.sweepSnapshots(ctx); sweepErr != nil {
		err = sweepErr
	}
	if err != nil && ctx.Err() == nil {
		h.log.Warn("what a move has left behind could not be swept", "error", err)
	}
}

// sweepSnapshots drops what holds the files of guests whose moves are not here any more: a
// move's context is recorded before, and dropped after it.
func (h *Host) sweepSnapshots(ctx context.Context) error {
	for _, r := range h.tracker.Remembering(memorySnapshot) {
		if _, recorded := h.tracker.Context(r.Migration); recorded || len(h.tracker.ByMigration(r.Migration)) > 0 {
			continue
		}
		h.log.Info("drop the snapshot of a move that is not here any more", "migration", r.Migration, "attempt", r.Attempt)
		r.Instance = h.instanceOf(r.Migration)
		if err := h.tracker.Unremember(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// copyView is the copy of an instance as people see it who ask for hidden ones.
func (h *Host) copyView(c claims.Copy) InstanceView {
	v := h.look(c.Instance, driver.Domain{})
	v.Migration = c.Migration
	return v
}
