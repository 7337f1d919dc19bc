package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/agent/host/volumes"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// memoryCarried is under which a source keeps what its guest was given and lost while it
// was elsewhere.
const memoryCarried = "carried"

// carriedVolumes is the record of CarryVolumes.
//
//	the revert            the definition here             the record
//	is asked for          as it was kept                  made, once libvirt would take the new one
//	is given up           as it was kept                  dropped by CancelReturn
//	hands the guest back  new: written by FinishRevert    dropped with all of the move
type carriedVolumes struct {
	Changes migration.VolumeChanges `json:"changes"`
	// Kept is the definition as it was kept, while libvirt is asked whether it would take
	// the new one in its place; empty when it has answered.
	Kept string `json:"kept_xml,omitempty"`
}

// readVolumes does operation.ReadVolumes.
func (h *Host) readVolumes(ctx context.Context, ref migration.Ref) (migration.VolumeChanges, error) {
	var v migration.VolumeChanges
	if err := h.offForMove(ctx, ref); err != nil {
		return v, err
	}
	if !h.attempts.Came(ref) {
		return v, fault.New(fault.Forbidden, "the guest did not come to %s by this migration", h.o.Name)
	}
	of := ref
	of.Attempt = h.tracker.Accepted(ref.Migration)
	rec, found, err := memory.Recall[coldPreparation](h.memory, of, memoryPreparedCold)
	if err != nil {
		return v, err
	}
	text, err := driver.Definition(ctx, h.driver, ref.Instance)
	if err != nil || text == "" {
		return v, err // its definition was removed: nothing of it stands here
	}
	now, err := domainxml.Parse(text)
	if err != nil {
		return v, fault.New(fault.Invalid, "read the guest's document: %w", err)
	}
	if !found { // as after a lost ledger
		return h.allVolumes(ctx, now)
	}
	was, err := domainxml.Parse(rec.Definition)
	if err != nil {
		return v, fault.New(fault.Internal, "read the document with which the guest came: %w", err)
	}
	return h.volumesSince(ctx, was, now)
}

// volumesSince is what a document has and another had not, and the other way round.
func (h *Host) volumesSince(ctx context.Context, was, now *domainxml.Doc) (migration.VolumeChanges, error) {
	var v migration.VolumeChanges
	had, err := disksOf(was)
	if err != nil {
		return v, err
	}
	has, err := disksOf(now)
	if err != nil {
		return v, err
	}
	for _, d := range had {
		if !d.removable && !d.among(has) {
			v.Detached = append(v.Detached, d.Target)
		}
	}
	var no refusal
	for _, d := range has {
		switch {
		case d.among(had):
			continue
		case d.removable:
			v.Remarks = append(v.Remarks, "drive "+d.Target+" has another medium, or was attached: the guest goes back with the drives that it had")
			continue
		}
		files, err := h.standsOnFiles(ctx, &no, d)
		if err != nil {
			return v, err
		}
		element, _ := now.DiskElement(d.Target)
		v.Attached, v.Files = append(v.Attached, element), append(v.Files, files...)
	}
	v.Remarks = append(v.Remarks, otherDevices(was, now)...)
	return v, no.err("")
}

// allVolumes are all disks of a document. Whether this host alone has one counts only
// where the other knows it not as the guest's own, and is found there by its files.
func (h *Host) allVolumes(ctx context.Context, now *domainxml.Doc) (migration.VolumeChanges, error) {
	v := migration.VolumeChanges{All: true}
	has, err := disksOf(now)
	if err != nil {
		return v, err
	}
	for _, d := range has {
		if d.removable {
			continue
		}
		var later refusal
		files, err := h.standsOnFiles(ctx, &later, d)
		if err != nil {
			return v, err
		}
		element, _ := now.DiskElement(d.Target)
		v.Attached, v.Files = append(v.Attached, element), append(v.Files, files...)
	}
	return v, nil
}

