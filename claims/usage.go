package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/topology"
)

// Usage is the tracker's sum at one moment.
type Usage struct {
	Capacity Capacity `json:"capacity"` // as it was set; not to be changed
	// Used is Σ over instances of the claims that List shows; of an instance
	// with two claims here, which uses one of them, the larger of each amount.
	Used topology.Resources `json:"used"`
	// Free is what a claim could get now: never below 0, and less what is
	// promised to claims whose commit is on its way.
	Free   topology.Resources `json:"free"`
	Forced []string           `json:"forced,omitempty"` // instances whose claims are forced

	// Doubled names each core, device and pool that is promised more often than
	// it is there, by guests that were found so.
	Doubled []Doubled `json:"doubled,omitempty"`
}

// Doubled is a CPU or a device that several instances have, or a pool of pages
// of which more are promised than it has; one of the four is named. A CPU with
// one holder is not a dedicated one: shared vCPUs run there too.
type Doubled struct {
	CPU       *int                 `json:"cpu,omitempty"`
	Device    *topology.PCIAddress `json:"device,omitempty"`
	Mdev      string               `json:"mdev,omitempty"` // uuid of a mediated device
	Cell      *topology.CellID     `json:"cell,omitempty"` // of the CPU or pool, where known
	PageSize  topology.PageSize    `json:"page_size,omitempty"`
	Over      int64                `json:"over,omitempty"` // pages promised beyond those there are
	Instances []string             `json:"instances"`      // who holds it, in order
}

// CellUsage is what is in use of one cell of the host. Its amounts count what is
// on its way too; the CPU sets are those of the claims that List shows.
type CellUsage struct {
	ID          topology.CellID `json:"cell"`
	Pinned      topology.CPUSet `json:"pinned_cpus"`
	Emulator    topology.CPUSet `json:"emulator_cpus"`
	Idle        topology.CPUSet `json:"idle_cpus"` // siblings kept empty
	SharedVCPUs int             `json:"shared_vcpus"`
	MemoryMB    int64           `json:"memory_mb"` // of guests bound to the cell
	Pages       []fit.Pages     `json:"pages"`     // with what is used
	Instances   []string        `json:"instances"`

	SharedCPUs    topology.CPUSet `json:"shared_cpus"`    // that the cell has
	DedicatedCPUs topology.CPUSet `json:"dedicated_cpus"` // that the cell has
}

// Usage gives the sums at one moment.
func (t *Tracker) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{Capacity: t.machine.capacity, Free: t.machine.host().Free()}
	for _, h := range t.holdings {
		var used topology.Resources
		forced := false
		for _, e := range h.entries {
			if e.told {
				used = used.Max(e.claim.Resources)
				forced = forced || e.claim.Forced
			}
		}
		u.Used = u.Used.Add(used)
		if forced {
			u.Forced = append(u.Forced, h.instance)
		}
	}
	slices.Sort(u.Forced)
	// Claims that nobody forced double nothing by themselves.
	if len(u.Forced)+len(t.strangers) > 0 {
		u.Doubled = t.machine.doubled(t.countedLocked())
	}
	return u
}

// Machine is the host cell by cell, with what is in use and what is free of it
// now, for dry runs: fit.Place over it answers as Claim would, but for the
// host-wide sums and what may not be touched (see Room).
func (t *Tracker) Machine() fit.Machine {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.machine.snapshot()
}

// CellUsage gives what is in use of each cell of the host, in its order.
func (t *Tracker) CellUsage() []CellUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.machine
	out := make([]CellUsage, len(m.cells))
	for i, c := range m.cells {
		out[i] = CellUsage{
			ID: c.ID, SharedVCPUs: c.SharedUsed, MemoryMB: c.MemoryUsedMB, Pages: slices.Clone(c.Pages),
			SharedCPUs: c.Shared, DedicatedCPUs: c.Dedicated,
		}
	}
	pinned, emulator, idle := make([][]int, len(out)), make([][]int, len(out)), make([][]int, len(out))
	for _, h := range t.holdings {
		var at []int
		for _, e := range h.entries {
			for _, a := range e.claim.Assignment.Cells {
				i, ok := m.index[a.HostCell]
				if !e.told || !ok {
					continue
				}
				at = append(at, i)
				for _, p := range a.Pins {
					pinned[i] = append(pinned[i], p.CPU)
				}
				emulator[i], idle[i] = append(emulator[i], a.Emulator...), append(idle[i], a.Idle...)
			}
		}
		slices.Sort(at)
		for _, i := range slices.Compact(at) {
			out[i].Instances = append(out[i].Instances, h.instance)
		}
	}
	for i := range out {
		u := &out[i]
		u.Pinned, u.Emulator, u.Idle = topology.NewCPUSet(pinned[i]...), topology.NewCPUSet(emulator[i]...), topology.NewCPUSet(idle[i]...)
		slices.Sort(u.Instances)
	}
	return out
}

