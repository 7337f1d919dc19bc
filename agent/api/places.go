package api

import (
	"time"

	"berth/claims"
	"berth/topology"
)

// Explanation is what a claim holds of this host, cell by cell, beside what was
// asked.
type Explanation struct {
	claims.Explanation
	Name string `json:"instance_name,omitempty"`
	Host string `json:"host"` // provider's name

	// EmulatorPolicy is where the hypervisor's own threads were asked to run, and
	// Realtime which vCPUs in real time; empty where nothing was asked or known.
	EmulatorPolicy topology.EmulatorPolicy `json:"emulator_threads_policy,omitempty"`
	Realtime       topology.CPUSet         `json:"realtime_vcpus,omitempty"`

	// SharedCPUs are the CPUs on which vCPUs without a CPU of their own run, of
	// each cell that the guest was given, or of all cells where it floats.
	SharedCPUs map[topology.CellID]topology.CPUSet `json:"host_shared_cpus,omitempty"`
}

// HostCell is one cell of the host as guests are fitted in it: what it has, and
// what is held of it. Memory is in MiB; the amounts of memory and pages count
// what is on its way too.
type HostCell struct {
	ID topology.CellID `json:"cell"`

	Dedicated     topology.CPUSet `json:"dedicated_cpus"`      // that may be a guest's alone
	DedicatedFree topology.CPUSet `json:"dedicated_cpus_free"` // of them, those that nobody has
	Pinned        topology.CPUSet `json:"pinned_cpus"`         // by dedicated vCPUs
	Emulator      topology.CPUSet `json:"emulator_cpus"`       // by isolated emulator threads
	Idle          topology.CPUSet `json:"idle_cpus"`           // siblings that are kept empty
	Shared        topology.CPUSet `json:"shared_cpus"`
	SharedVCPUs   int             `json:"shared_vcpus"` // of guests bound to the cell; those that float are in no cell

	MemoryMB     int64        `json:"memory_mb"`
	MemoryUsedMB int64        `json:"memory_used_mb"` // of guests bound to the cell
	Pages        []HostPages  `json:"pages"`          // ascending by size; the first are ordinary memory
	Devices      []HostDevice `json:"devices"`        // of the cell, that [pci] device_spec gives to guests
	Instances    []string     `json:"instances"`      // bound to the cell, by uuid
}

// HostPages is a pool of pages of one size, in pages.
type HostPages struct {
	Size     topology.PageSize `json:"page_size"` // bytes
	Total    int64             `json:"total"`
	Reserved int64             `json:"reserved"`
	Used     int64             `json:"used"`
	Free     int64             `json:"free"`
}

// HostDevice is a PCI function that guests may have.
type HostDevice struct {
	Address   topology.PCIAddress `json:"address"`
	Vendor    string              `json:"vendor_id"`
	Product   string              `json:"product_id"`
	Type      topology.PCIType    `json:"dev_type"`
	Instances []string            `json:"instances"`       // who has it, by uuid; more than one only by force
	Unfit     []string            `json:"unfit,omitempty"` // why no guest can get it
}

// Audit is the last time that the ledger was added up anew and held against
// itself and the host.
type Audit struct {
	claims.Audit
	At   time.Time     `json:"at"`
	Took time.Duration `json:"took"` // nanoseconds, for which claims waited
}