// sinceKept is what all disks that a guest has elsewhere come to, beside those that it
// had when it left.
func sinceKept(v migration.VolumeChanges, kept string) (migration.VolumeChanges, error) {
	doc, err := domainxml.Parse(kept)
	if err != nil {
		return v, fault.New(fault.Invalid, "read the definition that was kept: %w", err)
	}
	had, err := disksOf(doc)
	if err != nil {
		return v, err
	}
	out := migration.VolumeChanges{Files: v.Files, Remarks: v.Remarks}
	var has []volume
	for _, element := range v.Attached {
		list, err := volumes.Of(aloneIn(element))
		if err != nil {
			return v, err
		}
		if len(list) != 1 {
			return v, fault.New(fault.Invalid, "%d disks in an element of one", len(list))
		}
		d := volume{Disk: list[0]}
		if has = append(has, d); !d.among(had) {
			out.Attached = append(out.Attached, element)
		}
	}
	for _, d := range had {
		if !d.removable && !d.among(has) {
			out.Detached = append(out.Detached, d.Target)
		}
	}
	return out, nil
}

// aloneIn is a document of which only the disks are read, with one.
func aloneIn(element string) string { return "<domain><devices>" + element + "</devices></domain>" }

// otherDevices names what else a guest was given: it is left where it is.
func otherDevices(was, now *domainxml.Doc) []string {
	var out []string
	for _, n := range now.Interfaces() {
		if !slices.ContainsFunc(was.Interfaces(), func(o domainxml.Interface) bool { return o.MAC == n.MAC }) {
			out = append(out, "interface "+n.MAC+" ("+n.Type+" "+n.Source+") was attached meanwhile, and does not go back with the guest")
		}
	}
	before, after := was.Devices(), now.Devices()
	for _, tag := range slices.Sorted(maps.Keys(after)) {
		if more := after[tag] - before[tag]; more > 0 {
			out = append(out, fmt.Sprintf("%d more %s than it came with: what was attached meanwhile does not go back with the guest", more, tag))
		}
	}
	return out
}

// volume is a disk as two documents of one guest are compared by.
type volume struct {
	volumes.Disk
	removable bool // a drive, whose medium comes and goes
}

func disksOf(doc *domainxml.Doc) ([]volume, error) {
	list, err := volumes.Of(doc.String())
	if err != nil {
		return nil, err
	}
	var out []volume
	for _, d := range list {
		i := slices.IndexFunc(doc.Disks(), func(o domainxml.Disk) bool { return o.Target == d.Target })
		kind := ""
		if i >= 0 {
			kind = doc.Disks()[i].Device
		}
		out = append(out, volume{Disk: d, removable: kind == "cdrom" || kind == "floppy"})
	}
	return out, nil
}

// same reports whether two disks have the same source, whatever the guest calls them.
// What names none is told by its target.
func (d volume) same(o volume) bool {
	named := d.Path != "" || d.Volume != "" || d.Name != ""
	return d.Type == o.Type && d.Path == o.Path && d.Pool == o.Pool && d.Volume == o.Volume && d.Protocol == o.Protocol && d.Name == o.Name &&
		d.removable == o.removable && (named || d.Target == o.Target)
}

func (d volume) among(list []volume) bool { return slices.ContainsFunc(list, d.same) }

// carriedPools are kinds of pools whose volumes another host with the same pool reaches:
// all else is of one host (https://libvirt.org/storage.html).
var carriedPools = []string{"rbd", "sheepdog", "gluster", "netfs", "iscsi", "iscsi-direct"}

