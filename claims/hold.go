package claims

import (
	"cmp"
	"slices"

	"berth/topology"
)

// hold is what the arithmetic counts: of a claim, of a claim while a change of
// it is on its way (old and new together), of an instance (all its claims here
// together). Holds are values; none is changed once made.
type hold struct {
	resources  topology.Resources
	ordinaryMB int64           // of the memory, how much is in ordinary pages, bound to a cell or floating
	cpus       topology.CPUSet // that nobody else may have
	cells      []cellHold      // ascending by id
	devices    []topology.PCIAddress
	mdevs      []string // uuids, ascending
}

// cellHold is what is held of one cell of the host.
type cellHold struct {
	id         topology.CellID
	shared     int   // vCPUs on its shared CPUs
	memoryMB   int64 // pages of every size
	ordinaryMB int64
	pages      []pagesHold // of pools, ascending by size
}

type pagesHold struct {
	size  topology.PageSize
	count int64
}

const mib = 1 << 20

// pagesFor is how many pages hold so much memory.
func pagesFor(mb int64, size topology.PageSize) int64 {
	return (mb*mib + int64(size) - 1) / int64(size)
}

// hold is what a claim holds of this machine. Pages of a cell's smallest size
// are ordinary memory, whether asked for or not.
func (m *machine) hold(r topology.Resources, a topology.Assignment) hold {
	h := hold{resources: r, cpus: exclusive(a.Cells)}
	if len(a.Cells) == 0 {
		h.ordinaryMB = r.MemoryMB
	}
	for _, c := range a.Cells {
		one := cellHold{id: c.HostCell, shared: c.Shared, memoryMB: c.MemoryMB}
		if c.PageSize == 0 || c.PageSize == m.ordinarySize(c.HostCell) {
			one.ordinaryMB = c.MemoryMB
		} else {
			one.pages = []pagesHold{{c.PageSize, pagesFor(c.MemoryMB, c.PageSize)}}
		}
		h.ordinaryMB += one.ordinaryMB
		h.cells = append(h.cells, one)
	}
	slices.SortStableFunc(h.cells, func(a, b cellHold) int { return cmp.Compare(a.id, b.id) })
	h.cells = joinCells(h.cells)
	for _, d := range a.Devices {
		h.devices = append(h.devices, d.Address)
	}
	slices.SortFunc(h.devices, topology.PCIAddress.Compare)
	h.devices = slices.Compact(h.devices)
	h.mdevs = slices.Compact(slices.Sorted(slices.Values(a.Mdevs)))
	return h
}

// joinCells sums the entries of one cell: a guest found here may have two of its
// cells on one of the host's.
func joinCells(cells []cellHold) []cellHold {
	out := cells[:0]
	for _, c := range cells {
		if n := len(out); n > 0 && out[n-1].id == c.id {
			last := &out[n-1]
			last.shared, last.memoryMB, last.ordinaryMB = last.shared+c.shared, last.memoryMB+c.memoryMB, last.ordinaryMB+c.ordinaryMB
			last.pages = mergePages(last.pages, c.pages, func(a, b int64) int64 { return a + b })
			continue
		}
		out = append(out, c)
	}
	return out
}

// union is what must be kept so that a guest can have either: of amounts the
// larger, of CPUs and devices all.
func (h hold) union(o hold) hold {
	u := hold{
		resources:  h.resources.Max(o.resources),
		ordinaryMB: max(h.ordinaryMB, o.ordinaryMB),
		cpus:       h.cpus.Union(o.cpus),
	}
	for i, j := 0, 0; i < len(h.cells) || j < len(o.cells); {
		switch {
		case j == len(o.cells) || i < len(h.cells) && h.cells[i].id < o.cells[j].id:
			u.cells = append(u.cells, h.cells[i])
			i++
		case i == len(h.cells) || o.cells[j].id < h.cells[i].id:
			u.cells = append(u.cells, o.cells[j])
			j++
		default:
			a, b := h.cells[i], o.cells[j]
			u.cells = append(u.cells, cellHold{
				id: a.id, shared: max(a.shared, b.shared), memoryMB: max(a.memoryMB, b.memoryMB), ordinaryMB: max(a.ordinaryMB, b.ordinaryMB),
				pages: mergePages(a.pages, b.pages, func(a, b int64) int64 { return max(a, b) }),
			})
			i, j = i+1, j+1
		}
	}
	u.devices = append(slices.Clone(h.devices), o.devices...)
	slices.SortFunc(u.devices, topology.PCIAddress.Compare)
	u.devices = slices.Compact(u.devices)
	u.mdevs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(h.mdevs, o.mdevs))))
	return u
}

func mergePages(a, b []pagesHold, join func(a, b int64) int64) []pagesHold {
	out := slices.Clone(a)
	for _, p := range b {
		i, found := slices.BinarySearchFunc(out, p.size, func(q pagesHold, size topology.PageSize) int { return cmp.Compare(q.size, size) })
		if found {
			out[i].count = join(out[i].count, p.count)
		} else {
			out = slices.Insert(out, i, p)
		}
	}
	return out
}
