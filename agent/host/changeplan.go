package host

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// PlanChange implements migration.ColdVerbs.
//
// What it does not ask is room for the guest: that is CheckDestination's, and the
// claim's, of the host where it will be. Nor room for a disk that grows, which may be
// shipped first: whoever makes it larger asks. An image is for this host, and its room
// is looked at.
//
// A guest that boots a kernel of the host directly keeps doing so with another image,
// and firmware variables stay what they were. A guest that was off or paused gets that
// state back, not what its memory held: no change keeps memory.
func (h *Host) PlanChange(ctx context.Context, instance string, c migration.Change) (migration.Wanted, error) {
	w, err := h.planChange(ctx, instance, c)
	return w, wrap(err, "plan a change of %s on %s", instance, h.o.Name)
}

// changePlan is a change that is being looked at.
type changePlan struct {
	h     *Host
	no    refusal
	guest migration.Guest
	claim claims.Claim
	doc   *domainxml.Doc
	image flavor.Image // properties of the image that it has, as far as it was rebuilt here
	want  migration.Wanted
}

func (h *Host) planChange(ctx context.Context, instance string, c migration.Change) (migration.Wanted, error) {
	none := migration.Wanted{}
	if c.Flavor != nil && c.Image != nil {
		return none, fault.New(fault.Invalid, "a flavor and an image: a guest is either resized or rebuilt")
	}
	if err := h.managing(""); err != nil {
		return none, err
	}
	unlock, err := h.lock(ctx, instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	g, err := h.inspect(ctx, instance)
	if err != nil {
		return none, err
	}
	p := changePlan{h: h, guest: g}
	p.claim, _ = h.claimOf(instance) // inspect has seen it
	p.want = migration.Wanted{Flavor: g.Flavor, Resources: p.claim.Resources, Topology: p.claim.Topology, PCIRequests: p.claim.PCI}
	if !g.Persistent {
		p.no.add(fault.Forbidden, notPersistent(g.Name))
		return none, p.no.err("")
	}
	if p.doc, err = domainxml.Parse(g.Definition); err != nil {
		return none, fault.New(fault.Invalid, "read the definition of %s: %w", g.Name, err)
	}
	p.image = imageOf(p.doc)
	for _, uuid := range g.Assignment.Mdevs {
		p.no.add(fault.Forbidden, fault.Reason{
			Code: "device_not_claimed", Message: "the guest has mediated device " + uuid + ", which no new claim can ask for", Have: uuid,
			Change: "detach it; attach one again afterwards",
		})
	}
	switch {
	case c.Flavor != nil:
		err = p.resize(*c.Flavor)
	case c.Image != nil:
		err = p.rebuild(ctx, *c.Image)
	}
	if err != nil {
		return none, err
	}
	return p.want, p.no.err("")
}

// resize plans another flavor.
func (p *changePlan) resize(f topology.Flavor) error {
	d := p.h.demandWith(f, p.image, &p.no)
	p.want.Flavor, p.want.Topology, p.want.Resources = f, d.topology, d.resources
	p.want.PCIRequests = append(d.pci, p.ownRequests()...)
	return p.grow(f)
}

// ownRequests are the devices that the guest's flavor did not ask for: they were found
// with it when it was adopted, or plugged in, and stay.
func (p *changePlan) ownRequests() []topology.PCIRequest {
	asked, err := flavor.PCIRequests(p.guest.Flavor, p.image, p.h.aliases())
	if _, asks := p.guest.Flavor.ExtraSpecs["pci_passthrough:alias"]; asks && err != nil {
		return nil // its alias is no more: all count as the flavor's
	}
	return slices.DeleteFunc(slices.Clone(p.claim.PCI), func(r topology.PCIRequest) bool {
		return slices.ContainsFunc(asked, func(a topology.PCIRequest) bool { return a.ID == r.ID })
	})
}

// grow plans which disk becomes larger. Files count for what guests see of them, as they
// do in a claim.
func (p *changePlan) grow(f topology.Flavor) error {
	files, bytes := p.files()
	p.want.Resources.DiskGB = max(f.DiskGB, gib(bytes))
	old := p.guest.Flavor.DiskGB
	switch {
	case f.DiskGB == 0:
		return nil // as it is
	case f.DiskGB < old, f.DiskGB<<30 < bytes:
		has := max(old, gib(bytes))
		p.no.add(fault.Invalid, fault.Reason{
			Code: "disk_shrinks", Message: fmt.Sprintf("flavor %s has a disk of %d GiB, the guest has %d GiB: no disk is made smaller", f.Name, f.DiskGB, has),
			Have: fmt.Sprint(has), Want: fmt.Sprint(f.DiskGB), Change: fmt.Sprintf("take a flavor with disk_gb %d or more, or 0 to leave its disks as they are", has),
		})
		return nil
	case f.DiskGB == old:
		return nil
	}
	root, err := rootDisk(p.doc)
	if err != nil || root.Type != "file" {
		return nil // there is none, or its storage makes it larger: the amount alone grows, as Nova has it
	}
	if err := mayReplace(root); err != nil {
		return p.no.take(err)
	}
	has := files[root.Target]
	if size := f.DiskGB<<30 - (bytes - has); size > has {
		i := slices.IndexFunc(p.guest.Disks, func(d migration.Disk) bool { return d.Target == root.Target })
		if i >= 0 {
			if err := whole(p.guest.Disks[i]); err != nil {
				return p.no.take(err)
			}
		}
		p.want.Grow = append(p.want.Grow, migration.DiskGrowth{Target: root.Target, VirtualSize: size})
	}
	return nil
}

// files are the sizes of the guest's own files, by target, and their sum.
func (p *changePlan) files() (map[string]int64, int64) {
	out, sum := map[string]int64{}, int64(0)
	for _, d := range p.doc.Disks() {
		if d.Type != "file" || d.Source == "" || d.ReadOnly || d.Shareable {
			continue
		}
		for _, g := range p.guest.Disks {
			if g.Target == d.Target {
				out[d.Target] = g.VirtualSize
				sum += g.VirtualSize
			}
		}
	}
	return out, sum
}

func gib(bytes int64) int64 { return (bytes + 1<<30 - 1) >> 30 }

// mayReplace refuses a root disk that is not this host's to make anew, and says whose it is.
func mayReplace(d domainxml.Disk) error {
	refuse := func(code, message, change string) error {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: message, Have: d.Source, Change: change})
	}
	switch what := "root disk " + d.Target + " (" + d.Source + ")"; {
	case d.Type != "file":
		return refuse("root_not_a_file", what+" is of type "+d.Type+": its storage gives it another image, no host does",
			"have whoever keeps that storage do it")
	case d.Shareable:
		return refuse("root_shareable", what+" may be in use by other guests", "change it by hand while all of them are off")
	case d.Format != "raw" && d.Format != "qcow2":
		return refuse("disk_format", what+" is of format "+d.Format+": want raw or qcow2", "convert it with qemu-img while the guest is off")
	}
	return nil
}

