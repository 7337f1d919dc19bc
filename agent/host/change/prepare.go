package change

import (
	"context"
	"errors"
	"maps"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/hooks"
	"berth/agent/host/phases"
	"berth/agent/host/remake"
	"berth/claims"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// Record is that of a change in place, from PrepChange until it is finished or
// undone. What is written into it is durable before what it tells of is done:
//
//	field        since                         what may be there then
//	Disks        PrepChange                    new files beside the old ones, from an image
//	Begun        ApplyChange, the guest off    new files of disks that grow
//	Definition   ApplyChange, all files built  claims exchanged, files replaced, new definition and flavor
//	Applied      ApplyChange, its end          the guest is the new one
//	Started      StartChanged                  it has the power state that its user had chosen
//	Unapplied    UnapplyChange, its end        the guest is the old one, off; its old power state is PowerOn's
//
// What a guest's memory held is not among it: PowerOff has ended that.
type Record struct {
	Kind   string           `json:"migration_type"`
	Wanted migration.Wanted `json:"wanted"`
	// Guest is as it was when the change was planned, and its definition, from Begun on,
	// as it was when it was off: people may have edited it meanwhile.
	Guest      migration.Guest `json:"guest"`
	Disks      []remake.Disk   `json:"disks,omitempty"`
	Planned    bool            `json:"planned,omitempty"` // Disks are all
	Ready      bool            `json:"ready,omitempty"`
	Begun      bool            `json:"begun,omitempty"`
	Definition string          `json:"definition_xml,omitempty"`
	Applied    bool            `json:"applied,omitempty"`
	Started    bool            `json:"started,omitempty"`
	Unapplied  bool            `json:"unapplied,omitempty"`
}

// kind is that of the claim that is the change's.
func (r Record) kind() claims.Kind {
	if r.Kind == migration.TypeRebuild {
		return claims.KindRebuild
	}
	return claims.KindResize
}

// phase asks for the hooks of a resize, or those of a rebuild; empty for none.
func (r Record) phase(host, resize, rebuild string) phases.Request {
	p := phases.Request{Phase: resize, Kind: r.Kind, Source: host, Destination: host, XML: r.Guest.Definition, Image: r.Wanted.Image}
	if r.Kind == migration.TypeRebuild {
		p.Phase = rebuild
	}
	return p
}

func (c *Changes) runPhase(ctx context.Context, ref migration.Ref, p phases.Request) error {
	if p.Phase == "" {
		return nil
	}
	return c.o.Phases.Run(ctx, ref, p)
}

// Prepare is PrepChange of migration.InPlaceVerbs.
func (c *Changes) Prepare(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	return fault.Wrap(c.prepare(ctx, ref, p), "prepare the change of %s on %s", p.Guest.Name, c.o.Host)
}

// Prepared reports whether an attempt's preparation is done.
func (c *Changes) Prepared(ref migration.Ref) (bool, error) {
	rec, found, err := c.record(ref)
	return found && rec.Ready, err
}

func (c *Changes) prepare(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	if p.Kind != migration.TypeResize && p.Kind != migration.TypeRebuild || p.Guest.UUID != ref.Instance || p.Guest.Definition == "" {
		return fault.New(fault.Invalid, "want a resize or a rebuild of the guest %s, with its definition", ref.Instance)
	}
	rec, found, err := c.record(ref)
	if err != nil || found && rec.Ready {
		return err
	}
	if !found {
		rec = Record{Kind: p.Kind, Wanted: p.Wanted, Guest: p.Guest}
		rec.Guest.XML, rec.Guest.CPU = "", "" // of the guest as it ran
	}
	claim, ok := c.o.Tracker.ByOwner(attempts.OwnerOf(ref, rec.kind()))
	if !ok || claim.State != claims.Pending && claim.State != claims.Held {
		return fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", c.o.Host, ref.Migration, ref.Attempt)
	}
	// One that cannot be written is found out while the guest runs.
	if _, err := c.changedDocument(rec, claim); err != nil {
		return err
	}
	if err := c.makeChanged(ctx, ref, &rec); err != nil {
		return err
	}
	if err := c.runPhase(ctx, ref, rec.phase(c.o.Host, hooks.PrepResize, hooks.PreRebuildInstance)); err != nil {
		return err
	}
	// The guest is powered off next: nothing ends the claim but a word of its story.
	if _, err := c.o.Tracker.Hold(ctx, claim.Owner); err != nil {
		return err
	}
	rec.Ready = true
	return c.remember(ctx, ref, rec)
}

// changedDocument is the definition that the guest gets. What moved it last, if
// anything, stays on record there.
func (c *Changes) changedDocument(rec Record, own claims.Claim) (string, error) {
	doc, err := domainxml.Parse(rec.Guest.Definition)
	if err != nil {
		return "", fault.New(fault.Invalid, "read the definition of %s: %w", rec.Guest.Name, err)
	}
	was, _, _ := doc.Metadata() // nothing of it is needed
	meta := domainxml.Metadata{Name: rec.Guest.Name, Flavor: rec.Wanted.Flavor, Epoch: rec.Guest.Epoch, Migration: was.Migration}
	return c.o.Guests.Definition(rec.Guest, rec.Wanted, own, meta)
}

// makeChanged plans a file for each disk that gets a new one, looks for the room that
// all need, and makes those that come from an image: the old ones are in use.
func (c *Changes) makeChanged(ctx context.Context, ref migration.Ref, rec *Record) error {
	if !rec.Planned {
		var err error
		if rec.Disks, err = c.planChanged(ctx, ref, *rec); err != nil {
			return err
		}
		rec.Planned = true
		if err := c.remember(ctx, ref, *rec); err != nil {
			return err
		}
	}
	for i := range rec.Disks {
		d := &rec.Disks[i]
		if !d.Image || d.Stamp != nil {
			continue
		}
		if err := c.o.Bench.Build(ctx, ref, d, rec.Wanted.Image); err != nil {
			return err
		}
		if err := c.remember(ctx, ref, *rec); err != nil {
			return err
		}
	}
	return nil
}

func (c *Changes) planChanged(ctx context.Context, ref migration.Ref, rec Record) ([]remake.Disk, error) {
	doc, err := domainxml.Parse(rec.Guest.Definition)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read the definition of %s: %w", rec.Guest.Name, err)
	}
	var no fault.Refusal
	var out []remake.Disk
	need, beside := map[string]int64{}, map[string]string{} // by device
	var survey *fileusers.Survey
	add := func(target string, size int64, image bool) error {
		at := slices.IndexFunc(doc.Disks(), func(d domainxml.Disk) bool { return d.Target == target })
		if at < 0 {
			return fault.New(fault.Invalid, "disk %s is to be changed, the guest has none of that name", target)
		}
		d := doc.Disks()[at]
		if d.Format == "" {
			d.Format = "raw"
		}
		if err := remake.MayReplace(d); err != nil {
			return err
		}
		if survey == nil {
			if survey, err = c.o.Guests.FileUsers(ctx); err != nil {
				return err
			}
		}
		if err := survey.MayReplace(ctx, target, d.Source, ref.Instance, false, ""); err != nil {
			return err
		}
		r, err := c.o.Files.PlanReplace(ref.Migration, disks.PartName(ref.Attempt, target), d.Source)
		if err != nil {
			return err
		}
		out = append(out, remake.Disk{Replaced: r, Target: target, Format: d.Format, Size: size, Image: image})
		var bytes int64
		if image {
			img, err := c.o.Files.Image(ctx, rec.Wanted.Image.Path, rec.Wanted.Image.Format)
			if err == nil {
				err = disks.Whole(rec.Wanted.Image.Path, rec.Wanted.Image.Format, img) // it may be another one since it was planned
			}
			if err != nil {
				return err
			}
			bytes = img.ActualSize
		} else if bytes, err = c.o.Files.CopyNeeds(d.Source); err != nil {
			return err
		}
		space, err := c.o.Files.Space(d.Source)
		need[space.Device] += bytes
		beside[space.Device] = d.Source
		return err
	}
	grow := slices.Clone(rec.Wanted.Grow)
	if rec.Wanted.Image != nil {
		root, err := remake.RootDisk(doc)
		if err != nil {
			return nil, err
		}
		size := int64(0)
		if i := slices.IndexFunc(rec.Guest.Disks, func(d migration.Disk) bool { return d.Target == root.Target }); i >= 0 {
			size = rec.Guest.Disks[i].VirtualSize
		}
		if i := slices.IndexFunc(grow, func(g migration.DiskGrowth) bool { return g.Target == root.Target }); i >= 0 {
			size = max(size, grow[i].VirtualSize)
			grow = slices.Delete(grow, i, i+1)
		}
		if err := no.Take(add(root.Target, size, true)); err != nil {
			return nil, err
		}
	}
	for _, g := range grow {
		if err := no.Take(add(g.Target, g.VirtualSize, false)); err != nil {
			return nil, err
		}
	}
	for _, device := range slices.Sorted(maps.Keys(need)) {
		if err := c.o.Bench.Room(&no, beside[device], need[device]); err != nil {
			return nil, err
		}
	}
	return out, no.Err("")
}

