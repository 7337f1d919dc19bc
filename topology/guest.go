package topology

// CPUPolicy is how a guest's vCPUs get host CPUs (hw:cpu_policy).
type CPUPolicy string

// The policies.
const (
	CPUPolicyNone      CPUPolicy = ""          // none asked: as shared
	CPUPolicyShared    CPUPolicy = "shared"    // vCPUs float over the host's shared CPUs
	CPUPolicyDedicated CPUPolicy = "dedicated" // each vCPU has a host CPU to itself
	CPUPolicyMixed     CPUPolicy = "mixed"     // some vCPUs dedicated, the others shared
)

// Pins reports whether a guest cell of this policy may hold dedicated vCPUs.
// Its memory is then held against what is free of a host cell, not against all
// of it.
func (p CPUPolicy) Pins() bool { return p == CPUPolicyDedicated || p == CPUPolicyMixed }

// ThreadPolicy is what dedicated vCPUs ask of SMT siblings
// (hw:cpu_thread_policy).
type ThreadPolicy string

// The policies.
const (
	ThreadPolicyNone    ThreadPolicy = ""        // none asked: as prefer
	ThreadPolicyPrefer  ThreadPolicy = "prefer"  // siblings where there are some
	ThreadPolicyIsolate ThreadPolicy = "isolate" // a whole core for each vCPU, its other threads idle
	ThreadPolicyRequire ThreadPolicy = "require" // only threads that share cores
)

// EmulatorPolicy is where a guest's emulator threads run
// (hw:emulator_threads_policy).
type EmulatorPolicy string

// The policies.
const (
	EmulatorNone    EmulatorPolicy = ""        // none asked: where the guest's vCPUs run
	EmulatorShare   EmulatorPolicy = "share"   // on the host's shared CPUs
	EmulatorIsolate EmulatorPolicy = "isolate" // on one more dedicated CPU, taken beside guest cell 0
)

// PageRequest is the page size that a guest cell asks for
// (hw:mem_page_size): one of the words below, or a size in bytes.
type PageRequest int64

// The words.
const (
	PagesDefault PageRequest = 0  // none asked: the host's smallest pages, not locked
	PagesSmall   PageRequest = -1 // the smallest size the host cell has
	PagesLarge   PageRequest = -2 // any but the smallest
	PagesAny     PageRequest = -3 // any, the largest that fits
)

// Takes reports whether a page size will do, the i-th smallest of its host cell
// from 0. No size will do where none was asked for.
func (p PageRequest) Takes(i int, size PageSize) bool {
	switch p {
	case PagesSmall:
		return i == 0
	case PagesLarge:
		return i > 0
	case PagesAny:
		return true
	}
	return PageSize(p) == size
}

// GuestTopology is the NUMA topology of a guest: what stage one makes of a
// flavor's extra specs and an image's properties (Nova's
// InstanceNUMATopology). A guest without one is a nil pointer: it asks for
// amounts of the host as a whole.
type GuestTopology struct {
	Emulator EmulatorPolicy `json:"emulator_threads_policy,omitempty"`
	Cells    []GuestCell    `json:"cells"` // guest cell i is entry i; never empty

	// Realtime are the vCPUs that run with realtime priority
	// (hw:cpu_realtime_mask); dedicated ones.
	Realtime CPUSet `json:"realtime_vcpus,omitempty"`
}

// GuestCell is one NUMA cell of a guest. Its vCPUs are guest numbers from 0.
type GuestCell struct {
	SharedVCPUs    CPUSet       `json:"shared_vcpus"`
	DedicatedVCPUs CPUSet       `json:"dedicated_vcpus"`
	MemoryMB       int64        `json:"memory_mb"` // MiB
	PageSize       PageRequest  `json:"page_size,omitempty"`
	CPUPolicy      CPUPolicy    `json:"cpu_policy,omitempty"`
	ThreadPolicy   ThreadPolicy `json:"cpu_thread_policy,omitempty"`
}

// VCPUs are all vCPUs of the cell.
func (c GuestCell) VCPUs() CPUSet { return c.SharedVCPUs.Union(c.DedicatedVCPUs) }

// CPUs are how many vCPUs float over shared CPUs of a host, and how many of its
// CPUs the guest has to itself: one for each dedicated vCPU, and one more for
// isolated emulator threads.
func (t *GuestTopology) CPUs() (shared, dedicated int) {
	for _, c := range t.Cells {
		shared += c.SharedVCPUs.Len()
		dedicated += c.DedicatedVCPUs.Len()
	}
	if t.Emulator == EmulatorIsolate {
		dedicated++
	}
	return shared, dedicated
}

// Clone shares no memory with t; nil gives nil.
func (t *GuestTopology) Clone() *GuestTopology {
	if t == nil {
		return nil
	}
	c := *t
	c.Cells = append([]GuestCell(nil), t.Cells...) // CPU sets are never changed in place
	return &c
}

// PCIAffinity says which devices a request may take with regard to the guest's
// cells (hw:pci_numa_affinity_policy, the alias's numa_policy).
type PCIAffinity string

// The affinities.
const (
	AffinityLegacy    PCIAffinity = "legacy"    // on a cell of the guest, or of unknown cell; also for ""
	AffinityPreferred PCIAffinity = "preferred" // anywhere, best on a cell of the guest
	AffinityRequired  PCIAffinity = "required"  // on a cell of the guest only
	AffinitySocket    PCIAffinity = "socket"    // on the socket of a cell of the guest
)

// PCIType is Nova's type of a PCI function.
type PCIType string

// The types.
const (
	PCITypeFunction PCIType = "type-PCI" // neither of the others
	PCITypePF       PCIType = "type-PF"  // a physical function with SR-IOV
	PCITypeVF       PCIType = "type-VF"  // a virtual function
)

// PCIRequest asks for a number of like PCI functions (an alias of
// pci_passthrough:alias).
type PCIRequest struct {
	ID       string      `json:"request"` // unique in the guest
	Count    int         `json:"count"`
	Specs    []PCISpec   `json:"specs"` // a device matches one of them
	Affinity PCIAffinity `json:"numa_policy,omitempty"`
}

// PCISpec is what a device must be. An empty field asks for nothing.
type PCISpec struct {
	Vendor  string            `json:"vendor_id,omitempty"`  // four hexadecimal digits, "8086"
	Product string            `json:"product_id,omitempty"` // four hexadecimal digits, "1563"
	Type    PCIType           `json:"dev_type,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"` // of the host's device_spec: physical_network, live_migratable, …
}
