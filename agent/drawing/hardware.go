package drawing

import (
	"fmt"
	"slices"
	"strings"

	"berth/topology"
)

// summary is the host in one line.
func summary(h *topology.Host, guests int) string {
	held := fmt.Sprintf("%d %s", guests, plural(guests, "guest"))
	if h == nil {
		return "the hardware has not been read, " + held
	}
	parts := []string{fmt.Sprintf("%d %s", len(h.Cells), plural(len(h.Cells), "cell"))}
	cpus := fmt.Sprintf("%d %s", h.CPUs().Len(), plural(h.CPUs().Len(), "CPU"))
	if len(h.Cores) > 0 {
		cpus += fmt.Sprintf(" in %d %s", len(h.Cores), plural(len(h.Cores), "core"))
	}
	return strings.Join(append(parts, cpus, bytes(h.MemoryBytes())+" of memory", held), ", ")
}

// cellOf is a cell with its cores, held by nobody.
func cellOf(h *topology.Host, c topology.Cell) Cell {
	out := Cell{ID: c.ID, MemoryBytes: c.MemoryBytes, Cores: coresOf(h, c.CPUs)}
	for _, p := range h.Packages {
		if p.ID != nil && p.CPUs.Intersects(c.CPUs) {
			out.Packages = append(out.Packages, *p.ID)
		}
	}
	slices.Sort(out.Packages)
	for _, other := range h.Cells {
		if cost, known := h.Distance(c.ID, other.ID); known && other.ID != c.ID {
			out.Far = append(out.Far, Distance{Cell: other.ID, Cost: cost})
		}
	}
	for i, size := range h.PageSizes {
		if n := c.Pages[size]; n > 0 || i == 0 && c.MemoryBytes > 0 {
			out.Pools = append(out.Pools, Pool{Size: size, Ordinary: size == h.BasePageSize, Total: n})
		}
	}
	return out
}

// coresOf are the cores of some CPUs, by their first CPU. A core that reaches into another
// cell is cut; a CPU whose core nobody knows is one of its own.
func coresOf(h *topology.Host, cpus topology.CPUSet) []Core {
	var out []Core
	left := cpus
	for _, core := range h.Cores {
		if here := core.Intersection(cpus); !here.IsEmpty() {
			out, left = append(out, coreOf(here)), left.Difference(here)
		}
	}
	for _, cpu := range left {
		out = append(out, coreOf(topology.CPUSet{cpu}))
	}
	slices.SortFunc(out, func(a, b Core) int { return a.CPUs[0].ID - b.CPUs[0].ID })
	return out
}

func coreOf(cpus topology.CPUSet) Core {
	var c Core
	for _, id := range cpus {
		c.CPUs = append(c.CPUs, CPU{ID: id})
	}
	return c
}

// strays are the CPUs that are in no cell.
func strays(h *topology.Host) topology.CPUSet {
	all := h.CPUs()
	for _, c := range h.Cells {
		all = all.Difference(c.CPUs)
	}
	return all
}

// furnish says what of the cell guests may have.
func (c *Cell) furnish(rooms []Room, base topology.PageSize) {
	i := slices.IndexFunc(rooms, func(r Room) bool { return r.Cell == c.ID })
	if i < 0 {
		if len(rooms) > 0 {
			c.roles(func(int) Role { return RoleOwn })
		}
		return
	}
	room := rooms[i]
	c.roles(func(cpu int) Role {
		switch {
		case room.Dedicated.Contains(cpu):
			return RoleDedicated
		case room.Shared.Contains(cpu):
			return RoleShared
		}
		return RoleOwn
	})
	if len(room.Pools) > 0 {
		c.Pools = nil
		for i, p := range room.Pools {
			if p.Total == 0 && p.Used == 0 && i > 0 {
				continue // a size that the kernel could serve, and has no page of here
			}
			p.Ordinary, p.Shares = p.Size == base, nil
			c.Pools = append(c.Pools, p)
		}
	}
}

