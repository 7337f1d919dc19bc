package topology

import "slices"

// Assignment is what a guest was given of a host: a cell for each of its cells,
// CPUs, pages and devices. It says the same on every reading: a claim keeps it,
// the domain document is written from it. The zero value is that of a guest
// that floats over the host and has no device.
type Assignment struct {
	Cells   []AssignedCell   `json:"cells,omitempty"` // guest cell i is entry i; empty for a guest without NUMA topology
	Devices []AssignedDevice `json:"devices,omitempty"`

	// Mdevs are uuids of mediated devices, lower case with dashes, ascending
	// (sys/bus/mdev/devices/UUID). One guest has each.
	Mdevs []string `json:"mdevs,omitempty"`
}

// AssignedCell is the host cell that a guest cell was given. Each guest cell
// has a host cell of its own.
type AssignedCell struct {
	HostCell CellID   `json:"host_cell"`
	MemoryMB int64    `json:"memory_mb"`           // MiB
	PageSize PageSize `json:"page_size,omitempty"` // bytes, where the guest asked for a size; 0 for ordinary memory
	Shared   int      `json:"shared_vcpus"`        // how many vCPUs float over the shared CPUs of the host cell
	Pins     []Pin    `json:"pins,omitempty"`      // ascending by vCPU

	// Emulator are CPUs that the guest's emulator threads have to themselves.
	Emulator CPUSet `json:"emulator_cpus,omitempty"`

	// Idle are siblings of pinned CPUs that stay empty for the guest's sake
	// (thread policy isolate); nobody else may be pinned to them.
	Idle CPUSet `json:"idle_cpus,omitempty"`
}

// Pin gives a dedicated vCPU its host CPU.
type Pin struct {
	VCPU int `json:"vcpu"`
	CPU  int `json:"cpu"`
}

// AssignedDevice is a PCI function of the host that a guest was given.
type AssignedDevice struct {
	Request string     `json:"request"` // PCIRequest.ID
	Address PCIAddress `json:"address"`
	Vendor  string     `json:"vendor_id"` // four hexadecimal digits
	Product string     `json:"product_id"`
	Type    PCIType    `json:"dev_type"`
	Cell    CellID     `json:"numa_node"` // UnknownCell when unknown

	// Managed says that libvirt unbinds and rebinds the host's driver; false for
	// variant drivers that stay bound (device_spec's managed).
	Managed        bool `json:"managed"`
	LiveMigratable bool `json:"live_migratable"`
}

// Pinned are all host CPUs that the guest's dedicated vCPUs run on.
func (c AssignedCell) Pinned() CPUSet {
	cpus := make([]int, len(c.Pins))
	for i, p := range c.Pins {
		cpus[i] = p.CPU
	}
	return NewCPUSet(cpus...)
}

// Exclusive are the CPUs of the cell that nobody else may have: pinned ones,
// the emulator's and the idle ones.
func (c AssignedCell) Exclusive() CPUSet {
	return c.Pinned().Union(c.Emulator).Union(c.Idle)
}

// IsZero reports whether the guest floats and has no device.
func (a Assignment) IsZero() bool {
	return len(a.Cells) == 0 && len(a.Devices) == 0 && len(a.Mdevs) == 0
}

// Clone shares no memory with a that anyone changes in place.
func (a Assignment) Clone() Assignment {
	cells := slices.Clone(a.Cells)
	for i := range cells {
		cells[i].Pins = slices.Clone(cells[i].Pins)
	}
	return Assignment{Cells: cells, Devices: slices.Clone(a.Devices), Mdevs: slices.Clone(a.Mdevs)}
}
