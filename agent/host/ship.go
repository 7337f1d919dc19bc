package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"berth/agent/host/disks"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

const (
	stepShip        = "ship_disks"  // under which all that is shipped here is buried
	memoryShip      = "shipped"     // what comes here, and how far it is
	memoryShipsFrom = "ships_files" // what left from here
)

// shipping is the record of the files that come for one attempt.
//
//	             file at Made.Part   file at Path   undo removes
//	planned      perhaps             –              Part
//	Ready        filled so far       –              Part
//	Sealed       –                   the same       Path, by its stamp; a backing file only when
//	                                                nobody else stands on it
//	Compare      –                   was there      nothing
type shipping struct {
	Files []shippingFile `json:"files"`
	Ready bool           `json:"ready,omitempty"` // every file is made
}

// shippingFile is one of them, as far as it is durable.
type shippingFile struct {
	Target  string     `json:"target"`
	Path    string     `json:"path"`
	Backing bool       `json:"backing,omitempty"` // below a disk, and perhaps below others' too
	Compare bool       `json:"compare,omitempty"` // was here before; nothing is written to it
	Made    disks.Made `json:"made,omitzero"`     // zero where Compare
	Own     string     `json:"own,omitempty"`     // version of the file that was here before
	Size    int64      `json:"size,omitempty"`
	Version string     `json:"version,omitempty"` // of the source's file; empty before the first piece
	Bytes   int64      `json:"bytes,omitempty"`
	Sum     string     `json:"sum,omitempty"`
	Sealed  bool       `json:"sealed,omitempty"`
}

// planShipped makes room under private names for the disks that will be shipped to
// this host, and answers which files those are, in their order. It refuses with every
// reason. Repeated it gives the same answer. Its caller has the instance's turn.
func (h *Host) planShipped(ctx context.Context, ref migration.Ref, p migration.PrepRequest) ([]migration.ShipFile, error) {
	if err := h.late(ref, stepShip); err != nil {
		return nil, err
	}
	rec, found, err := recall[shipping](h, ref, memoryShip)
	if err != nil {
		return nil, err
	}
	if found && rec.Ready {
		return rec.list(), nil
	}
	// A try that broke off is undone first: its files may be half made.
	for _, f := range slices.Backward(rec.Files) {
		if err := h.unmakeShipped(f); err != nil {
			return nil, err
		}
	}
	var no refusal
	if rec, err = h.shipPlan(ctx, &no, ref, p.Guest, p.CopyDisks, p.Wanted.Grow); err != nil {
		return nil, err
	}
	if err := no.err(""); err != nil {
		return nil, err
	}
	if err := h.remember(ctx, ref, memoryShip, rec); err != nil {
		return nil, err
	}
	for i := range rec.Files {
		if f := &rec.Files[i]; !f.Compare {
			if err := h.files.Build(ctx, &f.Made, "raw", 0); err != nil {
				return nil, err
			}
		}
	}
	rec.Ready = true
	if err := h.remember(ctx, ref, memoryShip, rec); err != nil {
		return nil, err
	}
	return rec.list(), nil
}

func (s shipping) list() []migration.ShipFile {
	var out []migration.ShipFile
	for _, f := range s.Files {
		out = append(out, migration.ShipFile{Target: f.Target, Path: f.Path, Compare: f.Compare})
	}
	return out
}

// checkShipped adds every reason why the disks could not come. It changes nothing.
func (h *Host) checkShipped(ctx context.Context, no *refusal, ref migration.Ref, g migration.Guest, targets []string, grow []migration.DiskGrowth) error {
	_, err := h.shipPlan(ctx, no, ref, g, targets, grow)
	return err
}

