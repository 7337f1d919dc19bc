package host

import (
	"cmp"
	"context"
	"errors"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

const (
	memoryReturned = "returned"
)

// returned is the record of FinishRevert: what its user does after that is his.
type returned struct {
	Started bool `json:"started"`
}

// awaitReturn does operation.AwaitReturn.
func (h *Host) awaitReturn(ctx context.Context, ref migration.Ref) error {
	if h.attempts.Accepted(ref) {
		return nil
	}
	if err := h.returnable(ctx, ref); err != nil {
		return err
	}
	_, err := h.tracker.AwaitReturn(ctx, memory.At(ref, operation.StepReturn), claims.KindResize)
	return err
}

// returnable refuses, with every reason, to take a guest back of which something is not
// here any more. A definition that was removed meanwhile is on record since the power-off, and
// is made again from that.
func (h *Host) returnable(ctx context.Context, ref migration.Ref) error {
	var no refusal
	was, _, err := memory.RecallEarlier[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case !exists && was.Definition != "":
		if err := no.take(h.witness.Off(ref.Instance, ref.Instance, nil)); err != nil {
			return err
		}
	case !exists:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "definition_gone", Message: "what the guest was on " + h.o.Name + " is not defined any more", Change: "define it here again, with its uuid; or, where it runs at its destination, confirm the move and move it back",
		})
	case d.Active():
		no.add(fault.InDoubt, fault.Reason{
			Code: "runs_here", Message: "a copy of guest " + d.Name + " is " + string(d.State) + " (" + string(d.Reason) + ") on " + h.o.Name + ", and its token is not",
			Change: "end it (virsh destroy DOMAIN) at once",
		})
	default:
		// Its disks are not asked about: the instance may still run where it is now.
		if err := no.take(h.witness.Off(d.UUID, d.Name, nil)); err != nil {
			return err
		}
	}
	text, err := driver.Definition(ctx, h.driver, ref.Instance)
	if err != nil {
		return err
	}
	doc, err := parseDocument(cmp.Or(text, was.Definition))
	if err != nil {
		return err
	}
	for _, e := range doc.Devices.Disks {
		path := e.path()
		if path == "" || e.Type != "file" && e.Type != "block" {
			continue
		}
		if e.Type == "block" && h.elsewhereConnected(ref) {
			continue // its device was taken away with the guest, and is given back before it starts
		}
		there, err := h.files.Exists(path)
		if err != nil {
			return err
		}
		if !there {
			no.add(fault.Forbidden, fault.Reason{
				Code: "disk_missing", Message: "disk " + e.Target.Dev + " of what the guest was, " + path + ", is not on " + h.o.Name + " any more",
				Want: path, Change: "put it back, or confirm the move",
			})
		}
	}
	return no.err("")
}

// returnAccepted reports whether the instance has come back by an attempt.
func (h *Host) returnAccepted(ref migration.Ref) (bool, error) { return h.attempts.Accepted(ref), nil }

// cancelReturn does operation.CancelReturn.
func (h *Host) cancelReturn(ctx context.Context, ref migration.Ref) error {
	// It buries the step first: what is carried later than that is refused.
	if err := h.tracker.CancelReturn(ctx, memory.At(ref, operation.StepReturn), claims.KindResize); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	return h.asKept(ctx, ref)
}

// finishRevert does operation.FinishRevert.
func (h *Host) finishRevert(ctx context.Context, ref migration.Ref) error {
	mc, moving := h.tracker.Context(ref.Migration)
	_, bound := h.attempts.BoundBy(ref)
	switch {
	case h.attempts.GoneOn(ref), h.attempts.Accepted(ref) && bound && !moving:
		return h.tracker.ForgetMigration(ctx, ref.Migration) // done before
	case !h.attempts.Accepted(ref):
		return fault.New(fault.Forbidden, "the token did not come back here by attempt %d", ref.Attempt)
	}
	was, _, err := memory.RecallEarlier[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return err
	}
	rec, _, err := memory.Recall[returned](h.memory, ref, memoryReturned)
	if err != nil {
		return err
	}
	hooked, err := h.giveConnectionsBack(ctx, ref)
	if err != nil {
		return err
	}
	if !rec.Started {
		if err := h.makeLiveAgain(ctx, ref, was); err != nil {
			return errors.Join(hooked, err)
		}
		if err := h.memory.Remember(ctx, ref, memoryReturned, returned{Started: true}); err != nil {
			return err
		}
	}
	if hooked != nil {
		return hooked // it is run again, and the guest does not wait for it
	}
	if err := h.phases.Run(ctx, ref, phases.Request{
		Phase: hooks.FinishRevertResize, Kind: was.Kind, Source: h.o.Name, Destination: mc.Destination, XML: was.Definition, Power: was.Power,
	}); err != nil {
		return err
	}
	if err := h.tracker.DropContext(ctx, memory.At(ref, "")); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// makeLiveAgain gives a guest that came back its definition, its claim and the power
// state that its user had chosen before it left.
func (h *Host) makeLiveAgain(ctx context.Context, ref migration.Ref, was poweredOff) error {
	inst, _ := h.tracker.Instance(ref.Instance)
	text, err := driver.Definition(ctx, h.driver, ref.Instance)
	if err != nil {
		return err
	}
	if text == "" {
		text = was.Definition // removed since the return was awaited
	}
	if text, err = h.takenAlong(ref, text, was.Definition); err != nil {
		return err
	}
	if err := h.defineOwned(ctx, ref, inst, text); err != nil {
		return err
	}
	if _, err := h.tracker.Bind(ctx, attempts.OwnerOf(ref, claims.KindResize)); err != nil {
		return err
	}
	if err := h.activateConnections(ctx, ref, text); err != nil {
		return err
	}
	power := was.Power
	if power == "" { // its record was lost
		came, _ := h.tracker.Came(ref.Migration)
		power = migration.PowerState(came.Power)
	}
	return h.startAs(ctx, ref.Instance, power)
}

// cleanUpReverted does operation.CleanUpReverted.
func (h *Host) cleanUpReverted(ctx context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known || inst.Token.Migration != ref.Migration {
		// Done before. A guest that is here again came by another move, which began after.
		return h.tracker.ForgetMigration(ctx, ref.Migration)
	}
	c, left := h.tracker.Committed(ref.Migration)
	if !left || c.Attempt != ref.Attempt || inst.Token.State != claims.TokenSurrendered {
		return fault.New(fault.Forbidden, "its token has not gone back by attempt %d of this migration", ref.Attempt)
	}
	if _, err := witnessed(ctx, h, ref); err != nil {
		return err
	}
	if err := h.endSource(ctx, ref); err != nil {
		return err
	}
	came := ref
	came.Attempt = h.tracker.Accepted(ref.Migration)
	if err := h.undoColdPreparation(ctx, came, hooks.RevertResize); err != nil {
		return err
	}
	half, _ := h.attempts.HeldFor(ref)
	return h.forgetHalf(ctx, ref, half)
}