func (c *Cell) roles(of func(cpu int) Role) {
	for i := range c.Cores {
		for j := range c.Cores[i].CPUs {
			cpu := &c.Cores[i].CPUs[j]
			cpu.Role = of(cpu.ID)
		}
	}
}

// sums enters what guests have of the host as a whole, those included that are in no cell.
func (h *Host) sums(w *Whole) {
	if w == nil {
		return
	}
	for _, a := range []struct {
		name  string
		size  topology.PageSize
		of    func(topology.Resources) int64
		ratio float64
	}{
		{"memory", 1 << 20, func(r topology.Resources) int64 { return r.MemoryMB }, w.MemoryRatio},
		{"vCPUs", 0, func(r topology.Resources) int64 { return int64(r.VCPUs) }, w.CPURatio},
		{"disk", 1 << 30, func(r topology.Resources) int64 { return r.DiskGB }, w.DiskRatio},
	} {
		if a.ratio <= 0 {
			a.ratio = 1
		}
		reserved := a.of(w.Reserved)
		p := Pool{Name: a.name, Size: a.size, Ordinary: a.size > 0, Reserved: reserved, Total: reserved + int64(float64(a.of(w.Total)-reserved)*a.ratio), Ratio: a.ratio}
		for i, g := range h.Guests {
			if n := a.of(g.Resources); n > 0 {
				p.Shares = append(p.Shares, Share{Guest: i, Pages: n})
			}
		}
		if p.Total > 0 || len(p.Shares) > 0 {
			h.Sums = append(h.Sums, p)
		}
	}
}

// devices enters the functions that guests may have, and those that a guest has though it may
// not (any more), by card.
func (h *Host) devices(in Input, hardware *topology.Host, index map[string]int) {
	holders := map[topology.PCIAddress][]int{}
	list := slices.Clone(in.Devices)
	for _, c := range in.Claims {
		for _, d := range c.Assignment.Devices {
			if g := index[c.Instance]; !slices.Contains(holders[d.Address], g) {
				holders[d.Address] = append(holders[d.Address], g)
			}
			if !slices.ContainsFunc(list, func(o Device) bool { return o.Address == d.Address }) {
				list = append(list, Device{Address: d.Address, Product: d.Vendor + ":" + d.Product, Type: d.Type, Unfit: "not given to guests any more"})
			}
		}
	}
	slices.SortFunc(list, func(a, b Device) int { return a.Address.Compare(b.Address) })
	for _, d := range list {
		of, cell := d.Address, topology.UnknownCell
		if f, known := hardware.Device(d.Address); known {
			cell = f.NUMANode
			if f.PhysFn != nil {
				of = *f.PhysFn
			}
		}
		d.Guests = holders[d.Address]
		slices.Sort(d.Guests)
		groups := &h.Loose
		if i := slices.IndexFunc(h.Cells, func(c Cell) bool { return c.ID == cell && cell != topology.UnknownCell }); i >= 0 {
			groups = &h.Cells[i].Groups
		}
		i := slices.IndexFunc(*groups, func(g Group) bool { return g.Of == of })
		if i < 0 {
			i = len(*groups)
			*groups = append(*groups, Group{Of: of, Product: d.Product})
		}
		(*groups)[i].Devices = append((*groups)[i].Devices, d)
	}
	for _, f := range hardware.PCI {
		if !slices.ContainsFunc(list, func(d Device) bool { return d.Address == f.Address }) {
			h.Other++
		}
	}
}

// bytes is an amount for people, with binary units.
func bytes(n int64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// resources are amounts for people.
func resources(r topology.Resources) string {
	var out []string
	if r.PCPUs > 0 {
		out = append(out, fmt.Sprintf("%d %s", r.PCPUs, plural(r.PCPUs, "pcpu")))
	}
	if r.VCPUs > 0 || r.PCPUs == 0 {
		out = append(out, fmt.Sprintf("%d %s", r.VCPUs, plural(r.VCPUs, "vcpu")))
	}
	return strings.Join(append(out, fmt.Sprintf("%d MiB", r.MemoryMB), fmt.Sprintf("%d GiB", r.DiskGB)), ", ")
}
