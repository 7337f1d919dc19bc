package hwdiscovery

import (
	"fmt"
	"slices"
	"strconv"

	"berth/topology"

	"github.com/jaypipes/ghw"
)

// firstReading is what ghw says. It leaves out what it cannot read, and says so
// only in its log, so an absent fact means nothing.
type firstReading struct {
	nodes   []*ghw.TopologyNode
	devices []*ghw.PCIDevice
}

// readGHW asks ghw about the tree. Its errors, its warnings and a panic on a
// broken tree mean only that it has nothing to say: sysfs decides.
func readGHW(root string) firstReading {
	var r firstReading
	quiet := []any{ghw.WithChroot(root), ghw.WithDisableWarnings(), ghw.WithDisableTools()}
	contain(func() {
		if info, err := ghw.Topology(quiet...); err == nil {
			r.nodes = info.Nodes
		}
	})
	contain(func() {
		// Needs a pci.ids on the machine, and says nothing without one. Its own
		// reading of nodes is off: it is the same reading once more.
		if info, err := ghw.PCI(append(quiet, ghw.WithDisableTopology())...); err == nil {
			r.devices = info.Devices
		}
	})
	return r
}

// contain runs f and ignores a panic in it: ghw indexes into what it has read.
func contain(f func()) {
	defer func() { _ = recover() }()
	f()
}

// compare remarks on every fact for which ghw and sysfs give different,
// non-empty values. The host keeps sysfs's.
func (r firstReading) compare(t *tree, host *topology.Host) {
	for _, n := range r.nodes {
		if n == nil {
			continue
		}
		cell, ok := host.Cell(topology.CellID(n.ID))
		if !ok {
			continue
		}
		a := cellOf(n.ID)
		compareCores(t, n, cell, host, a)
		differ(t, a, nodeFile(n.ID, "distance"), "distances", n.Distances, cell.Distances, len(n.Distances) == 0 || len(cell.Distances) == 0, slices.Equal[[]int])
		if n.Memory != nil {
			bytes := n.Memory.TotalUsableBytes
			differ(t, a, nodeFile(n.ID, "meminfo"), "memory_bytes", bytes, cell.MemoryBytes, bytes <= 0 || cell.MemoryBytes == 0, func(x, y int64) bool { return x == y })
			comparePages(t, n.Memory, cell, a)
		}
	}
	for _, d := range r.devices {
		if d == nil {
			continue
		}
		address, err := topology.ParsePCIAddress(d.Address)
		if err != nil {
			continue
		}
		device, ok := host.Device(address)
		if !ok {
			continue
		}
		compareDevice(t, d, device)
	}
}

// compareCores compares a node's CPUs, and which of them are siblings. ghw
// groups by core_id alone, so it joins cores of two packages in one node.
func compareCores(t *tree, n *ghw.TopologyNode, cell *topology.Cell, host *topology.Host, a about) {
	var all []int
	var cores []string
	for _, c := range n.Cores {
		if c == nil {
			continue
		}
		all = append(all, c.LogicalProcessors...)
		cores = append(cores, topology.NewCPUSet(c.LogicalProcessors...).String())
	}
	cpus := topology.NewCPUSet(all...)
	differ(t, a, nodeFile(n.ID, "cpumap"), "cpus", cpus, cell.CPUs, cpus.IsEmpty() || cell.CPUs.IsEmpty(), topology.CPUSet.SameAs)
	if !cpus.SameAs(cell.CPUs) {
		return
	}
	var ours []string
	for _, core := range host.Cores {
		if in := core.Intersection(cell.CPUs); !in.IsEmpty() {
			ours = append(ours, in.String())
		}
	}
	slices.Sort(cores)
	slices.Sort(ours)
	differ(t, a, cpuDir, "cores", cores, ours, len(cores) == 0 || len(ours) == 0, slices.Equal[[]string])
}

// comparePages compares the huge pages of a node, size by size.
func comparePages(t *tree, m *ghw.MemoryArea, cell *topology.Cell, a about) {
	sizes := make([]uint64, 0, len(m.HugePageAmountsBySize))
	for size := range m.HugePageAmountsBySize {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	for _, size := range sizes {
		amounts := m.HugePageAmountsBySize[size]
		if amounts == nil {
			continue
		}
		ours := cell.Pages[topology.PageSize(size)]
		differ(t, a, nodeFile(int(cell.ID), "hugepages"), "pages of "+topology.PageSize(size).String(), amounts.Total, ours,
			amounts.Total <= 0 || ours == 0, func(x, y int64) bool { return x == y })
	}
	// ghw shows the host's huge pages as each node's.
	var pooled int64
	for size, n := range cell.Pages {
		if _, huge := m.HugePageAmountsBySize[uint64(size)]; huge {
			pooled += n * int64(size)
		}
	}
	differ(t, a, nodeFile(int(cell.ID), "hugepages"), "bytes in huge pages", m.TotalHugePageBytes, pooled,
		m.TotalHugePageBytes <= 0 || pooled == 0, func(x, y int64) bool { return x == y })
}

func compareDevice(t *tree, d *ghw.PCIDevice, device *topology.PCIDevice) {
	a := about{device: &device.Address}
	id := func(fact, file, theirs, ours string) {
		differ(t, a, pciFile(device.Address, file), fact, theirs, ours, theirs == "" || ours == "", func(x, y string) bool { return x == y })
	}
	if d.Vendor != nil {
		id("vendor", "vendor", "0x"+d.Vendor.ID, device.Vendor)
	}
	if d.Product != nil {
		id("product", "device", "0x"+d.Product.ID, device.Product)
	}
	if d.Class != nil && d.Subclass != nil && d.ProgrammingInterface != nil {
		id("class", "class", "0x"+d.Class.ID+d.Subclass.ID+d.ProgrammingInterface.ID, device.Class)
	}
	id("driver", "driver", d.Driver, device.Driver)
	if device.IOMMUGroup != nil {
		id("iommu_group", "iommu_group", d.IOMMUGroup, strconv.Itoa(*device.IOMMUGroup))
	}
}

// differ remarks when two non-empty values of one fact are not the same.
func differ[T any](t *tree, a about, file, fact string, theirs, ours T, empty bool, same func(T, T) bool) {
	if empty || same(theirs, ours) {
		return
	}
	where := ""
	switch {
	case a.cell != nil:
		where = fmt.Sprintf("cell %d: ", *a.cell)
	case a.device != nil:
		where = fmt.Sprintf("device %s: ", a.device)
	}
	t.remark("ghw_differs", file, a, "%s%s: ghw reads %v, sysfs %v, which is used", where, fact, theirs, ours)
}
