package evacuation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"berth/agent/host/disks"
	"berth/agent/host/remake"
	"berth/internal/fault"
	"berth/migration"
)

// ReasonImageMissing is the code of a reason against making a disk: the image that it was made
// from is not here.
const ReasonImageMissing = "image_missing"

// Files look at what is here; disks.Files does, and says what each promises.
type Files interface {
	Exists(path string) (bool, error)
	Image(ctx context.Context, path, format string) (disks.Image, error)
	Plan(migration, part, path string) (disks.Made, error)
	Space(path string) (disks.Space, error)
}

// Disk is a disk that is made anew, as its verb has it on record.
type Disk struct {
	remake.Disk
	From migration.Image `json:"from"` // an empty path for a disk that is made empty
}

// Source is what a disk of a lost guest is made from on a host that does not share it: the image
// that its record names, or, of the first disk that the guest writes, the one that was named for
// it, where the record names none or one that is not here. Nil where nobody knows any. here says
// whether there is such a file.
func Source(g migration.Guest, target string, named *migration.Image, here func(path string) bool) *migration.Image {
	i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == target })
	if i < 0 {
		return nil
	}
	kept := g.Disks[i].Image
	first := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return !d.ReadOnly })
	if named != nil && i == first && (kept == nil || kept.Path != "" && !here(kept.Path)) {
		return formatted(*named)
	}
	if kept == nil {
		return nil
	}
	return formatted(*kept)
}

// formatted names an image's format: by its name, not by its contents, which anybody may have
// written.
func formatted(image migration.Image) *migration.Image {
	if image.Format == "" && image.Path != "" {
		image.Format = "raw"
		if filepath.Ext(image.Path) == ".qcow2" {
			image.Format = "qcow2"
		}
	}
	return &image
}

// CheckMade asks for what making these disks of a guest needs, and adds every reason against it:
// an image that is not here or needs other files, and no room. Place says why no disk is made at
// a path. A disk of which nobody knows what it was made from is left out: that is said by
// migration.EvacuateDisks.
func CheckMade(ctx context.Context, files Files, no *fault.Refusal, g migration.Guest, targets []string, named *migration.Image, host string, place func(path string) (fault.Reason, bool)) error {
	need, told := map[string]int64{}, map[string]bool{} // by device
	for _, d := range g.Disks {
		if !slices.Contains(targets, d.Target) {
			continue
		}
		if r, bad := place(d.Path); bad {
			no.Add(fault.Forbidden, r)
			continue
		}
		from, err := sourceOf(files, g, d.Target, named)
		if err != nil {
			return err
		}
		if from == nil {
			continue
		}
		bytes, err := occupies(ctx, files, no, d, *from, host)
		if err != nil {
			return err
		}
		space, err := files.Space(d.Path)
		if err != nil {
			return err
		}
		if need[space.Device] += bytes; need[space.Device] > space.Bytes && !told[space.Device] {
			told[space.Device] = true
			no.Add(fault.DoesNotFit, fault.Reason{
				Code: "disk_room_short", Message: fmt.Sprintf("disk %s: no room for %s on %s: want %s, %s free", d.Target, d.Path, host, remake.MiB(need[space.Device]), remake.MiB(space.Bytes)),
				Want: remake.MiB(need[space.Device]), Have: remake.MiB(space.Bytes), Change: "free space on that filesystem",
			})
		}
	}
	return nil
}

func sourceOf(files Files, g migration.Guest, target string, named *migration.Image) (*migration.Image, error) {
	var failed error
	from := Source(g, target, named, func(path string) bool {
		there, err := files.Exists(path)
		failed = errors.Join(failed, err)
		return there
	})
	return from, failed
}

// occupies is how much a disk takes at least that is made from an image, bytes.
func occupies(ctx context.Context, files Files, no *fault.Refusal, d migration.Disk, from migration.Image, host string) (int64, error) {
	if from.Path == "" {
		return 0, nil
	}
	img, err := files.Image(ctx, from.Path, from.Format)
	switch {
	case errors.Is(err, fault.NotFound):
		no.Add(fault.Forbidden, fault.Reason{
			Code: ReasonImageMissing, Message: "disk " + d.Target + " (" + d.Path + ") was made from " + from.Path + ", which " + host + " does not have",
			Have: d.Target, Want: from.Path, Change: "put that image there, or name another one for the first disk (--image)",
		})
		return 0, nil
	case err != nil:
		return 0, no.Take(err)
	}
	return img.ActualSize, no.Take(disks.Whole(from.Path, from.Format, img))
}

// PlanMade says what making these disks of a guest makes. fault.Exists where a place was taken
// meanwhile.
func PlanMade(files Files, ref migration.Ref, g migration.Guest, targets []string, named *migration.Image) ([]Disk, error) {
	var out []Disk
	for _, d := range g.Disks {
		if !slices.Contains(targets, d.Target) {
			continue
		}
		from, err := sourceOf(files, g, d.Target, named)
		if err != nil {
			return nil, err
		}
		if from == nil {
			return nil, fault.New(fault.Internal, "make disk %s: nobody knows what from", d.Target)
		}
		made, err := files.Plan(ref.Migration, disks.PartName(ref.Attempt, d.Target), d.Path)
		if err != nil {
			return nil, err
		}
		m := Disk{From: *from}
		m.Disk = remake.Disk{Target: d.Target, Format: d.Format, Size: d.VirtualSize, Image: true}
		m.Made = made
		out = append(out, m)
	}
	return out, nil
}

// Unreachable makes the reasons against a disk's being taken along those of one that cannot be
// reached: the host that has it is dead, and nobody copies it. That its place is taken by what
// cannot be told to be the very file stays what it is.
func Unreachable(reasons []fault.Reason) []fault.Reason {
	out := slices.Clone(reasons)
	for i, r := range out {
		switch r.Code {
		case "disk_exists":
			out[i].Message += ", and that it is the guest's own file cannot be told"
			out[i].Change = "give both hosts storage by which files can be told apart; or take it away, if it is another's"
		case "disk_block", "disk_shareable", "disk_format", "disk_missing":
			out[i].Code = migration.ReasonDiskUnreachable
		}
	}
	return out
}
