// Package candidates asks Placement which hosts could take a guest, and puts them
// in order.
//
// Build, which reads nothing but its argument, writes a guest's wish down as one or
// more requests for allocation candidates; Find asks them and joins the answers;
// Explain says of a host that no answer named what stood in the way. The package
// writes nothing anywhere. What it finds is a proposal: the destination's claim
// decides, which knows CPUs, pages and devices one by one, where Placement counts.
//
// What goes first of several hosts is NearWeight's to say; near.go asks Placement's
// aggregates for it.
//
// A fleet may have hosts of both shapes of agent/inventory, so a guest with NUMA
// cells is asked for twice, and each host answers once:
//
//	flat    the sums, from providers without HW_NUMA_ROOT
//	nested  each guest cell's CPUs from one provider with HW_NUMA_ROOT, and its
//	        memory from one below it that has pages of a size that will do
//
// A guest that floats is asked for by sums of either shape. Since Placement takes
// all of a class from one provider, a nested host with enough in all its cells, and
// in none by itself, is looked for once more: hosts of which a cell has a little
// memory are asked for, and the sums are made here from Placement's summaries. Devices
// are groups of one device each, below the root or below a cell.
//
// What a request says is always necessary and need not be enough, because
// Placement tries every combination of providers for all groups of a host: at most
// maxCells cells and maxDevices devices are asked for by groups, and the rest is
// left to the destination's own check (Request.Left says what).
package candidates

import (
	"berth/placementclient"
	"berth/topology"
)

// Wish is what a guest asks of a host that it could be on.
type Wish struct {
	// Resources are what a claim for it holds; they decide over what the extra specs
	// say of VCPU, PCPU, MEMORY_MB and DISK_GB.
	Resources topology.Resources
	Topology  *topology.GuestTopology // nil for a guest that floats
	Devices   []topology.PCIRequest
	// ExtraSpecs are its flavor's: resources:, trait:, both with suffixes too, and
	// group_policy are read, as Nova reads them.
	ExtraSpecs map[string]string
	// Counted are the classes that its devices are counted as where it is; nil for a
	// guest that is nowhere yet. A host's device_spec may give a device another class
	// than an alias without resource_class says, which claims do not mind.
	Counted []string
	// Disk is the sharing provider that its disks are counted on now; the zero value
	// for none.
	Disk Disk
	// Source is the root provider of the host that it is on; empty for a guest that is
	// nowhere yet. Near is what it counts that another host is near to that one.
	Source string
	Near   NearWeight
}

// Disk is a provider that shares its DISK_GB.
type Disk struct {
	Provider   string
	Aggregates []string // those who are in one of them share it
}

// Shape is the shape of host that a request finds.
type Shape string

// The shapes.
const (
	Either Shape = "either"
	Flat   Shape = "flat"
	Nested Shape = "nested"
)

// Request is one question for candidates.
type Request struct {
	placementclient.CandidateRequest
	Shape Shape
	// SameDisk is asked of hosts that share the guest's disks: its DISK_GB is counted
	// where it is already, and not asked for again.
	SameDisk bool
	// HostRequired are traits that some provider of the host has, which no question
	// can say.
	HostRequired []string
	// Spread is for a guest that floats over cells: what it needs of CPUs and memory
	// is to be there in the sum of a host's providers, which the question does not
	// say. nil where the question says all.
	Spread placementclient.Resources
	// Left is what of the wish is not asked for, in an operator's words.
	Left []string
}

// The bounds of a request. Placement's work for one host is the product of the
// ways to serve each group: two cells and four devices on a host with eight of
// each are 8^8 at worst, and 2^4 times 8 squared on a usual one with two devices.
const (
	maxCells    = 2
	maxDevices  = 4
	maxVariants = 4 // of devices that an alias lets be of several kinds
)

// limit is how many candidates are asked for. Below it every host is considered; of
// a larger fleet, an arbitrary part. A nested host, or one with groups, gives
// several candidates.
const limit = 5000
