package shipping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/migration"
)

// comingFiles is the record of the files that come for one attempt.
//
//	             file at Made.Part   file at Path   undo removes
//	planned      perhaps             –              Part
//	Ready        filled so far       –              Part
//	Sealed       –                   the same       Path, by its stamp; a backing file only when
//	                                                nobody else stands on it
//	Compare      –                   was there      nothing
type comingFiles struct {
	Files []comingFile `json:"files"`
	Ready bool         `json:"ready,omitempty"` // every file is made
}

// comingFile is one of them, as far as it is durable.
type comingFile struct {
	Target  string     `json:"target"`
	Path    string     `json:"path"`
	Backing bool       `json:"backing,omitempty"` // below a disk, and perhaps below others' too
	Format  string     `json:"format,omitempty"`  // of a disk itself; empty in records of older agents
	Below   []string   `json:"below,omitempty"`   // of a disk itself: what it may stand on
	Compare bool       `json:"compare,omitempty"` // was here before; nothing is written to it
	Made    disks.Made `json:"made,omitzero"`     // zero where Compare
	Own     string     `json:"own,omitempty"`     // version of the file that was here before
	Needs   int64      `json:"needs,omitempty"`   // bytes that it will occupy
	Size    int64      `json:"size,omitempty"`
	Version string     `json:"version,omitempty"` // of the source's file; empty before the first piece
	Bytes   int64      `json:"bytes,omitempty"`
	Sum     string     `json:"sum,omitempty"`
	Sealed  bool       `json:"sealed,omitempty"`
}

// Plan makes room under private names for the disks that will be shipped to
// this host, and answers which files those are, in their order. It refuses with every
// reason. Repeated it gives the same answer. Its caller has the instance's turn.
func (k *Dock) Plan(ctx context.Context, ref migration.Ref, p migration.PrepRequest) ([]migration.ShipFile, error) {
	if err := k.c.Memory.Late(ref, stepShip); err != nil {
		return nil, err
	}
	rec, found, err := memory.Recall[comingFiles](k.c.Memory, ref, MemoryComing)
	if err != nil {
		return nil, err
	}
	if found && rec.Ready {
		return rec.list(), nil
	}
	// A try that broke off is undone first: its files may be half made.
	for _, f := range slices.Backward(rec.Files) {
		if err := k.unmake(f); err != nil {
			return nil, err
		}
	}
	var no fault.Refusal
	if rec, err = k.plan(ctx, &no, ref, p.Guest, p.CopyDisks, p.Wanted.Grow); err != nil {
		return nil, err
	}
	if err := no.Err(""); err != nil {
		return nil, err
	}
	if err := k.c.Memory.Remember(ctx, ref, MemoryComing, rec); err != nil {
		return nil, err
	}
	for i := range rec.Files {
		if f := &rec.Files[i]; !f.Compare {
			if err := k.c.Files.Build(ctx, &f.Made, "raw", 0); err != nil {
				return nil, err
			}
		}
	}
	rec.Ready = true
	if err := k.c.Memory.Remember(ctx, ref, MemoryComing, rec); err != nil {
		return nil, err
	}
	return rec.list(), nil
}

func (s comingFiles) list() []migration.ShipFile {
	var out []migration.ShipFile
	for _, f := range s.Files {
		out = append(out, migration.ShipFile{Target: f.Target, Path: f.Path, Compare: f.Compare})
	}
	return out
}

// Check adds every reason why the disks could not come. It changes nothing.
func (k *Dock) Check(ctx context.Context, no *fault.Refusal, ref migration.Ref, g migration.Guest, targets []string, grow []migration.DiskGrowth) error {
	_, err := k.plan(ctx, no, ref, g, targets, grow)
	return err
}

