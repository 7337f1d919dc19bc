package domainxml

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"berth/topology"
)

// Place is what a guest is given of a host, with what the host's operator leaves
// to all guests: enough to write every element of a document that names the
// host's CPUs and memory nodes.
type Place struct {
	// Topology and Assignment belong together: entry i of one's cells is entry i of
	// the other's. A nil Topology is a guest that floats over the host; its
	// Assignment has no cells.
	Topology   *topology.GuestTopology
	Assignment topology.Assignment

	// SharedCPUs are the host's CPUs that no guest has to itself: where guests that
	// float run, and emulator threads of policy share. Empty means that the host
	// restricts nobody.
	SharedCPUs topology.CPUSet

	// SharedByCell are the shared CPUs of each cell: where the shared vCPUs of a
	// guest with cells run. A cell that is not in the map has all of SharedCPUs.
	SharedByCell map[topology.CellID]topology.CPUSet

	// BasePageSize is the host's ordinary page, 4 KiB when 0. Memory of that page
	// size is not backed by a pool of huge pages.
	BasePageSize topology.PageSize

	// RealtimePriority is the SCHED_FIFO priority of realtime vCPUs, 1 to 99. 0
	// means 1, as Nova's [libvirt] realtime_scheduler_priority, in a new document,
	// and what the guest has in an existing one.
	RealtimePriority int
}

// tuning is a Place in a document's words. An empty set restricts nothing and
// has no element.
type tuning struct {
	cpuset   topology.CPUSet         // vcpu/@cpuset
	pins     map[int]topology.CPUSet // cputune/vcpupin by vCPU
	emulator topology.CPUSet         // cputune/emulatorpin and each iothreadpin
	realtime topology.CPUSet         // cputune/vcpusched, vCPUs
	nodes    topology.CPUSet         // numatune/memory, host cells
	cells    []tunedCell             // by guest cell; empty for a guest that floats
}

type tunedCell struct {
	node  topology.CellID
	vcpus topology.CPUSet
	pages topology.PageSize // 0 for ordinary memory
}

// pages is the page size in terms of pools: 0 for ordinary memory.
func (p Place) pages(size topology.PageSize) topology.PageSize {
	if base := cmp.Or(p.BasePageSize, topology.PageSize4K); size <= base {
		return 0
	}
	return size
}

// shared are the CPUs of a cell that its floating vCPUs may run on.
func (p Place) shared(cell topology.CellID) topology.CPUSet {
	if s, ok := p.SharedByCell[cell]; ok && !s.IsEmpty() {
		return s
	}
	return p.SharedCPUs
}

// faults lists what makes no sense in the place of a guest.
func (p Place) faults() []error {
	var out []error
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	if p.RealtimePriority < 0 || p.RealtimePriority > 99 {
		fault("realtime priority %d: want 1 to 99", p.RealtimePriority)
	}
	if p.Topology == nil {
		if n := len(p.Assignment.Cells); n > 0 {
			fault("assignment of %d cells to a guest without topology", n)
		}
		return out
	}
	if a, t := len(p.Assignment.Cells), len(p.Topology.Cells); t == 0 || a != t {
		fault("topology of %d cells with an assignment of %d", t, a)
		return out
	}
	var all, dedicated, used, emulator topology.CPUSet
	for i, cell := range p.Topology.Cells {
		given := p.Assignment.Cells[i]
		if given.HostCell < 0 {
			fault("guest cell %d: no host cell", i)
		}
		if given.MemoryMB != cell.MemoryMB || cell.MemoryMB < 1 {
			fault("guest cell %d: %d MiB of memory with %d assigned", i, cell.MemoryMB, given.MemoryMB)
		}
		if both := all.Intersection(cell.VCPUs()).Union(cell.SharedVCPUs.Intersection(cell.DedicatedVCPUs)); !both.IsEmpty() {
			fault("guest cell %d: vCPUs %s are there twice", i, both)
		}
		all, dedicated = all.Union(cell.VCPUs()), dedicated.Union(cell.DedicatedVCPUs)
		var pinned []int
		for _, pin := range given.Pins {
			pinned = append(pinned, pin.VCPU)
			if used.Contains(pin.CPU) {
				fault("guest cell %d: CPU %d is given twice", i, pin.CPU)
			}
			used = used.Union(topology.NewCPUSet(pin.CPU))
		}
		if got := topology.NewCPUSet(pinned...); !got.SameAs(cell.DedicatedVCPUs) || len(pinned) != got.Len() {
			fault("guest cell %d: dedicated vCPUs are %q, pinned ones %v", i, cell.DedicatedVCPUs, pinned)
		}
		emulator = emulator.Union(given.Emulator)
	}
	if wrong := p.Topology.Realtime.Difference(dedicated); !wrong.IsEmpty() {
		fault("realtime vCPUs %s are not dedicated", wrong)
	}
	switch p.Topology.Emulator {
	case topology.EmulatorShare:
		if p.SharedCPUs.IsEmpty() {
			fault("emulator threads of policy share on a host without shared CPUs")
		}
	case topology.EmulatorIsolate:
		if emulator.IsEmpty() {
			fault("emulator threads of policy isolate without a CPU for them")
		}
	}
	return out
}

