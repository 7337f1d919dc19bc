// Package fittest judges what claims/fit answers, by rules written out apart
// from it: Check says whether a placement is valid, Possible whether there is
// any, by trying all, and Cases makes requests of the classes that people and
// Nova's own tests ask of hosts.
//
// The rules are those of the collections of cases that Berth is compared with
// (their README, "Rules"). The package shares with claims/fit the words of its
// contract and no line of its workings.
package fittest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/topology"
)

// Check gives nil for a valid placement of the request, or the first rule that
// it breaks.
func Check(m *fit.Machine, r fit.Request, p fit.Placement) error {
	if r.Topology == nil {
		if len(p.Cells) > 0 {
			return errors.New("cells for a guest that has none")
		}
		return checkDevices(m, r, nil, p.PCI)
	}
	guests := r.Topology.Cells
	if len(p.Cells) != len(guests) {
		return fmt.Errorf("%d cells for a guest of %d", len(p.Cells), len(guests))
	}
	chosen := map[topology.CellID]bool{}
	for g, a := range p.Cells {
		i := slices.IndexFunc(m.Cells, func(c fit.Cell) bool { return c.ID == a.HostCell })
		if i < 0 {
			return fmt.Errorf("guest cell %d: the host has no cell %d", g, a.HostCell)
		}
		if chosen[a.HostCell] {
			return fmt.Errorf("guest cell %d: host cell %d is taken twice", g, a.HostCell)
		}
		chosen[a.HostCell] = true
		emulator := 0
		if g == 0 && r.Topology.Emulator == topology.EmulatorIsolate && guests[0].CPUPolicy.Pins() {
			emulator = 1
		}
		if err := checkCell(&guests[g], emulator, &m.Cells[i], m.Limits, a); err != nil {
			return fmt.Errorf("guest cell %d on host cell %d: %w", g, a.HostCell, err)
		}
	}
	if err := checkDevices(m, r, chosen, p.PCI); err != nil {
		return err
	}
	return checkNetworks(m, chosen)
}

// checkCell is rules 1 to 6.
func checkCell(g *topology.GuestCell, emulator int, h *fit.Cell, l *fit.Limits, a topology.AssignedCell) error {
	if a.MemoryMB != g.MemoryMB {
		return fmt.Errorf("%d MiB for a guest cell of %d", a.MemoryMB, g.MemoryMB)
	}
	if err := checkMemory(g, h, a.PageSize); err != nil {
		return err
	}
	floating := 0
	if g.CPUPolicy != topology.CPUPolicyDedicated {
		floating = len(g.SharedVCPUs)
		if floating > len(h.Shared) {
			return fmt.Errorf("%d shared vCPUs on %d shared CPUs", floating, len(h.Shared))
		}
		if l != nil {
			if float64(h.SharedUsed+floating) > float64(len(h.Shared))*l.CPURatio {
				return errors.New("the CPU allocation ratio is exceeded")
			}
			if float64(h.MemoryUsedMB+g.MemoryMB) > float64(h.MemoryMB)*l.RAMRatio {
				return errors.New("the RAM allocation ratio is exceeded")
			}
		}
	}
	if a.Shared != len(g.SharedVCPUs) {
		return fmt.Errorf("%d shared vCPUs placed, want %d", a.Shared, len(g.SharedVCPUs))
	}
	if !g.CPUPolicy.Pins() {
		if len(a.Pins) > 0 || len(a.Emulator) > 0 || len(a.Idle) > 0 {
			return errors.New("CPUs of its own for a guest cell that floats")
		}
		return nil
	}
	return checkPins(g, emulator, h, a)
}

