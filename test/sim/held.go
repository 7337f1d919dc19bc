package sim

import (
	"context"
	"maps"
	"slices"
	"strings"

	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/topology"
)

// fits holds that claims never exceed their host, and that no CPU, page or function is held
// twice. Of the two that a guest has while it is changed on its own host it uses one, and the
// larger of each amount is kept.
func (w *world) fits(m *machine) {
	type had struct {
		resources topology.Resources
		pages     map[pool]int64
	}
	of := map[string]*had{}
	cpus, functions := map[int]string{}, map[topology.PCIAddress]string{}
	for _, c := range w.claimsOn(m) {
		uuid := c.Owner.Instance
		h := of[uuid]
		if h == nil {
			h = &had{pages: map[pool]int64{}}
			of[uuid] = h
		}
		h.resources = h.resources.Max(c.Resources)
		pages := map[pool]int64{}
		for _, cell := range c.Assignment.Cells {
			for _, cpu := range cell.Exclusive() {
				if other, taken := cpus[cpu]; taken && other != uuid {
					w.violate("CPU %d of %s is held for %s and for %s", cpu, m.name, w.name(other), w.name(uuid))
				}
				if !m.hw.options.Dedicated.Contains(cpu) {
					w.violate("%s holds its CPU %d for %s, which nobody may have", m.name, cpu, w.name(uuid))
				}
				cpus[cpu] = uuid
			}
			if at := (pool{cell.HostCell, cell.PageSize}); cell.PageSize > topology.PageSize4K {
				pages[at] += cell.MemoryMB << 20 / int64(cell.PageSize)
			}
		}
		for at, n := range pages {
			h.pages[at] = max(h.pages[at], n)
		}
		for _, d := range c.Assignment.Devices {
			for _, one := range m.hw.beside(d.Address) {
				if other, taken := functions[one]; taken && other != uuid {
					w.violate("function %s of %s is held for %s, and %s for %s", d.Address, m.name, w.name(uuid), one, w.name(other))
				}
			}
			functions[d.Address] = uuid
		}
	}
	var sum topology.Resources
	pages := map[pool]int64{}
	for _, uuid := range slices.Sorted(maps.Keys(of)) {
		sum = sum.Add(of[uuid].resources)
		for at, n := range of[uuid].pages {
			pages[at] += n
		}
	}
	if t := m.capacity; sum.VCPUs > t.VCPUs || sum.PCPUs > m.hw.options.Dedicated.Len() || sum.MemoryMB > t.MemoryMB || sum.DiskGB > t.DiskGB {
		w.violate("claims on %s are %s, it has %s", m.name, sum, t)
	}
	for at, n := range pages {
		if n > m.hw.pools[at] {
			w.violate("claims on %s are %d pages of %s of cell %d, it has %d", m.name, n, at.size, at.cell, m.hw.pools[at])
		}
	}
}

// beside are the functions of which one instance alone has some: a function itself, and of a card
// with virtual functions either the card or these.
func (h *hardware) beside(at topology.PCIAddress) []topology.PCIAddress {
	out := []topology.PCIAddress{at}
	for _, d := range h.devices {
		if d.Address == at {
			out = append(out, d.VFs...)
			if d.Parent != nil {
				out = append(out, *d.Parent)
			}
		}
	}
	return out
}

// name is an instance's, or its uuid.
func (w *world) name(uuid string) string {
	if g := w.guestOf(uuid); g != nil {
		return g.name
	}
	return uuid
}

// usesItsOwn holds that what runs uses exactly what its claim holds: CPUs, cells, pages and
// functions of its domain XML are those of its claim.
func (w *world) usesItsOwn(g *guest, m *machine, c claims.Claim) {
	text, err := m.fake.XML(context.Background(), g.uuid, driver.Live)
	if err != nil {
		w.violate("guest %s runs on %s, and its domain XML cannot be read: %v", g.name, m.name, err)
		return
	}
	if c.Assignment.IsZero() && !strings.Contains(text, "<numa") && !strings.Contains(text, "<hostdev") && !strings.Contains(text, "<hugepages") && !strings.Contains(text, "<vcpupin") {
		return
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		w.violate("guest %s runs on %s by %v", g.name, m.name, err)
		return
	}
	_, has, _ := doc.Assignment(m.hw.host, m.hw.options.Shared)
	want := c.Assignment
	same := len(has.Cells) == len(want.Cells) && slices.EqualFunc(has.Devices, want.Devices, func(a, b topology.AssignedDevice) bool { return a.Address == b.Address })
	for i := 0; same && i < len(has.Cells); i++ {
		a, b := has.Cells[i], want.Cells[i]
		same = a.HostCell == b.HostCell && a.MemoryMB == b.MemoryMB && slices.Equal(a.Pins, b.Pins) && a.Emulator.SameAs(b.Emulator) &&
			max(a.PageSize, topology.PageSize4K) == max(b.PageSize, topology.PageSize4K)
	}
	if !same {
		w.violate("guest %s runs on %s with %+v, and its claim there is %+v", g.name, m.name, has, want)
	}
}

// asAsked holds that a claim is what a flavor asks for, no more and no less.
func (w *world) asAsked(m *machine, g *guest, c claims.Claim, f topology.Flavor) {
	d := demandOf(f)
	if c.Resources != d.Resources {
		w.violate("at the end the claim of %s on %s is %s, want %s", g.name, m.name, c.Resources, d.Resources)
	}
	functions := 0
	for _, r := range d.PCI {
		functions += r.Count
	}
	if len(c.Assignment.Devices) != functions {
		w.violate("at the end the claim of %s on %s has %d functions, want %d", g.name, m.name, len(c.Assignment.Devices), functions)
	}
	pins := 0
	for _, cell := range c.Assignment.Cells {
		pins += len(cell.Pins)
	}
	var cells, dedicated int
	if d.Topology != nil {
		_, dedicated = d.Topology.CPUs()
		cells = len(d.Topology.Cells)
	}
	if pins != dedicated || len(c.Assignment.Cells) != cells {
		w.violate("at the end the claim of %s on %s has %d cells and %d CPUs, want %d and %d", g.name, m.name, len(c.Assignment.Cells), pins, cells, dedicated)
	}
}
