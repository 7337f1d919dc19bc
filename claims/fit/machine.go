package fit

import "berth/topology"

// Cell is a NUMA cell of a host, what it has and what of it is in use.
type Cell struct {
	ID     topology.CellID
	Socket *int // nil when unknown

	Shared    topology.CPUSet   // CPUs that may run shared vCPUs
	Dedicated topology.CPUSet   // CPUs that may be pinned; the same as Shared on hosts with one set for both
	Cores     []topology.CPUSet // SMT siblings among the usable CPUs; a CPU that stands in none is a core of its own
	Caches    []topology.CPUSet // CPUs that share a last-level cache; nil when unknown

	MemoryMB, MemoryUsedMB int64
	SharedUsed             int             // shared vCPUs placed here
	Pinned                 topology.CPUSet // CPUs that are taken: pinned, emulators', idle siblings

	Pages   []Pages  // ascending by size; empty where the host tells no page sizes
	Network *Network // nil when no network has affinity to the cell
}

// Pages is a pool of memory pages of one size.
type Pages struct {
	Size                  topology.PageSize
	Total, Used, Reserved int64
}

// Free is how many pages a guest could get, never below zero.
func (p Pages) Free() int64 { return max(0, p.Total-p.Used-p.Reserved) }

// Network says which networks a cell is near to, or a guest uses.
type Network struct {
	Physical []string // physical networks
	Tunneled bool
}

// Pool is a number of like PCI functions that are free.
type Pool struct {
	Vendor, Product string // four hexadecimal digits
	Type            topology.PCIType
	Cell            topology.CellID // UnknownCell when unknown
	Tags            map[string]string
	Count           int

	// Excludes are indexes of pools that cannot be used beside this one: a PF
	// and its VFs.
	Excludes []int
}

// Limits are the ratios by which shared CPUs and memory of a cell are promised
// to guests that do not pin. Nil sets no limit.
type Limits struct {
	CPURatio, RAMRatio float64
	Network            *Network // the networks that the guest uses; nil for none
}

// Machine is a host as Place sees it, cell by cell.
type Machine struct {
	Cells  []Cell
	Pools  []Pool
	Limits *Limits
}

// Request is what a guest asks of a Machine.
type Request struct {
	Topology *topology.GuestTopology // nil for a guest without NUMA topology: only PCI is placed
	PCI      []topology.PCIRequest
}

// Placement is what Place found.
type Placement struct {
	Cells []topology.AssignedCell // in the order of the guest's cells
	PCI   []PoolUse
}

// PoolUse takes Count functions of a pool for a request.
type PoolUse struct{ Request, Pool, Count int }

// Answer is Place's.
type Answer struct {
	Placement Placement // when it fits

	// Reasons are why not, in the order of cells, then of requests; empty when
	// it fits.
	Reasons []Reason

	// Undecided says that the search's budget ended before the answer was
	// known; then Reasons says so. See the package doc.
	Undecided bool
	Steps     int // of the search, of at most Budget
}

// Fits reports whether a placement was found.
func (a Answer) Fits() bool { return len(a.Reasons) == 0 }