// checkMemory is rules 1 and 2.
func checkMemory(g *topology.GuestCell, h *fit.Cell, size topology.PageSize) error {
	bytes := g.MemoryMB * 1024 * 1024
	smallest := topology.PageSize(0)
	for _, p := range h.Pages {
		if smallest == 0 || p.Size < smallest {
			smallest = p.Size
		}
	}
	pool := func(size topology.PageSize) *fit.Pages {
		for i := range h.Pages {
			if h.Pages[i].Size == size {
				return &h.Pages[i]
			}
		}
		return nil
	}
	if g.PageSize != topology.PagesDefault {
		p := pool(size)
		switch {
		case p == nil:
			return fmt.Errorf("the host cell has no pages of %d", size)
		case g.PageSize > 0 && size != topology.PageSize(g.PageSize):
			return errors.New("another page size than the one asked for")
		case g.PageSize == topology.PagesSmall && size != smallest:
			return errors.New("small, and not the smallest pages")
		case g.PageSize == topology.PagesLarge && size == smallest:
			return errors.New("large, and the smallest pages")
		case bytes%int64(size) != 0 || bytes/int64(size) > p.Total-p.Used-p.Reserved:
			return errors.New("the memory does not fit the free pages")
		}
		return nil
	}
	if size != 0 {
		return errors.New("a page size that nobody asked for")
	}
	if p := pool(smallest); p != nil {
		free := p.Total
		if g.CPUPolicy.Pins() {
			free -= p.Used + p.Reserved
		}
		if bytes%int64(smallest) != 0 || bytes/int64(smallest) > free {
			return errors.New("the memory does not fit the smallest pages")
		}
		return nil
	}
	have := h.MemoryMB
	if g.CPUPolicy.Pins() {
		have -= h.MemoryUsedMB
	}
	if g.MemoryMB > have {
		return errors.New("the memory does not fit")
	}
	return nil
}

// siblings are the cores of a host cell: a CPU that stands in none is its own.
func siblings(h *fit.Cell) []topology.CPUSet {
	all := slices.Clone(h.Cores)
	for _, cpu := range h.Dedicated {
		if !slices.ContainsFunc(h.Cores, func(s topology.CPUSet) bool { return s.Contains(cpu) }) {
			all = append(all, topology.CPUSet{cpu})
		}
	}
	return all
}

// checkPins is rules 4 and 5.
func checkPins(g *topology.GuestCell, emulator int, h *fit.Cell, a topology.AssignedCell) error {
	free := h.Dedicated.Difference(h.Pinned)
	var vcpus, used []int
	for _, pin := range a.Pins {
		vcpus, used = append(vcpus, pin.VCPU), append(used, pin.CPU)
	}
	pinned := topology.NewCPUSet(used...)
	switch {
	case !topology.NewCPUSet(vcpus...).SameAs(g.DedicatedVCPUs) || len(vcpus) != len(g.DedicatedVCPUs):
		return errors.New("the pinned vCPUs are not the dedicated ones")
	case len(pinned) != len(used):
		return errors.New("two vCPUs on one CPU")
	case !free.ContainsAll(pinned):
		return errors.New("pinned to a CPU that is not free")
	case len(a.Emulator) != emulator || !free.ContainsAll(a.Emulator) || a.Emulator.Intersects(pinned):
		return errors.New("the emulator threads' CPU is wrong")
	case emulator > 0 && len(vcpus) == 0:
		return errors.New("emulator threads beside no dedicated vCPU")
	}
	return checkThreads(g, h, pinned, free, a)
}

// checkThreads is rule 5.
func checkThreads(g *topology.GuestCell, h *fit.Cell, pinned, free topology.CPUSet, a topology.AssignedCell) error {
	cores, most := siblings(h), 1
	for _, s := range cores {
		most = max(most, len(s))
	}
	var idle topology.CPUSet
	switch g.ThreadPolicy {
	case topology.ThreadPolicyIsolate:
		if most > 1 && !h.Shared.SameAs(h.Dedicated) {
			return errors.New("isolate on an SMT host with two sets of CPUs")
		}
		if len(pinned) == 0 {
			return errors.New("isolate without a dedicated vCPU")
		}
		for _, s := range cores {
			n := len(s.Intersection(pinned))
			switch {
			case n == 0:
				continue
			case n > 1 || len(s.Intersection(free)) < most:
				return errors.New("isolate: the core is not whole, or used twice")
			case s.Intersects(a.Emulator):
				return errors.New("isolate: emulator threads on a vCPU's core")
			}
			idle = idle.Union(s.Difference(pinned))
		}
	case topology.ThreadPolicyRequire:
		if !grouped(cores, most, pinned, free) {
			return errors.New("require: the vCPUs are not on thread siblings")
		}
	}
	if !a.Idle.SameAs(idle) {
		return fmt.Errorf("idle CPUs %s, want %s", a.Idle, idle)
	}
	return nil
}

// grouped reports whether the CPUs lie in groups of k ≥ 2 threads a core, the
// last core perhaps used in part, each core with k free ones.
func grouped(cores []topology.CPUSet, most int, pinned, free topology.CPUSet) bool {
	for k := most; k >= 2; k-- {
		ok, partly, any := true, 0, false
		for _, s := range cores {
			n, f := len(s.Intersection(pinned)), len(s.Intersection(free))
			any = any || f >= k
			if n == 0 {
				continue
			}
			if n < k {
				partly++
			}
			ok = ok && n <= k && f >= k
		}
		if ok && partly <= 1 && any {
			return true
		}
	}
	return false
}

