package shipping

import (
	"context"
	"slices"

	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/migration"
)

// Undo removes exactly what was made here for disks that this attempt of the
// migration, or an earlier one, shipped or would have shipped; and nothing of it is
// written any more. Safe to repeat, before and after a half-done Plan. Its
// caller has the instance's turn, and has seen that the guest is not here.
func (k *Dock) Undo(ctx context.Context, ref migration.Ref) error {
	if err := k.c.Memory.WriteTombstone(ctx, ref, stepShip); err != nil {
		return err
	}
	var survey *fileusers.Survey
	for _, r := range k.c.Memory.Attempts(ref, MemoryComing) {
		if err := k.closeShipment(ctx, r); err != nil {
			return err
		}
		rec, _, err := memory.Recall[comingFiles](k.c.Memory, r, MemoryComing)
		if err != nil {
			return err
		}
		for _, f := range slices.Backward(rec.Files) {
			if f.Backing && f.Sealed && !f.Compare {
				if by, err := k.usedBy(ctx, &survey, f.Path, r); err != nil {
					return err
				} else if by != "" {
					k.log.Warn("a backing file that was shipped stays", "instance", ref.Instance, "migration", ref.Migration, "path", f.Path, "why", by)
					k.c.Files.Keep(f.Made)
					continue
				}
			}
			if err := k.unmake(f); err != nil {
				return err
			}
		}
		if err := k.c.Memory.Forget(ctx, r, MemoryComing); err != nil {
			return err
		}
	}
	return nil
}

func (k *Dock) unmake(f comingFile) error {
	if f.Compare || f.Made.Path == "" {
		return nil
	}
	return k.c.Files.Unmake(f.Made)
}

// usedBy says why a backing file stays; empty where nobody but the instance that moves uses
// it. The survey is made once.
func (k *Dock) usedBy(ctx context.Context, survey **fileusers.Survey, path string, ref migration.Ref) (string, error) {
	by, err := k.ComparedBy(path, ref)
	if by != "" || err != nil {
		return by, err
	}
	if *survey == nil {
		if *survey, err = k.c.Guests.FileUsers(ctx); err != nil {
			return "", err
		}
	}
	answer, err := (*survey).Of(path, ref.Instance)
	if err != nil {
		return "", err
	}
	if answer.Verdict(fileusers.Remove) != fileusers.Go {
		return "it " + answer.Why(), nil
	}
	elsewhere, err := (*survey).UsedElsewhere(ctx, ref.Instance, path)
	return elsewhere[path], err
}

// ComparedBy names another migration that has compared its backing file with a file here,
// and stands on it when it has come; empty for none.
func (k *Dock) ComparedBy(path string, ref migration.Ref) (string, error) {
	file, err := disks.Which(k.c.Files, path)
	if err != nil {
		return "", err
	}
	for _, r := range k.c.Memory.Remembering(MemoryComing) {
		if r.Migration == ref.Migration {
			continue
		}
		rec, _, err := memory.Recall[comingFiles](k.c.Memory, r, MemoryComing)
		if err != nil {
			return "", err
		}
		for _, f := range rec.Files {
			if !f.Compare {
				continue
			}
			if other, err := disks.Which(k.c.Files, f.Path); err != nil || other == file {
				return r.Migration, err
			}
		}
	}
	return "", nil
}

// Keep makes what was shipped the guest's: marks go, and so does the record. It
// is called when the guest stays here for good. Safe to repeat.
func (k *Dock) Keep(ctx context.Context, ref migration.Ref) error {
	for _, r := range k.c.Memory.Attempts(ref, MemoryComing) {
		rec, _, err := memory.Recall[comingFiles](k.c.Memory, r, MemoryComing)
		if err != nil {
			return err
		}
		for _, f := range rec.Files {
			if !f.Compare {
				k.c.Files.Keep(f.Made)
			}
		}
		if err := k.closeShipment(ctx, r); err != nil {
			return err
		}
		if err := k.c.Memory.Forget(ctx, r, MemoryComing); err != nil {
			return err
		}
	}
	return nil
}

// Sealed reports whether all that comes here by an attempt is whole and in its place.
func (k *Dock) Sealed(ref migration.Ref) (bool, error) {
	rec, _, err := memory.Recall[comingFiles](k.c.Memory, ref, MemoryComing)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(rec.Files, func(f comingFile) bool { return !f.Sealed }), nil
}
