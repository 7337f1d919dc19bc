package host

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/disks"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// preparation is the record of PreLiveMigration: what was made, for the undo.
type preparation struct {
	Source    string       `json:"source_compute"`
	DomainXML string       `json:"domain_xml"` // what hooks were given
	Made      []disks.Made `json:"made,omitempty"`
	// PostCopy: the guest may come by post-copy.
	PostCopy bool `json:"post_copy,omitempty"`
	// What agents before phases.Record kept of hooks.
	Running   *hooks.Process             `json:"running,omitempty"`
	Data      map[string]json.RawMessage `json:"data,omitempty"`
	HooksDone bool                       `json:"hooks_done,omitempty"`
	// Guest is what the ledger needs when the token comes.
	Guest claims.Instance `json:"guest"`
	// Prepared is the answer; nil until everything is ready.
	Prepared *migration.Prepared `json:"prepared,omitempty"`
}

// preLiveMigration does operation.PreLiveMigration.
func (h *Host) preLiveMigration(ctx context.Context, ref migration.Ref, p migration.PreLiveRequest) (migration.Prepared, error) {
	none := migration.Prepared{}
	claim, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
	if !ok || claim.State != claims.Pending && claim.State != claims.Arriving {
		return none, fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", h.o.Name, ref.Migration, ref.Attempt)
	}
	rec, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	if err != nil {
		return none, err
	}
	if found && rec.Prepared != nil {
		return *rec.Prepared, nil
	}
	if !found {
		rec = preparation{Source: p.Source, DomainXML: p.Guest.XML, Guest: arriving(p.Guest), PostCopy: p.PostCopy}
	}
	prepared, err := h.documents(ref, p.Guest, claim)
	if err != nil {
		return none, err
	}
	// Before anything is made: the source may have asked for no check.
	if err := h.admitPrepared(ctx, claim, rec.Guest.Name, nil, prepared.DestinationXML, prepared.PersistentXML); err != nil {
		return none, err
	}
	if err := h.phases.EndHook(rec.Running); err != nil {
		return none, err
	}
	if err := h.makeDisks(ctx, ref, &rec, p); err != nil {
		return none, err
	}
	if err := h.prepareConnections(ctx, ref, rec.DomainXML); err != nil {
		return none, err
	}
	if !rec.HooksDone {
		if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PreLiveMigration)); err != nil {
			return none, err
		}
	}
	// Once more: pools are active now, and libvirt opens the images next.
	if prepared.DestinationXML, err = h.gate.CloseImages(ctx, ref.Instance, prepared.DestinationXML); err != nil {
		return none, err
	}
	if err := h.gate.AdmitImages(ctx, ref.Instance, prepared.PersistentXML); err != nil {
		return none, err
	}
	if err := h.openArrival(ctx, ref, claim, p.Source, rec.PostCopy, &prepared); err != nil {
		return none, err
	}
	// Arriving before the answer: from here on a copy may come, and the claim
	// must outlive its conductor.
	if _, err := h.tracker.Arrive(ctx, h.attempts.Owner(ref)); err != nil {
		// Whoever has the ticket can look for its port, and a claim that is pending frees
		// itself: nothing may come by it then.
		keep, cancel := h.rt.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return none, errors.Join(err, h.streams.End(keep, ref))
	}
	rec.Prepared = &prepared
	if err := h.memory.Remember(ctx, ref, memoryPrepared, rec); err != nil {
		return none, err
	}
	return prepared, nil
}

// arriving is the ledger's instance for a guest whose token has not come yet.
func arriving(g migration.Guest) claims.Instance {
	return claims.Instance{
		UUID: g.UUID, Name: g.Name, Flavor: g.Flavor, ProjectID: g.ProjectID, UserID: g.UserID,
		Autostart: g.Autostart, Adopted: g.Adopted, Images: imagesOf(g.Disks),
	}
}

// imagesOf are the images of disks of which it is known what they were made from.
func imagesOf(disks []migration.Disk) map[string]claims.Image {
	var out map[string]claims.Image
	for _, d := range disks {
		if d.Image == nil {
			continue
		}
		if out == nil {
			out = map[string]claims.Image{}
		}
		out[d.Target] = claims.Image{Path: d.Image.Path, Format: d.Image.Format}
	}
	return out
}

