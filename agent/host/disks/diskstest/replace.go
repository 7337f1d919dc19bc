package diskstest

import (
	"context"
	"errors"
	"path/filepath"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// The steps of a file that replaces another.
const (
	StepCopy   = "copy file"
	StepRename = "rename"
)

// PlanReplace is disks.Files'.
func (f *Files) PlanReplace(migration, part, path string) (disks.Replaced, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	switch {
	case n == nil:
		return disks.Replaced{}, fault.New(fault.NotFound, "replace disk %s: no such file", path)
	case n.folder:
		return disks.Replaced{}, disks.NotPlain(path)
	}
	beside := filepath.Join(filepath.Dir(path), ".berth-"+migration+"-"+part)
	return disks.Replaced{Made: disks.Made{Path: path, Migration: migration, Part: beside + ".part"}, Kept: beside + ".kept", Old: n.stamp()}, nil
}

// CopyNeeds is disks.Files': nothing is shared here.
func (f *Files) CopyNeeds(path string) (int64, error) {
	data, _, exists := f.Data(path)
	if !exists {
		return 0, fault.New(fault.NotFound, "look at %s: no such file", path)
	}
	return int64(len(data)), nil
}

// BuildCopy is disks.Files'.
func (f *Files) BuildCopy(ctx context.Context, r *disks.Replaced, format string, size int64) error {
	if err := ctx.Err(); err != nil {
		return fault.New(fault.Unavailable, "make disk %s: %w", r.Path, context.Cause(ctx))
	}
	if err := f.unlink(r.Part); err != nil {
		return err
	}
	return f.change(StepCopy, r.Part, func(v *volume) error {
		old := v.entries[r.Path]
		switch {
		case old == nil || !old.stamp().Equals(r.Old):
			return fault.New(fault.Forbidden, "make disk %s: the file is not the one that was to be replaced", r.Path)
		case size < old.size:
			return fault.New(fault.Invalid, "make disk %s: a disk is not made smaller", r.Path)
		case int64(len(old.data)) > v.free:
			return fault.Refuse(fault.DoesNotFit, "make disk "+r.Path, fault.Reason{Code: "disk_space", Message: "its folder has no room left"})
		}
		n := f.newLocked()
		n.format, n.size, n.data, n.backing, n.marked = format, size, old.data, old.backing, r.Migration
		v.entries[r.Part] = n
		stamp := n.stamp()
		r.Stamp, r.Marked = &stamp, true
		return nil
	})
}

// Replace is disks.Files'.
func (f *Files) Replace(r disks.Replaced) error {
	fail := func(kind fault.Kind, why string) error { return fault.New(kind, "replace disk %s: %s", r.Path, why) }
	now, err := f.Stamp(r.Path)
	switch {
	case err != nil:
		return err
	case f.is(r.Path, r.Made):
		return nil
	case !now.Equals(r.Old):
		return fail(fault.Forbidden, "the file there is neither the old nor the new one")
	case !f.is(r.Part, r.Made):
		return fail(fault.NotFound, "the new file was not built")
	}
	if err := f.change(StepLink, r.Kept, func(v *volume) error {
		if kept := v.entries[r.Kept]; kept != nil && !kept.stamp().Equals(r.Old) {
			return disks.Occupied(r.Kept)
		}
		v.entries[r.Kept] = v.entries[r.Path]
		return nil
	}); err != nil {
		return err
	}
	return f.rename(r.Part, r.Path)
}

func (f *Files) rename(from, to string) error {
	return f.change(StepRename, to, func(v *volume) error {
		v.entries[to] = v.entries[from]
		delete(v.entries, from)
		return nil
	})
}

// PutBack is disks.Files'.
func (f *Files) PutBack(r disks.Replaced) error {
	fail := func(why string) error { return fault.New(fault.Forbidden, "put disk %s back: %s", r.Path, why) }
	if err := f.unlink(r.Part); err != nil {
		return err
	}
	now, err := f.Stamp(r.Path)
	gone := errors.Is(err, fault.NotFound)
	kept, err := f.Stamp(r.Kept)
	have := err == nil && kept.Equals(r.Old)
	switch {
	case !gone && now.Equals(r.Old):
		if !have {
			return nil
		}
		return f.unlink(r.Kept)
	case !have && !gone && !f.is(r.Path, r.Made):
		return nil
	case !have:
		return fail("the old file is not kept any more")
	case gone || f.is(r.Path, r.Made):
		return f.rename(r.Kept, r.Path)
	}
	return fail("the file there is neither the old nor the new one")
}

// DropKept is disks.Files'.
func (f *Files) DropKept(r disks.Replaced) error {
	if kept, err := f.Stamp(r.Kept); err == nil && kept.Equals(r.Old) {
		if err := f.unlink(r.Kept); err != nil {
			return err
		}
	}
	f.Keep(r.Made)
	return nil
}
