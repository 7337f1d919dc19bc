package change

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"berth/agent/host/demand"
	"berth/agent/host/disks"
	"berth/agent/host/remake"
	"berth/agent/host/shipping"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Plan does operation.PlanChange.
//
// What it does not ask is room for the guest: that is CheckDestination's, and the
// claim's, of the host where it will be. Nor room for a disk that grows, which may be
// shipped first: whoever makes it larger asks. An image is for this host, and its room
// is looked at.
//
// A guest that boots a kernel of the host directly keeps doing so with another image,
// and firmware variables stay what they were. A guest that was off or paused gets that
// state back, not what its memory held: no change keeps memory.
func (c *Changes) Plan(ctx context.Context, instance string, want migration.Change) (migration.Wanted, error) {
	w, err := c.plan(ctx, instance, want)
	return w, fault.Wrap(err, "plan a change of %s on %s", instance, c.o.Host)
}

// changePlan is a change that is being looked at.
type changePlan struct {
	c     *Changes
	no    fault.Refusal
	guest migration.Guest
	claim claims.Claim
	doc   *domainxml.Doc
	image flavor.Image // properties of the image that it has, as far as it was rebuilt here
	want  migration.Wanted
}

func (c *Changes) plan(ctx context.Context, instance string, want migration.Change) (migration.Wanted, error) {
	none := migration.Wanted{}
	if want.Flavor != nil && want.Image != nil {
		return none, fault.New(fault.Invalid, "a flavor and an image: a guest is either resized or rebuilt")
	}
	g, err := c.o.Guests.Inspect(ctx, instance)
	if err != nil {
		return none, err
	}
	p := changePlan{c: c, guest: g}
	p.claim, _ = c.bound(instance) // inspect has seen it
	p.want = migration.Wanted{Flavor: g.Flavor, Resources: p.claim.Resources, Topology: p.claim.Topology, PCIRequests: p.claim.PCI}
	if !g.Persistent {
		p.no.Add(fault.Forbidden, NotPersistent(g.Name))
		return none, p.no.Err("")
	}
	if p.doc, err = domainxml.Parse(g.Definition); err != nil {
		return none, fault.New(fault.Invalid, "read the definition of %s: %w", g.Name, err)
	}
	p.image = ImageOf(p.doc)
	for _, uuid := range g.Assignment.Mdevs {
		p.no.Add(fault.Forbidden, fault.Reason{
			Code: "device_not_claimed", Message: "the guest has mediated device " + uuid + ", which no new claim can ask for", Have: uuid,
			Change: "detach it; attach one again afterwards",
		})
	}
	switch {
	case want.Flavor != nil:
		err = p.resize(*want.Flavor)
	case want.Image != nil:
		err = p.rebuild(ctx, *want.Image)
	}
	if err != nil {
		return none, err
	}
	return p.want, p.no.Err("")
}

// resize plans another flavor.
func (p *changePlan) resize(f topology.Flavor) error {
	d := demand.Of(f, p.image, p.c.o.Aliases(), &p.no)
	p.want.Flavor, p.want.Topology, p.want.Resources = f, d.Topology, d.Resources
	p.want.PCIRequests = append(d.PCI, p.ownRequests()...)
	return p.grow(f)
}

