package topology

import "fmt"

// CellID is the kernel's number of a NUMA node; numbers may be sparse.
type CellID int

// UnknownCell stands where the kernel names no node (PCI numa_node -1).
const UnknownCell CellID = -1

// PageSize is the size of a memory page in bytes.
type PageSize int64

// The sizes that guests ask for by name on x86.
const (
	PageSize4K PageSize = 4 << 10
	PageSize2M PageSize = 2 << 20
	PageSize1G PageSize = 1 << 30
)

// String gives the size with the largest unit that divides it, "2MiB".
func (p PageSize) String() string {
	for _, u := range []struct {
		bytes PageSize
		name  string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if p >= u.bytes && p%u.bytes == 0 {
			return fmt.Sprintf("%d%s", p/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(p))
}

// Pages counts pages by their size. A size that is not in the map has none.
type Pages map[PageSize]int64

// Cell is one NUMA node with CPUs, memory or both. A host whose kernel knows no
// NUMA nodes has one cell, with id 0.
type Cell struct {
	ID CellID `json:"id"`

	// CPUs are the online CPUs of the cell (node*/cpumap); empty in a cell of
	// memory only. Offline CPUs stand in no list.
	CPUs CPUSet `json:"cpus"`

	// MemoryBytes is MemTotal of node*/meminfo; zero in a cell of CPUs only.
	MemoryBytes int64 `json:"memory_bytes"`

	// MemoryFreeBytes is MemFree of node*/meminfo, a moving value; zero when
	// the kernel does not tell.
	MemoryFreeBytes int64 `json:"memory_free_bytes"`

	// Pages counts all pages by size: each pool of huge pages
	// (node*/hugepages/*/nr_hugepages), and the base pages that the pools
	// leave, (MemoryBytes − Σ pools) / base size. A size with no page is left
	// out; Host.PageSizes lists every size the kernel can serve.
	Pages Pages `json:"pages"`

	// PagesFree counts the free pages by size (free_hugepages; base pages from
	// MemFree), a moving value.
	PagesFree Pages `json:"pages_free"`

	// Distances are the firmware's relative costs from this cell to each cell
	// of the host, in the order of Host.Cells; 10 is local (node*/distance).
	// Nil when unknown.
	Distances []int `json:"distances"`
}