// whole refuses a disk that has its data in another file: a copy of its tables would share
// that with it, and each write to one would break the other.
func whole(d migration.Disk) error {
	if len(d.Outside) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_data_apart", Message: "disk " + d.Target + " keeps its data in " + d.Outside[0] + ", apart from " + d.Path, Have: d.Outside[0],
		Change: "make it whole while the guest is off: qemu-img convert -O " + d.Format,
	})
}

// wholeImage refuses an image that needs other files: its header was written by whoever made
// it, and would have the host read any file into the guest's disk.
func wholeImage(image migration.Image, img disks.Image) error {
	below := slices.Concat(img.Backing, img.Outside)
	if len(below) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "image_not_whole", Message: "image " + image.Path + " names another file that it needs: " + below[0], Have: below[0],
		Change: "make it whole: qemu-img convert -O " + image.Format,
	})
}

// rebuild plans another image.
func (p *changePlan) rebuild(ctx context.Context, image migration.Image) error {
	if image.Format == "" {
		image.Format = formatByName(image.Path)
	}
	p.want.Image = &image
	if err := p.rebuildRoot(ctx, image); err != nil {
		return err
	}
	f, props := p.guest.Flavor, flavor.Image(image.Properties)
	t, err := flavor.Topology(f, props)
	p.no.add(fault.Invalid, flavorReasons(err)...)
	if _, lockErr := flavor.LockedMemory(f, props); err == nil {
		p.no.add(fault.Invalid, flavorReasons(lockErr)...)
	}
	pci, err := flavor.PCIRequests(f, props, p.h.aliases())
	p.no.add(fault.Invalid, flavorReasons(err)...)
	if len(pci) > 0 {
		p.want.PCIRequests = append(pci, p.ownRequests()...)
	}
	// What people gave a guest, here or before it was adopted, stays where its image
	// says nothing else of it than the one before.
	plain, _ := flavor.Topology(f, p.image)
	if byHand := p.claim.ByHand || p.guest.Adopted; !byHand || !reflect.DeepEqual(t, plain) {
		disk := p.want.Resources.DiskGB
		p.want.Topology, p.want.Resources = t, f.ResourcesWith(t)
		p.want.Resources.DiskGB = disk
	}
	return nil
}