// standsOnFiles decides whether a disk that was attached here may go back with its guest,
// as far as this host can, and names what the other one must see too:
//
//	disk                                  goes back
//	network                               yes
//	volume of a pool on the network       yes, with the file's name where it has one
//	file, block device, other volumes     where the other host has the same (Identity): that
//	                                      is looked at there; not where nobody could know
//	nvme, vhostuser, dir                  no
func (h *Host) standsOnFiles(ctx context.Context, no *refusal, d volume) ([]migration.VolumeFile, error) {
	stays := func(path, why string) {
		no.add(fault.Forbidden, diskStays(d.Target, path, h.o.Name, why))
	}
	path := d.Path
	switch d.Type {
	case "network":
		return nil, nil
	case "volume":
		at, network, err := h.volumePath(ctx, d.Disk)
		if err != nil {
			return nil, err
		}
		if network {
			return nil, nil
		}
		if path = at; path == "" {
			stays(d.Pool+"/"+d.Volume, "a volume of a storage pool of this host alone")
			return nil, nil
		}
	case "file", "block":
	default:
		stays(d.Type, "a disk of type "+d.Type+", which another host has not")
		return nil, nil
	}
	names := []string{path}
	if d.Type == "file" {
		below, err := h.filesBelow(ctx, path, d)
		if err != nil {
			return nil, err
		}
		names = append(names, below...)
	}
	var out []migration.VolumeFile
	for _, name := range names {
		id, err := h.files.Identity(name)
		switch {
		case errors.Is(err, fault.NotFound), errors.Is(err, fault.Invalid):
			stays(name, "which is not there")
		case err != nil:
			return nil, wrap(err, "disk %s", d.Target)
		case id == "":
			stays(name, "on storage of which two hosts cannot know that it is the same")
		default:
			out = append(out, migration.VolumeFile{Target: d.Target, Path: name, Filesystem: id})
		}
	}
	return out, nil
}

// filesBelow are the files on which a disk stands, by path.
func (h *Host) filesBelow(ctx context.Context, path string, d volume) ([]string, error) {
	img, err := h.files.Image(ctx, path, d.Format)
	if errors.Is(err, fault.NotFound) {
		return nil, nil // said of the path itself
	}
	if err != nil {
		return nil, wrap(err, "disk %s", d.Target)
	}
	return slices.DeleteFunc(slices.Concat(img.Backing, img.Outside), func(p string) bool { return !filepath.IsAbs(p) }), nil
}

// volumePath is the file or device by which this host has a volume, empty for none; network of one
// that another host with the same pool reaches. A netfs pool has files all the same, and an iscsi
// pool devices.
func (h *Host) volumePath(ctx context.Context, d volumes.Disk) (path string, network bool, err error) {
	connector, err := h.connector(ctx)
	if err != nil || connector == nil {
		return "", false, err
	}
	pool, err := connector.Pool(ctx, d.Pool)
	if err != nil {
		return "", false, wrap(err, "disk %s", d.Target)
	}
	network = slices.Contains(carriedPools, pool.Type)
	if network && !pool.Active {
		return "", true, nil
	}
	v, err := connector.Volume(ctx, d.Pool, d.Volume)
	if errors.Is(err, fault.NotFound) || err == nil && !filepath.IsAbs(v.Path) {
		return "", network, nil
	}
	return v.Path, network, wrap(err, "disk %s", d.Target)
}

// activeVolumePath is volumePath for a volume that may be in use: of a pool that is not active
// nothing is.
func (h *Host) activeVolumePath(ctx context.Context, d volumes.Disk) (path string, network bool, err error) {
	if connector, err := h.connector(ctx); err == nil && connector != nil {
		if pool, err := connector.Pool(ctx, d.Pool); err == nil && !pool.Active {
			return "", false, nil
		}
	}
	return h.volumePath(ctx, d)
}

func diskStays(target, path, host, why string) fault.Reason {
	return fault.Reason{
		Code: "disk_stays", Message: "disk " + target + " (" + path + ") was attached on " + host + ", and cannot go back with the guest: " + why, Have: path,
		Change: "detach it first (virsh detach-disk DOMAIN " + fault.Quote(target) + " --config), or confirm the move",
	}
}

