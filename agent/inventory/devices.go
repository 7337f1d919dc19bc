package inventory

import (
	"maps"
	"slices"
	"strings"

	"berth/claims/pci"
	"berth/placementclient"
	"berth/topology"
)

// traitLiveMigratable is os-traits' name for what device_spec calls live_migratable.
const traitLiveMigratable = "HW_PCI_LIVE_MIGRATABLE"

// card is a provider of PCI functions in the making: a PF with its VFs, or a plain
// function.
type card struct {
	function topology.PCIAddress
	cell     topology.CellID
	counts   map[string]*count // by class
	live     bool              // every function may be live migrated
	given    []string          // traits of device_spec
	spoken   bool              // device_spec means one of its functions
}

// count is how many functions there are of a class, and how many of them nobody
// gets although nobody has them.
type count struct{ total, reserved int64 }

func (c *card) count(class string) *count {
	if c.counts[class] == nil {
		c.counts[class] = &count{}
	}
	return c.counts[class]
}

// devices adds a provider for each PF and each plain function that guests may
// have, or of which they may have VFs.
//
// A class counts every function of it. Reserved are those that a claim would be
// refused now while nobody has them: unfit ones, those that may not be touched,
// those of an IOMMU group of which another is taken; of a card that gives both its
// PF and its VFs, the one side while somebody has of the other (Nova refuses such a
// card). A function that somebody has is never reserved, so that what is allocated
// is never more than what is given.
//
// A function that somebody has stays counted where it was when it is gone, or gone
// from device_spec. So does, reserved, one that cannot be read: device_spec then
// means it no more, or it seems to be no VF (a read error never becomes a smaller
// host).
func (b *builder) devices() {
	held := map[topology.PCIAddress]topology.AssignedDevice{}
	taken := map[topology.PCIAddress]string{}
	for _, h := range b.in.Held {
		for _, d := range h.Assignment.Devices {
			held[d.Address] = d
			taken[d.Address] = "a guest"
		}
	}
	usable := slices.DeleteFunc(slices.Clone(b.in.Devices), b.unusable)
	free := map[topology.PCIAddress]bool{}
	for _, p := range pci.Pools(usable, taken, "") {
		for _, a := range p.Addresses {
			free[a] = true
		}
	}

	cards := map[topology.PCIAddress]*card{}
	b.tree.Devices = map[topology.PCIAddress]Home{}
	b.report.Applied.Devices = map[topology.PCIAddress]DeviceHome{}
	add := func(device topology.PCIAddress, home DeviceHome, cell topology.CellID) (*card, *count) {
		c := cards[home.Function]
		if c == nil {
			c = &card{function: home.Function, cell: b.cellOf(home.Function, cell), counts: map[string]*count{}, live: true}
			cards[home.Function] = c
		}
		b.tree.Devices[device] = Home{Provider: ChildUUID(b.in.UUID, home.Function.String()), Class: home.Class}
		b.report.Applied.Devices[device] = home
		n := c.count(home.Class)
		n.total++
		return c, n
	}
	for i := range b.in.Devices {
		d := &b.in.Devices[i]
		home := DeviceHome{Function: d.Address, Class: d.Tags[pci.TagResourceClass]}
		if d.Parent != nil {
			home.Function = *d.Parent
		}
		// What a guest has is counted as what it was when it was given: Placement
		// changes no class under an allocation.
		_, has := held[d.Address]
		if before, known := b.in.Applied.Devices[d.Address]; known && (has || b.unread(d.Address)) {
			home = before
		}
		c, n := add(d.Address, home, d.Cell)
		c.spoken = true
		c.live = c.live && d.LiveMigratable
		for tag := range d.Tags {
			if trait, is := strings.CutPrefix(tag, pci.TagTrait); is {
				c.given = append(c.given, trait)
			}
		}
		if !has && !free[d.Address] {
			n.reserved++
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(held), topology.PCIAddress.Compare) {
		if _, counted := b.tree.Devices[a]; !counted {
			add(a, b.lastHome(held[a]), held[a].Cell)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(b.in.Applied.Devices), topology.PCIAddress.Compare) {
		if _, counted := b.tree.Devices[a]; !counted && b.unread(a) {
			_, n := add(a, b.in.Applied.Devices[a], topology.UnknownCell)
			n.reserved++
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(cards), topology.PCIAddress.Compare) {
		b.card(cards[a])
	}
}

func (b *builder) unusable(d pci.Device) bool { return b.untouchable(d.Address, d.Cell) }

// untouchable reports whether no new claim may touch a function of a cell now.
func (b *builder) untouchable(a topology.PCIAddress, cell topology.CellID) bool {
	return slices.ContainsFunc(b.in.Unusable, func(u Unusable) bool {
		return u.Device != nil && *u.Device == a || u.Cell != nil && *u.Cell == cell
	})
}

// unread reports whether the host has a function of which a mandatory file could
// not be read: what it seems to be now is not what it is.
func (b *builder) unread(a topology.PCIAddress) bool {
	if _, there := b.in.Host.Device(a); !there {
		return false
	}
	return slices.ContainsFunc(b.in.Host.Reasons, func(r topology.Reason) bool {
		return r.Degrades && r.Device != nil && *r.Device == a && strings.HasPrefix(r.Code, "file_")
	})
}

// cellOf is the cell of a card: that of its function where the host has it, else
// that of the VF by which it is known.
func (b *builder) cellOf(a topology.PCIAddress, other topology.CellID) topology.CellID {
	if f, there := b.in.Host.Device(a); there {
		return f.NUMANode
	}
	return other
}

// lastHome is where a function is counted that somebody has and device_spec does
// not mean, or the host does not have any more: where it was, else where it would
// be. Of a VF that is gone and was never counted nobody knows the PF: it gets a
// provider of its own.
func (b *builder) lastHome(d topology.AssignedDevice) DeviceHome {
	if home, known := b.in.Applied.Devices[d.Address]; known {
		return home
	}
	home := DeviceHome{Function: d.Address, Class: pci.ClassOf(d.Vendor, d.Product)}
	if f, there := b.in.Host.Device(d.Address); there && f.PhysFn != nil {
		home.Function = *f.PhysFn
	}
	return home
}

// card adds one provider. Its inventory is Berth's alone.
func (b *builder) card(c *card) {
	suffix := c.function.String()
	rp := ChildUUID(b.in.UUID, suffix)
	now := b.standing[rp].Inventories
	inventories := map[string]placementclient.Inventory{}
	for class, n := range c.counts {
		stood, stands := now[class]
		b.put(inventories, amount{class: class, total: n.total, reserved: n.reserved, fixed: 1}, stood, stands)
	}
	given := sortedSet(c.given)
	live := c.live && c.spoken
	if !c.spoken {
		// Only guests that have them keep its functions: what was said of it stays.
		given = slices.Clone(b.in.Applied.Providers[rp].Spec)
		live = slices.Contains(b.standing[rp].Traits, traitLiveMigratable)
	}
	traits := append(b.foreignTraits(rp, func(t string) bool {
		return t == placementclient.TraitComputeManagedPCIDevice || t == traitLiveMigratable
	}),
		placementclient.TraitComputeManagedPCIDevice)
	if live {
		traits = append(traits, traitLiveMigratable)
	}
	if c.spoken {
		b.ofSpec[rp] = given
	}
	b.gaveOfSpec(rp, given)
	parent := b.parentOf(c.cell)
	if stood := b.standing[rp].Provider.ParentProviderUUID; b.unread(c.function) {
		if _, is := b.tree.provider(stood); is {
			parent = stood // its cell may be what could not be read
		}
	}
	b.child(parent, suffix, inventories, append(traits, given...))
}
