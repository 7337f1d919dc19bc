package host

import (
	"context"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// finishResize does operation.FinishResize.
func (h *Host) finishResize(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	if err != nil {
		return err
	}
	_, bound := h.attempts.BoundBy(ref)
	switch {
	case h.attempts.GoneOn(ref), h.attempts.Accepted(ref) && found && rec.Finished, h.attempts.Accepted(ref) && bound && !found:
		return nil // done before: also where the guest has gone on since, or back
	case !h.attempts.Accepted(ref):
		return fault.New(fault.Forbidden, "the token did not come here by this migration")
	case !found:
		return fault.New(fault.InDoubt, "the guest's token is here, and the record of its preparation is lost")
	}
	if h.takenBack(attempts.OwnerOf(ref, claims.KindResize)) {
		return fault.New(fault.Forbidden, "the guest is on its way back, by a later attempt")
	}
	if !rec.Started {
		if err := h.growDisks(ctx, ref, &rec); err != nil {
			return err
		}
		if err := h.makeLive(ctx, ref, rec); err != nil {
			return err
		}
		rec.Started = true
		if err := h.memory.Remember(ctx, ref, memoryPreparedCold, rec); err != nil {
			return err
		}
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.FinishResize)); err != nil {
		return err
	}
	rec.Finished = true
	return h.memory.Remember(ctx, ref, memoryPreparedCold, rec)
}

// makeLive gives a guest that came while it was off its definition, its claim and its
// power state here.
func (h *Host) makeLive(ctx context.Context, ref migration.Ref, rec coldPreparation) error {
	// Headers on shared storage may have changed since they were admitted, and a pool may have been
	// inactive. An instance that comes shut off is read too: its user starts it.
	if err := h.gate.AdmitImages(ctx, ref.Instance, rec.Definition); err != nil {
		return err
	}
	if err := h.defineOwned(ctx, ref, rec.Instance, rec.Definition); err != nil {
		return err
	}
	// A bound claim is one of a defined domain, and what starts has one.
	if _, err := h.tracker.Bind(ctx, attempts.OwnerOf(ref, claims.KindResize)); err != nil {
		return err
	}
	if err := h.activateConnections(ctx, ref, rec.Definition); err != nil {
		return err
	}
	came, _ := h.tracker.Came(ref.Migration)
	return h.startAs(ctx, ref.Instance, migration.PowerState(came.Power))
}

// defineOwned defines a guest whose token is here by this migration, with the epoch that
// the token has. libvirt's own autostart would start it without asking who owns it; the
// wish is in the ledger.
func (h *Host) defineOwned(ctx context.Context, ref migration.Ref, inst claims.Instance, text string) error {
	doc, err := domainxml.Parse(text)
	if err != nil {
		return fault.New(fault.Invalid, "write the guest's document: %w", err)
	}
	doc.SetMetadata(domainxml.Metadata{Name: inst.Name, Flavor: inst.Flavor, Epoch: h.attempts.Epoch(ref.Instance), Migration: ref.Migration})
	if err := h.driver.Define(ctx, doc.String()); err != nil {
		return err
	}
	return h.driver.SetAutostart(ctx, ref.Instance, false)
}
