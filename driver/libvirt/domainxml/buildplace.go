package domainxml

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/beevik/etree"

	"berth/topology"
)

// placeFaults lists what makes no sense in where the guest is put, and where
// that contradicts its flavor.
func (s Spec) placeFaults() []error {
	out := s.Place.faults()
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	if s.IOThreads < 0 {
		fault("%d I/O threads", s.IOThreads)
	}
	seen := map[topology.PCIAddress]bool{}
	for _, d := range s.Assignment.Devices {
		if seen[d.Address] {
			fault("PCI device %s is assigned twice", d.Address)
		}
		seen[d.Address] = true
	}
	if s.Topology == nil {
		return out
	}
	var vcpus topology.CPUSet
	var memory int64
	for _, c := range s.Topology.Cells {
		vcpus = vcpus.Union(c.VCPUs())
		memory = topology.AddCapped(memory, c.MemoryMB)
	}
	if n := s.Flavor.VCPUs; vcpus.Len() != n || n > 0 && vcpus[len(vcpus)-1] != n-1 {
		fault("guest cells hold vCPUs %q, the flavor has %d", vcpus, n)
	}
	if memory != s.Flavor.MemoryMB {
		fault("guest cells hold %d MiB of memory, the flavor has %d", memory, s.Flavor.MemoryMB)
	}
	return out
}

// memoryBacking writes <memoryBacking>: huge pages by guest cell; locked where
// that is asked; for realtime vCPUs both locked and kept from page merging, since
// a page fault is a delay (Nova's _get_guest_memory_backing_config).
func (s Spec) memoryBacking(root *etree.Element, t tuning) {
	sizes, cells := t.pageSizes()
	realtime := !t.realtime.IsEmpty()
	if len(sizes) == 0 && !s.LockedMemory && !realtime {
		return
	}
	backing := root.CreateElement("memoryBacking")
	if len(sizes) > 0 {
		huge := backing.CreateElement("hugepages")
		for _, size := range sizes {
			huge.AddChild(pageElement(size, cells[size]))
		}
	}
	if realtime {
		backing.CreateElement("nosharepages")
	}
	if s.LockedMemory || realtime {
		backing.CreateElement("locked")
	}
}

// pageSizes are the sizes of huge pages that guest cells have, ascending, and the
// cells of each.
func (t tuning) pageSizes() ([]topology.PageSize, map[topology.PageSize][]int) {
	cells := map[topology.PageSize][]int{}
	for i, c := range t.cells {
		if c.pages > 0 {
			cells[c.pages] = append(cells[c.pages], i)
		}
	}
	return slices.Sorted(maps.Keys(cells)), cells
}

// pageElement is the <page> of some guest cells.
func pageElement(size topology.PageSize, cells []int) *etree.Element {
	page := etree.NewElement("page")
	page.CreateAttr("size", strconv.FormatInt(int64(size>>10), 10))
	page.CreateAttr("unit", "KiB")
	page.CreateAttr("nodeset", topology.NewCPUSet(cells...).String())
	return page
}

// tuneNew writes <iothreads>, <cputune> and <numatune>.
func (s Spec) tuneNew(root *etree.Element, t tuning) {
	if s.IOThreads > 0 {
		text(root, "iothreads", strconv.Itoa(s.IOThreads))
	}
	if s.Topology == nil {
		return
	}
	tune := etree.NewElement("cputune")
	for _, v := range t.vcpus() {
		pin := tune.CreateElement("vcpupin")
		pin.CreateAttr("vcpu", strconv.Itoa(v))
		pin.CreateAttr("cpuset", t.pins[v].String())
	}
	if !t.emulator.IsEmpty() {
		tune.CreateElement("emulatorpin").CreateAttr("cpuset", t.emulator.String())
		for i := range s.IOThreads {
			pin := tune.CreateElement("iothreadpin")
			pin.CreateAttr("iothread", strconv.Itoa(i+1))
			pin.CreateAttr("cpuset", t.emulator.String())
		}
	}
	if !t.realtime.IsEmpty() {
		sched := tune.CreateElement("vcpusched")
		sched.CreateAttr("vcpus", t.realtime.String())
		sched.CreateAttr("scheduler", "fifo")
		sched.CreateAttr("priority", strconv.Itoa(max(s.RealtimePriority, 1)))
	}
	if len(tune.Child) > 0 {
		root.AddChild(tune)
	}
	numa := root.CreateElement("numatune")
	memory := numa.CreateElement("memory")
	memory.CreateAttr("mode", "strict")
	memory.CreateAttr("nodeset", t.nodes.String())
	for i, c := range t.cells {
		node := numa.CreateElement("memnode")
		node.CreateAttr("cellid", strconv.Itoa(i))
		node.CreateAttr("mode", "strict")
		node.CreateAttr("nodeset", strconv.Itoa(int(c.node)))
	}
}