// doubled names what instances are counted for more often than the machine has it:
// CPUs, then devices, then mediated ones, then pools.
func (m *machine) doubled(counted map[string]hold) []Doubled {
	cpus := map[int][]string{}
	devices := map[topology.PCIAddress][]string{}
	mdevs := map[string]bool{}
	for instance, h := range counted {
		for _, cpu := range m.doubledCPUs(h) {
			cpus[cpu] = append(cpus[cpu], instance)
		}
		for _, d := range m.doubledDevices(instance, h) {
			for _, a := range append(m.rivals(d), d) {
				devices[d] = append(devices[d], m.devices[a]...)
			}
		}
		for _, uuid := range m.doubledMdevs(instance, h) {
			mdevs[uuid] = true
		}
	}
	var out []Doubled
	for cpu, by := range cpus {
		d := Doubled{CPU: &cpu, Instances: by}
		if i := m.cellOf[cpu]; i >= 0 {
			id := m.cells[i].ID
			d.Cell = &id
		}
		out = append(out, d)
	}
	for a, by := range devices {
		out = append(out, Doubled{Device: &a, Instances: by})
	}
	for uuid := range mdevs {
		out = append(out, Doubled{Mdev: uuid, Instances: slices.Clone(m.mdevs[uuid])})
	}
	for i, c := range m.cells {
		for j, p := range c.Pages {
			over := m.overPool(i, j)
			if over <= 0 {
				continue
			}
			d := Doubled{Cell: &c.ID, PageSize: p.Size, Over: over}
			for instance, h := range counted {
				if slices.ContainsFunc(h.cells, func(x cellHold) bool { return x.id == c.ID && x.holds(c.Pages, j) }) {
					d.Instances = append(d.Instances, instance)
				}
			}
			out = append(out, d)
		}
	}
	for i := range out {
		slices.Sort(out[i].Instances)
		out[i].Instances = slices.Compact(out[i].Instances)
	}
	slices.SortFunc(out, Doubled.compare)
	return out
}

func (d Doubled) compare(o Doubled) int {
	switch {
	case d.CPU != nil && o.CPU != nil:
		return cmp.Compare(*d.CPU, *o.CPU)
	case d.Device != nil && o.Device != nil:
		return d.Device.Compare(*o.Device)
	case d.Mdev != "" && o.Mdev != "":
		return cmp.Compare(d.Mdev, o.Mdev)
	case d.PageSize != 0 && o.PageSize != 0:
		return cmp.Or(cmp.Compare(*d.Cell, *o.Cell), cmp.Compare(d.PageSize, o.PageSize))
	}
	return cmp.Compare(d.kind(), o.kind())
}

func (d Doubled) kind() int {
	switch {
	case d.CPU != nil:
		return 0
	case d.Device != nil:
		return 1
	case d.Mdev != "":
		return 2
	}
	return 3
}

// String says it in an operator's words, "cpu 4 of cell 1: held by a and b".
func (d Doubled) String() string {
	holders := "held by " + strings.Join(d.Instances, " and ")
	switch {
	case d.CPU != nil && d.Cell != nil && len(d.Instances) == 1:
		return fmt.Sprintf("cpu %d of cell %d: %s, and not a dedicated CPU", *d.CPU, *d.Cell, holders)
	case d.CPU != nil && d.Cell != nil:
		return fmt.Sprintf("cpu %d of cell %d: %s", *d.CPU, *d.Cell, holders)
	case d.CPU != nil:
		return fmt.Sprintf("cpu %d: %s", *d.CPU, holders)
	case d.Device != nil:
		return fmt.Sprintf("PCI device %s: %s", d.Device, holders)
	case d.Mdev != "":
		return fmt.Sprintf("mediated device %s: %s", d.Mdev, holders)
	}
	return fmt.Sprintf("%s pages of cell %d: %d more than there are, %s", d.PageSize, *d.Cell, d.Over, holders)
}
