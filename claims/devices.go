package claims

import (
	"slices"

	"berth/claims/fit"
	"berth/claims/pci"
	"berth/topology"
)

// pools are the PCI functions that are free, grouped: what fit counts, and what
// stands behind each count.
type pools struct {
	fit     []fit.Pool
	members []pci.Pool
}

// freePools counts what is free now. It is kept until a device comes or goes.
func (m *machine) freePools() *pools {
	if m.pools != nil {
		return m.pools
	}
	taken := make(map[topology.PCIAddress]string, len(m.devices))
	for a, holders := range m.devices {
		taken[a] = holders[0]
	}
	usable := m.capacity.Devices
	if len(m.capacity.Unusable) > 0 {
		usable = slices.DeleteFunc(slices.Clone(usable), func(d pci.Device) bool { return m.unusableDevice(d) })
	}
	p := &pools{members: pci.Pools(usable, taken, "")}
	for _, x := range p.members {
		p.fit = append(p.fit, fit.Pool{
			Vendor: x.Vendor, Product: x.Product, Type: x.Type, Cell: x.Cell, Tags: x.Tags, Count: x.Count, Excludes: x.Excludes,
		})
	}
	m.pools = p
	return p
}

// unusableDevice reports whether a function may not be touched: it is named, or
// its cell is.
func (m *machine) unusableDevice(d pci.Device) bool {
	return slices.ContainsFunc(m.capacity.Unusable, func(u Unusable) bool {
		return u.Device != nil && *u.Device == d.Address || u.Cell != nil && *u.Cell == d.Cell
	})
}

// pick takes the functions that fit counted out of their pools.
func (m *machine) pick(requests []topology.PCIRequest, uses []fit.PoolUse) []topology.AssignedDevice {
	p := m.freePools()
	next := make([]int, len(p.members))
	var out []topology.AssignedDevice
	for _, u := range uses {
		for range u.Count {
			a := p.members[u.Pool].Addresses[next[u.Pool]]
			next[u.Pool]++
			d := m.deviceAt[a]
			out = append(out, topology.AssignedDevice{
				Request: requests[u.Request].ID, Address: d.Address, Vendor: d.Vendor, Product: d.Product, Type: d.Type, Cell: d.Cell,
				Managed: d.Managed, LiveMigratable: d.LiveMigratable,
			})
		}
	}
	return out
}

// rivals are the functions that cannot belong to another guest than this one
// does: a PF's VFs, a VF's PF, the others of its IOMMU group.
func (m *machine) rivals(a topology.PCIAddress) []topology.PCIAddress {
	d, ok := m.deviceAt[a]
	if !ok {
		return nil
	}
	out := append(slices.Clone(d.VFs), d.Group...)
	if d.Parent != nil {
		out = append(out, *d.Parent)
	}
	return out
}

// doubledDevices are those of an instance that another has too, or a rival of
// which another has.
func (m *machine) doubledDevices(instance string, h hold) []topology.PCIAddress {
	others := func(a topology.PCIAddress) bool {
		return slices.ContainsFunc(m.devices[a], func(holder string) bool { return holder != instance })
	}
	var out []topology.PCIAddress
	for _, d := range h.devices {
		if others(d) || slices.ContainsFunc(m.rivals(d), others) {
			out = append(out, d)
		}
	}
	return out
}

// doubledMdevs are the mediated devices of an instance that another has too. Which
// PCI function one is made of its uuid does not tell.
func (m *machine) doubledMdevs(instance string, h hold) []string {
	var out []string
	for _, uuid := range h.mdevs {
		if slices.ContainsFunc(m.mdevs[uuid], func(holder string) bool { return holder != instance }) {
			out = append(out, uuid)
		}
	}
	return out
}
