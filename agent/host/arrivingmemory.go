package host

import (
	"berth/agent/host/change"
	"berth/driver/libvirt/domainxml"
	"berth/migration"
	"berth/topology"
)

// withAllMemory gives the amounts that an instance's claim on its destination needs. asked is what it
// was claimed with where it comes from: while it ran, what its balloon left it. QEMU takes all memory
// of the domain XML before the guest has a balloon again, and a peer's word on the balloon bounds
// nothing. Once the instance is here its claim follows the balloon's next change (usesNow).
//
// Cells and another flavor say themselves what is needed. What cannot be read adds nothing.
func withAllMemory(asked topology.Resources, kind string, g migration.Guest, now topology.Flavor, cells *topology.GuestTopology) topology.Resources {
	text := g.XML
	switch kind {
	case migration.TypeMigration, migration.TypeResize:
		text = g.Definition
	case migration.TypeEvacuation:
		if own, _, err := asItWas(g); err == nil {
			text = own.Definition
		}
	}
	if cells != nil || text == "" || !change.SameFlavor(g.Flavor, now) {
		return asked
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return asked
	}
	if most, err := doc.MostMemoryMB(); err == nil {
		asked.MemoryMB = max(asked.MemoryMB, most)
	}
	return asked
}