// RollbackPrepare is RollbackPrepChange of migration.InPlaceVerbs.
func (c *Changes) RollbackPrepare(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(c.rollbackPrepare(ctx, ref), "roll back the preparation of migration %s on %s", ref.Migration, c.o.Host)
}

func (c *Changes) rollbackPrepare(ctx context.Context, ref migration.Ref) error {
	if err := c.o.Bench.Stop(ctx, ref); err != nil {
		return err
	}
	rec, found, err := c.record(ref)
	if err != nil || !found {
		return err
	}
	for _, d := range slices.Backward(rec.Disks) {
		err := c.o.Files.PutBack(d.Replaced)
		if errors.Is(err, fault.Forbidden) {
			// It was in its place, or is there again: a disk that people have removed since
			// is not this undo's to give back, however often it is asked.
			if there, lookErr := c.o.Files.Exists(d.Path); lookErr == nil && !there {
				c.o.Logger.Warn("a disk of a guest whose change is undone was removed", "instance", ref.Instance, "migration", ref.Migration, "path", d.Path)
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	if err := c.runPhase(ctx, ref, rec.phase(c.o.Host, hooks.RollbackPrepResize, hooks.RollbackRebuildInstance)); err != nil {
		return err
	}
	if err := c.o.Phases.Forget(ctx, ref); err != nil {
		return err
	}
	return c.o.Memory.Forget(ctx, ref, Memory)
}

// NotChanged refuses to take the preparation of a guest away that uses it.
func (c *Changes) NotChanged(_ context.Context, ref migration.Ref) error {
	rec, found, err := c.record(ref)
	switch {
	case err != nil:
		return err
	case c.o.Memory.HasTombstone(ref, StepKeepUnapply):
		return finishedChange(ref)
	case found && rec.Definition != "" && !rec.Unapplied, !found && c.o.Attempts.Changed(ref):
		return fault.New(fault.Forbidden, "the guest has been changed: take the change back first")
	}
	return nil
}

func finishedChange(ref migration.Ref) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "change_finished", Message: "migration " + ref.Migration + " is past its end: what the guest held before was given up", Change: "change it anew",
	})
}
