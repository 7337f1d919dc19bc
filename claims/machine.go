package claims

import (
	"maps"
	"slices"

	"berth/claims/fit"
	"berth/claims/pci"
	"berth/topology"
)

// machine is the host with what is in use of it, kept up to date by each hold's
// coming and going, so that a claim need not add up all others. It is derived:
// a machine made anew from the same holds is the same (Tracker.Audit compares).
// Nothing here is durable.
type machine struct {
	capacity Capacity
	used     topology.Resources

	// ordinaryMB is how much ordinary memory is in use, bound and floating.
	ordinaryMB int64

	cells    []fit.Cell // with usage; their CPU sets are never changed in place
	ordinary []int64    // MiB of ordinary memory bound to each of cells
	index    map[topology.CellID]int

	cellOf  []int32                          // by CPU: index of its cell, -1 for none
	taken   []int32                          // by CPU: how many instances have it to themselves; more than 1 only by force
	devices map[topology.PCIAddress][]string // the instances that have it, in order of uuid; more than 1 only by force
	mdevs   map[string][]string              // by uuid, as devices
	pools   *pools                           // of free devices; nil when they are to be counted anew

	deviceAt map[topology.PCIAddress]pci.Device // of capacity.Devices
}

// newMachine is an empty machine. Usage that the capacity carries is ignored.
func newMachine(c Capacity) *machine {
	m := &machine{
		capacity: c, cells: slices.Clone(c.Cells), ordinary: make([]int64, len(c.Cells)),
		index: map[topology.CellID]int{}, devices: map[topology.PCIAddress][]string{}, mdevs: map[string][]string{},
		deviceAt: make(map[topology.PCIAddress]pci.Device, len(c.Devices)),
	}
	for _, d := range c.Devices {
		m.deviceAt[d.Address] = d
	}
	for i := range m.cells {
		cell := &m.cells[i]
		m.index[cell.ID] = i
		cell.MemoryUsedMB, cell.SharedUsed, cell.Pinned = 0, 0, nil
		cell.Pages = slices.Clone(cell.Pages)
		for j := range cell.Pages {
			cell.Pages[j].Used = 0
		}
		for _, set := range append([]topology.CPUSet{cell.Shared, cell.Dedicated}, cell.Cores...) {
			for _, cpu := range set {
				m.growTo(cpu)
				m.cellOf[cpu] = int32(i)
			}
		}
	}
	return m
}

// copy shares no memory with m that either changes. It costs as much as the host
// has cells, CPUs and devices.
func (m *machine) copy() *machine {
	c := *m
	c.cells, c.ordinary = slices.Clone(m.cells), slices.Clone(m.ordinary)
	for i := range c.cells {
		c.cells[i].Pages = slices.Clone(c.cells[i].Pages)
	}
	c.cellOf, c.taken = slices.Clone(m.cellOf), slices.Clone(m.taken)
	c.devices, c.mdevs = maps.Clone(m.devices), maps.Clone(m.mdevs)
	return &c
}

func (m *machine) growTo(cpu int) {
	for len(m.taken) <= cpu {
		m.taken = append(m.taken, 0)
		m.cellOf = append(m.cellOf, -1)
	}
}

// ordinarySize is the size of a cell's ordinary pages; 0 when the host tells
// none.
func (m *machine) ordinarySize(id topology.CellID) topology.PageSize {
	if i, ok := m.index[id]; ok && len(m.cells[i].Pages) > 0 {
		return m.cells[i].Pages[0].Size
	}
	return 0
}

// add counts what an instance holds, remove takes it back. What is held of a
// cell that the host no longer has is counted host-wide only.
func (m *machine) add(instance string, h hold) {
	m.count(h, 1)
	takeUp(m.devices, h.devices, instance)
	takeUp(m.mdevs, h.mdevs, instance)
}

func (m *machine) remove(instance string, h hold) {
	m.count(h, -1)
	putDown(m.devices, h.devices, instance)
	putDown(m.mdevs, h.mdevs, instance)
}

// takeUp makes an instance a holder of each device, putDown takes that back. No
// list of holders is changed in place: a copy of the machine may have it.
func takeUp[D comparable](holders map[D][]string, devices []D, instance string) {
	for _, d := range devices {
		i, _ := slices.BinarySearch(holders[d], instance)
		holders[d] = slices.Insert(slices.Clone(holders[d]), i, instance)
	}
}

func putDown[D comparable](holders map[D][]string, devices []D, instance string) {
	for _, d := range devices {
		i, _ := slices.BinarySearch(holders[d], instance)
		if holders[d] = slices.Delete(slices.Clone(holders[d]), i, i+1); len(holders[d]) == 0 {
			delete(holders, d)
		}
	}
}

func (m *machine) count(h hold, sign int) {
	if sign > 0 {
		m.used = m.used.Add(h.resources)
	} else {
		m.used = m.used.Sub(h.resources)
	}
	m.ordinaryMB += int64(sign) * h.ordinaryMB
	m.countCPUs(h.cpus, int32(sign))
	for _, c := range h.cells {
		i, ok := m.index[c.id]
		if !ok {
			continue
		}
		cell := &m.cells[i]
		cell.SharedUsed += sign * c.shared
		cell.MemoryUsedMB += int64(sign) * c.memoryMB
		m.ordinary[i] += int64(sign) * c.ordinaryMB
		for j := range cell.Pages {
			p := &cell.Pages[j]
			if j == 0 {
				p.Used = pagesFor(m.ordinary[i], p.Size)
				continue
			}
			for _, q := range c.pages {
				if q.size == p.Size {
					p.Used += int64(sign) * q.count
				}
			}
		}
	}
	if len(h.devices) > 0 {
		m.pools = nil
	}
}