// Chain tells of each file below a disk what another host must know to have the same.
// What is no plain file has size -1, and what is reached through the network is left out.
func Chain(files Files, backing []string) ([]migration.BackingFile, error) {
	var out []migration.BackingFile
	for _, path := range backing {
		if !filepath.IsAbs(path) {
			continue
		}
		id, err := files.Identity(path)
		if err != nil {
			return nil, err
		}
		b := migration.BackingFile{Path: path, Size: -1, Filesystem: id}
		if _, size, occupies, err := files.Lookup(path); err == nil {
			b.Size, b.ActualSize = size, occupies
		} else if !errors.Is(err, fault.Invalid) {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// plan decides about each file of the disks that are shipped. What stands below a
// disk comes before it:
//
//	backing file here                                   what is done
//	the same file (one filesystem for both hosts)       nothing
//	none                                                shipped, as the disk is; a device is refused
//	of another size, or a guest's own disk here         refused
//	else                                                compared, block by block; refused when it differs
//
// A chain above a file that is not the same would be a broken disk, which nothing would
// show until the guest reads there.
func (k *Dock) plan(ctx context.Context, no *fault.Refusal, ref migration.Ref, g migration.Guest, targets []string, grow []migration.DiskGrowth) (comingFiles, error) {
	var plan comingFiles
	need, err := k.roomNeeded(no, ref)
	if err != nil {
		return comingFiles{}, err
	}
	var survey *fileusers.Survey
	for _, target := range targets {
		i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == target })
		if i < 0 {
			return comingFiles{}, fault.New(fault.Invalid, "disk %s is to be shipped, the guest has none of that name", target)
		}
		d := g.Disks[i]
		if filepath.IsAbs(d.BackingFile) && len(d.Chain) == 0 {
			no.Add(fault.Forbidden, fault.Reason{
				Code: "backing_chain_unknown", Message: "disk " + target + " stands on " + d.BackingFile + ", and its host does not say what is below", Have: d.BackingFile,
				Change: "upgrade berth on the source; or flatten the disk: virsh blockpull DOMAIN DISK --wait, on its own host while it runs",
			})
			continue
		}
		if err := Whole(d); err != nil {
			if err := no.Take(err); err != nil {
				return comingFiles{}, err
			}
			continue
		}
		own := d.ActualSize // of the whole chain
		for n, b := range slices.Backward(d.Chain) {
			own -= b.ActualSize
			if slices.ContainsFunc(plan.Files, func(f comingFile) bool { return f.Path == b.Path }) {
				continue // below another disk too
			}
			f := comingFile{Target: target, Path: b.Path, Backing: true}
			there, err := k.backingHere(no, &f, b)
			if err != nil {
				return comingFiles{}, err
			}
			switch {
			case there && !f.Compare: // the same file, or refused
				continue
			case b.Size < 0:
				no.Add(fault.Forbidden, fault.Reason{
					Code: "backing_device", Message: "disk " + target + " stands on " + b.Path + ", which is no file and is not on " + k.c.Name, Want: b.Path,
					Change: "give both hosts the same device; or flatten the disk: virsh blockpull DOMAIN DISK --wait, on its own host while it runs",
				})
				continue
			case there:
				if survey == nil {
					if survey, err = k.c.Guests.FileUsers(ctx); err != nil {
						return comingFiles{}, err
					}
				}
				if by, err := survey.Writer(b.Path, ref.Instance); err != nil {
					return comingFiles{}, err
				} else if by != "" {
					no.Add(fault.Forbidden, fault.Reason{
						Code: "backing_file_in_use", Message: "disk " + target + " stands on " + b.Path + ", which is a disk of " + by + " on " + k.c.Name,
						Want: b.Path, Have: by, Change: "flatten the disk: virsh blockpull DOMAIN DISK --wait, on its own host while it runs",
					})
					continue
				}
			default:
				if err := k.place(no, &f, ref, fmt.Sprintf("%s.%d", target, n+1)); err != nil {
					return comingFiles{}, err
				}
				if err := need.add(&f, b.ActualSize, 0); err != nil {
					return comingFiles{}, err
				}
			}
			plan.Files = append(plan.Files, f)
		}
		f := comingFile{Target: target, Path: d.Path, Format: cmp.Or(d.Format, "raw")}
		for _, b := range d.Chain {
			f.Below = append(f.Below, filepath.Clean(b.Path))
		}
		if err := k.place(no, &f, ref, target); err != nil {
			return comingFiles{}, err
		}
		var later int64
		for _, more := range grow {
			if more.Target == target {
				later += max(more.VirtualSize-d.VirtualSize, 0)
			}
		}
		if err := need.add(&f, max(own, 0), later); err != nil {
			return comingFiles{}, err
		}
		plan.Files = append(plan.Files, f)
	}
	return plan, nil
}

// backingHere looks for a backing file on this host. there with Compare says that it is
// to be compared; there without, that nothing is to be done about it or that it was
// refused.
func (k *Dock) backingHere(no *fault.Refusal, f *comingFile, b migration.BackingFile) (there bool, err error) {
	id, err := k.c.Files.Identity(b.Path)
	switch {
	case errors.Is(err, fault.NotFound):
		return false, nil
	case err == nil && id != "" && id == b.Filesystem:
		return true, nil
	case err != nil && !errors.Is(err, fault.Invalid):
		return false, err
	}
	differs := func(want, have string) {
		no.Add(fault.Forbidden, fault.Reason{
			Code: "backing_file_differs", Message: "disk " + f.Target + " stands on " + f.Path + ", and " + k.c.Name + " has another file of that name",
			Want: want, Have: have, Change: "put the same file there, or rename the other one; or flatten the disk: virsh blockpull DOMAIN DISK --wait, on its own host while it runs",
		})
	}
	real, size, _, err := k.c.Files.Lookup(b.Path)
	switch {
	case errors.Is(err, fault.Invalid):
		differs("a plain file", "something else")
		return true, nil
	case err != nil:
		return false, err
	case size != b.Size:
		differs(fmt.Sprintf("%d bytes", b.Size), fmt.Sprintf("%d bytes", size))
		return true, nil
	}
	look, err := k.c.Files.ReadBlock(real, 0, 0, migration.ShipBlock)
	f.Compare, f.Own = true, look.Version
	return true, err
}

// place plans a file that is made here.
func (k *Dock) place(no *fault.Refusal, f *comingFile, ref migration.Ref, part string) error {
	if r, bad := k.c.Guests.Place(f.Path); bad {
		no.Add(fault.Forbidden, r)
		return nil
	}
	m, err := k.c.Files.Plan(ref.Migration, disks.PartName(ref.Attempt, part), f.Path)
	if err != nil {
		return no.Take(err)
	}
	f.Made = m
	return nil
}

// Whole refuses a disk that has its data in another file: a copy of its tables would share
// that with it, and each write to one would break the other.
func Whole(d migration.Disk) error {
	if len(d.Outside) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_data_apart", Message: "disk " + d.Target + " keeps its data in " + d.Outside[0] + ", apart from " + d.Path, Have: d.Outside[0],
		Change: "make it whole while the guest is off: qemu-img convert -O " + d.Format,
	})
}
