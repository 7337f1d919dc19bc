package topology

import "math"

// The most that one guest can have. They bound what is taken from requests,
// flavors, peers and domain XML, so that no sum of such amounts overflows.
const (
	MaxVCPUs    = 4096    // QEMU's q35 (max_cpus) and KVM (KVM_MAX_VCPUS) end there
	MaxMemoryMB = 1 << 30 // MiB, 1 PiB: more than QEMU's x86 and ARM machines boot with, within Placement's 32-bit amounts
	MaxDiskGB   = 1 << 30 // GiB, 1 EiB: within Placement's 32-bit amounts (db.constants.MAX_INT)
	MaxCells    = 128     // QEMU's MAX_NODES and Nova's NUMA_NODES_MAX

	// MaxPCIFunctions is how many functions a PCI domain has: 256 buses of 32
	// devices of 8 functions. All requests of a guest together ask for no more.
	MaxPCIFunctions = 1 << 16

	// MaxPCIRequests and MaxPCISpecs bound the requests of a guest and the specs
	// of all of them together; MaxPCITags the tags of one spec. Arbitrary: a PCIe
	// guest has 32 slots on its root, and a host a few kinds of device.
	MaxPCIRequests = 256
	MaxPCISpecs    = 1024
	MaxPCITags     = 64
)

// AddCapped gives a + b, or the end of int64 that the sum would run over.
func AddCapped(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}