// makeDisks makes every disk that is to be copied, each on record before it is
// begun and again before it gets its place.
func (h *Host) makeDisks(ctx context.Context, ref migration.Ref, rec *preparation, p migration.PreLiveRequest) error {
	// A try that broke off is undone first: its files may be half-made.
	for _, m := range rec.Made {
		if err := h.files.Unmake(m); err != nil {
			return err
		}
	}
	rec.Made = nil
	var no refusal
	var todo []migration.Disk
	for _, target := range p.CopyDisks {
		i := slices.IndexFunc(p.Guest.Disks, func(d migration.Disk) bool { return d.Target == target })
		if i < 0 {
			return fault.New(fault.Invalid, "disk %s is to be copied, the guest has none of that name", target)
		}
		d := p.Guest.Disks[i]
		if r, bad := h.placeForDisk(d.Path); bad {
			no.add(fault.Forbidden, r)
			continue
		}
		m, err := h.files.Plan(ref.Migration, disks.PartName(ref.Attempt, target), d.Path)
		if err != nil {
			if err := no.take(err); err != nil {
				return err
			}
			continue
		}
		todo = append(todo, d)
		rec.Made = append(rec.Made, m)
	}
	if err := no.err(""); err != nil {
		rec.Made = nil
		return err
	}
	if err := h.memory.Remember(ctx, ref, memoryPrepared, *rec); err != nil {
		return err
	}
	for i, d := range todo {
		if err := h.files.Build(ctx, &rec.Made[i], d.Format, d.VirtualSize); err != nil {
			return err
		}
	}
	if len(todo) == 0 {
		return nil
	}
	if err := h.memory.Remember(ctx, ref, memoryPrepared, *rec); err != nil {
		return err
	}
	for _, m := range rec.Made {
		if err := h.files.Publish(m); err != nil {
			return err
		}
	}
	return nil
}

// phase asks for hooks of a phase of this preparation.
func (p preparation) phase(h *Host, phase string) phases.Request {
	return phases.Request{
		Phase: phase, Kind: migration.TypeLiveMigration, Source: p.Source, Destination: h.o.Name, XML: p.DomainXML, Answers: p.Data,
	}
}

// preparedLive reports whether an attempt's preparation has given its answer.
func (h *Host) preparedLive(ref migration.Ref) (bool, error) {
	rec, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	return found && rec.Prepared != nil, err
}

// notArrived refuses to undo what has brought the instance here. Under the lock nobody accepts the
// token meanwhile. Who accepts it later has a commit, which nobody can have who also undoes.
func (h *Host) notArrived(_ context.Context, ref migration.Ref) error {
	if h.arrived(ref) {
		return attempts.TooLate(h.o.Name)
	}
	return nil
}

// rollbackPreLiveMigration does operation.RollbackPreLiveMigration.
func (h *Host) rollbackPreLiveMigration(ctx context.Context, ref migration.Ref) error {
	// Before the look at what is here: through it nothing comes after that.
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	if err := h.endCopy(ctx, ref); err != nil {
		return err
	}
	return h.undoPreparation(ctx, ref)
}

// undoPreparation removes exactly what a preparation made.
func (h *Host) undoPreparation(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	if err != nil || !found {
		return err
	}
	if err := h.phases.EndHook(rec.Running); err != nil {
		return err
	}
	if err := h.undoConnections(ctx, ref); err != nil {
		return err
	}
	for _, m := range slices.Backward(rec.Made) {
		if err := h.files.Unmake(m); err != nil {
			return err
		}
	}
	// The hooks run last, as they ran after the disks were made; also after a
	// half-done failure, and where pre hooks never began: design section 12.
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.RollbackLiveMigrationAtDestination)); err != nil {
		return err
	}
	if err := h.phases.Forget(ctx, ref); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryPrepared))
}

// endCopy ends a copy that arrived for this migration and is not the owner. A
// domain of that uuid for which no claim names this migration is somebody
// else's business.
func (h *Host) endCopy(ctx context.Context, ref migration.Ref) error {
	if c, ok := h.tracker.ByOwner(h.attempts.Owner(ref)); !ok || c.State != claims.Arriving {
		return nil
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if !exists {
		return h.witness.Off(ref.Instance, ref.Instance, nil)
	}
	// What runs here before its memory is whole may be all that is left of the guest.
	if err := wholeHere(d, exists); err != nil {
		return err
	}
	if d.Active() {
		h.log.Info("end a copy that is not the owner", "instance", ref.Instance, "migration", ref.Migration, "state", d.State, "reason", d.Reason)
		if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	if err := h.witness.Off(ref.Instance, d.Name, nil); err != nil {
		return err
	}
	if err := nothingSavedOfCopy(ctx, h.driver, d); err != nil {
		return err
	}
	if err := h.driver.Undefine(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	// Its end is seen, not believed.
	if _, exists, err = h.domain(ctx, ref.Instance); err != nil {
		return err
	} else if exists {
		return fault.New(fault.Busy, "the copy of %s is still there", ref.Instance)
	}
	return nil
}
