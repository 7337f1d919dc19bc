package fittest

import (
	"fmt"
	"math/rand/v2"

	"berth/claims/fit"
	"berth/topology"
)

// Classes are the classes of requests that Random makes:
//
//	search   equal guest cells on equal host cells, where all fit, or the last
//	         one is too big, or one fits only on one host cell
//	random   anything on anything
//	asym     unequal guest cells on unequally filled host cells
//	hall     each guest cell fits somewhere, and together they fit on one host
//	         cell too few or on just enough
//	pci      several kinds of devices, in every affinity
//	network  networks near to some cells
var Classes = []string{"search", "random", "asym", "hall", "pci", "network"}

// Random makes a request of the class and a host with up to so many cells. The
// same source of chance gives the same request.
func Random(rng *rand.Rand, class string, cells int) (fit.Request, *fit.Machine) {
	g := generator{rng}
	hosts := 1 + rng.IntN(cells)
	if cells > 8 && rng.IntN(4) > 0 {
		hosts = 1 + rng.IntN(8) // most machines are small
	}
	guests := 1 + rng.IntN(min(hosts, 16))
	if rng.IntN(40) == 0 {
		guests = 1 + rng.IntN(hosts+1)
	}
	m := &fit.Machine{Limits: g.limits()}
	shape := g.shape()
	var r fit.Request
	switch class {
	case "search", "hall":
		m.Cells = g.hosts(hosts, shape, 0)
		r.Topology = g.guest(guests, shape, false)
		g.search(class, m, r.Topology)
	case "asym":
		m.Cells = g.hosts(hosts, shape, 4)
		r.Topology = g.guest(guests, shape, true)
	default:
		m.Cells = g.hosts(hosts, shape, 1+rng.IntN(3))
		r.Topology = g.guest(guests, shape, rng.IntN(2) == 0)
	}
	if class == "pci" || class == "search" && rng.IntN(4) == 0 || class == "random" && rng.IntN(3) == 0 || rng.IntN(10) == 0 {
		g.devices(m, &r)
	}
	if class == "network" || rng.IntN(10) == 0 {
		g.networks(m)
	}
	if class == "random" && rng.IntN(12) == 0 {
		r.Topology = nil
	}
	return r, m
}

type generator struct{ *rand.Rand }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

func (g generator) chance(of int) bool { return g.IntN(of) == 0 }

// shape is what the host cells have alike.
type shape struct {
	threads, cores int
	separate       bool // shared and dedicated CPUs apart
	adjacent       bool // siblings numbered side by side
	sizes          []topology.PageSize
	memoryMB       int64
	perSocket      int // 0 for unknown sockets
}

func (g generator) shape() shape {
	return shape{
		threads: pick(g, 1, 2, 2, 2, 4), cores: 1 + g.IntN(8), separate: g.chance(3), adjacent: g.chance(2),
		sizes:    pick(g, nil, []topology.PageSize{4 << 10}, []topology.PageSize{4 << 10, 2 << 20}, []topology.PageSize{4 << 10, 2 << 20, 1 << 30}, []topology.PageSize{64 << 10, 512 << 20}),
		memoryMB: 1024 * int64(1+g.IntN(32)), perSocket: pick(g, 0, 1, 2, 2, 4),
	}
}

