package hwdiscovery

import (
	"maps"
	"slices"

	"berth/topology"
)

// pool counts the huge pages of one size in one place.
type pool struct{ total, free int64 }

type pools = map[topology.PageSize]pool

// poolsIn reads the pools below a directory, each "hugepages-SIZEkB" with
// nr_hugepages and free_hugepages; false when there is no such directory.
func (t *tree) poolsIn(dir string, a about) (pools, bool) {
	names, ok := t.names(dir)
	if !ok {
		return nil, false
	}
	slices.Sort(names)
	found := pools{}
	for _, name := range names {
		size, err := parsePoolName(name)
		if err != nil {
			t.degrade("file_malformed", dir+"/"+name, a, "%v", err)
			continue
		}
		total, ok := parsed(t, mandatory, dir+"/"+name+"/nr_hugepages", a, parseCount)
		if !ok {
			continue
		}
		free, _ := parsed(t, optional, dir+"/"+name+"/free_hugepages", a, parseCount)
		found[size] = pool{total, min(free, total)}
	}
	return found, true
}

// readPools gives each node's pools. Kernels before 2.6.32 have pools of the
// host only, and each node's count of the default size in its meminfo.
func (t *tree) readPools(nodes []*node, proc meminfo, haveProc bool) []pools {
	perNode := make([]pools, len(nodes))
	var without []int
	for i, n := range nodes {
		p, ok := t.poolsIn(nodeFile(n.id, "hugepages"), cellOf(n.id))
		if !ok {
			without = append(without, i)
			p = pools{}
			switch {
			case n.mem.hugeTotal <= 0:
			case proc.hugeSize > 0:
				p[topology.PageSize(proc.hugeSize)] = pool{n.mem.hugeTotal, max(0, n.mem.hugeFree)}
			default:
				t.degrade("file_missing", procMeminfo, cellOf(n.id), "does not tell the size of the %s of node %d", counted(n.mem.hugeTotal, "huge page"), n.id)
			}
		}
		perNode[i] = p
	}
	if len(without) > 0 && len(without) < len(nodes) {
		for _, i := range without {
			t.degrade("file_missing", nodeFile(nodes[i].id, "hugepages"), cellOf(nodes[i].id), "missing")
		}
	}
	host, ok := t.poolsIn(hugepagesDir, about{})
	if !ok {
		return perNode
	}
	t.checkProcPool(host, proc, haveProc)
	for _, size := range slices.Sorted(maps.Keys(host)) {
		var sum int64
		for i := range nodes {
			p, has := perNode[i][size]
			sum += p.total
			if !has && len(without) == 0 {
				t.degrade("pages_contradict", nodeFile(nodes[i].id, "hugepages"), cellOf(nodes[i].id), "no pool of %s, which %s has", size, hugepagesDir)
			}
		}
		if sum != host[size].total {
			t.degrade("pages_contradict", hugepagesDir, about{}, "%s: %s of %s, but the nodes have %d", hugepagesDir, counted(host[size].total, "page"), size, sum)
		}
	}
	return perNode
}

// hostPools gives the pools of a host that is one cell.
func (t *tree) hostPools(proc meminfo, haveProc bool) pools {
	host, ok := t.poolsIn(hugepagesDir, cellOf(0))
	if ok {
		t.checkProcPool(host, proc, haveProc)
		return host
	}
	host = pools{}
	if haveProc && proc.hugeTotal >= 0 && proc.hugeSize > 0 {
		host[topology.PageSize(proc.hugeSize)] = pool{proc.hugeTotal, max(0, proc.hugeFree)}
	}
	return host
}

// checkProcPool compares the pool of the default size with /proc/meminfo.
func (t *tree) checkProcPool(host pools, proc meminfo, haveProc bool) {
	if !haveProc || proc.hugeSize <= 0 || proc.hugeTotal < 0 {
		return
	}
	size := topology.PageSize(proc.hugeSize)
	if p, ok := host[size]; ok && p.total != proc.hugeTotal {
		t.degrade("pages_contradict", procMeminfo, about{}, "%s: %s of %s, but %s has %d", procMeminfo, counted(proc.hugeTotal, "page"), size, hugepagesDir, p.total)
	}
}

// countPages fills a cell's pages: each pool, and the base pages they leave.
// Sizes with no page are left out.
func (t *tree) countPages(cell *topology.Cell, ps pools, base topology.PageSize) {
	cell.Pages, cell.PagesFree = topology.Pages{}, topology.Pages{}
	rest := cell.MemoryBytes
	for _, size := range slices.Sorted(maps.Keys(ps)) {
		p := ps[size]
		if p.total == 0 {
			continue
		}
		if p.total > rest/int64(size) {
			// A cell whose memory could not be read has said so already.
			if cell.MemoryBytes > 0 {
				t.degrade("pages_contradict", "", cellOf(int(cell.ID)), "cell %d: %s of %s do not fit its %d bytes", cell.ID, counted(p.total, "page"), size, cell.MemoryBytes)
			}
			rest = 0
		} else {
			rest -= p.total * int64(size)
		}
		cell.Pages[size] = p.total
		if p.free > 0 {
			cell.PagesFree[size] = p.free
		}
	}
	if n := rest / int64(base); n > 0 {
		cell.Pages[base] = n
		if free := min(n, cell.MemoryFreeBytes/int64(base)); free > 0 {
			cell.PagesFree[base] = free
		}
	}
}

// pageSizes lists every size that the kernel can serve.
func pageSizes(base topology.PageSize, perNode []pools, t *tree) []topology.PageSize {
	sizes := []topology.PageSize{base}
	for _, p := range perNode {
		sizes = slices.AppendSeq(sizes, maps.Keys(p))
	}
	names, _ := t.names(hugepagesDir)
	for _, name := range names {
		if size, err := parsePoolName(name); err == nil {
			sizes = append(sizes, size)
		}
	}
	return sizes
}
