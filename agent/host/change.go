package host

import (
	"context"
	"errors"
	"maps"
	"slices"

	"berth/agent/host/disks"
	"berth/agent/host/hooks"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// The steps under which the verbs of a change in place are buried: PrepChange and
// ApplyChange by their undos, UnapplyChange by FinishChange.
const (
	stepPrepChange   = "prep_change"
	stepApplyChange  = "apply_change"
	stepKeepUnchange = "unapply_change"
	memoryChange     = "change"
)

// changing is the record of a change in place, from PrepChange until it is finished or
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
type changing struct {
	Kind   string           `json:"migration_type"`
	Wanted migration.Wanted `json:"wanted"`
	// Guest is as it was when the change was planned, and its definition, from Begun on,
	// as it was when it was off: people may have edited it meanwhile.
	Guest      migration.Guest `json:"guest"`
	Disks      []changedDisk   `json:"disks,omitempty"`
	Planned    bool            `json:"planned,omitempty"` // Disks are all
	Ready      bool            `json:"ready,omitempty"`
	Begun      bool            `json:"begun,omitempty"`
	Definition string          `json:"definition_xml,omitempty"`
	Applied    bool            `json:"applied,omitempty"`
	Started    bool            `json:"started,omitempty"`
	Unapplied  bool            `json:"unapplied,omitempty"`
}

// changedDisk is a disk of which a new file is made.
type changedDisk struct {
	disks.Replaced
	Target string `json:"target"`
	Format string `json:"format"`
	Size   int64  `json:"virtual_size_bytes"`
	Image  bool   `json:"image,omitempty"` // from the image, else from the old file
}

// kind is that of the claim that is the change's.
func (r changing) kind() claims.Kind {
	if r.Kind == migration.TypeRebuild {
		return claims.KindRebuild
	}
	return claims.KindResize
}

// phase asks for the hooks of a resize, or those of a rebuild; empty for none.
func (r changing) phase(h *Host, resize, rebuild string) phaseRequest {
	p := phaseRequest{Phase: resize, Kind: r.Kind, Source: h.o.Name, Destination: h.o.Name, XML: r.Guest.Definition, Image: r.Wanted.Image}
	if r.Kind == migration.TypeRebuild {
		p.Phase = rebuild
	}
	return p
}

func (h *Host) phaseOfChange(ctx context.Context, ref migration.Ref, p phaseRequest) error {
	if p.Phase == "" {
		return nil
	}
	return h.phase(ctx, ref, p)
}

// PrepChange implements migration.InPlaceVerbs.
func (h *Host) PrepChange(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	h.hear(ref)
	return wrap(h.prepChange(ctx, ref, p), "prepare the change of %s on %s", p.Guest.Name, h.o.Name)
}

func (h *Host) prepChange(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	if p.Kind != migration.TypeResize && p.Kind != migration.TypeRebuild || p.Guest.UUID != ref.Instance || p.Guest.Definition == "" {
		return fault.New(fault.Invalid, "want a resize or a rebuild of the guest %s, with its definition", ref.Instance)
	}
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	// Before it is seen whether the undo has come: one that comes later finds it.
	ctx, over := h.stoppable(ctx, ref)
	defer over()
	if err := h.late(ref, stepPrepChange); err != nil {
		return err
	}
	rec, found, err := recall[changing](h, ref, memoryChange)
	if err != nil || found && rec.Ready {
		return err
	}
	if err := h.managing(""); err != nil {
		return err
	}
	if !found {
		rec = changing{Kind: p.Kind, Wanted: p.Wanted, Guest: p.Guest}
		rec.Guest.XML, rec.Guest.CPU = "", "" // of the guest as it ran
	}
	claim, ok := h.tracker.ByOwner(ownerOf(ref, rec.kind()))
	if !ok || claim.State != claims.Pending && claim.State != claims.Held {
		return fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", h.o.Name, ref.Migration, ref.Attempt)
	}
	// One that cannot be written is found out while the guest runs.
	if _, err := h.changedDocument(rec, claim); err != nil {
		return err
	}
	if err := h.makeChanged(ctx, ref, &rec); err != nil {
		return err
	}
	if err := h.phaseOfChange(ctx, ref, rec.phase(h, hooks.PrepResize, hooks.PreRebuildInstance)); err != nil {
		return err
	}
	// The guest is powered off next: nothing ends the claim but a word of its story.
	if _, err := h.tracker.Hold(ctx, claim.Owner); err != nil {
		return err
	}
	rec.Ready = true
	return h.remember(ctx, ref, memoryChange, rec)
}

// changedDocument is the definition that the guest gets. What moved it last, if
// anything, stays on record there.
func (h *Host) changedDocument(rec changing, c claims.Claim) (string, error) {
	doc, err := domainxml.Parse(rec.Guest.Definition)
	if err != nil {
		return "", fault.New(fault.Invalid, "read the definition of %s: %w", rec.Guest.Name, err)
	}
	was, _, _ := doc.Metadata() // nothing of it is needed
	meta := domainxml.Metadata{Name: rec.Guest.Name, Flavor: rec.Wanted.Flavor, Epoch: rec.Guest.Epoch, Migration: was.Migration}
	return h.resizedDocument(rec.Guest, rec.Wanted, c, meta, false)
}

// makeChanged plans a file for each disk that gets a new one, looks for the room that
// all need, and makes those that come from an image: the old ones are in use.
func (h *Host) makeChanged(ctx context.Context, ref migration.Ref, rec *changing) error {
	if !rec.Planned {
		var err error
		if rec.Disks, err = h.planChanged(ctx, ref, *rec); err != nil {
			return err
		}
		rec.Planned = true
		if err := h.remember(ctx, ref, memoryChange, *rec); err != nil {
			return err
		}
	}
	for i := range rec.Disks {
		d := &rec.Disks[i]
		if !d.Image || d.Stamp != nil {
			continue
		}
		if err := h.buildDisk(ctx, ref, d, rec.Wanted.Image); err != nil {
			return err
		}
		if err := h.remember(ctx, ref, memoryChange, *rec); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) planChanged(ctx context.Context, ref migration.Ref, rec changing) ([]changedDisk, error) {
	doc, err := domainxml.Parse(rec.Guest.Definition)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read the definition of %s: %w", rec.Guest.Name, err)
	}
	var no refusal
	var out []changedDisk
	need, beside := map[string]int64{}, map[string]string{} // by device
	add := func(target string, size int64, image bool) error {
		at := slices.IndexFunc(doc.Disks(), func(d domainxml.Disk) bool { return d.Target == target })
		if at < 0 {
			return fault.New(fault.Invalid, "disk %s is to be changed, the guest has none of that name", target)
		}
		d := doc.Disks()[at]
		if d.Format == "" {
			d.Format = "raw"
		}
		if err := mayReplace(d); err != nil {
			return err
		}
		r, err := h.files.PlanReplace(ref.Migration, disks.PartName(ref.Attempt, target), d.Source)
		if err != nil {
			return err
		}
		out = append(out, changedDisk{Replaced: r, Target: target, Format: d.Format, Size: size, Image: image})
		var bytes int64
		if image {
			img, err := h.files.Image(ctx, rec.Wanted.Image.Path, rec.Wanted.Image.Format)
			if err == nil {
				err = wholeImage(*rec.Wanted.Image, img) // it may be another one since it was planned
			}
			if err != nil {
				return err
			}
			bytes = img.ActualSize
		} else if bytes, err = h.files.CopyNeeds(d.Source); err != nil {
			return err
		}
		space, err := h.files.Space(d.Source)
		need[space.Device] += bytes
		beside[space.Device] = d.Source
		return err
	}
	grow := slices.Clone(rec.Wanted.Grow)
	if rec.Wanted.Image != nil {
		root, err := rootDisk(doc)
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
		if err := no.take(add(root.Target, size, true)); err != nil {
			return nil, err
		}
	}
	for _, g := range grow {
		if err := no.take(add(g.Target, g.VirtualSize, false)); err != nil {
			return nil, err
		}
	}
	for _, device := range slices.Sorted(maps.Keys(need)) {
		if err := h.spaceFor(&no, beside[device], need[device]); err != nil {
			return nil, err
		}
	}
	return out, no.err("")
}

// RollbackPrepChange implements migration.InPlaceVerbs.
func (h *Host) RollbackPrepChange(ctx context.Context, ref migration.Ref) error {
	h.hear(ref)
	return wrap(h.rollbackPrepChange(ctx, ref), "roll back the preparation of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) rollbackPrepChange(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.beginUndo(ctx, ref, stepPrepChange, func() error { return h.mayRollBack(ref) })
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.stopCopies(ctx, ref); err != nil {
		return err
	}
	rec, found, err := recall[changing](h, ref, memoryChange)
	if err != nil || !found {
		return err
	}
	for _, d := range slices.Backward(rec.Disks) {
		err := h.files.PutBack(d.Replaced)
		if errors.Is(err, fault.Forbidden) {
			// It was in its place, or is there again: a disk that people have removed since
			// is not this undo's to give back, however often it is asked.
			if there, lookErr := h.files.Exists(d.Path); lookErr == nil && !there {
				h.log.Warn("a disk of a guest whose change is undone was removed", "instance", ref.Instance, "migration", ref.Migration, "path", d.Path)
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	if err := h.phaseOfChange(ctx, ref, rec.phase(h, hooks.RollbackPrepResize, hooks.RollbackRebuildInstance)); err != nil {
		return err
	}
	if err := h.forgetPhases(ctx, ref); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, at(ref, memoryChange))
}

// mayRollBack refuses to take the preparation of a guest away that uses it.
func (h *Host) mayRollBack(ref migration.Ref) error {
	rec, found, err := recall[changing](h, ref, memoryChange)
	switch {
	case err != nil:
		return err
	case h.tracker.Buried(at(ref, stepKeepUnchange)):
		return finishedChange(ref)
	case found && rec.Definition != "" && !rec.Unapplied, !found && h.changed(ref):
		return fault.New(fault.Forbidden, "the guest has been changed: take the change back first")
	}
	return nil
}

func finishedChange(ref migration.Ref) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "change_finished", Message: "migration " + ref.Migration + " is past its end: what the guest held before was given up", Change: "change it anew",
	})
}

// changedOff reads a guest that was powered off for its change; fault.Busy while it has
// a process.
func (h *Host) changedOff(ctx context.Context, ref migration.Ref) (driver.Domain, error) {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return d, err
	case !exists:
		return d, gone("the ledger has it, libvirt on " + h.o.Name + " has no such domain")
	case d.Active():
		return d, fault.New(fault.Busy, "guest %s is %s (%s): power it off first", d.Name, d.State, d.Reason)
	case !d.Persistent:
		return d, fault.Refuse(fault.Forbidden, "", notPersistent(d.Name))
	}
	return d, h.stays(d)
}