// formatByName is an image's format by its path's ending: its contents may have been
// written by a guest.
func formatByName(path string) string {
	if strings.HasSuffix(path, ".qcow2") {
		return "qcow2"
	}
	return "raw"
}

// mayBeImage is what is wrong with how an image is named.
func mayBeImage(image migration.Image) (out []fault.Reason) {
	if !filepath.IsAbs(image.Path) {
		out = append(out, fault.Reason{
			Code: "image_path", Message: fmt.Sprintf("image %q: want an absolute path", image.Path), Have: image.Path,
			Change: "name the image's file on the guest's host, from / on",
		})
	}
	if image.Format != "raw" && image.Format != "qcow2" {
		out = append(out, fault.Reason{
			Code: "image_format", Message: "image format " + image.Format + ": want raw or qcow2", Have: image.Format, Want: "raw or qcow2",
			Change: "convert it: qemu-img convert -O qcow2",
		})
	}
	return out
}

// rebuildRoot looks at the image and at the disk that it is for, and tells what is wrong
// with either.
func (p *changePlan) rebuildRoot(ctx context.Context, image migration.Image) error {
	root, err := rootDisk(p.doc)
	if err == nil {
		err = mayReplace(root)
	}
	named := mayBeImage(image)
	p.no.add(fault.Invalid, named...)
	if err != nil || len(named) > 0 {
		return p.no.take(err)
	}
	for _, d := range p.doc.Disks() {
		if d.Source == image.Path {
			p.no.add(fault.Forbidden, fault.Reason{
				Code: "image_in_use", Message: "image " + image.Path + " is the guest's own disk " + d.Target, Have: image.Path, Change: "copy it first, while the guest is off",
			})
			return nil
		}
	}
	img, err := p.h.files.Image(ctx, image.Path, image.Format)
	if err != nil {
		return p.no.take(err)
	}
	if err := wholeImage(image, img); err != nil {
		return p.no.take(err)
	}
	files, bytes := p.files()
	has := files[root.Target]
	size, others := max(has, img.VirtualSize), bytes-has
	if most := p.guest.Flavor.DiskGB << 30; img.VirtualSize > has && most > 0 && others+size > most {
		p.no.add(fault.Invalid, fault.Reason{
			Code: "image_too_large", Message: fmt.Sprintf("image %s is larger than the disk: %s, want at most %s", image.Path, mib(img.VirtualSize), mib(max(has, most-others))),
			Change: "resize the guest to a flavor with a larger disk first",
		})
		return nil
	}
	if size > has {
		p.want.Grow = append(p.want.Grow, migration.DiskGrowth{Target: root.Target, VirtualSize: size})
	}
	p.want.Resources.DiskGB = max(p.want.Resources.DiskGB, gib(others+size))
	return p.h.spaceFor(&p.no, root.Source, min(img.ActualSize, size))
}

// spaceFor asks for room for a file beside another one.
func (h *Host) spaceFor(no *refusal, path string, bytes int64) error {
	space, err := h.files.Space(path)
	if err != nil {
		return err
	}
	if need := bytes + spaceBeside; space.Bytes < need {
		no.add(fault.DoesNotFit, fault.Reason{
			Code: "disk_space", Message: fmt.Sprintf("the folder of %s has %s free, the new file beside it needs %s", path, mib(space.Bytes), mib(need)),
			Have: mib(space.Bytes), Want: mib(need), Change: "make room there",
		})
	}
	return nil
}

// spaceBeside is what tables of an image and of its folder may take besides its data.
const spaceBeside = 4 << 20