// chain tells of each file below a disk what another host must know to have the same.
// What is no plain file has size -1, and what is reached through the network is left out.
func (h *Host) chain(backing []string) ([]migration.BackingFile, error) {
	var out []migration.BackingFile
	for _, path := range backing {
		if !filepath.IsAbs(path) {
			continue
		}
		id, err := h.files.Identity(path)
		if err != nil {
			return nil, err
		}
		b := migration.BackingFile{Path: path, Size: -1, Filesystem: id}
		if _, size, occupies, err := h.files.Lookup(path); err == nil {
			b.Size, b.ActualSize = size, occupies
		} else if !errors.Is(err, fault.Invalid) {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// shipPlan decides about each file of the disks that are shipped. What stands below a
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
func (h *Host) shipPlan(ctx context.Context, no *refusal, ref migration.Ref, g migration.Guest, targets []string, grow []migration.DiskGrowth) (shipping, error) {
	var plan shipping
	need := roomNeeded{h: h, no: no, bytes: map[string]int64{}}
	var used map[string]string // by file: the guest here whose disk it is
	for _, target := range targets {
		i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == target })
		if i < 0 {
			return shipping{}, fault.New(fault.Invalid, "disk %s is to be shipped, the guest has none of that name", target)
		}
		d := g.Disks[i]
		if filepath.IsAbs(d.BackingFile) && len(d.Chain) == 0 {
			no.add(fault.Forbidden, fault.Reason{
				Code: "backing_chain_unknown", Message: "disk " + target + " stands on " + d.BackingFile + ", and its host does not say what is below", Have: d.BackingFile,
				Change: "upgrade berth on the source; or flatten the disk: virsh blockpull",
			})
			continue
		}
		if err := whole(d); err != nil {
			if err := no.take(err); err != nil {
				return shipping{}, err
			}
			continue
		}
		own := d.ActualSize // of the whole chain
		for n, b := range slices.Backward(d.Chain) {
			own -= b.ActualSize
			if slices.ContainsFunc(plan.Files, func(f shippingFile) bool { return f.Path == b.Path }) {
				continue // below another disk too
			}
			f := shippingFile{Target: target, Path: b.Path, Backing: true}
			there, err := h.backingHere(no, &f, b)
			if err != nil {
				return shipping{}, err
			}
			switch {
			case there && !f.Compare: // the same file, or refused
				continue
			case b.Size < 0:
				no.add(fault.Forbidden, fault.Reason{
					Code: "backing_device", Message: "disk " + target + " stands on " + b.Path + ", which is no file and is not on " + h.o.Name, Want: b.Path,
					Change: "give both hosts the same device; or flatten the disk: virsh blockpull",
				})
				continue
			case there:
				if used == nil {
					if used, err = h.usedFiles(ctx); err != nil {
						return shipping{}, err
					}
				}
				file, err := h.whichFile(b.Path)
				if err != nil {
					return shipping{}, err
				}
				if by := used[file]; by != "" {
					no.add(fault.Forbidden, fault.Reason{
						Code: "backing_file_in_use", Message: "disk " + target + " stands on " + b.Path + ", which is a disk of " + by + " on " + h.o.Name,
						Want: b.Path, Have: by, Change: "flatten the disk: virsh blockpull",
					})
					continue
				}
			default:
				if err := h.shipTo(no, &f, ref, fmt.Sprintf("%s.%d", target, n+1)); err != nil {
					return shipping{}, err
				}
				if err := need.add(target, b.Path, b.ActualSize); err != nil {
					return shipping{}, err
				}
			}
			plan.Files = append(plan.Files, f)
		}
		f := shippingFile{Target: target, Path: d.Path}
		if err := h.shipTo(no, &f, ref, target); err != nil {
			return shipping{}, err
		}
		plan.Files = append(plan.Files, f)
		own = max(own, 0)
		for _, more := range grow {
			if more.Target == target {
				own += max(more.VirtualSize-d.VirtualSize, 0)
			}
		}
		if err := need.add(target, d.Path, own); err != nil {
			return shipping{}, err
		}
	}
	return plan, nil
}

// backingHere looks for a backing file on this host. there with Compare says that it is
// to be compared; there without, that nothing is to be done about it or that it was
// refused.
func (h *Host) backingHere(no *refusal, f *shippingFile, b migration.BackingFile) (there bool, err error) {
	id, err := h.files.Identity(b.Path)
	switch {
	case errors.Is(err, fault.NotFound):
		return false, nil
	case err == nil && id != "" && id == b.Filesystem:
		return true, nil
	case err != nil && !errors.Is(err, fault.Invalid):
		return false, err
	}
	differs := func(want, have string) {
		no.add(fault.Forbidden, fault.Reason{
			Code: "backing_file_differs", Message: "disk " + f.Target + " stands on " + f.Path + ", and " + h.o.Name + " has another file of that name",
			Want: want, Have: have, Change: "put the same file there, or rename the other one; or flatten the disk: virsh blockpull",
		})
	}
	real, size, _, err := h.files.Lookup(b.Path)
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
	look, err := h.files.ReadBlock(real, 0, 0, migration.ShipBlock)
	f.Compare, f.Own = true, look.Version
	return true, err
}

// shipTo plans a file that is made here.
func (h *Host) shipTo(no *refusal, f *shippingFile, ref migration.Ref, part string) error {
	if r, bad := h.placeForDisk(f.Path); bad {
		no.add(fault.Forbidden, r)
		return nil
	}
	m, err := h.files.Plan(ref.Migration, disks.PartName(ref.Attempt, part), f.Path)
	if err != nil {
		return no.take(err)
	}
	f.Made = m
	return nil
}

// roomNeeded sums up what files need of each filesystem.
type roomNeeded struct {
	h     *Host
	no    *refusal
	bytes map[string]int64 // by filesystem
}

// add refuses the file with which there is no more room. What a file occupies at the
// source is what it needs here, as holes are kept.
func (n *roomNeeded) add(target, path string, bytes int64) error {
	space, err := n.h.files.Space(path)
	if err != nil {
		return err
	}
	n.bytes[space.Device] += bytes
	if want := n.bytes[space.Device]; want > space.Bytes {
		n.no.add(fault.DoesNotFit, fault.Reason{
			Code:    "disk_room_short",
			Message: fmt.Sprintf("disk %s: no room for %s on %s: want %s, %s free", target, path, n.h.o.Name, mib(want), mib(space.Bytes)),
			Want:    mib(want), Have: mib(space.Bytes), Change: "free space on that filesystem",
		})
	}
	return nil
}

// undoShipped removes exactly what was made here for disks that this attempt of the
// migration, or an earlier one, shipped or would have shipped; and nothing of it is
// written any more. Safe to repeat, before and after a half-done planShipped. Its
// caller has the instance's turn, and has seen that the guest is not here.
func (h *Host) undoShipped(ctx context.Context, ref migration.Ref) error {
	if err := h.tracker.Bury(ctx, at(ref, stepShip)); err != nil {
		return err
	}
	for _, r := range slices.Backward(h.shippings(ref)) {
		if err := h.closeShipment(ctx, r); err != nil {
			return err
		}
		rec, _, err := recall[shipping](h, r, memoryShip)
		if err != nil {
			return err
		}
		for _, f := range slices.Backward(rec.Files) {
			if f.Backing && f.Sealed && !f.Compare {
				if by, err := h.standsOn(ctx, f.Path, r); err != nil {
					return err
				} else if by != "" {
					h.log.Warn("a backing file that was shipped stays, another guest stands on it", "instance", ref.Instance, "migration", ref.Migration, "path", f.Path, "guest", by)
					h.files.Keep(f.Made)
					continue
				}
			}
			if err := h.unmakeShipped(f); err != nil {
				return err
			}
		}
		if err := h.tracker.Unremember(ctx, at(r, memoryShip)); err != nil {
			return err
		}
	}
	return nil
}

// shippings are the records of this attempt and of those before it.
func (h *Host) shippings(ref migration.Ref) []migration.Ref {
	var out []migration.Ref
	for _, r := range h.tracker.Remembering(memoryShip) {
		if r.Migration == ref.Migration && r.Attempt <= ref.Attempt {
			out = append(out, migration.Ref{Migration: r.Migration, Instance: ref.Instance, Attempt: r.Attempt, Step: stepShip})
		}
	}
	slices.SortFunc(out, func(a, b migration.Ref) int { return cmp.Compare(a.Attempt, b.Attempt) })
	return out
}

func (h *Host) unmakeShipped(f shippingFile) error {
	if f.Compare || f.Made.Path == "" {
		return nil
	}
	return h.files.Unmake(f.Made)
}

// standsOn names a guest other than the one that moves whose disk is a file, or stands
// on it; or another migration that has compared its own with it. Empty for none.
func (h *Host) standsOn(ctx context.Context, path string, ref migration.Ref) (string, error) {
	file, err := h.whichFile(path)
	if err != nil {
		return "", err
	}
	for _, r := range h.tracker.Remembering(memoryShip) {
		if r.Migration == ref.Migration {
			continue
		}
		rec, _, err := recall[shipping](h, migration.Ref(r), memoryShip)
		if err != nil {
			return "", err
		}
		for _, f := range rec.Files {
			if !f.Compare {
				continue
			}
			if other, err := h.whichFile(f.Path); err != nil || other == file {
				return "migration " + r.Migration, err
			}
		}
	}
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range all {
		if d.UUID == ref.Instance {
			continue
		}
		used, err := h.filesOf(ctx, d)
		if unanswered(err) {
			return "", wrap(err, "domain %s", d.Name)
		}
		if err != nil {
			// It may stand on any file, and asking again would hold up what asks for ever.
			return d.Name + " (whose disks cannot be read: " + err.Error() + ")", nil
		}
		for _, p := range used {
			other, err := h.whichFile(p)
			if err != nil {
				return "", wrap(err, "domain %s", d.Name)
			}
			if other == file {
				return d.Name, nil
			}
		}
	}
	return "", nil
}

// unanswered reports whether somebody did not answer, so that it is worth asking again.
func unanswered(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		return true
	}
	return false
}

