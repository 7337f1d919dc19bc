package host

import (
	"berth/agent/host/change"
	"berth/agent/host/remake"
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
	to := domainxml.Change{Binding: domainxml.Binding{Place: h.placeOf(c)}, Had: g.Assignment}
	to.VCPUs, to.MemoryMB = amountsOf(doc, g, w, c.Topology)
	if hw := h.hardware(); hw != nil {
		to.Cores = hw.Cores
	}
	image := change.ImageOf(doc)
	// Both flavors were read when the change was planned.
	to.WasLocked, _ = flavor.LockedMemory(g.Flavor, image)
	if w.Image != nil {
		image = w.Image.Properties
		if meta.Image = w.Image.Properties; meta.Image == nil {
			meta.Image = map[string]string{}
		}
		root, err := remake.RootDisk(doc)
		if err != nil {
			return "", err
		}
		to.Files = map[string]string{root.Target: root.Format}
	}
	to.LockedMemory, _ = flavor.LockedMemory(w.Flavor, image)
	if arrives {
		if to.Listen, err = h.listensHere(text); err != nil {
			return "", err
		}
	}
	doc.SetMetadata(meta)
	if err := doc.Change(to); err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	return doc.String(), nil
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
	if !change.SameFlavor(g.Flavor, w.Flavor) {
		return w.Flavor.VCPUs, w.Flavor.MemoryMB
	}
	if t == nil || sameShape(t, g.Topology) {
		return doc.VCPUs(), doc.MemoryMB()
	}
	for _, c := range t.Cells {
		vcpus += c.VCPUs().Len()
		memoryMB = topology.AddCapped(memoryMB, c.MemoryMB)
	}
	return vcpus, memoryMB
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
