package host

import (
	"context"
	"errors"
	"slices"

	"berth/agent/host/hooks"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// ApplyChange implements migration.InPlaceVerbs.
func (h *Host) ApplyChange(ctx context.Context, ref migration.Ref) error {
	h.hear(ref)
	return wrap(h.applyChange(ctx, ref), "apply the change of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) applyChange(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	// A disk may be copied for minutes: the undo does not wait for it.
	ctx, over := h.stoppable(ctx, ref)
	defer over()
	rec, err := h.changeUnderWay(ref)
	if err != nil || rec.Applied {
		return err
	}
	if _, err := h.changedOff(ctx, ref); err != nil {
		return err
	}
	if !rec.Begun {
		if rec.Guest.Definition, err = h.driver.XML(ctx, ref.Instance, driver.Persistent); err != nil {
			return err
		}
		if err := rec.sameDisks(); err != nil {
			return err
		}
		rec.Begun = true
		if err := h.remember(ctx, ref, memoryChange, rec); err != nil {
			return err
		}
	}
	for i := range rec.Disks {
		d := &rec.Disks[i]
		if d.Stamp != nil {
			continue
		}
		if err := h.buildDisk(ctx, ref, d, nil); err != nil {
			return err
		}
		if err := h.remember(ctx, ref, memoryChange, rec); err != nil {
			return err
		}
	}
	if rec.Definition == "" {
		claim, ok := h.claimOfChange(ref, rec)
		if !ok {
			return fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", h.o.Name, ref.Migration, ref.Attempt)
		}
		if rec.Definition, err = h.changedDocument(rec, claim); err != nil {
			return err
		}
		if err := h.remember(ctx, ref, memoryChange, rec); err != nil {
			return err
		}
	}
	// Files may have been copied for minutes since it was looked at.
	if _, err := h.changedOff(ctx, ref); err != nil {
		return err
	}
	if _, err := h.tracker.Exchange(ctx, at(ref, stepApplyChange), rec.kind()); err != nil {
		return err
	}
	for _, d := range rec.Disks {
		if err := h.files.Replace(d.Replaced); err != nil {
			return err
		}
	}
	if err := h.driver.Define(ctx, rec.Definition); err != nil {
		return err
	}
	if err := h.setFlavor(ctx, ref, rec, false); err != nil {
		return err
	}
	rec.Applied = true
	return h.remember(ctx, ref, memoryChange, rec)
}

// sameDisks refuses a definition whose disks are not those of which new files are made:
// people may have edited it since the change was prepared.
func (r changing) sameDisks() error {
	doc, err := domainxml.Parse(r.Guest.Definition)
	if err != nil {
		return fault.New(fault.Invalid, "read the definition of %s: %w", r.Guest.Name, err)
	}
	for _, d := range r.Disks {
		if !slices.ContainsFunc(doc.Disks(), func(now domainxml.Disk) bool { return now.Target == d.Target && now.Source == d.Path }) {
			return fault.New(fault.Forbidden, "disk %s of %s is no longer %s: its definition was edited since the change was prepared", d.Target, r.Guest.Name, d.Path)
		}
	}
	return nil
}

// changeUnderWay is the record of a change whose preparation is done and whose undo has
// not been here.
func (h *Host) changeUnderWay(ref migration.Ref) (changing, error) {
	for _, step := range []string{stepPrepChange, stepApplyChange} {
		if err := h.late(ref, step); err != nil {
			return changing{}, err
		}
	}
	rec, found, err := recall[changing](h, ref, memoryChange)
	switch {
	case err != nil:
		return rec, err
	case h.tracker.Buried(at(ref, stepKeepUnchange)):
		return rec, finishedChange(ref)
	case !found || !rec.Ready:
		return rec, fault.New(fault.Forbidden, "migration %s, attempt %d was not prepared on %s", ref.Migration, ref.Attempt, h.o.Name)
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return rec, fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	return rec, h.tokenHere(inst)
}

// claimOfChange is the claim that the changed guest uses, before and after it was
// exchanged.
func (h *Host) claimOfChange(ref migration.Ref, rec changing) (claims.Claim, bool) {
	if c, ok := h.boundBy(ref); ok {
		return c, true
	}
	return h.tracker.ByOwner(ownerOf(ref, rec.kind()))
}

// setFlavor makes the ledger's record of the guest that of its new flavor, or of its
// old one.
func (h *Host) setFlavor(ctx context.Context, ref migration.Ref, rec changing, back bool) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	want := rec.Wanted.Flavor
	if back {
		want = rec.Guest.Flavor
	}
	if sameFlavor(inst.Flavor, want) {
		return nil
	}
	inst.Flavor = want
	_, err := h.tracker.PutInstance(ctx, inst)
	return err
}

// UnapplyChange implements migration.InPlaceVerbs. What was lost with the guest's process,
// the memory of a running or paused guest, it cannot give back; nor what a rebuilt guest
// has written since, which goes with its new disk.
func (h *Host) UnapplyChange(ctx context.Context, ref migration.Ref) error {
	h.hear(ref)
	return wrap(h.unapplyChange(ctx, ref), "take back the change of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) unapplyChange(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.beginUndo(ctx, ref, stepApplyChange, func() error {
		if h.tracker.Buried(at(ref, stepKeepUnchange)) {
			return finishedChange(ref)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.stopCopies(ctx, ref); err != nil {
		return err
	}
	rec, found, err := recall[changing](h, ref, memoryChange)
	switch {
	case err != nil:
		return err
	case !found && h.changed(ref):
		return fault.New(fault.InDoubt, "the guest was changed, and the record of what it was before is lost")
	case !found, rec.Unapplied, !rec.Begun:
		return nil
	}
	if rec.Definition != "" {
		if err := h.giveBackOld(ctx, ref, rec); err != nil {
			return err
		}
	} else {
		for _, d := range slices.Backward(rec.Disks) {
			if err := h.files.PutBack(d.Replaced); err != nil {
				return err
			}
		}
	}
	if h.takenBack(ownerOf(ref, rec.kind())) {
		// Of a guest whose change was over: a change that broke off ends by
		// RollbackPrepChange's.
		if err := h.phaseOfChange(ctx, ref, rec.phase(h, hooks.RevertResize, "")); err != nil {
			return err
		}
	}
	rec.Applied, rec.Unapplied = false, true
	return h.remember(ctx, ref, memoryChange, rec)
}

// giveBackOld makes the guest what it was: off, its disks, definition, claim and flavor
// as they were before.
func (h *Host) giveBackOld(ctx context.Context, ref migration.Ref, rec changing) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		h.log.Info("end a guest whose change is taken back", "instance", ref.Instance, "migration", ref.Migration, "state", d.State)
		if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		// Its end is seen, not believed.
		if d, exists, err = h.domain(ctx, ref.Instance); err != nil {
			return err
		} else if exists && d.Active() {
			return fault.New(fault.Busy, "guest %s is active again: %s (%s)", d.Name, d.State, d.Reason)
		}
	}
	for _, d := range slices.Backward(rec.Disks) {
		if err := h.files.PutBack(d.Replaced); err != nil {
			return err
		}
	}
	if err := h.driver.Define(ctx, rec.Guest.Definition); err != nil {
		return err
	}
	if _, err := h.tracker.ExchangeBack(ctx, at(ref, ""), rec.kind()); err != nil {
		return err
	}
	return h.setFlavor(ctx, ref, rec, true)
}

// StartChanged implements migration.InPlaceVerbs.
func (h *Host) StartChanged(ctx context.Context, ref migration.Ref) error {
	h.hear(ref)
	return wrap(h.startChanged(ctx, ref), "start the changed guest of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) startChanged(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := h.changeUnderWay(ref)
	switch {
	case err != nil:
		return err
	case !rec.Applied:
		return fault.New(fault.Forbidden, "the change was not applied")
	}
	if !rec.Started {
		power, err := h.chosenPower(ref, rec)
		if err != nil {
			return err
		}
		if err := h.startAs(ctx, ref.Instance, power); err != nil {
			return err
		}
		// What its user does from here on is his.
		rec.Started = true
		if err := h.remember(ctx, ref, memoryChange, rec); err != nil {
			return err
		}
	}
	return h.phaseOfChange(ctx, ref, rec.phase(h, hooks.FinishResize, hooks.PostRebuildInstance))
}

// chosenPower is what the guest's user had chosen when it was powered off.
func (h *Host) chosenPower(ref migration.Ref, rec changing) (migration.PowerState, error) {
	off, found, err := recall[poweredOff](h, ref, memoryPower)
	if err != nil || found {
		return off.Power, err
	}
	return rec.Guest.PowerState, nil
}

// FinishChange implements migration.InPlaceVerbs.
func (h *Host) FinishChange(ctx context.Context, ref migration.Ref) error {
	h.hear(ref)
	return wrap(h.finishChange(ctx, ref), "finish the change of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) finishChange(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	rec, found, err := recall[changing](h, ref, memoryChange)
	over := h.tracker.Buried(at(ref, stepKeepUnchange))
	_, bound := h.boundBy(ref)
	switch {
	case err != nil:
		return err
	case !found && h.changed(ref):
		return fault.New(fault.InDoubt, "the guest was changed, and the record of what was kept for it is lost")
	case !found && (over || bound):
		return nil // done before, however long ago
	case !found, !over && !rec.Applied:
		return fault.New(fault.Forbidden, "migration %s, attempt %d was not applied on %s", ref.Migration, ref.Attempt, h.o.Name)
	case !over && h.tracker.Buried(at(ref, stepApplyChange)):
		return fault.New(fault.Forbidden, "the change is being taken back")
	}
	// From here on nothing goes back.
	if err := h.tracker.Bury(ctx, at(ref, stepKeepUnchange)); err != nil {
		return err
	}
	if err := h.phaseOfChange(ctx, ref, rec.phase(h, hooks.ConfirmResize, "")); err != nil {
		return err
	}
	for _, d := range rec.Disks {
		if err := h.files.DropKept(d.Replaced); err != nil {
			return err
		}
	}
	if err := h.tracker.Release(ctx, ownerOf(ref, rec.kind())); err != nil {
		return err
	}
	h.relax(ctx) // others may have waited for what it had
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}