// carryVolumes does operation.CarryVolumes.
func (h *Host) carryVolumes(ctx context.Context, ref migration.Ref, v migration.VolumeChanges) error {
	if h.attempts.Accepted(ref) {
		return nil
	}
	half, ok := h.tracker.ByOwner(attempts.OwnerOf(ref, claims.KindResize))
	if !ok || half.State != claims.Arriving {
		return fault.New(fault.Forbidden, "the guest is not awaited here by attempt %d", ref.Attempt)
	}
	if err := h.asKept(ctx, ref); err != nil {
		return err
	}
	kept, err := driver.Definition(ctx, h.driver, ref.Instance)
	if err != nil {
		return err
	}
	was, _, err := memory.RecallEarlier[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return err
	}
	if kept = cmp.Or(kept, was.Definition); kept == "" { // removed since, and on record
		return fault.New(fault.Forbidden, "what the guest was on %s is not defined any more", h.o.Name)
	}
	if v.All {
		if v, err = sinceKept(v, kept); err != nil {
			return err
		}
	}
	if err := h.mayCarry(ctx, v); err != nil {
		return err
	}
	// That its files are the same ones the other host says alone.
	if err := h.gate.AdmitCarried(ctx, kept, v.Attached); err != nil {
		return err
	}
	var texts []string
	for _, element := range v.Attached {
		texts = append(texts, "<domain><name>carried</name><uuid>"+ref.Instance+"</uuid><memory>1</memory><vcpu>1</vcpu><devices>"+element+"</devices></domain>")
	}
	// Of all together: it looks at every domain of this host that is off.
	written, err := writtenHere(ctx, h, ref.Instance, texts...)
	if err != nil {
		return err
	}
	if len(written) > 0 {
		return fault.Refuse(fault.Forbidden, "", written...)
	}
	next, err := withVolumes(kept, was.Definition, v)
	if err != nil {
		return err
	}
	for _, r := range v.Remarks {
		h.log.Warn("a guest comes back without what it was given elsewhere", "instance", ref.Instance, "migration", ref.Migration, "what", r)
	}
	rec := carriedVolumes{Changes: v}
	if next != kept {
		// libvirt is asked while there is a way back: past it the guest would be nobody's
		// for as long as libvirt refuses.
		rec.Kept = kept
		if err := h.memory.Remember(ctx, ref, memoryCarried, rec); err != nil {
			return err
		}
		refused := h.driver.Define(ctx, next)
		if refused != nil && unanswered(refused) {
			return refused // what is on record is taken back by whoever comes next
		}
		if err := h.asKept(ctx, ref); err != nil {
			return err
		}
		if refused != nil {
			return fault.New(fault.Forbidden, "libvirt does not take the definition with what the guest was given elsewhere: %w", refused)
		}
		rec.Kept = ""
	}
	return h.memory.Remember(ctx, ref, memoryCarried, rec)
}

// asKept takes back what a trial of the new definition has left.
func (h *Host) asKept(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[carriedVolumes](h.memory, ref, memoryCarried)
	if err != nil || !found {
		return err
	}
	if rec.Kept != "" {
		if err := h.driver.Define(ctx, rec.Kept); err != nil {
			return err
		}
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryCarried))
}

// mayCarry refuses, with every reason, disks that this host cannot give the guest as the
// other one did.
func (h *Host) mayCarry(ctx context.Context, v migration.VolumeChanges) error {
	var no refusal
	for _, element := range v.Attached {
		k, err := domainxml.ReadDisk(element)
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		alone := aloneIn(element)
		list, err := volumes.Of(alone)
		if err != nil {
			return err
		}
		if err := h.sameFiles(ctx, &no, volume{Disk: list[0]}, k, v.Files); err != nil {
			return err
		}
		if err := h.checkConnections(ctx, &no, alone); err != nil {
			return err
		}
	}
	return no.err("")
}

