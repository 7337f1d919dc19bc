package topology

import "slices"

// Health says whether a Host may be believed.
type Health string

// The healths of a Host.
const (
	// HealthOK: every mandatory file was read, and the tables agree. Reasons may
	// still name harmless differences.
	HealthOK Health = "ok"

	// HealthDegraded: tables of the host contradict themselves, or a mandatory
	// part of a cell or device could not be read. Reasons say which. What stands
	// in the Host is the best reading, not a proof.
	HealthDegraded Health = "degraded"
)

// Reason is one remark on how a Host was read.
type Reason struct {
	Code    string      `json:"code"`             // stable, for programs: "cell_cpus_contradict"
	Message string      `json:"message"`          // for operators, names the file or both values
	File    string      `json:"file,omitempty"`   // the file under the root, "sys/devices/system/node/node0/meminfo"
	Cell    *CellID     `json:"cell,omitempty"`   // the cell it is about; nil when not about one
	Device  *PCIAddress `json:"device,omitempty"` // the PCI function it is about; nil when not about one

	// Degrades says that this reason makes the host degraded; false for a
	// remark, such as a fact that ghw reads otherwise than sysfs.
	Degrades bool `json:"degrades"`
}

// Package is one CPU package (socket).
type Package struct {
	ID   *int   `json:"id"` // cpu*/topology/physical_package_id, sparse; nil when the firmware tells none
	CPUs CPUSet `json:"cpus"`
}

// Die is one die in a package.
type Die struct {
	ID      *int   `json:"id"`      // cpu*/topology/die_id, unique in its package; nil when unknown
	Package *int   `json:"package"` // Package.ID
	CPUs    CPUSet `json:"cpus"`
}

// Host is the hardware of one host at one reading.
type Host struct {
	Health  Health   `json:"health"`
	Reasons []Reason `json:"reasons"`

	// Cells are the NUMA nodes in ascending id; never empty in a Host that was
	// read without an error.
	Cells []Cell `json:"cells"`

	// Cores are the sets of online CPUs that share one physical core (SMT
	// siblings), ascending by their first CPU. A CPU without siblings is a set
	// of one. Empty where the kernel does not tell who shares a core (some
	// s390, alpha), which is not the same as nobody.
	Cores []CPUSet `json:"cores"`

	Packages []Package `json:"packages"` // ascending by first CPU
	Dies     []Die     `json:"dies"`     // ascending by first CPU; empty when the kernel tells of none

	// LastLevelCaches are the sets of online CPUs that share a cache of the
	// highest level that holds data (cpu*/cache/index*), ascending by first CPU.
	// No CPU is in two of them; one whose caches are unknown is in none. Empty
	// when the kernel tells of none.
	LastLevelCaches []CPUSet `json:"last_level_caches,omitempty"`

	OfflineCPUs  CPUSet `json:"offline_cpus"`  // present but switched off; in no other list
	IsolatedCPUs CPUSet `json:"isolated_cpus"` // kept from the scheduler (isolcpus=); online ones

	// PCI are the PCI functions in ascending address.
	PCI []PCIDevice `json:"pci"`

	// Mdevs are the mediated devices that were made of PCI functions, ascending by
	// uuid.
	Mdevs []Mdev `json:"mdevs,omitempty"`

	// BasePageSize is the size of an ordinary page; PageSizes are all sizes the
	// kernel can serve, ascending, base size first, pools of no page included.
	BasePageSize PageSize   `json:"base_page_size"`
	PageSizes    []PageSize `json:"page_sizes"`
}

// Cell gives the cell of that id, or false.
func (h *Host) Cell(id CellID) (*Cell, bool) {
	i, ok := slices.BinarySearchFunc(h.Cells, id, func(c Cell, id CellID) int { return int(c.ID) - int(id) })
	if !ok {
		return nil, false
	}
	return &h.Cells[i], true
}

// Device gives the PCI function of that address, or false.
func (h *Host) Device(a PCIAddress) (*PCIDevice, bool) {
	i, ok := slices.BinarySearchFunc(h.PCI, a, func(d PCIDevice, a PCIAddress) int { return d.Address.Compare(a) })
	if !ok {
		return nil, false
	}
	return &h.PCI[i], true
}

// CPUs are all online CPUs of the host, those that are in no cell included.
func (h *Host) CPUs() CPUSet {
	var all []int
	for _, c := range h.Cells {
		all = append(all, c.CPUs...)
	}
	for _, c := range h.Cores {
		all = append(all, c...)
	}
	return NewCPUSet(all...)
}

// MemoryBytes is the sum of the cells' memory.
func (h *Host) MemoryBytes() int64 {
	var sum int64
	for _, c := range h.Cells {
		sum += c.MemoryBytes
	}
	return sum
}

// Distance is the firmware's cost from one cell to another, 10 for local; false
// when a cell or its distances are unknown.
func (h *Host) Distance(from, to CellID) (int, bool) {
	c, ok := h.Cell(from)
	if !ok || len(c.Distances) != len(h.Cells) {
		return 0, false
	}
	i := slices.IndexFunc(h.Cells, func(c Cell) bool { return c.ID == to })
	if i < 0 {
		return 0, false
	}
	return c.Distances[i], true
}