// hosts makes host cells; fill is how unequally they are filled, 0 for empty.
func (g generator) hosts(n int, s shape, fill int) []fit.Cell {
	cells := make([]fit.Cell, n)
	cpus := s.threads * s.cores
	for i := range cells {
		c := &cells[i]
		c.ID = topology.CellID(i)
		if s.perSocket > 0 {
			socket := i / s.perSocket
			c.Socket = &socket
		}
		for k := range s.cores {
			var core []int
			for t := range s.threads {
				if s.adjacent {
					core = append(core, i*cpus+k*s.threads+t)
				} else {
					core = append(core, (t*n+i)*s.cores+k)
				}
			}
			siblings := topology.NewCPUSet(core...)
			c.Cores = append(c.Cores, siblings)
			// The host keeps a part of its CPUs for shared vCPUs.
			if !s.separate || k < s.cores/3 {
				c.Shared = c.Shared.Union(siblings)
			}
			if !s.separate || k >= s.cores/3 {
				c.Dedicated = c.Dedicated.Union(siblings)
			}
		}
		if g.chance(40) {
			c.Dedicated = nil
		}
		c.MemoryMB = s.memoryMB
		left := c.MemoryMB
		for j := len(s.sizes) - 1; j >= 0; j-- {
			give := left / 2
			if j == 0 {
				give = left
			}
			p := fit.Pages{Size: s.sizes[j], Total: give << 20 / int64(s.sizes[j])}
			left -= p.Total * int64(p.Size) >> 20
			c.Pages = append([]fit.Pages{p}, c.Pages...)
		}
		if fill > 0 {
			g.fill(c, fill)
		}
	}
	return cells
}

// fill puts guests on a host cell.
func (g generator) fill(c *fit.Cell, fill int) {
	parts := g.IntN(fill + 1)
	c.MemoryUsedMB = c.MemoryMB * int64(parts) / int64(fill+1)
	c.SharedUsed = g.IntN(2*len(c.Shared) + 1)
	for i := range c.Pages {
		p := &c.Pages[i]
		p.Used = p.Total * int64(g.IntN(fill+1)) / int64(fill+1)
		if g.chance(5) {
			p.Reserved = (p.Total - p.Used) / int64(1+g.IntN(4))
		}
	}
	whole := g.chance(2)
	for _, core := range c.Cores {
		for _, cpu := range core.Intersection(c.Dedicated) {
			if g.IntN(fill+1) < parts || !whole && g.chance(6) {
				c.Pinned = c.Pinned.Union(topology.CPUSet{cpu})
			}
		}
	}
}

func (g generator) limits() *fit.Limits {
	if g.chance(3) {
		return nil
	}
	return &fit.Limits{CPURatio: pick(g, 0.5, 1.0, 1.5, 4.0, 16.0), RAMRatio: pick(g, 0.9, 1.0, 1.0, 1.5)}
}

// guest makes a guest for hosts of that shape.
func (g generator) guest(n int, s shape, unequal bool) *topology.GuestTopology {
	t := &topology.GuestTopology{Cells: make([]topology.GuestCell, n)}
	policy := pick(g, topology.CPUPolicyNone, topology.CPUPolicyShared, topology.CPUPolicyDedicated, topology.CPUPolicyDedicated, topology.CPUPolicyDedicated, topology.CPUPolicyMixed)
	threads := topology.ThreadPolicyNone
	if policy.Pins() {
		threads = pick(g, topology.ThreadPolicyNone, topology.ThreadPolicyPrefer, topology.ThreadPolicyIsolate, topology.ThreadPolicyRequire)
		t.Emulator = pick(g, topology.EmulatorNone, topology.EmulatorNone, topology.EmulatorShare, topology.EmulatorIsolate)
	}
	pages := topology.PagesDefault
	if g.chance(2) {
		pages = pick(g, topology.PagesSmall, topology.PagesLarge, topology.PagesAny)
		if len(s.sizes) > 0 && g.chance(2) {
			pages = topology.PageRequest(pick(g, s.sizes...))
		}
	}
	// Small guests fit more often: half of them want at most a third of a cell.
	next, most := 0, max(1, s.threads*s.cores/pick(g, 1, 3))
	vcpus, memory := 1+g.IntN(most), g.memory(s)
	for i := range t.Cells {
		c := &t.Cells[i]
		if unequal {
			vcpus, memory = 1+g.IntN(most), g.memory(s)
		}
		c.MemoryMB, c.PageSize, c.CPUPolicy, c.ThreadPolicy = memory, pages, policy, threads
		for range vcpus {
			if policy == topology.CPUPolicyDedicated || policy == topology.CPUPolicyMixed && g.chance(2) {
				c.DedicatedVCPUs = append(c.DedicatedVCPUs, next)
			} else {
				c.SharedVCPUs = append(c.SharedVCPUs, next)
			}
			next++
		}
	}
	return t
}

