package host

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/migration"
)

// OldDisks are the local files of an instance that was evacuated from this host. Nothing here shows
// that its data is whole elsewhere: the fleet's records, which its new host writes, are one witness. So
// they stay, and an operator removes them.
type OldDisks struct {
	Instance string       `json:"instance_uuid"`
	Name     string       `json:"name"`
	To       string       `json:"dest_compute"`
	Files    []copiedDisk `json:"files"`
}

const memoryOldDisks = "old_disks"

// oldDisksPrefix and the instance's uuid are under which they are remembered, whichever migration took it.
const oldDisksPrefix = "old-disks-"

func oldDisksRef(uuid string) migration.Ref {
	return migration.Ref{Migration: oldDisksPrefix + uuid, Instance: uuid, Attempt: 1}
}

// keepOldDisks makes durable which files of an evacuated instance stay here, before the definition that
// names them goes. Those that other hosts reach, or that the instance uses where it is, are not among
// them. Safe to repeat.
func keepOldDisks(ctx context.Context, h *Host, uuid string, rec gaveWay, there migration.Guest) error {
	var files []copiedDisk
	for i, f := range rec.Files {
		if why := keeps(rec.Identities[i], f.Path, there); why != "" {
			h.log.Info("a file of an evacuated instance is not this host's alone", "instance", uuid, "disk", f.Target, "path", f.Path, "why", why)
			continue
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil
	}
	ref := oldDisksRef(uuid)
	was, _, err := memory.Recall[OldDisks](h.memory, ref, memoryOldDisks)
	if err != nil {
		return err
	}
	for _, f := range was.Files {
		if !slices.ContainsFunc(files, func(n copiedDisk) bool { return n.Path == f.Path }) {
			files = append(files, f)
		}
	}
	return h.memory.Remember(ctx, ref, memoryOldDisks, OldDisks{Instance: uuid, Name: cmp.Or(rec.Name, was.Name, uuid), To: rec.To, Files: files})
}

// KeptOldDisks gives the old disks that are still here, in order of instance, and forgets those that are
// gone or whose place another file has. One that cannot be looked at is given.
func KeptOldDisks(ctx context.Context, h *Host) ([]OldDisks, error) {
	var out []OldDisks
	for _, ref := range h.memory.Remembering(memoryOldDisks) {
		rec, found, err := memory.Recall[OldDisks](h.memory, ref, memoryOldDisks)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		left := rec
		left.Files = slices.DeleteFunc(slices.Clone(rec.Files), func(f copiedDisk) bool {
			now, err := h.files.Stamp(f.Path)
			return errors.Is(err, fault.NotFound) || err == nil && !now.Equals(f.Stamp)
		})
		ref.Instance = rec.Instance
		switch {
		case len(left.Files) == 0:
			err = h.tracker.Unremember(ctx, memory.At(ref, memoryOldDisks))
		case len(left.Files) < len(rec.Files):
			err = h.memory.Remember(ctx, ref, memoryOldDisks, left)
		}
		if err != nil {
			return nil, err
		}
		if len(left.Files) > 0 {
			out = append(out, left)
		}
	}
	return out, nil
}

// UnusedOldDisks leaves out of old disks the files that an instance here uses again, or that something
// has open. remedies are by path, of each other file: what an operator types. It asks the hypervisor for
// all definitions; fault.Unavailable where it does not answer.
func UnusedOldDisks(ctx context.Context, h *Host, kept []OldDisks) (unused []OldDisks, remedies map[string]string, err error) {
	if len(kept) == 0 {
		return nil, nil, nil
	}
	survey, err := h.fileUsers(ctx)
	if err != nil {
		return nil, nil, err
	}
	remedies = map[string]string{}
	for _, o := range kept {
		var files []copiedDisk
		for _, f := range o.Files {
			answer, err := survey.Of(f.Path, "") // its own instance counts: it was adopted again
			if err != nil {
				return nil, nil, err
			}
			if len(answer.Users) > 0 || len(answer.Open) > 0 {
				continue
			}
			files = append(files, f)
			remedies[f.Path] = answer.Remedy()
			if len(answer.Perhaps) == 0 {
				remedies[f.Path] += " when nobody needs it"
			}
		}
		if o.Files = files; len(files) > 0 {
			unused = append(unused, o)
		}
	}
	return unused, remedies, nil
}
