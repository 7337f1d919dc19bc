package hwdiscovery

import (
	"maps"
	"slices"

	"berth/topology"
)

// node is one NUMA node while it is read.
type node struct {
	id        int
	cpus      topology.CPUSet // usable ones
	mem       meminfo
	haveMem   bool
	distances []int
	hidden    bool // memory of a GPU, or sharing CPUs with a lower node
}

// readCells reads the NUMA nodes into host.Cells, or makes the one cell of a
// kernel without them.
func (t *tree) readCells(host *topology.Host, cpus cpuReading) {
	proc, haveProc := t.memory(expected, procMeminfo, about{}, -1)
	ids, ok := t.numbered(nodeDir, "node")
	if !ok {
		t.oneCell(host, cpus, proc, haveProc)
		return
	}
	nodes := t.readNodes(ids, cpus.online)
	if len(nodes) == 0 {
		t.degrade("file_missing", nodeDir, about{}, "holds no node")
		t.oneCell(host, cpus, proc, haveProc)
		return
	}
	t.hideGPUs(nodes)
	t.hideOverlaps(nodes)
	t.checkPlacedCPUs(nodes, cpus.online)
	t.checkCores(nodes, cpus.cores)
	t.readDistances(nodes)
	t.checkMemory(nodes, proc, haveProc)

	pools := t.readPools(nodes, proc, haveProc)
	for i, n := range nodes {
		if n.hidden {
			continue
		}
		first, a := t.ghw.cells[n.id], cellOf(n.id)
		cell := topology.Cell{
			ID: topology.CellID(n.id), CPUs: t.confirmCPUs(n.id, n.cpus, cpus.cores),
			MemoryBytes:     confirm(t, a, nodeFile(n.id, "meminfo"), "memory_bytes", first.memory, max(0, n.mem.total)),
			MemoryFreeBytes: max(0, n.mem.free),
		}
		for j, d := range n.distances {
			if !nodes[j].hidden {
				cell.Distances = append(cell.Distances, d)
			}
		}
		for _, size := range slices.Sorted(maps.Keys(first.pages)) {
			confirm(t, a, nodeFile(n.id, "hugepages"), "pages of "+size.String(), first.pages[size], pools[i][size].total)
		}
		t.countPages(&cell, pools[i], host.BasePageSize)
		host.Cells = append(host.Cells, cell)
	}
	host.PageSizes = pageSizes(host.BasePageSize, pools, t)
}

// oneCell is the whole host as cell 0: a kernel without CONFIG_NUMA.
func (t *tree) oneCell(host *topology.Host, cpus cpuReading, proc meminfo, haveProc bool) {
	for _, cpu := range cpus.online {
		// cpu*/node* is a link that only a kernel with nodes makes.
		if nodes, ok := t.numbered(cpuDir+"/cpu"+topology.CPUSet{cpu}.String(), "node"); ok && !nodes.IsEmpty() {
			t.degrade("file_missing", nodeDir, about{}, "missing, but CPU %d is in node %s", cpu, list(nodes))
			break
		}
	}
	if !haveProc && !t.exists(procMeminfo) {
		t.degrade("file_missing", procMeminfo, cellOf(0), "missing, and no node tells of memory")
	}
	cell := topology.Cell{CPUs: cpus.online, MemoryBytes: max(0, proc.total), MemoryFreeBytes: max(0, proc.free), Distances: []int{10}}
	pools := t.hostPools(proc, haveProc)
	t.countPages(&cell, pools, host.BasePageSize)
	host.Cells = []topology.Cell{cell}
	host.PageSizes = pageSizes(host.BasePageSize, []map[topology.PageSize]pool{pools}, t)
}

// readNodes reads each online node's CPUs and memory. node/online decides which
// there are; it and the directories must agree.
func (t *tree) readNodes(dirs topology.CPUSet, online topology.CPUSet) []*node {
	ids := dirs
	if listed, ok := parsed(t, expected, nodeOnline, about{}, topology.ParseCPUSet); ok && !listed.SameAs(dirs) {
		t.degrade("cells_contradict", nodeOnline, about{}, "%s: %s, but there are directories of nodes %s", nodeOnline, list(listed), list(dirs))
		if both := listed.Intersection(dirs); !both.IsEmpty() {
			ids = both
		}
	}
	var nodes []*node
	for _, id := range ids {
		n := &node{id: id, mem: meminfo{total: -1, free: -1, hugeTotal: -1, hugeFree: -1, hugeSize: -1}}
		n.cpus = t.nodeCPUs(id, online)
		n.mem, n.haveMem = t.memory(mandatory, nodeFile(id, "meminfo"), cellOf(id), id)
		nodes = append(nodes, n)
	}
	return nodes
}

// memory reads a meminfo file, of a node or of the host for -1. A malformed line beside MemTotal
// degrades the host, and leaves what the others say.
func (t *tree) memory(n need, file string, a about, node int) (meminfo, bool) {
	m, ok := parsed(t, n, file, a, parseMeminfo(node))
	if m.malformed != "" {
		t.complain(expected, "file_malformed", file, a, "%s is not one number of its unit", m.malformed)
	}
	return m, ok
}

// nodeCPUs reads cpumap and cpulist, which must say the same; the mask decides.
// Kernels before 2.6.28 keep offline CPUs in it.
func (t *tree) nodeCPUs(id int, online topology.CPUSet) topology.CPUSet {
	maskFile, listFile := nodeFile(id, "cpumap"), nodeFile(id, "cpulist")
	mask, haveMask := parsed(t, expected, maskFile, cellOf(id), parseMask)
	listed, haveList := parsed(t, expected, listFile, cellOf(id), topology.ParseCPUSet)
	switch {
	case haveMask && haveList && !mask.SameAs(listed):
		t.degrade("cells_contradict", listFile, cellOf(id), "%s: %s, but %s: %s", listFile, list(listed), maskFile, list(mask))
	case !haveMask && !haveList:
		t.degrade("file_missing", maskFile, cellOf(id), "no CPUs can be read")
	case !haveMask:
		mask = listed
	}
	return mask.Intersection(online)
}