// memory is whole gibibytes more often than not.
func (g generator) memory(s shape) int64 {
	if g.chance(4) {
		return 1 + g.Int64N(s.memoryMB/2)
	}
	return 1024 * (1 + g.Int64N(max(1, s.memoryMB/2048)))
}

// search makes the guest's cells hard to bring together.
func (g generator) search(class string, m *fit.Machine, t *topology.GuestTopology) {
	last := &t.Cells[len(t.Cells)-1]
	switch {
	case class == "hall":
		// All guest cells fit just so many host cells as there are, or one fewer.
		room := max(0, len(t.Cells)-g.IntN(2))
		for i := range m.Cells {
			c := &m.Cells[(i*7)%len(m.Cells)]
			if i >= room {
				c.Pinned, c.MemoryUsedMB = c.Dedicated, c.MemoryMB
				for p := range c.Pages {
					c.Pages[p].Used = c.Pages[p].Total
				}
			}
		}
	case g.chance(3):
		last.MemoryMB = m.Cells[0].MemoryMB + 1024 // too big for every host cell
	case g.chance(2):
		last.MemoryMB = m.Cells[0].MemoryMB + 1024 // fits on the last host cell alone
		c := &m.Cells[len(m.Cells)-1]
		c.MemoryMB *= 4
		for p := range c.Pages {
			c.Pages[p].Total *= 4
		}
	}
}

// devices gives the host pools of some kinds, and the guest requests for them.
func (g generator) devices(m *fit.Machine, r *fit.Request) {
	type kind struct {
		vendor, product string
		kind            topology.PCIType
	}
	kinds := []kind{{"8086", "10ed", topology.PCITypeVF}, {"10de", "2330", topology.PCITypeFunction}, {"8086", "10fb", topology.PCITypePF}, {"15b3", "1018", topology.PCITypeVF}}
	kinds = kinds[:1+g.IntN(len(kinds))]
	for i := range m.Cells {
		for _, k := range kinds {
			if g.chance(2) {
				m.Pools = append(m.Pools, fit.Pool{Vendor: k.vendor, Product: k.product, Type: k.kind, Cell: m.Cells[i].ID, Count: 1 + g.IntN(4)})
			}
		}
	}
	if g.chance(3) {
		m.Pools = append(m.Pools, fit.Pool{Vendor: kinds[0].vendor, Product: kinds[0].product, Type: kinds[0].kind, Cell: topology.UnknownCell, Count: 1 + g.IntN(3)})
	}
	for i := range 1 + g.IntN(4) {
		k := pick(g, kinds...)
		spec := topology.PCISpec{Vendor: k.vendor, Product: k.product}
		if k.kind == topology.PCITypePF || g.chance(2) {
			spec.Type = k.kind
		}
		specs := []topology.PCISpec{spec}
		if g.chance(6) {
			o := pick(g, kinds...)
			specs = append(specs, topology.PCISpec{Vendor: o.vendor, Product: o.product, Type: o.kind})
		}
		r.PCI = append(r.PCI, topology.PCIRequest{
			ID: fmt.Sprint("req", i), Count: 1 + g.IntN(4), Specs: specs,
			Affinity: pick(g, "", topology.AffinityLegacy, topology.AffinityPreferred, topology.AffinityRequired, topology.AffinityRequired, topology.AffinitySocket),
		})
	}
}

func (g generator) networks(m *fit.Machine) {
	names := []string{"physnet0", "physnet1", "physnet2"}
	for i := range m.Cells {
		if g.chance(2) {
			continue
		}
		n := &fit.Network{Tunneled: g.chance(3)}
		for _, name := range names {
			if g.chance(4) {
				n.Physical = append(n.Physical, name)
			}
		}
		m.Cells[i].Network = n
	}
	if m.Limits == nil {
		m.Limits = &fit.Limits{CPURatio: 16, RAMRatio: 1.5}
	}
	m.Limits.Network = &fit.Network{Physical: names[:g.IntN(len(names)+1)], Tunneled: g.chance(2)}
}