// sameFiles refuses a disk whose files are not here, or are others.
func (h *Host) sameFiles(ctx context.Context, no *refusal, d volume, k domainxml.Disk, files []migration.VolumeFile) error {
	path := d.Path
	switch d.Type {
	case "network":
		return nil
	case "volume":
		at, network, err := h.volumePath(ctx, d.Disk)
		if errors.Is(err, fault.NotFound) {
			return nil // checkConnections says it
		}
		if err != nil || network {
			return err
		}
		path = at
	case "file", "block":
	default:
		path = ""
	}
	there := "the host where it was attached"
	if path == "" || !filepath.IsAbs(path) {
		no.add(fault.Forbidden, diskStays(k.Target, k.Source, there, h.o.Name+" has no such disk"))
		return nil
	}
	names := []string{path}
	if d.Type == "file" {
		if slices.ContainsFunc(systemDirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
			no.add(fault.Forbidden, diskStays(k.Target, path, there, "it is in no place for disks"))
			return nil
		}
		d.Format = k.Format
		below, err := h.filesBelow(ctx, path, d)
		if err != nil {
			return err
		}
		names = append(names, below...)
	}
	for _, name := range names {
		id, err := h.files.Identity(name)
		if err != nil && !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Invalid) {
			return wrap(err, "disk %s", k.Target)
		}
		if err != nil || id == "" || !slices.ContainsFunc(files, func(f migration.VolumeFile) bool {
			return f.Target == k.Target && f.Path == name && f.Filesystem == id
		}) {
			no.add(fault.Forbidden, diskStays(k.Target, name, there, "it is a file of that host alone, "+h.o.Name+" has not the same one"))
		}
	}
	return nil
}

// withVolumes writes what a guest was given and lost elsewhere into the definition that
// was kept of it. was is the one with which it left: a disk that its user has put in the
// place of another here since then is not the one that was detached there. Done twice it
// changes nothing more.
func withVolumes(kept, was string, v migration.VolumeChanges) (string, error) {
	doc, err := domainxml.Parse(kept)
	if err != nil {
		return "", fault.New(fault.Invalid, "read the definition that was kept: %w", err)
	}
	has, err := disksOf(doc)
	if err != nil {
		return "", err
	}
	var had []volume
	if left, err := domainxml.Parse(was); err == nil {
		if had, err = disksOf(left); err != nil {
			return "", err
		}
	}
	find := func(list []volume, target string) (volume, bool) {
		i := slices.IndexFunc(list, func(d volume) bool { return d.Target == target })
		if i < 0 {
			return volume{}, false
		}
		return list[i], true
	}
	for _, target := range v.Detached {
		here, ok := find(has, target)
		if left, known := find(had, target); !ok || !known || !here.same(left) {
			continue
		}
		if err := doc.DetachDisk(target); err != nil {
			return "", fault.New(fault.Invalid, "%w", err)
		}
	}
	for _, element := range v.Attached {
		list, err := volumes.Of(aloneIn(element))
		if err != nil {
			return "", err
		}
		if has, err = disksOf(doc); err != nil {
			return "", err
		}
		if len(list) == 1 && (volume{Disk: list[0]}).among(has) {
			continue
		}
		if _, err := doc.AttachDisk(element); err != nil {
			return "", fault.New(fault.Invalid, "%w", err)
		}
	}
	return doc.String(), nil
}

// takenAlong is a kept definition with what the guest brings along by this revert.
func (h *Host) takenAlong(ref migration.Ref, kept, was string) (string, error) {
	rec, found, err := memory.Recall[carriedVolumes](h.memory, ref, memoryCarried)
	if err != nil || !found {
		return kept, err
	}
	if rec.Kept != "" {
		kept = rec.Kept
	}
	text, err := withVolumes(kept, was, rec.Changes)
	if err != nil {
		// libvirt would have taken it when the volumes were carried: somebody has edited
		// the definition since. The guest is this host's, and starts with what it had.
		h.log.Error("a guest comes back without the volumes that it was given elsewhere", "migration", ref.Migration, "instance", ref.Instance, "error", err)
		return kept, nil
	}
	return text, nil
}
