// Package flavor is stage one of a placement: what a flavor's extra specs and
// an image's properties, in Nova's words, ask of a host. Topology gives the
// guest's NUMA topology, PCIRequests its PCI devices, LockedMemory whether its
// memory is to be locked; claims/fit then places them.
//
// It reads its arguments, writes nothing, and imports only topology and the table of live
// migrations' options. The rules
// and their order are those of numa_get_constraints in Nova's
// virt/hardware.py and of pci/request.py (master of August 2026; stage one is
// the same there as in 26.2.2 but for the live_migratable, traits and
// resource_class of an alias).
//
// Invariants:
//
//   - the guest topology is the one Nova builds from the same words, and the
//     first error of an Errors is the one Nova raises, under its class's name;
//     the others are what the user would meet next;
//   - what Nova accepts by accident and no host could give (cells without
//     memory, more cells than QEMU has, page sizes below zero or above any
//     machine's) is refused too, after Nova's own faults; such an error names
//     no class of Nova's unless Nova's API refuses the value under that class;
//   - work and memory are bounded by the length of the texts and by MaxVCPUs,
//     never by a number in a text: "0-4294967295" costs as much as "0-3".
//
// Numbers are read as Python's int() reads them: white space around them, a
// sign, underscores between digits. Digits other than ASCII's are refused.
package flavor

import "berth/topology"

// The bounds of a guest.
const (
	MaxVCPUs = topology.MaxVCPUs
	MaxCells = topology.MaxCells
	maxMB    = topology.MaxMemoryMB
)

// IOThreads is how many I/O threads a guest has. No extra spec and no image
// property says so: Nova, since 2026.1, gives every guest exactly one and pins
// it to the CPUs of the emulator threads. Guests that were started before may
// have none, which a move must not change into a pin of a thread that is not
// there (Nova's bugs 2140537, 2139351 and 2152697).
const IOThreads = 1

// Image are the properties of an image that say how its guests want to run
// (hw_cpu_policy, hw_numa_nodes, hw_numa_cpus.0, trait:…), each as text.
// Numbers and booleans of other sources are to be written out before. Nil is an
// image without properties.
type Image map[string]string

// reader reads one flavor and one image and gathers their faults.
type reader struct {
	specs    map[string]string // the flavor's extra specs
	image    Image
	vcpus    int
	memoryMB int64
	errs     Errors
}

func newReader(f topology.Flavor, image Image) *reader {
	return &reader{specs: f.ExtraSpecs, image: image, vcpus: f.VCPUs, memoryMB: f.MemoryMB}
}

// sized notes a flavor of impossible size, of which nothing else may be read.
func (r *reader) sized() bool {
	if r.vcpus < 1 || r.vcpus > MaxVCPUs {
		r.fault("vcpus", "vcpus_out_of_range", "", "%d: want 1 to %d", r.vcpus, MaxVCPUs)
	}
	if r.memoryMB < 1 || r.memoryMB > maxMB {
		r.fault("memory_mb", "memory_out_of_range", "", "%d: want 1 to %d", r.memoryMB, maxMB)
	}
	return len(r.errs) == 0
}
