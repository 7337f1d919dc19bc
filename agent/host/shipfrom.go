package host

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// ReadDisk implements migration.SourceColdVerbs. It reads only what is the guest's,
// and only of a guest that this attempt has powered off.
func (h *Host) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	h.hear(ref)
	p, err := h.readDisk(ctx, ref, r)
	return p, wrap(err, "read %s for migration %s on %s", r.Path, ref.Migration, h.o.Name)
}

func (h *Host) readDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	none := migration.DiskPiece{}
	if err := h.mayRead(ctx, ref); err != nil {
		return none, err
	}
	l, err := h.goingOf(ctx, ref)
	if err != nil {
		return none, err
	}
	f, ok := l.files[r.Path]
	if !ok {
		return none, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_a_disk", Message: r.Path + " is no disk of the guest, and below none", Want: r.Path,
		})
	}
	if f.top && r.Offset == 0 && !r.SumOnly {
		if err := h.noteGoing(ctx, ref, f, r.Path); err != nil {
			return none, err
		}
	}
	b, err := h.files.ReadBlock(f.real, r.Offset, min(r.Length, migration.ShipRun), migration.ShipBlock)
	if err != nil {
		return none, err
	}
	p := migration.DiskPiece{Path: r.Path, Offset: r.Offset, Length: b.Length, Zero: b.Zero, Size: b.Size, Version: b.Version, Data: b.Data}
	if p.Length > 0 && !p.Zero {
		p.Sum = migration.PieceSum(p.Data)
	}
	if r.SumOnly {
		p.Data = nil
	}
	return p, nil
}

// mayRead refuses while the guest may write: it must be off by this attempt, and this
// host's, or have left by it.
func (h *Host) mayRead(ctx context.Context, ref migration.Ref) error {
	if err := h.late(ref, stepPower); err != nil {
		return err
	}
	rec, found, err := recall[poweredOff](h, ref, memoryPower)
	if err != nil {
		return err
	}
	if !found || !rec.Off || rec.On {
		return fault.New(fault.Forbidden, "the guest was not powered off by attempt %d of this migration", ref.Attempt)
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.Forbidden, "instance %s is not in the ledger", ref.Instance)
	}
	if c, ok := h.tracker.Committed(ref.Migration); inst.Token.State != claims.TokenHere && !(ok && c.Attempt == ref.Attempt && c.Instance == ref.Instance) {
		return h.tokenHere(inst)
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "guest_runs", Message: "the guest is " + string(d.State) + " again: its disks change while they are read", Have: string(d.State), Want: string(driver.ShutOff),
			Change: "nothing; the move is undone",
		})
	}
	return nil
}

// goingOf finds out which files are the guest's, once for each attempt: its chains are
// read by a program of their own, and there are many pieces.
func (h *Host) goingOf(ctx context.Context, ref migration.Ref) (going, error) {
	if l, ok := h.ships.goingOf(ref); ok {
		return l, nil
	}
	rec, _, err := recall[poweredOff](h, ref, memoryPower)
	if err != nil {
		return going{}, err
	}
	doc, err := parseDocument(rec.Definition)
	if err != nil {
		return going{}, err
	}
	l := going{ref: ref, files: map[string]goingFile{}}
	add := func(path, target string, top bool) error {
		if _, known := l.files[path]; known && !top {
			return nil
		}
		real, _, _, err := h.files.Lookup(path)
		if err != nil {
			return wrap(err, "disk %s", target)
		}
		if slices.ContainsFunc(systemDirs, func(dir string) bool { return strings.HasPrefix(real, dir+"/") }) {
			// A chain is what an image says, and who made the image may have been anybody.
			return fault.Refuse(fault.Forbidden, "", fault.Reason{
				Code: "disk_place", Message: "disk " + target + " leads to " + real + ", which is no place for disks", Have: real, Change: "move it to a folder for disk images",
			})
		}
		l.files[path] = goingFile{real: real, target: target, top: top}
		return nil
	}
	for _, e := range doc.Devices.Disks {
		if e.Type != "file" || e.path() == "" || e.readOnly() {
			continue
		}
		img, err := h.files.Image(ctx, e.path(), e.Driver.Type)
		if err != nil {
			return going{}, wrap(err, "disk %s", e.Target.Dev)
		}
		if err := add(e.path(), e.Target.Dev, true); err != nil {
			return going{}, err
		}
		for _, below := range img.Backing {
			if !filepath.IsAbs(below) {
				continue // reached through the network by either host
			}
			if err := add(below, e.Target.Dev, false); err != nil {
				return going{}, err
			}
		}
	}
	if path := doc.firmware().Variables; path != "" {
		// One that never ran has none.
		if err := add(path, variablesTarget, true); err != nil && !errors.Is(err, fault.NotFound) {
			return going{}, err
		}
	}
	h.ships.keepGoing(l, h.rt.Boot().Since)
	return l, nil
}

// noteGoing records, before the first byte of a disk is given away, that it is shipped,
// and in which version: what is handed over, and removed here when the move is confirmed,
// is exactly that.
func (h *Host) noteGoing(ctx context.Context, ref migration.Ref, f goingFile, path string) error {
	rec, _, err := recall[[]copiedDisk](h, ref, memoryShipsFrom)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(rec, func(d copiedDisk) bool { return d.Path == path }) {
		return nil
	}
	// With the instance's turn: the guest is not powered on, which forgets this, before it
	// is seen that it was, and not after.
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.late(ref, stepPower); err != nil {
		return err
	}
	if rec, _, err = recall[[]copiedDisk](h, ref, memoryShipsFrom); err != nil {
		return err
	}
	files, err := h.leaving(f.target, path, f.real)
	if err != nil {
		return err
	}
	look, err := h.files.ReadBlock(f.real, 0, 0, migration.ShipBlock)
	if err != nil {
		return err
	}
	files[len(files)-1].Version = look.Version // of what the guest's own path leads to
	return h.remember(ctx, ref, memoryShipsFrom, append(rec, files...))
}

// asShipped refuses to hand a guest over whose disks were written to, or replaced, since
// they were shipped: somebody started it meanwhile, and what it wrote is only here. A disk
// that is gone holds nothing that the destination lacks, and there is its only copy.
func (h *Host) asShipped(ref migration.Ref) error {
	shipped, err := h.shippedFrom(ref)
	if err != nil {
		return err
	}
	var no refusal
	for _, d := range shipped {
		if d.Version == "" {
			continue
		}
		real, _, _, err := h.files.Lookup(d.Path)
		switch {
		case errors.Is(err, fault.NotFound):
			h.log.Warn("a disk that was shipped is gone", "instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", d.Path)
			continue
		case err != nil:
			return wrap(err, "disk %s", d.Target)
		}
		look, err := h.files.ReadBlock(real, 0, 0, migration.ShipBlock)
		if err != nil {
			return wrap(err, "disk %s", d.Target)
		}
		if look.Version != d.Version {
			no.add(fault.Forbidden, fault.Reason{
				Code: "disk_changed", Message: "disk " + d.Target + " (" + d.Path + ") was written to after it was shipped", Want: d.Version, Have: look.Version,
				Change: "leave the guest off until its move is over, and try again",
			})
		}
	}
	return no.err("")
}

// shippedFrom are the disks that this attempt has shipped from here, in whole or in part:
// their files are the guest's until the move is confirmed, and nobody's afterwards. What
// stands below them is not among them: it may be many guests'.
func (h *Host) shippedFrom(ref migration.Ref) ([]copiedDisk, error) {
	rec, _, err := recall[[]copiedDisk](h, ref, memoryShipsFrom)
	return rec, err
}
