package host

import (
	"context"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

const (
	memoryPreparedCold = "prepared_cold"
)

// coldPreparation is the record of PrepResize, kept until the move is confirmed, undone
// or handed back: what was made here, for the undo, and what is left to do.
type coldPreparation struct {
	Kind   string `json:"migration_type"`
	Source string `json:"source_compute"`
	// Instance is what the ledger needs when the token comes: the guest as it is to be.
	Instance claims.Instance `json:"guest"`
	// DomainXML is the guest's definition at its source, which hooks are given, and
	// Definition the one that it gets here, but for the epoch.
	DomainXML  string                 `json:"domain_xml"`
	Definition string                 `json:"definition_xml,omitempty"`
	CopyDisks  []string               `json:"copy_disks,omitempty"`
	Grow       []migration.DiskGrowth `json:"grow,omitempty"`
	// Grown are shared disks of which a larger file was made, with the old one kept beside
	// it until the move is confirmed. PutBack: the old ones are in their places again.
	Grown   []changedDisk `json:"grown,omitempty"`
	PutBack bool          `json:"put_back,omitempty"`
	// Prepared is the answer; nil until everything is ready.
	Prepared *migration.PreparedCold `json:"prepared,omitempty"`
	// Started: the guest was given the power state that its user had chosen. Finished: all
	// that FinishResize does is done. What its user does after that is his.
	Started  bool `json:"started,omitempty"`
	Finished bool `json:"finished,omitempty"`
}

func (r coldPreparation) phase(h *Host, phase string) phases.Request {
	return phases.Request{Phase: phase, Kind: r.Kind, Source: r.Source, Destination: h.o.Name, XML: r.DomainXML}
}

// prepResize does operation.PrepResize.
func (h *Host) prepResize(ctx context.Context, ref migration.Ref, p migration.PrepRequest) (migration.PreparedCold, error) {
	none := migration.PreparedCold{}
	claim, ok := h.tracker.ByOwner(attempts.OwnerOf(ref, claims.KindResize))
	if !ok || claim.State != claims.Pending && claim.State != claims.Arriving {
		return none, fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", h.o.Name, ref.Migration, ref.Attempt)
	}
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	if err != nil {
		return none, err
	}
	if found && rec.Prepared != nil {
		return *rec.Prepared, nil
	}
	rec = coldPreparation{
		Kind: p.Kind, Source: p.Source, Instance: arriving(p.Guest), DomainXML: p.Guest.Definition, CopyDisks: p.CopyDisks, Grow: p.Wanted.Grow,
	}
	rec.Instance.Flavor = p.Wanted.Flavor
	// Before anything is made: one that cannot be written is found out while the guest runs.
	if rec.Definition, err = h.coldDocument(ref, p.Guest, p.Wanted, claim); err != nil {
		return none, err
	}
	if err := h.admitPrepared(ctx, claim, rec.Instance.Name, below(p.Guest.Disks), rec.Definition); err != nil {
		return none, err
	}
	// What is shipped is looked at with each file, when it is planned.
	if err := h.spaceToGrow(ctx, p, rec.Definition); err != nil {
		return none, err
	}
	// On record before anything is made: also what is made by hooks.
	if err := h.memory.Remember(ctx, ref, memoryPreparedCold, rec); err != nil {
		return none, err
	}
	if err := h.prepareConnections(ctx, ref, rec.Definition); err != nil {
		return none, err
	}
	ships := p
	if ships.Guest, err = withVariables(p.Guest, p.CopyDisks); err != nil {
		return none, err
	}
	if err := formatsAgree(ships.Guest, p.CopyDisks); err != nil {
		return none, err
	}
	files, err := h.dock.Plan(ctx, ref, ships)
	if err != nil {
		return none, err
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PrepResize)); err != nil {
		return none, err
	}
	// Arriving before the answer: from here on the token may come, and the claim must
	// outlive its conductor.
	if _, err := h.tracker.Arrive(ctx, claim.Owner); err != nil {
		return none, err
	}
	rec.Prepared = &migration.PreparedCold{Files: files}
	if err := h.memory.Remember(ctx, ref, memoryPreparedCold, rec); err != nil {
		return none, err
	}
	return *rec.Prepared, nil
}

// coldDocument is the definition of a guest that comes here by a cold move.
func (h *Host) coldDocument(ref migration.Ref, g migration.Guest, w migration.Wanted, c claims.Claim) (string, error) {
	meta := domainxml.Metadata{Name: g.Name, Flavor: w.Flavor, Epoch: g.Epoch + 1, Migration: ref.Migration}
	return h.resizedDocument(g, w, c, meta, true)
}

// rollbackPrepResize does operation.RollbackPrepResize.
func (h *Host) rollbackPrepResize(ctx context.Context, ref migration.Ref) error {
	return h.undoColdPreparation(ctx, ref, hooks.RollbackPrepResize)
}

// preparedCold reports whether an attempt's preparation has given its answer.
func (h *Host) preparedCold(ref migration.Ref) (bool, error) {
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	return found && rec.Prepared != nil, err
}

// notAccepted refuses to undo what has brought the instance here.
func (h *Host) notAccepted(_ context.Context, ref migration.Ref) error {
	if h.arrived(ref) || h.tracker.Accepted(ref.Migration) > 0 {
		return attempts.TooLate(h.o.Name)
	}
	return nil
}

// undoColdPreparation removes exactly what the preparation of an attempt made, and runs
// the hooks of the phase by which it ends.
func (h *Host) undoColdPreparation(ctx context.Context, ref migration.Ref, phase string) error {
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	if err != nil || !found {
		return err
	}
	if err := h.putBackGrown(ctx, ref, &rec); err != nil {
		return err
	}
	if err := h.dock.Undo(ctx, ref); err != nil {
		return err
	}
	if err := h.undoConnections(ctx, ref); err != nil {
		return err
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, phase)); err != nil {
		return err
	}
	if err := h.phases.Forget(ctx, ref); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryPreparedCold))
}