// filesOf are all files that a domain's documents name, and what stands below them.
func (h *Host) filesOf(ctx context.Context, d driver.Domain) ([]string, error) {
	var out []string
	for _, what := range []driver.Document{driver.Live, driver.Persistent} {
		if what == driver.Persistent && !(d.Active() && d.Persistent) {
			continue // the live document of a stopped domain is its definition
		}
		text, err := h.driver.XML(ctx, d.UUID, what)
		if fault.KindOf(err) == fault.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		doc, err := parseDocument(text)
		if err == nil {
			err = doc.unread
		}
		if err != nil {
			return nil, err
		}
		for _, e := range doc.Devices.Disks {
			if e.path() == "" {
				continue
			}
			out = append(out, e.path())
			if e.Type != "file" {
				continue
			}
			img, err := h.files.Image(ctx, e.path(), e.Driver.Type)
			if fault.KindOf(err) == fault.NotFound {
				continue // a disk that is gone stands on nothing
			}
			if err != nil {
				return nil, err
			}
			out = append(out, img.Backing...)
		}
	}
	return out, nil
}

// keepShipped makes what was shipped the guest's: marks go, and so does the record. It
// is called when the guest stays here for good. Safe to repeat.
func (h *Host) keepShipped(ctx context.Context, ref migration.Ref) error {
	for _, r := range h.shippings(ref) {
		rec, _, err := recall[shipping](h, r, memoryShip)
		if err != nil {
			return err
		}
		for _, f := range rec.Files {
			if !f.Compare {
				h.files.Keep(f.Made)
			}
		}
		if err := h.closeShipment(ctx, r); err != nil {
			return err
		}
		if err := h.tracker.Unremember(ctx, at(r, memoryShip)); err != nil {
			return err
		}
	}
	return nil
}
