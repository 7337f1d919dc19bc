package host

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

const (
	memorySnapshot = "snapshot"
)

// snapshot is the record of SnapshotDisks: the files of a guest that is off, as they are
// held. Nothing is copied: while each file is of its version, it is its own snapshot.
//
//	                    no snapshot                   snapshot
//	what is read        any file of the guest         its files, at their versions
//	a file changes      seen by who ships it          refused by ReadDisk and by HandOver
//	ends with           –                             DropSnapshot, PowerOn, the end of the move
type snapshot struct {
	Files []snapshotFile `json:"files"`
}

// snapshotFile is one of them.
type snapshotFile struct {
	migration.SnapshotFile
	Real string `json:"real_path"`      // without symbolic links
	Disk bool   `json:"disk,omitempty"` // the disk itself, not what is below it
}

func (s snapshot) answer() migration.Snapshot {
	var out migration.Snapshot
	for _, f := range s.Files {
		out.Files = append(out.Files, f.SnapshotFile)
	}
	return out
}

// snapshotDisks does operation.SnapshotDisks.
func (h *Host) snapshotDisks(ctx context.Context, ref migration.Ref, targets []string) (migration.Snapshot, error) {
	none := migration.Snapshot{}
	if err := h.offForMove(ctx, ref); err != nil {
		return none, err
	}
	rec, found, err := h.snapshotOf(ref)
	if err != nil {
		return none, err
	}
	if !found {
		if rec, err = h.filesToHold(ctx, ref, targets); err != nil {
			return none, err
		}
	}
	// Who writes is looked for after the versions were read: what somebody writes who comes
	// later changes them.
	var no refusal
	writers, err := h.witness.Written(rec.writable())
	if err != nil {
		return none, err
	}
	no.add(fault.Forbidden, writers...)
	if err := h.asHeld(&no, rec); err != nil {
		return none, err
	}
	if err := no.err(""); err != nil {
		return none, err
	}
	if !found {
		if err := h.memory.Remember(ctx, ref, memorySnapshot, rec); err != nil {
			return none, err
		}
	}
	return rec.answer(), nil
}

// offForMove refuses unless the guest is this host's, and off by this attempt.
func (h *Host) offForMove(ctx context.Context, ref migration.Ref) error {
	inst, err := h.endedBy(ref)
	if err != nil {
		return err
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	return h.isOff(ctx, ref, h.attempts.Came(ref))
}

// endedBy is the guest that this attempt has powered off, and not powered on again. What
// has become of its domain and its token since is for the caller to see.
func (h *Host) endedBy(ref migration.Ref) (claims.Instance, error) {
	if err := h.memory.Late(ref, operation.StepPowerOff); err != nil {
		return claims.Instance{}, err
	}
	rec, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	switch {
	case err != nil:
		return claims.Instance{}, err
	case !found || !rec.Off || rec.On:
		return claims.Instance{}, fault.New(fault.Forbidden, "the guest was not powered off by attempt %d of this migration", ref.Attempt)
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return claims.Instance{}, fault.New(fault.Forbidden, "instance %s is not in the ledger", ref.Instance)
	}
	return inst, nil
}

// snapshotOf is what an attempt holds of its guest's files here; false where it holds
// none: then all are what they are.
func (h *Host) snapshotOf(ref migration.Ref) (snapshot, bool, error) {
	return memory.Recall[snapshot](h.memory, ref, memorySnapshot)
}

// filesToHold reads what the files of these disks are at this moment, what stands below a
// disk with it. A file below two disks is named once.
func (h *Host) filesToHold(ctx context.Context, ref migration.Ref, targets []string) (snapshot, error) {
	var rec snapshot
	list, err := shippedGuests{h}.Disks(ref)
	if err != nil {
		return rec, err
	}
	hold := func(path, target string, disk bool) error {
		if i := slices.IndexFunc(rec.Files, func(f snapshotFile) bool { return f.Path == path }); i >= 0 {
			rec.Files[i].Disk = rec.Files[i].Disk || disk
			return nil
		}
		real, _, allocated, err := h.files.Lookup(path)
		if err != nil {
			return wrap(err, "disk %s", target)
		}
		look, err := h.files.ReadBlock(real, 0, 0, migration.ShipBlock)
		if err != nil {
			return wrap(err, "disk %s", target)
		}
		f := migration.SnapshotFile{Target: target, Path: path, Size: look.Size, Allocated: min(allocated, look.Size), Version: look.Version}
		rec.Files = append(rec.Files, snapshotFile{SnapshotFile: f, Real: real, Disk: disk})
		return nil
	}
	for _, target := range targets {
		found := false
		for _, d := range list {
			if d.Target != target {
				continue
			}
			found = true
			if d.Variables {
				if err := hold(d.Path, target, true); err != nil {
					return rec, err
				}
				continue
			}
			img, err := h.files.Image(ctx, d.Path, d.Format)
			if err != nil {
				return rec, wrap(err, "disk %s", target)
			}
			for _, below := range slices.Backward(img.Backing) {
				if !filepath.IsAbs(below) {
					continue // reached through the network by either host
				}
				if err := hold(below, target, false); errors.Is(err, fault.Invalid) {
					continue // a device, which is not shipped
				} else if err != nil {
					return rec, err
				}
			}
			if err := hold(d.Path, target, true); err != nil {
				return rec, err
			}
		}
		if !found {
			return rec, fault.New(fault.Invalid, "disk %s is to be shipped, the guest has no file of that name", target)
		}
	}
	return rec, nil
}

// writable are the files, by path, with the disk that each is of.
func (s snapshot) writable() map[string]string {
	out := map[string]string{}
	for _, f := range s.Files {
		out[f.Path] = f.Target
	}
	return out
}

// asHeld refuses files that are not what they were when they were held. A disk that is
// gone holds nothing that the destination could lack.
func (h *Host) asHeld(no *refusal, s snapshot) error {
	for _, f := range s.Files {
		real, _, _, err := h.files.Lookup(f.Path)
		have := ""
		if err == nil && real == f.Real {
			look, lookErr := h.files.ReadBlock(real, 0, 0, migration.ShipBlock)
			have, err = look.Version, lookErr
		}
		switch {
		case errors.Is(err, fault.NotFound):
			h.log.Warn("a file of a guest that moves is gone", "disk", f.Target, "path", f.Path)
			continue
		case err != nil:
			return wrap(err, "disk %s", f.Target)
		case have == f.Version:
			continue
		}
		no.add(fault.Forbidden, fault.Reason{
			Code: "disk_changed", Message: "disk " + f.Target + " (" + f.Path + ") was written to, or replaced, since it was held for the move", Want: f.Version, Have: have,
			Change: "leave the guest off until its move is over, find out who writes to it, and try again",
		})
	}
	return nil
}

// heldStill refuses to hand a guest over whose files are not what this attempt has held;
// nil where it holds none.
func (h *Host) heldStill(ref migration.Ref) error {
	rec, found, err := h.snapshotOf(ref)
	if err != nil || !found {
		return err
	}
	var no refusal
	if err := h.asHeld(&no, rec); err != nil {
		return err
	}
	return no.err("")
}

// dropSnapshot does operation.DropSnapshot.
func (h *Host) dropSnapshot(ctx context.Context, ref migration.Ref) error {
	if err := h.dock.Stop(ctx, ref); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memorySnapshot))
}

// notGone refuses an undo at a source whose guest has left by this attempt.
func (h *Host) notGone(_ context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if c, ok := h.tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt && known && inst.Token.State != claims.TokenHere {
		return fault.New(fault.Forbidden, "its token has left to %s", c.To)
	}
	return nil
}