// tune puts a place without faults into a document's words, by the rules of
// Nova's libvirt driver (_get_guest_numa_config): a dedicated vCPU runs on its
// CPU, a shared one on the shared CPUs of its host cell, emulator and I/O threads
// where the policy puts them.
func (p Place) tune() tuning {
	if p.Topology == nil {
		return tuning{cpuset: p.SharedCPUs}
	}
	t := tuning{pins: map[int]topology.CPUSet{}, realtime: p.Topology.Realtime}
	var emulator, isolated topology.CPUSet
	free := false // some vCPU may run anywhere, and so may its guest's emulator
	for i, cell := range p.Topology.Cells {
		given := p.Assignment.Cells[i]
		t.cells = append(t.cells, tunedCell{node: given.HostCell, vcpus: cell.VCPUs(), pages: p.pages(given.PageSize)})
		t.nodes = t.nodes.Union(topology.NewCPUSet(int(given.HostCell)))
		isolated = isolated.Union(given.Emulator)
		for _, pin := range given.Pins {
			t.pins[pin.VCPU] = topology.NewCPUSet(pin.CPU)
		}
		shared := p.shared(given.HostCell)
		for _, v := range cell.SharedVCPUs {
			if t.pins[v] = shared; shared.IsEmpty() {
				delete(t.pins, v)
				free = true
			}
		}
	}
	for v, cpus := range t.pins {
		// A realtime vCPU never yields its CPU: threads beside it would starve, and
		// the guest with them.
		if !t.realtime.Contains(v) {
			emulator = emulator.Union(cpus)
		}
	}
	switch {
	case p.Topology.Emulator == topology.EmulatorIsolate:
		t.emulator = isolated
	case p.Topology.Emulator == topology.EmulatorShare:
		t.emulator = p.SharedCPUs
	case free:
	case emulator.IsEmpty():
		// All vCPUs are realtime: only shared CPUs are left, or none.
		t.emulator = p.SharedCPUs
	default:
		t.emulator = emulator
	}
	return t
}

// vcpus are the vCPUs that have a pin, ascending.
func (t tuning) vcpus() []int { return slices.Sorted(maps.Keys(t.pins)) }

// MapDevices gives for each device of one assignment its counterpart in another
// of the same guest: the n-th device of a request there is the n-th of that
// request here. A device without a counterpart is not in the map; Doc.Rebind
// names it if the document has it.
func MapDevices(from, to topology.Assignment) map[topology.PCIAddress]topology.PCIAddress {
	byRequest := map[string][]topology.PCIAddress{}
	for _, d := range to.Devices {
		byRequest[d.Request] = append(byRequest[d.Request], d.Address)
	}
	out := make(map[topology.PCIAddress]topology.PCIAddress, len(from.Devices))
	for _, d := range from.Devices {
		if left := byRequest[d.Request]; len(left) > 0 {
			out[d.Address], byRequest[d.Request] = left[0], left[1:]
		}
	}
	return out
}