// cpuTopology writes the guest's <topology> and its cells. Threads are those
// that guestThreads finds. A guest cell is a socket where all cells have as many
// vCPUs, numbered one after the other; else each core is a socket, so that no
// socket lies in two cells.
func (s Spec) cpuTopology(cpu *etree.Element, t tuning) {
	if s.Topology == nil {
		return
	}
	sockets, cores, threads := t.sockets(s.Topology, s.Flavor.VCPUs, s.Cores)
	e := cpu.CreateElement("topology")
	e.CreateAttr("sockets", strconv.Itoa(sockets))
	e.CreateAttr("cores", strconv.Itoa(cores))
	e.CreateAttr("threads", strconv.Itoa(threads))
	numa := cpu.CreateElement("numa")
	for i, c := range t.cells {
		cell := numa.CreateElement("cell")
		cell.CreateAttr("id", strconv.Itoa(i))
		if !c.vcpus.IsEmpty() {
			cell.CreateAttr("cpus", c.vcpus.String())
		}
		cell.CreateAttr("memory", strconv.FormatInt(s.Topology.Cells[i].MemoryMB, 10))
		cell.CreateAttr("unit", "MiB")
		if c.pages > 0 {
			// Huge pages are mapped shared, so that a vhost-user back end can reach
			// them (Nova's _get_cpu_numa_config_from_instance).
			cell.CreateAttr("memAccess", "shared")
		}
	}
}

// sockets divides a guest's vCPUs, see cpuTopology.
func (t tuning) sockets(guest *topology.GuestTopology, vcpus int, hostCores []topology.CPUSet) (sockets, cores, threads int) {
	threads = guestThreads(guest, t, hostCores)
	if per := t.cells[0].vcpus.Len(); per*len(t.cells) == vcpus && inOrder(t.cells, per) {
		return len(t.cells), per / threads, threads
	}
	return vcpus / threads, 1, threads
}

// inOrder reports whether guest cell i has the vCPUs i*per up to (i+1)*per.
func inOrder(cells []tunedCell, per int) bool {
	for i, c := range cells {
		if c.vcpus.Len() != per || per == 0 || c.vcpus[0] != i*per || c.vcpus[per-1] != (i+1)*per-1 {
			return false
		}
	}
	return true
}

// guestThreads is how many threads a core of the guest has: the most for which
// every core's vCPUs, which are numbered one after the other, are pinned to
// siblings of one host core. A guest with floating vCPUs has one thread a core,
// as has one whose pins are on cores of their own (thread policy isolate).
func guestThreads(t *topology.GuestTopology, tuned tuning, hostCores []topology.CPUSet) int {
	core := map[int]int{}
	most := 1
	for i, c := range hostCores {
		most = max(most, c.Len())
		for _, cpu := range c {
			core[cpu] = i
		}
	}
	for _, c := range t.Cells {
		if !c.SharedVCPUs.IsEmpty() {
			return 1
		}
	}
	fits := func(threads int) bool {
		for _, c := range tuned.cells {
			if c.vcpus.Len()%threads != 0 {
				return false
			}
			for group := range slices.Chunk(c.vcpus, threads) {
				first, known := core[tuned.pins[group[0]][0]]
				if !known || group[0]%threads != 0 || group[threads-1] != group[0]+threads-1 {
					return false
				}
				for _, v := range group {
					if at, known := core[tuned.pins[v][0]]; !known || at != first {
						return false
					}
				}
			}
		}
		return true
	}
	for threads := most; threads > 1; threads-- {
		if fits(threads) {
			return threads
		}
	}
	return 1
}

// hostDevices writes a <hostdev> for each assigned PCI function, in order.
func (s Spec) hostDevices(devices *etree.Element) {
	for _, d := range s.Assignment.Devices {
		dev := hostdevElement(d)
		devices.AddChild(dev)
		setPCIAddress(dev.CreateElement("source").CreateElement("address"), d.Address)
	}
}

// hostdevElement is a <hostdev> that does not name its device yet.
func hostdevElement(d topology.AssignedDevice) *etree.Element {
	dev := etree.NewElement("hostdev")
	dev.CreateAttr("mode", "subsystem")
	dev.CreateAttr("type", "pci")
	dev.CreateAttr("managed", map[bool]string{true: "yes", false: "no"}[d.Managed])
	return dev
}