// matches reports whether a pool's functions are what a request asks for.
func matches(q topology.PCIRequest, p *fit.Pool) bool {
	names := false // some spec names physical functions
	for _, s := range q.Specs {
		names = names || s.Type == topology.PCITypePF
	}
	if p.Type == topology.PCITypePF && !names {
		return false
	}
	for _, s := range q.Specs {
		same := (s.Vendor == "" || strings.EqualFold(s.Vendor, p.Vendor)) &&
			(s.Product == "" || strings.EqualFold(s.Product, p.Product)) &&
			(s.Type == "" || strings.EqualFold(string(s.Type), string(p.Type)))
		for k, v := range s.Tags {
			have, there := p.Tags[k]
			same = same && there && strings.EqualFold(have, v)
		}
		if same {
			return true
		}
	}
	return false
}

// reaches reports whether a request may take functions of that cell when these
// host cells are chosen; nil is a guest without cells.
func reaches(m *fit.Machine, q topology.PCIRequest, at topology.CellID, chosen map[topology.CellID]bool) bool {
	if chosen == nil {
		return true
	}
	switch q.Affinity {
	case topology.AffinityPreferred:
		return true
	case topology.AffinityRequired:
		return chosen[at]
	case topology.AffinitySocket:
		var socket *int
		for _, c := range m.Cells {
			if c.Socket == nil {
				return chosen[at] // of a host that tells no sockets this is known all the same
			}
			if c.ID == at {
				socket = c.Socket
			}
		}
		for _, c := range m.Cells {
			if socket != nil && chosen[c.ID] && *c.Socket == *socket {
				return true
			}
		}
		return false
	}
	return at == topology.UnknownCell || chosen[at]
}

func checkDevices(m *fit.Machine, r fit.Request, chosen map[topology.CellID]bool, uses []fit.PoolUse) error {
	left := make([]int, len(m.Pools))
	for i, p := range m.Pools {
		left[i] = p.Count
	}
	got := make([]int, len(r.PCI))
	for _, u := range uses {
		if u.Request < 0 || u.Request >= len(r.PCI) || u.Pool < 0 || u.Pool >= len(m.Pools) || u.Count < 1 {
			return fmt.Errorf("devices %+v of nothing", u)
		}
		q, p := r.PCI[u.Request], &m.Pools[u.Pool]
		if !matches(q, p) {
			return fmt.Errorf("request %s: pool %d is not what was asked for", q.ID, u.Pool)
		}
		if !reaches(m, q, p.Cell, chosen) {
			return fmt.Errorf("request %s: pool %d breaks affinity %q", q.ID, u.Pool, q.Affinity)
		}
		for _, other := range uses {
			if slices.Contains(p.Excludes, other.Pool) {
				return fmt.Errorf("pools %d and %d at once", u.Pool, other.Pool)
			}
		}
		if left[u.Pool] -= u.Count; left[u.Pool] < 0 {
			return fmt.Errorf("more devices than pool %d has", u.Pool)
		}
		got[u.Request] += u.Count
	}
	for i, q := range r.PCI {
		if got[i] != q.Count {
			return fmt.Errorf("request %s: %d devices, want %d", q.ID, got[i], q.Count)
		}
	}
	return nil
}

func checkNetworks(m *fit.Machine, chosen map[topology.CellID]bool) error {
	if m.Limits == nil || m.Limits.Network == nil {
		return nil
	}
	// near: some cell has it, and a chosen one too.
	lacks := func(has func(*fit.Network) bool) bool {
		some, near := false, false
		for _, c := range m.Cells {
			if c.Network != nil && has(c.Network) {
				some = true
				near = near || chosen[c.ID]
			}
		}
		return some && !near
	}
	for _, name := range m.Limits.Network.Physical {
		if lacks(func(n *fit.Network) bool { return slices.Contains(n.Physical, name) }) {
			return fmt.Errorf("network %s is near to cells not chosen", name)
		}
	}
	if m.Limits.Network.Tunneled && lacks(func(n *fit.Network) bool { return n.Tunneled }) {
		return errors.New("tunnelled networks are near to cells not chosen")
	}
	return nil
}
