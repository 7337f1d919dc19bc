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
	"berth/migration/operation"
)

// way is how a guest comes: its arrival is finished, or ended, by other verbs.
type way int

const (
	wayLive      way = iota // its memory is sent
	wayCold                 // it is off while it comes
	wayBack                 // it is off, and comes back to where it was
	wayEvacuated            // its host is dead: see evacuatesides.go
)

// coldArrivals are the guests that come here while they are off, or come back, and are
// not finished: in the same states as live ones, which stand in claims and records.
func (h *Host) coldArrivals() []pendingArrival {
	var out []pendingArrival
	seen := map[string]bool{}
	for _, c := range h.tracker.List() {
		if c.Owner.Kind != claims.KindResize || c.State != claims.Pending && c.State != claims.Arriving || h.external.Foreign(c.Owner) {
			continue
		}
		a := pendingArrival{ref: attempts.RefOf(c.Owner), claim: arrivalArriving, way: wayCold}
		if c.State == claims.Pending {
			a.claim = arrivalPending
		}
		mc, known := h.attempts.ContextOf(a.ref)
		if h.attempts.InPlace(mc.Source, mc.Destination) {
			continue
		}
		a.source, a.power = mc.Source, mc.OldPowerState
		if known && mc.Source == h.o.Name {
			a.source, a.way = mc.Destination, wayBack
		}
		seen[memory.Key(a.ref)] = true
		out = append(out, a)
	}
	// A claim whose lease was over while it was prepared, and a guest that was bound and
	// not finished.
	for _, r := range h.tracker.Remembering(memoryPreparedCold) {
		rec, found, err := memory.Recall[coldPreparation](h.memory, r, memoryPreparedCold)
		if err != nil || !found || rec.Finished {
			continue
		}
		ref := migration.Ref{Migration: r.Migration, Instance: rec.Instance.UUID, Attempt: r.Attempt}
		if seen[memory.Key(ref)] || h.attempts.GoneOn(ref) || h.takenBack(attempts.OwnerOf(ref, claims.KindResize)) || h.external.Foreign(attempts.OwnerOf(ref, claims.KindResize)) {
			continue
		}
		out = append(out, pendingArrival{ref: ref, source: rec.Source, claim: arrivalNone, way: wayCold})
	}
	for _, mc := range h.tracker.Contexts() {
		ref := migration.Ref{Migration: mc.Migration, Instance: mc.Instance, Attempt: h.tracker.Accepted(mc.Migration)}
		if mc.Source == h.o.Name && ref.Attempt > 0 && !seen[memory.Key(ref)] && h.attempts.Accepted(ref) && !h.external.Foreign(attempts.OwnerOf(ref, claims.KindResize)) {
			out = append(out, pendingArrival{ref: ref, source: mc.Destination, claim: arrivalNone, way: wayBack})
		}
	}
	return out
}

// takeIn accepts a guest by its commit, and finishes its arrival.
func (h *Host) takeIn(ctx context.Context, a pendingArrival, c migration.Commit) error {
	accept, finish := h.acceptToken, h.finishDestination
	switch a.way {
	case wayCold:
		accept, finish = h.acceptHanded, h.finishResize
	case wayBack:
		accept, finish = h.acceptHanded, h.finishRevert
	}
	if err := h.Alone(ctx, a.ref.Instance, func(ctx context.Context) error { return accept(ctx, a.ref, c) }); err != nil {
		return err
	}
	return h.Alone(ctx, a.ref.Instance, func(ctx context.Context) error { return finish(ctx, a.ref) })
}

// endArrival ends all that is here of an attempt whose source keeps the guest.
func (h *Host) endArrival(ctx context.Context, a pendingArrival) error {
	switch a.way {
	case wayBack:
		return h.cancelReturn(ctx, a.ref)
	case wayEvacuated:
		if err := operation.RollbackPrepEvacuation.Ask(ctx, unasked{h}, a.ref); err != nil {
			return err
		}
	case wayCold:
		if err := operation.RollbackPrepResize.Ask(ctx, unasked{h}, a.ref); err != nil {
			return err
		}
	default:
		if err := operation.RollbackPreLiveMigration.Ask(ctx, unasked{h}, a.ref); err != nil {
			return err
		}
	}
	return h.abortClaim(ctx, a.ref)
}

// wayOf is how a guest comes by an attempt of which a claim or a record is here.
func (h *Host) wayOf(ref migration.Ref) way {
	if h.attempts.Owner(ref).Kind == claims.KindEvacuation {
		return wayEvacuated
	}
	if h.attempts.Owner(ref).Kind != claims.KindResize {
		if _, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold); err == nil && !found {
			return wayLive
		}
	}
	if mc, ok := h.attempts.ContextOf(ref); ok && mc.Source == h.o.Name {
		return wayBack
	}
	return wayCold
}

// forgetColdArrival removes what is left of a guest that had come here while it was off,
// and whose token has gone back by an operator's word.
func (h *Host) forgetColdArrival(ctx context.Context, ref migration.Ref) error {
	if _, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold); err != nil || !found {
		return err
	}
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, operation.StepPrepResize)); err != nil {
		return err
	}
	return h.undoColdPreparation(ctx, ref, hooks.RevertResize)
}

// cameWhole refuses an operator's word that a guest is here, of which not all has come: it
// is off, and what counts is its disks.
func (h *Host) cameWhole(a pendingArrival) error {
	if a.way == wayBack {
		return nil // all that it was stayed here
	}
	rec, found, err := memory.Recall[coldPreparation](h.memory, a.ref, memoryPreparedCold)
	if err != nil {
		return err
	}
	sealed, err := h.dock.Sealed(a.ref)
	if err != nil {
		return err
	}
	if !found || rec.Prepared == nil || !sealed {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "copy_incomplete", Message: "what has come of the guest to " + h.o.Name + " is not whole", Change: "the guest cannot be here",
		})
	}
	return nil
}

// coldEpoch is the epoch that a guest which comes while it is off is to have here.
func (h *Host) coldEpoch(a pendingArrival) (uint64, error) {
	if a.way == wayBack {
		return h.attempts.Epoch(a.ref.Instance) + 1, nil
	}
	rec, _, err := memory.Recall[coldPreparation](h.memory, a.ref, memoryPreparedCold)
	if err != nil {
		return 0, err
	}
	doc, err := domainxml.Parse(rec.Definition)
	if err != nil {
		return 0, fault.New(fault.Internal, "read the arriving guest's document: %w", err)
	}
	meta, ok, err := doc.Metadata()
	if err != nil || !ok || meta.Epoch < 2 {
		return 0, fault.New(fault.Internal, "the arriving guest's document does not say its epoch")
	}
	return meta.Epoch, nil
}