// ownRequests are the devices that the guest's flavor did not ask for: they were found
// with it when it was adopted, or plugged in, and stay.
func (p *changePlan) ownRequests() []topology.PCIRequest {
	asked, err := flavor.PCIRequests(p.guest.Flavor, p.image, p.c.o.Aliases())
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
		p.no.Add(fault.Invalid, fault.Reason{
			Code: "disk_shrinks", Message: fmt.Sprintf("flavor %s has a disk of %d GiB, the guest has %d GiB: no disk is made smaller", f.Name, f.DiskGB, has),
			Have: fmt.Sprint(has), Want: fmt.Sprint(f.DiskGB), Change: fmt.Sprintf("take a flavor with disk_gb %d or more, or 0 to leave its disks as they are", has),
		})
		return nil
	case f.DiskGB == old:
		return nil
	}
	root, err := remake.RootDisk(p.doc)
	if err != nil || root.Type != "file" {
		return nil // there is none, or its storage makes it larger: the amount alone grows, as Nova has it
	}
	if err := remake.MayReplace(root); err != nil {
		return p.no.Take(err)
	}
	has := files[root.Target]
	if size := f.DiskGB<<30 - (bytes - has); size > has {
		i := slices.IndexFunc(p.guest.Disks, func(d migration.Disk) bool { return d.Target == root.Target })
		if i >= 0 {
			if err := shipping.Whole(p.guest.Disks[i]); err != nil {
				return p.no.Take(err)
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
	p.no.Add(fault.Invalid, demand.Reasons(err)...)
	if _, lockErr := flavor.LockedMemory(f, props); err == nil {
		p.no.Add(fault.Invalid, demand.Reasons(lockErr)...)
	}
	pci, err := flavor.PCIRequests(f, props, p.c.o.Aliases())
	p.no.Add(fault.Invalid, demand.Reasons(err)...)
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
	root, err := remake.RootDisk(p.doc)
	if err == nil {
		err = remake.MayReplace(root)
	}
	named := mayBeImage(image)
	p.no.Add(fault.Invalid, named...)
	if err != nil || len(named) > 0 {
		return p.no.Take(err)
	}
	for _, d := range p.doc.Disks() {
		if d.Source == image.Path {
			p.no.Add(fault.Forbidden, fault.Reason{
				Code: "image_in_use", Message: "image " + image.Path + " is the guest's own disk " + d.Target, Have: image.Path, Change: "copy it first, while the guest is off",
			})
			return nil
		}
	}
	img, err := p.c.o.Files.Image(ctx, image.Path, image.Format)
	if err != nil {
		return p.no.Take(err)
	}
	if err := disks.Whole(image.Path, image.Format, img); err != nil {
		return p.no.Take(err)
	}
	files, bytes := p.files()
	has := files[root.Target]
	size, others := max(has, img.VirtualSize), bytes-has
	if most := p.guest.Flavor.DiskGB << 30; img.VirtualSize > has && most > 0 && others+size > most {
		p.no.Add(fault.Invalid, fault.Reason{
			Code: "image_too_large", Message: fmt.Sprintf("image %s is larger than the disk: %s, want at most %s", image.Path, remake.MiB(img.VirtualSize), remake.MiB(max(has, most-others))),
			Change: "resize the guest to a flavor with a larger disk first",
		})
		return nil
	}
	if size > has {
		p.want.Grow = append(p.want.Grow, migration.DiskGrowth{Target: root.Target, VirtualSize: size})
	}
	p.want.Resources.DiskGB = max(p.want.Resources.DiskGB, gib(others+size))
	return p.c.o.Bench.Room(&p.no, root.Source, min(img.ActualSize, size))
}

// bound is the claim that holds what the guest uses here.
func (c *Changes) bound(instance string) (claims.Claim, bool) {
	for _, own := range c.o.Tracker.ByInstance(instance) {
		if own.State == claims.Bound {
			return own, true
		}
	}
	return claims.Claim{}, false
}

// ImageOf gives the properties of the image that a guest has, which its definition
// keeps: they ask for a topology beside each of its flavors. Nil where it has none, or
// nobody told.
func ImageOf(doc *domainxml.Doc) flavor.Image {
	meta, _, err := doc.Metadata()
	if err != nil {
		return nil
	}
	return meta.Image
}

// SameFlavor compares what guests of two flavors are.
func SameFlavor(a, b topology.Flavor) bool {
	return a.Name == b.Name && a.Resources() == b.Resources() && maps.Equal(a.ExtraSpecs, b.ExtraSpecs)
}