// hideGPUs leaves out the nodes that are memory of an NVIDIA GPU, which the
// driver gives to the kernel as nodes without CPUs (POWER with NVLink, Grace). It
// is not for guests: the GPU resets with what lies in it.
func (t *tree) hideGPUs(nodes []*node) {
	gpus, ok := t.names(nvidiaGPUs)
	if !ok && !t.exists(procMeminfo) {
		// Without /proc nobody tells a GPU's memory from the host's.
		for _, n := range nodes {
			if n.cpus.IsEmpty() && n.mem.total > 0 {
				t.degrade("file_missing", procMeminfo, cellOf(n.id), "missing, and node %d without CPUs may be the memory of a GPU", n.id)
			}
		}
	}
	slices.Sort(gpus)
	for _, gpu := range gpus {
		file := nvidiaGPUs + "/" + gpu + "/numa_status"
		text, ok := t.text(expected, file, about{})
		id, found := parseGPUNode(text)
		if !ok || !found {
			continue
		}
		for _, n := range nodes {
			if n.id == id && n.cpus.IsEmpty() {
				n.hidden = true
				t.remark("gpu_memory", file, cellOf(id), "node %d is the memory of GPU %s and no cell", id, gpu)
			}
		}
	}
}

// hideOverlaps leaves out a node that shares CPUs with a lower one: a CPU is in
// one cell. Buggy firmware and numa=fake make such nodes.
func (t *tree) hideOverlaps(nodes []*node) {
	var taken topology.CPUSet
	for _, n := range nodes {
		if n.hidden {
			continue
		}
		if both := n.cpus.Intersection(taken); !both.IsEmpty() {
			n.hidden = true
			t.degrade("cells_overlap", nodeFile(n.id, "cpumap"), cellOf(n.id), "node %d is left out: its CPUs %s are in a lower node too", n.id, list(both))
			continue
		}
		taken = taken.Union(n.cpus)
	}
}

// checkPlacedCPUs sees that each online CPU is in a cell, and in the one that the
// links between CPU and node tell.
func (t *tree) checkPlacedCPUs(nodes []*node, online topology.CPUSet) {
	var placed topology.CPUSet
	for _, n := range nodes {
		placed = placed.Union(n.cpus)
		linked, _ := t.numbered(nodeDir+"/node"+topology.CPUSet{n.id}.String(), "cpu")
		if linked = linked.Intersection(online); !linked.IsEmpty() && !linked.SameAs(n.cpus) {
			file := nodeFile(n.id, "cpumap")
			t.degrade("cells_contradict", file, cellOf(n.id), "%s: %s, but the links of node %d name %s", file, list(n.cpus), n.id, list(linked))
		}
	}
	if lost := online.Difference(placed); !lost.IsEmpty() {
		t.degrade("cpu_without_cell", nodeDir, about{}, "CPUs %s are online and in no node of %s", list(lost), nodeDir)
	}
}

// checkCores sees that no core lies in two cells; the kernel warns of the same
// ("smt-sibling is not on the same node"). The cells stay as they are told.
func (t *tree) checkCores(nodes []*node, cores []topology.CPUSet) {
	for _, n := range nodes {
		if n.hidden {
			continue
		}
		var cut topology.CPUSet
		for _, core := range cores {
			if in := core.Intersection(n.cpus); !in.IsEmpty() && in.Len() < core.Len() {
				cut = cut.Union(in)
			}
		}
		if !cut.IsEmpty() {
			file := nodeFile(n.id, "cpumap")
			t.degrade("cells_contradict", file, cellOf(n.id), "%s: %s, but CPUs %s share their cores with CPUs outside", file, list(n.cpus), list(cut))
		}
	}
}

// readDistances reads each node's row, which has one number per online node in
// ascending order, however sparse their numbers.
func (t *tree) readDistances(nodes []*node) {
	any := false
	for _, n := range nodes {
		file := nodeFile(n.id, "distance")
		row, ok := parsed(t, expected, file, cellOf(n.id), parseDistances)
		any = any || ok || t.exists(file)
		switch {
		case !ok:
		case len(row) != len(nodes):
			t.degrade("distances_contradict", file, cellOf(n.id), "%s: %s for %s", file, counted(int64(len(row)), "distance"), counted(int64(len(nodes)), "node"))
		default:
			n.distances = row
		}
	}
	for _, n := range nodes {
		switch file := nodeFile(n.id, "distance"); {
		case len(nodes) == 1 && n.distances == nil:
			n.distances = []int{10} // to itself, by definition of the scale
		case any && !t.exists(file):
			t.degrade("file_missing", file, cellOf(n.id), "missing")
		}
	}
}

// checkMemory compares the nodes' memory with /proc/meminfo's; the package
// comment tells why the two may differ.
func (t *tree) checkMemory(nodes []*node, proc meminfo, haveProc bool) {
	var sum int64
	for _, n := range nodes {
		if !n.haveMem {
			return // said already
		}
		sum += n.mem.total
	}
	if !haveProc {
		return
	}
	slack := proc.total / 8
	switch {
	case sum > proc.total+slack:
		t.degrade("memory_contradicts", procMeminfo, about{}, "%s: %d bytes, but the nodes have %d", procMeminfo, proc.total, sum)
	case sum < proc.total-slack:
		t.remark("memory_differs", procMeminfo, about{}, "%s: %d bytes, the nodes have %d, which is used", procMeminfo, proc.total, sum)
	}
}
