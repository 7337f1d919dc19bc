package placementclient

import (
	"fmt"
	"strconv"
	"strings"
)

// Resource classes that Berth uses, as os-resource-classes spells them.
const (
	ClassVCPU                 = "VCPU"
	ClassPCPU                 = "PCPU"
	ClassMemoryMB             = "MEMORY_MB"
	ClassDiskGB               = "DISK_GB"
	ClassPCIDevice            = "PCI_DEVICE"
	ClassSRIOVNetVF           = "SRIOV_NET_VF"
	ClassVGPU                 = "VGPU"
	ClassMemEncryptionContext = "MEM_ENCRYPTION_CONTEXT"
)

// Traits that Berth uses, as os-traits spells them.
const (
	TraitComputeNode                = "COMPUTE_NODE"
	TraitComputeStatusDisabled      = "COMPUTE_STATUS_DISABLED"
	TraitComputeManagedPCIDevice    = "COMPUTE_MANAGED_PCI_DEVICE"
	TraitHWNUMARoot                 = "HW_NUMA_ROOT"
	TraitHWCPUHyperthreading        = "HW_CPU_HYPERTHREADING"
	TraitMiscSharesViaAggregate     = "MISC_SHARES_VIA_AGGREGATE"
	TraitComputeMigrateAutoConverge = "COMPUTE_MIGRATE_AUTO_CONVERGE"
	TraitComputeMigratePostCopy     = "COMPUTE_MIGRATE_POST_COPY"
)

// Traits of providers below a NUMA cell whose MEMORY_MB is pages of one size.
// os-traits has none; the names are those of Nova's specification
// numa-topology-with-rps, its standard ones made custom.
const (
	TraitPageSizeSmall = traitPageSize + "SMALL" // the smallest size of the host
	TraitPageSizeLarge = traitPageSize + "LARGE" // any other
	traitPageSize      = CustomPrefix + "MEMORY_PAGE_SIZE_"
)

// TraitPageSize is the trait of the size itself, by its KiB:
// "CUSTOM_MEMORY_PAGE_SIZE_2048".
func TraitPageSize(bytes int64) string { return traitPageSize + strconv.FormatInt(bytes>>10, 10) }

// Consumer types (from microversion 1.38).
const (
	ConsumerInstance  = "INSTANCE"
	ConsumerMigration = "MIGRATION"
	// ConsumerUnknown is how a consumer written below 1.38 reads; it cannot be written.
	ConsumerUnknown = "unknown"
)

// CustomPrefix begins the name of every resource class and trait that is not in
// the standard lists.
const CustomPrefix = "CUSTOM_"

// Microversion is the minor number of Placement's API version 1.N.
type Microversion int

// String is the form of the OpenStack-API-Version header, "1.39".
func (v Microversion) String() string { return fmt.Sprintf("1.%d", int(v)) }

// The range this client speaks. Below 1.28 consumers have no generations, and a
// swap of two consumers could not be guarded; 1.39 has been the top since Zed.
const (
	MinMicroversion Microversion = 28
	MaxMicroversion Microversion = 39

	versionNested              Microversion = 29
	versionInTree              Microversion = 31
	versionForbiddenAggregates Microversion = 32
	versionNamedGroups         Microversion = 33
	versionMappings            Microversion = 34
	versionRootRequired        Microversion = 35
	versionSameSubtree         Microversion = 36
	versionConsumerTypes       Microversion = 38
	versionAnyTraits           Microversion = 39
)

// ParseMicroversion reads "1.N".
func ParseMicroversion(s string) (Microversion, error) {
	major, minor, ok := strings.Cut(s, ".")
	n := 0
	if !ok || major != "1" || minor == "" || len(minor) > 4 {
		return 0, fmt.Errorf("microversion %q: want 1.N", s)
	}
	for _, c := range minor {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("microversion %q: want 1.N", s)
		}
		n = n*10 + int(c-'0')
	}
	return Microversion(n), nil
}
