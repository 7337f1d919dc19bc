package shipping

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/migration"
)

// goingLong is how long files of a guest are remembered that nobody reads any more.
const goingLong = time.Hour

func (k *Dock) known(ref migration.Ref) (going, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.going[ref.Instance]
	return l, ok && l.ref.Migration == ref.Migration && l.ref.Attempt == ref.Attempt
}

func (k *Dock) keepGoing(l going, now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.going == nil {
		k.going, k.readAt = map[string]going{}, map[string]time.Duration{}
	}
	for instance, at := range k.readAt {
		if now-at > goingLong {
			delete(k.going, instance)
			delete(k.readAt, instance)
		}
	}
	k.going[l.ref.Instance], k.readAt[l.ref.Instance] = l, now
}

// going is what may be read of a guest by one attempt. It never changes.
type going struct {
	ref   migration.Ref
	files map[string]goingFile // by path
}

// goingFile is a file of the guest.
type goingFile struct {
	real   string // without symbolic links
	target string // disk that it is of
	top    bool   // the disk itself, not what is below it
}

// ReadDisk does operation.ReadDisk. It reads only what is the guest's,
// and only of a guest that this attempt has powered off.
func (k *Dock) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	p, err := k.readDisk(ctx, ref, r)
	return p, fault.Wrap(err, "read %s for migration %s on %s", r.Path, ref.Migration, k.c.Name)
}

func (k *Dock) readDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	none := migration.DiskPiece{}
	if err := k.c.Guests.Off(ctx, ref); err != nil {
		return none, err
	}
	l, err := k.goingOf(ctx, ref)
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
		if err := k.noteGoing(ctx, ref, f, r.Path); err != nil {
			return none, err
		}
	}
	b, err := k.c.Files.ReadBlock(f.real, r.Offset, min(r.Length, migration.ShipRun), migration.ShipBlock)
	if err == nil {
		err = k.ofHeld(ref, r.Path, b.Version)
	}
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

// goingOf finds out which files are the guest's, once for each attempt: its chains are
// read by a program of their own, and there are many pieces.
func (k *Dock) goingOf(ctx context.Context, ref migration.Ref) (going, error) {
	if l, ok := k.known(ref); ok {
		return l, nil
	}
	list, err := k.c.Guests.Disks(ref)
	if err != nil {
		return going{}, err
	}
	l := going{ref: ref, files: map[string]goingFile{}}
	add := func(path, target string, top bool) error {
		if _, known := l.files[path]; known && !top {
			return nil
		}
		real, _, _, err := k.c.Files.Lookup(path)
		if err != nil {
			return fault.Wrap(err, "disk %s", target)
		}
		if k.c.Guests.System(real) {
			// A chain is what an image says, and who made the image may have been anybody.
			return fault.Refuse(fault.Forbidden, "", fault.Reason{
				Code: "disk_place", Message: "disk " + target + " leads to " + real + ", which is no place for disks", Have: real, Change: "move it to a folder for disk images",
			})
		}
		l.files[path] = goingFile{real: real, target: target, top: top}
		return nil
	}
	for _, e := range list {
		if e.Variables {
			// One that never ran has none.
			if err := add(e.Path, e.Target, true); err != nil && !errors.Is(err, fault.NotFound) {
				return going{}, err
			}
			continue
		}
		img, err := k.c.Files.Image(ctx, e.Path, e.Format)
		if err != nil {
			return going{}, fault.Wrap(err, "disk %s", e.Target)
		}
		if err := add(e.Path, e.Target, true); err != nil {
			return going{}, err
		}
		for _, below := range img.Backing {
			if !filepath.IsAbs(below) {
				continue // reached through the network by either host
			}
			if err := add(below, e.Target, false); err != nil {
				return going{}, err
			}
		}
	}
	k.keepGoing(l, k.c.Runtime.Boot().Since)
	return l, nil
}

// noteGoing records, before the first byte of a disk is given away, that it is shipped,
// and in which version: what is handed over, and removed here when the move is confirmed,
// is exactly that.
func (k *Dock) noteGoing(ctx context.Context, ref migration.Ref, f goingFile, path string) error {
	rec, _, err := memory.Recall[[]disks.Moved](k.c.Memory, ref, MemoryGoing)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(rec, func(d disks.Moved) bool { return d.Path == path }) {
		return nil
	}
	// With the instance's turn: the guest is not powered on, which forgets this, before it
	// is seen that it was, and not after.
	unlock, err := k.c.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.c.Guests.Off(ctx, ref); err != nil {
		return err
	}
	if rec, _, err = memory.Recall[[]disks.Moved](k.c.Memory, ref, MemoryGoing); err != nil {
		return err
	}
	files, err := disks.MovedFiles(k.c.Files, f.target, path, f.real)
	if err != nil {
		return err
	}
	look, err := k.c.Files.ReadBlock(f.real, 0, 0, migration.ShipBlock)
	if err != nil {
		return err
	}
	files[len(files)-1].Version = look.Version // of what the guest's own path leads to
	return k.c.Memory.Remember(ctx, ref, MemoryGoing, append(rec, files...))
}

// AsShipped refuses to hand a guest over whose disks were written to, or replaced, since
// they were shipped: somebody started it meanwhile, and what it wrote is only here. A disk
// that is gone holds nothing that the destination lacks, and there is its only copy.
func (k *Dock) AsShipped(ref migration.Ref) error {
	shipped, err := k.Left(ref)
	if err != nil {
		return err
	}
	var no fault.Refusal
	for _, d := range shipped {
		if d.Version == "" {
			continue
		}
		real, _, _, err := k.c.Files.Lookup(d.Path)
		switch {
		case errors.Is(err, fault.NotFound):
			k.log.Warn("a disk that was shipped is gone", "instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", d.Path)
			continue
		case err != nil:
			return fault.Wrap(err, "disk %s", d.Target)
		}
		look, err := k.c.Files.ReadBlock(real, 0, 0, migration.ShipBlock)
		if err != nil {
			return fault.Wrap(err, "disk %s", d.Target)
		}
		if look.Version != d.Version {
			no.Add(fault.Forbidden, fault.Reason{
				Code: "disk_changed", Message: "disk " + d.Target + " (" + d.Path + ") was written to after it was shipped", Want: d.Version, Have: look.Version,
				Change: "leave the guest off until its move is over, and try again",
			})
		}
	}
	return no.Err("")
}

// Left are the disks that this attempt has shipped from here, in whole or in part:
// their files are the guest's until the move is confirmed, and nobody's afterwards. What
// stands below them is not among them: it may be many guests'.
func (k *Dock) Left(ref migration.Ref) ([]disks.Moved, error) {
	rec, _, err := memory.Recall[[]disks.Moved](k.c.Memory, ref, MemoryGoing)
	return rec, err
}

// Forget drops what Left tells, when the guest is to be started here again: nothing of its
// disks is read any more. Its caller has the instance's turn.
func (k *Dock) Forget(ctx context.Context, ref migration.Ref) error {
	if err := k.Stop(ctx, ref); err != nil {
		return err
	}
	return k.c.Memory.Forget(ctx, ref, MemoryGoing)
}