// countCPUs keeps the cells' sets of taken CPUs: a CPU is in when the first
// instance takes it and out when the last lets it go.
func (m *machine) countCPUs(cpus topology.CPUSet, by int32) {
	for rest := cpus; len(rest) > 0; {
		m.growTo(rest[len(rest)-1])
		// A run of CPUs of one cell at a time: the numbers of a cell may be
		// spread over the host's.
		cell, n := m.cellOf[rest[0]], 1
		for n < len(rest) && m.cellOf[rest[n]] == cell {
			n++
		}
		var changed topology.CPUSet
		for _, cpu := range rest[:n] {
			before := m.taken[cpu]
			m.taken[cpu] += by
			if (before == 0) != (m.taken[cpu] == 0) {
				changed = append(changed, cpu)
			}
		}
		if cell >= 0 && len(changed) > 0 {
			if c := &m.cells[cell]; by > 0 {
				c.Pinned = c.Pinned.Union(changed)
			} else {
				c.Pinned = c.Pinned.Difference(changed)
			}
		}
		rest = rest[n:]
	}
}

// host is the machine as a whole.
func (m *machine) host() fit.Host {
	c := m.capacity
	return fit.Host{
		Total: c.Total, Reserved: c.Reserved, Used: m.used,
		CPURatio: c.CPURatio, RAMRatio: c.RAMRatio, DiskRatio: c.DiskRatio,
	}
}

// snapshot shares no memory with m that changes.
func (m *machine) snapshot() fit.Machine {
	out := fit.Machine{Cells: slices.Clone(m.cells), Limits: m.limits()}
	for i := range out.Cells {
		out.Cells[i].Pages = slices.Clone(out.Cells[i].Pages)
	}
	out.Pools = m.freePools().fit
	return out
}

func (m *machine) limits() *fit.Limits {
	return &fit.Limits{CPURatio: ratio(m.capacity.CPURatio), RAMRatio: ratio(m.capacity.RAMRatio)}
}

// ratio gives what a ratio stands for: 0 and less for 1.
func ratio(r float64) float64 {
	if r > 0 {
		return r
	}
	return 1
}

// view is the machine as fit.Place shall see it for a guest: without the cells
// that may not be touched, and, for a guest that asks for no page size, with as
// little memory as a cell's ordinary pages are. Nova's rule for such a guest
// holds it against all memory of the cell; pools of huge pages can never serve
// it, and promised twice they would starve it. It shares memory with m: it is
// for use under the lock only.
func (m *machine) view(r Request) fit.Machine {
	out, t := fit.Machine{Cells: m.cells, Limits: m.limits()}, r.Topology
	if len(r.PCI) > 0 {
		out.Pools = m.freePools().fit
	}
	if t == nil {
		return out
	}
	ordinary := slices.ContainsFunc(t.Cells, func(c topology.GuestCell) bool { return c.PageSize == topology.PagesDefault })
	if !ordinary && len(m.capacity.Unusable) == 0 {
		return out
	}
	out.Cells = make([]fit.Cell, 0, len(m.cells))
	for i, c := range m.cells {
		if m.unusableCell(c.ID) != nil {
			continue
		}
		if ordinary && len(c.Pages) > 0 {
			// The cell is its ordinary memory, where that leaves less than all of it.
			own, times := ordinaryMB(c), out.Limits.RAMRatio
			if float64(own)*times-float64(m.ordinary[i]) < float64(c.MemoryMB)*times-float64(c.MemoryUsedMB) {
				c.MemoryMB, c.MemoryUsedMB = own, m.ordinary[i]
			}
		}
		out.Cells = append(out.Cells, c)
	}
	return out
}

// ordinaryMB is how much ordinary memory a cell may give to guests.
func ordinaryMB(c fit.Cell) int64 {
	if len(c.Pages) == 0 {
		return c.MemoryMB
	}
	p := c.Pages[0]
	return min(c.MemoryMB, max(0, p.Total-p.Reserved)*int64(p.Size)/mib)
}

// ordinaryLimit is how much ordinary memory guests may use together, in all
// cells: what the pools of huge pages and the reserve leave, times the ratio.
func (m *machine) ordinaryLimit() int64 {
	var total, kept int64
	for _, c := range m.cells {
		total += ordinaryMB(c)
		if len(c.Pages) > 0 {
			kept += c.Pages[0].Reserved * int64(c.Pages[0].Size) / mib
		}
	}
	// The host's own memory is ordinary: what it reserves as a whole, and what it
	// reserves of cells' ordinary pages, are two ways to tell of one reserve.
	total -= max(0, m.capacity.Reserved.MemoryMB-kept)
	return int64(float64(max(0, total)) * ratio(m.capacity.RAMRatio))
}

func (m *machine) unusableCell(id topology.CellID) *Unusable {
	for i := range m.capacity.Unusable {
		if u := &m.capacity.Unusable[i]; u.Cell != nil && *u.Cell == id {
			return u
		}
	}
	return nil
}
