package host

import (
	"context"
	"slices"

	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/remake"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// growDisks makes larger, before the guest starts here, what its new flavor has larger. A
// disk that was shipped is this host's own copy and grows as it is. One that both hosts
// share is the source's too, until the move is confirmed: a larger file is made in its
// place, as in a change of one host, and the old one is kept beside it.
func (h *Host) growDisks(ctx context.Context, ref migration.Ref, rec *coldPreparation) error {
	if len(rec.Grow) == 0 {
		return nil
	}
	doc, err := domainxml.Parse(rec.Definition)
	if err != nil {
		return fault.New(fault.Invalid, "read the guest's document: %w", err)
	}
	for _, g := range rec.Grow {
		i := slices.IndexFunc(doc.Disks(), func(d domainxml.Disk) bool { return d.Target == g.Target })
		if i < 0 {
			return fault.New(fault.Invalid, "disk %s is to grow, the guest has none of that name", g.Target)
		}
		d := doc.Disks()[i]
		if d.Format == "" {
			d.Format = "raw"
		}
		if slices.Contains(rec.CopyDisks, g.Target) {
			err = h.files.Grow(ctx, d.Source, d.Format, g.VirtualSize)
		} else {
			err = h.growShared(ctx, ref, rec, d, g.VirtualSize)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// growShared makes a larger file in the place of a shared disk, on record before each
// effect.
func (h *Host) growShared(ctx context.Context, ref migration.Ref, rec *coldPreparation, d domainxml.Disk, size int64) error {
	i := slices.IndexFunc(rec.Grown, func(c changedDisk) bool { return c.Target == d.Target })
	if i < 0 {
		if err := remake.MayReplace(d); err != nil {
			return err
		}
		r, err := h.files.PlanReplace(ref.Migration, disks.PartName(ref.Attempt, d.Target), d.Source)
		if err != nil {
			return err
		}
		i, rec.Grown = len(rec.Grown), append(rec.Grown, changedDisk{Replaced: r, Target: d.Target, Format: d.Format, Size: size})
		if err := h.memory.Remember(ctx, ref, memoryPreparedCold, *rec); err != nil {
			return err
		}
	}
	one := &rec.Grown[i]
	if one.Stamp == nil {
		if err := h.bench.Build(ctx, ref, one, nil); err != nil {
			return err
		}
		if err := h.memory.Remember(ctx, ref, memoryPreparedCold, *rec); err != nil {
			return err
		}
	}
	return h.files.Replace(one.Replaced)
}

// putBackGrown gives shared disks the files that they had before. Once that is done it is
// never done again: what is there then is the guest's, wherever that is.
func (h *Host) putBackGrown(ctx context.Context, ref migration.Ref, rec *coldPreparation) error {
	if len(rec.Grown) == 0 || rec.PutBack {
		return nil
	}
	if err := h.bench.Stop(ctx, ref); err != nil {
		return err
	}
	for _, d := range slices.Backward(rec.Grown) {
		if err := h.files.PutBack(d.Replaced); err != nil {
			return err
		}
	}
	rec.PutBack = true
	return h.memory.Remember(ctx, ref, memoryPreparedCold, *rec)
}

// spaceToGrow is checkGrown and mayGrow for the disks that are not shipped: the space that was there when
// the destination was asked may be another's by now. The files are those of the definition that is grown
// by: the source's list of disks may tell others.
func (h *Host) spaceToGrow(ctx context.Context, p migration.PrepRequest, definition string) error {
	if len(p.Wanted.Grow) == 0 {
		return nil
	}
	doc, err := domainxml.Parse(definition)
	if err != nil {
		return fault.New(fault.Invalid, "read the guest's document: %w", err)
	}
	p.Guest.Disks = slices.Clone(p.Guest.Disks)
	for _, d := range doc.Disks() {
		for i := range p.Guest.Disks {
			if p.Guest.Disks[i].Target == d.Target {
				p.Guest.Disks[i].Path = d.Source
			}
		}
	}
	var no refusal
	var shared []string
	for _, d := range p.Guest.Disks {
		if !slices.Contains(p.CopyDisks, d.Target) {
			shared = append(shared, d.Target)
		}
	}
	if err := h.checkGrown(&no, p.Guest, shared, p.Wanted.Grow); err != nil {
		return err
	}
	if err := h.mayGrow(ctx, &no, p, shared); err != nil {
		return err
	}
	return no.err("")
}

// mayGrow refuses shared disks that others use, here or elsewhere: a larger file gets their place.
// The instance may still run on its source, with the disk open.
func (h *Host) mayGrow(ctx context.Context, no *refusal, p migration.PrepRequest, shared []string) error {
	g := p.Guest
	var survey *fileusers.Survey
	for _, more := range p.Wanted.Grow {
		i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == more.Target })
		if i < 0 || !slices.Contains(shared, more.Target) {
			continue
		}
		if survey == nil {
			var err error
			if survey, err = h.fileUsers(ctx); err != nil {
				return err
			}
		}
		if err := no.take(survey.MayReplace(ctx, more.Target, g.Disks[i].Path, g.UUID, false, p.Source)); err != nil {
			return err
		}
	}
	return nil
}

// checkGrown refuses shared disks for whose larger files there is no room.
func (h *Host) checkGrown(no *refusal, g migration.Guest, shared []string, grow []migration.DiskGrowth) error {
	for _, more := range grow {
		i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == more.Target })
		if i < 0 || !slices.Contains(shared, more.Target) {
			continue
		}
		bytes, err := h.files.CopyNeeds(g.Disks[i].Path)
		if err != nil {
			return err
		}
		if err := h.bench.Room(&no.Refusal, g.Disks[i].Path, bytes); err != nil {
			return err
		}
	}
	return nil
}
