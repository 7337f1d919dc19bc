package change

import (
	"context"
	"errors"
	"maps"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Apply is ApplyChange of migration.InPlaceVerbs.
func (c *Changes) Apply(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(c.apply(ctx, ref), "apply the change of migration %s on %s", ref.Migration, c.o.Host)
}

func (c *Changes) apply(ctx context.Context, ref migration.Ref) error {
	rec, err := c.underWay(ref)
	if err != nil || rec.Applied {
		return err
	}
	if _, err := c.o.Guests.Off(ctx, ref.Instance); err != nil {
		return err
	}
	if !rec.Begun {
		if rec.Guest.Definition, err = c.o.Driver.XML(ctx, ref.Instance, driver.Persistent); err != nil {
			return err
		}
		if err := rec.sameDisks(); err != nil {
			return err
		}
		rec.Begun = true
		if err := c.remember(ctx, ref, rec); err != nil {
			return err
		}
	}
	for i := range rec.Disks {
		d := &rec.Disks[i]
		if d.Stamp != nil {
			continue
		}
		if err := c.o.Bench.Build(ctx, ref, d, nil); err != nil {
			return err
		}
		if err := c.remember(ctx, ref, rec); err != nil {
			return err
		}
	}
	if rec.Definition == "" {
		claim, ok := c.claimOf(ref, rec)
		if !ok {
			return fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", c.o.Host, ref.Migration, ref.Attempt)
		}
		if rec.Definition, err = c.changedDocument(rec, claim); err != nil {
			return err
		}
		if err := c.remember(ctx, ref, rec); err != nil {
			return err
		}
	}
	// Files may have been copied for minutes since it was looked at.
	if _, err := c.o.Guests.Off(ctx, ref.Instance); err != nil {
		return err
	}
	if err := c.mayReplace(ctx, ref, rec); err != nil {
		return err
	}
	if _, err := c.o.Tracker.Exchange(ctx, memory.At(ref, operation.StepApplyChange), rec.kind()); err != nil {
		return err
	}
	for _, d := range rec.Disks {
		if err := c.o.Files.Replace(d.Replaced); err != nil {
			return err
		}
	}
	if err := c.o.Driver.Define(ctx, rec.Definition); err != nil {
		return err
	}
	if err := c.setFlavor(ctx, ref, rec, false); err != nil {
		return err
	}
	rec.Applied = true
	return c.remember(ctx, ref, rec)
}

// mayReplace refuses where somebody else came to use a disk since the change was prepared.
// Disks that have their places already, before this agent's restart, are not asked for again.
func (c *Changes) mayReplace(ctx context.Context, ref migration.Ref, rec Record) error {
	if _, exchanged := c.o.Attempts.BoundBy(ref); exchanged || len(rec.Disks) == 0 {
		return nil
	}
	survey, err := c.o.Guests.FileUsers(ctx)
	if err != nil {
		return err
	}
	var no fault.Refusal
	for _, d := range rec.Disks {
		if err := no.Take(survey.MayReplace(ctx, d.Target, d.Path, ref.Instance, true, "")); err != nil {
			return err
		}
	}
	return no.Err("")
}

// dropKept removes the old files, and leaves those that somebody uses or may use.
func (c *Changes) dropKept(ctx context.Context, ref migration.Ref, rec Record) error {
	if len(rec.Disks) == 0 {
		return nil
	}
	survey, err := c.o.Guests.FileUsers(ctx)
	if err != nil {
		return err
	}
	for _, d := range rec.Disks {
		kept, err := survey.Drop(ctx, c.o.Files, d.Target, d.Replaced, ref.Instance)
		if err != nil {
			return err
		}
		if kept != nil {
			c.o.Logger.Warn("the old file of a disk stays", "instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", kept.Path, "why", kept.Reason, "remedy", kept.Change)
		}
	}
	return nil
}

// sameDisks refuses a definition whose disks are not those of which new files are made:
// people may have edited it since the change was prepared.
func (r Record) sameDisks() error {
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

// underWay is the record of a change whose preparation is done and whose undo has
// not been here.
func (c *Changes) underWay(ref migration.Ref) (Record, error) {
	if err := c.o.Memory.Late(ref, operation.StepPrepChange); err != nil {
		return Record{}, err
	}
	rec, found, err := c.record(ref)
	switch {
	case err != nil:
		return rec, err
	case c.o.Memory.HasTombstone(ref, StepKeepUnapply):
		return rec, finishedChange(ref)
	case !found || !rec.Ready:
		return rec, fault.New(fault.Forbidden, "migration %s, attempt %d was not prepared on %s", ref.Migration, ref.Attempt, c.o.Host)
	}
	inst, known := c.o.Tracker.Instance(ref.Instance)
	if !known {
		return rec, fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	return rec, c.o.Guests.Here(inst)
}

// claimOf is the claim that the changed guest uses, before and after it was
// exchanged.
func (c *Changes) claimOf(ref migration.Ref, rec Record) (claims.Claim, bool) {
	if c, ok := c.o.Attempts.BoundBy(ref); ok {
		return c, true
	}
	return c.o.Tracker.ByOwner(attempts.OwnerOf(ref, rec.kind()))
}

// setFlavor makes the ledger's record of the guest that of its new flavor and image, or of its
// old ones.
func (c *Changes) setFlavor(ctx context.Context, ref migration.Ref, rec Record, back bool) error {
	inst, known := c.o.Tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	want := rec.Wanted.Flavor
	if back {
		want = rec.Guest.Flavor
	}
	images := rec.images(inst.Images, back)
	if SameFlavor(inst.Flavor, want) && maps.Equal(inst.Images, images) {
		return nil
	}
	inst.Flavor, inst.Images = want, images
	_, err := c.o.Tracker.PutInstance(ctx, inst)
	return err
}

// images are from what the guest's disks were made, with the change or, back, without it.
func (r Record) images(have map[string]claims.Image, back bool) map[string]claims.Image {
	if r.Wanted.Image == nil {
		return have
	}
	out := maps.Clone(have)
	if out == nil {
		out = map[string]claims.Image{}
	}
	for _, d := range r.Disks {
		if !d.Image {
			continue
		}
		delete(out, d.Target)
		image := r.Wanted.Image
		if back {
			image = nil
			if i := slices.IndexFunc(r.Guest.Disks, func(g migration.Disk) bool { return g.Target == d.Target }); i >= 0 {
				image = r.Guest.Disks[i].Image
			}
		}
		if image != nil {
			out[d.Target] = claims.Image{Path: image.Path, Format: image.Format}
		}
	}
	return out
}

// Unapply is UnapplyChange of migration.InPlaceVerbs. What was lost with the guest's process,
// the memory of a running or paused guest, it cannot give back; nor what a rebuilt guest
// has written since, which goes with its new disk.
func (c *Changes) Unapply(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(c.unapply(ctx, ref), "take back the change of migration %s on %s", ref.Migration, c.o.Host)
}

// NotFinished refuses to take a change back that is past its end.
func (c *Changes) NotFinished(_ context.Context, ref migration.Ref) error {
	if c.o.Memory.HasTombstone(ref, StepKeepUnapply) {
		return finishedChange(ref)
	}
	return nil
}

func (c *Changes) unapply(ctx context.Context, ref migration.Ref) error {
	if err := c.o.Bench.Stop(ctx, ref); err != nil {
		return err
	}
	rec, found, err := c.record(ref)
	switch {
	case err != nil:
		return err
	case !found && c.o.Attempts.Changed(ref):
		return fault.New(fault.InDoubt, "the guest was changed, and the record of what it was before is lost")
	case !found, rec.Unapplied, !rec.Begun:
		return nil
	}
	if rec.Definition != "" {
		if err := c.giveBackOld(ctx, ref, rec); err != nil {
			return err
		}
	} else {
		for _, d := range slices.Backward(rec.Disks) {
			if err := c.o.Files.PutBack(d.Replaced); err != nil {
				return err
			}
		}
	}
	if c.o.Guests.TakenBack(attempts.OwnerOf(ref, rec.kind())) {
		// Of a guest whose change was over: a change that broke off ends by
		// RollbackPrepChange's.
		if err := c.runPhase(ctx, ref, rec.phase(c.o.Host, hooks.RevertResize, "")); err != nil {
			return err
		}
	}
	rec.Applied, rec.Unapplied = false, true
	return c.remember(ctx, ref, rec)
}

// giveBackOld makes the guest what it was: off, its disks, definition, claim and flavor
// as they were before.
func (c *Changes) giveBackOld(ctx context.Context, ref migration.Ref, rec Record) error {
	d, exists, err := c.domain(ctx, ref)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		c.o.Logger.Info("end a guest whose change is taken back", "instance", ref.Instance, "migration", ref.Migration, "state", d.State)
		if err := c.o.Driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		// Its end is seen, not believed.
		if d, exists, err = c.domain(ctx, ref); err != nil {
			return err
		} else if exists && d.Active() {
			return fault.New(fault.Busy, "guest %s is active again: %s (%s)", d.Name, d.State, d.Reason)
		}
	}
	if !exists {
		d = driver.Domain{UUID: ref.Instance, Name: rec.Guest.Name} // undefined, or lost by libvirt
	}
	if err := c.o.Guests.ProvenOff(ctx, d, rec.Guest.Definition); err != nil {
		return err
	}
	if exists {
		if err := c.discardSaved(ctx, d); err != nil {
			return err
		}
	}
	for _, d := range slices.Backward(rec.Disks) {
		if err := c.o.Files.PutBack(d.Replaced); err != nil {
			return err
		}
	}
	if err := c.o.Driver.Define(ctx, rec.Guest.Definition); err != nil {
		return err
	}
	if _, err := c.o.Tracker.ExchangeBack(ctx, memory.At(ref, ""), rec.kind()); err != nil {
		return err
	}
	return c.setFlavor(ctx, ref, rec, true)
}

// discardSaved removes the saved memory of a changed instance that is off, and returns when that is
// durable. Nothing was saved when the change was applied, so this memory is of the disks that go.
func (c *Changes) discardSaved(ctx context.Context, d driver.Domain) error {
	s, err := c.o.Driver.Saved(ctx, d.UUID)
	if err != nil || !s.Memory {
		return err
	}
	c.o.Logger.Warn("discard memory that was saved of a changed instance, whose change is taken back", "instance", d.UUID, "name", d.Name)
	return c.o.Driver.DiscardSavedMemory(ctx, d.UUID)
}

// Start is StartChanged of migration.InPlaceVerbs.
func (c *Changes) Start(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(c.start(ctx, ref), "start the changed guest of migration %s on %s", ref.Migration, c.o.Host)
}

func (c *Changes) start(ctx context.Context, ref migration.Ref) error {
	rec, err := c.underWay(ref)
	switch {
	case err != nil:
		return err
	case !rec.Applied:
		return fault.New(fault.Forbidden, "the change was not applied")
	}
	if !rec.Started {
		power, err := c.chosenPower(ref, rec)
		if err != nil {
			return err
		}
		if err := c.o.Guests.Start(ctx, ref.Instance, power); err != nil {
			return err
		}
		// What its user does from here on is his.
		rec.Started = true
		if err := c.remember(ctx, ref, rec); err != nil {
			return err
		}
	}
	return c.runPhase(ctx, ref, rec.phase(c.o.Host, hooks.FinishResize, hooks.PostRebuildInstance))
}

// chosenPower is what the guest's user had chosen when it was powered off.
func (c *Changes) chosenPower(ref migration.Ref, rec Record) (migration.PowerState, error) {
	power, found, err := c.o.Guests.Wish(ref)
	if err != nil || found {
		return power, err
	}
	return rec.Guest.PowerState, nil
}

// Finish is FinishChange of migration.InPlaceVerbs.
func (c *Changes) Finish(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(c.finish(ctx, ref), "finish the change of migration %s on %s", ref.Migration, c.o.Host)
}

func (c *Changes) finish(ctx context.Context, ref migration.Ref) error {
	rec, found, err := c.record(ref)
	over := c.o.Memory.HasTombstone(ref, StepKeepUnapply)
	_, bound := c.o.Attempts.BoundBy(ref)
	switch {
	case err != nil:
		return err
	case !found && c.o.Attempts.Changed(ref):
		return fault.New(fault.InDoubt, "the guest was changed, and the record of what was kept for it is lost")
	case !found && (over || bound):
		return nil // done before, however long ago
	case !found, !over && !rec.Applied:
		return fault.New(fault.Forbidden, "migration %s, attempt %d was not applied on %s", ref.Migration, ref.Attempt, c.o.Host)
	case !over && c.o.Memory.HasTombstone(ref, operation.StepApplyChange):
		return fault.New(fault.Forbidden, "the change is being taken back")
	}
	// From here on nothing goes back.
	if err := c.o.Memory.WriteTombstone(ctx, ref, StepKeepUnapply); err != nil {
		return err
	}
	if err := c.runPhase(ctx, ref, rec.phase(c.o.Host, hooks.ConfirmResize, "")); err != nil {
		return err
	}
	if err := c.dropKept(ctx, ref, rec); err != nil {
		return err
	}
	if err := c.o.Tracker.Release(ctx, attempts.OwnerOf(ref, rec.kind())); err != nil {
		return err
	}
	c.o.Guests.Relax(ctx) // others may have waited for what it had
	return c.o.Tracker.ForgetMigration(ctx, ref.Migration)
}
