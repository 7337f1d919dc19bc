package host

import (
	"maps"

	"berth/claims"
	"berth/claims/flavor"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// resizedDocument is the persistent definition of a guest as it is wanted, on this host,
// from the claim that holds it here. arrives says that the guest comes from another
// host, so that it cannot listen on an address of that one. A guest whose flavor stays
// keeps the vCPUs and memory that its definition has.
func (h *Host) resizedDocument(g migration.Guest, w migration.Wanted, c claims.Claim, meta domainxml.Metadata, arrives bool) (string, error) {
	text := g.Definition
	if text == "" {
		text = g.XML
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", fault.New(fault.Invalid, "write the guest's document: %w", err)
	}
	change := domainxml.Change{Binding: domainxml.Binding{Place: h.placeOf(c)}, Had: g.Assignment}
	change.VCPUs, change.MemoryMB = amountsOf(doc, g, w, c.Topology)
	if hw := h.hardware(); hw != nil {
		change.Cores = hw.Cores
	}
	image := imageOf(doc)
	// Both flavors were read when the change was planned.
	change.WasLocked, _ = flavor.LockedMemory(g.Flavor, image)
	if w.Image != nil {
		image = w.Image.Properties
		if meta.Image = w.Image.Properties; meta.Image == nil {
			meta.Image = map[string]string{}
		}
		root, err := rootDisk(doc)
		if err != nil {
			return "", err
		}
		change.Files = map[string]string{root.Target: root.Format}
	}
	change.LockedMemory, _ = flavor.LockedMemory(w.Flavor, image)
	if arrives {
		if change.Listen, err = h.listensHere(text); err != nil {
			return "", err
		}
	}
	doc.SetMetadata(meta)
	if err := doc.Change(change); err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	return doc.String(), nil
}

// imageOf gives the properties of the image that a guest has, which its definition
// keeps: they ask for a topology beside each of its flavors. Nil where it has none, or
// nobody told.
func imageOf(doc *domainxml.Doc) flavor.Image {
	meta, _, err := doc.Metadata()
	if err != nil {
		return nil
	}
	return meta.Image
}

// listensHere is the address on which a guest of that document, which comes from another
// host, listens on this one; empty where it need not change.
func (h *Host) listensHere(text string) (string, error) {
	own, err := parseDocument(text)
	switch {
	case err != nil:
		return "", err
	case h.o.ListenAddress != "":
		return h.o.ListenAddress, nil
	case own.listensOnOneAddress():
		// An address of the source's would keep the guest from starting here.
		// Loopback is reachable by nobody it was not meant for.
		return "127.0.0.1", nil
	}
	return "", nil
}

// amountsOf are the vCPUs and the memory, MiB, that a guest is to have: its new
// flavor's. One that keeps its flavor keeps what it has, which people may have changed,
// unless its new cells come to something else.
func amountsOf(doc *domainxml.Doc, g migration.Guest, w migration.Wanted, t *topology.GuestTopology) (vcpus int, memoryMB int64) {
	if !sameFlavor(g.Flavor, w.Flavor) {
		return w.Flavor.VCPUs, w.Flavor.MemoryMB
	}
	if t == nil || sameShape(t, g.Topology) {
		return doc.VCPUs(), doc.MemoryMB()
	}
	for _, c := range t.Cells {
		vcpus += c.VCPUs().Len()
		memoryMB += c.MemoryMB
	}
	return vcpus, memoryMB
}

// sameFlavor compares what guests of two flavors are.
func sameFlavor(a, b topology.Flavor) bool {
	return a.Name == b.Name && a.Resources() == b.Resources() && maps.Equal(a.ExtraSpecs, b.ExtraSpecs)
}

// sameShape reports whether two topologies have the same vCPUs and memory in the same
// cells.
func sameShape(a, b *topology.GuestTopology) bool {
	if a == nil || b == nil || len(a.Cells) != len(b.Cells) {
		return a == nil && b == nil
	}
	for i := range a.Cells {
		if a.Cells[i].MemoryMB != b.Cells[i].MemoryMB || !a.Cells[i].VCPUs().SameAs(b.Cells[i].VCPUs()) {
			return false
		}
	}
	return true
}

// rootDisk is the disk that a flavor's size and an image are for: the first that the
// guest writes.
func rootDisk(doc *domainxml.Doc) (domainxml.Disk, error) {
	for _, d := range doc.Disks() {
		if d.ReadOnly || d.Source == "" || d.Device != "disk" && d.Device != "lun" {
			continue
		}
		if d.Format == "" {
			d.Format = "raw"
		}
		return d, nil
	}
	return domainxml.Disk{}, fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "no_root_disk", Message: "the guest has no disk that it writes, which an image could be for",
		Change: "attach one first, or create the guest anew from the image",
	})
}
