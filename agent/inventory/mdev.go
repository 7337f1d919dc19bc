package inventory

import (
	"fmt"
	"maps"
	"slices"

	"berth/placementclient"
	"berth/topology"
)

// EnabledMdev is a type of mediated device that the operator gives to guests
// (Nova: [devices] enabled_mdev_types and its groups [mdev_…]).
type EnabledMdev struct {
	Type string // "nvidia-35", a directory of mdev_supported_types
	// Parents are the functions that make it; empty for every one that can and is not
	// named with another type. A function makes one type, of those that nobody named
	// the first.
	Parents []topology.PCIAddress
	Class   string // Placement's, VGPU or CUSTOM_…; empty for VGPU
	Max     int    // at most so many of one parent; 0 for as many as its driver makes
}

// MdevUnknown is the code of the reason that names a mediated device which a guest
// has and of which nobody knows the parent: it is counted nowhere.
const MdevUnknown = "mdev_parent_unknown"

// mdevs adds a provider for each function that makes mediated devices of an
// enabled type. It has as many as there are of the type and can be made still, or,
// where that could not be read, as many as stand; each that a guest has is counted
// for as long, whatever its type. One that is gone is to be made again, out of those
// that can be.
func (b *builder) mdevs() {
	type parent struct {
		function topology.PCIAddress
		class    string
		total    int64
		reserved bool
	}
	var parents []*parent
	of := func(a topology.PCIAddress, class string) *parent {
		for _, p := range parents {
			if p.function == a {
				return p
			}
		}
		p := &parent{function: a, class: class}
		parents = append(parents, p)
		return p
	}
	b.tree.Mdevs = map[string]Home{}
	b.report.Applied.Mdevs = map[string]DeviceHome{}
	held := map[string]bool{}
	for _, h := range b.in.Held {
		for _, uuid := range h.Assignment.Mdevs {
			held[uuid] = true
		}
	}
	home := func(uuid string, h DeviceHome) {
		b.tree.Mdevs[uuid] = Home{Provider: ChildUUID(b.in.UUID, mdevSuffix(h.Function)), Class: h.Class}
		b.report.Applied.Mdevs[uuid] = h
	}
	extra := map[topology.PCIAddress]map[string]int64{} // held ones of other classes, by parent
	exists := map[string]bool{}
	for i := range b.in.Host.PCI {
		f := &b.in.Host.PCI[i]
		enabled, kind, ok := b.enabled(f)
		if !ok {
			continue
		}
		p := of(f.Address, enabled.Class)
		p.reserved = b.untouchable(f.Address, f.NUMANode)
		p.total = int64(kind.Available)
		for _, m := range b.in.Host.Mdevs {
			if m.Parent == f.Address && m.Type == kind.Name {
				p.total++
			}
		}
		if b.unread(f.Address) {
			p.total = max(p.total, b.standing[ChildUUID(b.in.UUID, mdevSuffix(f.Address))].Inventories[enabled.Class].Total)
		}
		if enabled.Max > 0 {
			p.total = min(p.total, int64(enabled.Max))
		}
	}
	for _, m := range b.in.Host.Mdevs {
		exists[m.UUID] = true
		h := DeviceHome{Function: m.Parent, Class: placementclient.ClassVGPU}
		kindOf := ""
		if f, there := b.in.Host.Device(m.Parent); there {
			if enabled, kind, ok := b.enabled(f); ok {
				h.Class, kindOf = enabled.Class, kind.Name
			}
		}
		if before, known := b.in.Applied.Mdevs[m.UUID]; known && held[m.UUID] && before.Function == m.Parent {
			h = before
		}
		switch {
		case held[m.UUID] && kindOf != m.Type:
			b.more(extra, h)
		case kindOf != m.Type:
			continue
		}
		home(m.UUID, h)
	}
	for _, uuid := range slices.Sorted(maps.Keys(held)) {
		h, known := b.in.Applied.Mdevs[uuid]
		switch {
		case exists[uuid]:
		case known:
			of(h.Function, "")
			home(uuid, h)
		default:
			b.refuse(MdevUnknown, "make it again, or detach it from its guest", "a guest has mediated device %s, which is not there: on which provider it is counted is not known", uuid)
		}
	}
	for a := range extra {
		of(a, "")
	}
	slices.SortFunc(parents, func(p, q *parent) int { return p.function.Compare(q.function) })
	for _, p := range parents {
		suffix := mdevSuffix(p.function)
		rp := ChildUUID(b.in.UUID, suffix)
		taken := map[string]int64{}
		for uuid, h := range b.tree.Mdevs {
			if held[uuid] && h.Provider == rp {
				taken[h.Class]++
			}
		}
		totals := extra[p.function]
		if totals == nil {
			totals = map[string]int64{}
		}
		if p.class != "" {
			totals[p.class] += p.total
		}
		for class, n := range taken {
			totals[class] = max(totals[class], n)
		}
		inventories := map[string]placementclient.Inventory{}
		for class, total := range totals {
			reserved := int64(0)
			if p.reserved {
				reserved = total - taken[class]
			}
			stood, stands := b.standing[rp].Inventories[class]
			b.put(inventories, amount{class: class, total: total, reserved: reserved, fixed: 1}, stood, stands)
		}
		if len(inventories) == 0 {
			continue // it makes no more, and nobody has any
		}
		cell := b.cellOf(p.function, topology.UnknownCell)
		b.child(b.parentOf(cell), suffix, inventories, b.foreignTraits(rp, func(string) bool { return false }))
	}
}

func (b *builder) more(extra map[topology.PCIAddress]map[string]int64, h DeviceHome) {
	if extra[h.Function] == nil {
		extra[h.Function] = map[string]int64{}
	}
	extra[h.Function][h.Class]++
}

// enabled is the type that a function makes, with Placement's class filled in.
func (b *builder) enabled(f *topology.PCIDevice) (EnabledMdev, topology.MdevType, bool) {
	names := func(e EnabledMdev) bool { return slices.Contains(e.Parents, f.Address) }
	named := slices.ContainsFunc(b.in.Mdev, names)
	for _, e := range b.in.Mdev {
		if named != names(e) || !named && len(e.Parents) > 0 {
			continue
		}
		if at := slices.IndexFunc(f.Mdev, func(t topology.MdevType) bool { return t.Name == e.Type }); at >= 0 {
			if e.Class == "" {
				e.Class = placementclient.ClassVGPU
			}
			return e, f.Mdev[at], true
		}
	}
	return EnabledMdev{}, topology.MdevType{}, false
}

// mdevSuffix is libvirt's name of the function's node device, as in Nova's names.
func mdevSuffix(a topology.PCIAddress) string {
	return fmt.Sprintf("pci_%04x_%02x_%02x_%x", a.Domain, a.Bus, a.Device, a.Function)
}
