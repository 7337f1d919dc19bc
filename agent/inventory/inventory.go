// Package inventory says what a host is in Placement's words and in those of
// claims/fit: from the hardware, the reserve, the CPU sets, the devices and the
// ratios to a tree of providers with inventories and traits, to the capacity and
// the cells that claims are fitted in, and to where in the tree each claim is
// counted.
//
// It is pure: values in, values out. Invariants: the tree and the capacity of one
// Report say the same, so that what Placement would give away and what the claim
// lock would hold are one amount; both shapes of one host have the same totals;
// classes and traits that others have set on the root or a cell are kept, as are
// children that others have hung there; a ratio that stands in Placement is kept
// unless the operator fixed one (Nova: virt/driver _get_allocation_ratios);
// computed from its own result a Report is the same again.
//
// # The shapes
//
// Flat:
//
//	compute1                          VCPU PCPU MEMORY_MB DISK_GB; traits of the host
//	├ compute1_0000:81:00.0           a PF with its VFs, or a plain device: its classes
//	└ compute1_pci_0000_84_00_0       a parent of mediated devices: VGPU
//
// Nested:
//
//	compute1                          DISK_GB, CPUs that are in no cell; traits of the host
//	├ compute1_NUMA0                  VCPU PCPU; HW_NUMA_ROOT
//	│ ├ compute1_NUMA0_4KiB           MEMORY_MB; CUSTOM_MEMORY_PAGE_SIZE_4, …_SMALL
//	│ ├ compute1_NUMA0_2MiB           MEMORY_MB in steps of 2; CUSTOM_MEMORY_PAGE_SIZE_2048, …_LARGE
//	│ └ compute1_0000:81:00.0         the devices of the cell; of no known cell: below the root
//	└ compute1_NUMA1 …
//
// MEMORY_MB of the flat root is all memory. In the nested shape the same memory is
// parted: each pool of huge pages is a provider's, with ratio 1 and with its
// reserved pages reserved, and what the pools leave is the smallest size's, with
// the host's ratio and the host's reserve. So totals are equal; the flat shape
// cannot say that pages are reserved, nor that a pool is not overcommitted, and the
// claim lock says both in either.
//
// What the claim lock gives to a guest with cells fits in the nested shape, and so
// do all guests together (Tree.Settle). Two things it says of the host as a whole
// are finer than its cells in Placement, and may make that refuse the last guest:
// with a ratio that is no whole number each cell loses a fraction of a vCPU or MiB,
// and reserved_vcpus is parted among the cells, where the claim lock keeps it of
// the host only. A guest that floats is counted on some cell, and may be in the way
// there of one that is bound to it; Settle moves it.
//
// A child's uuid follows from the root's and from what stands behind the host's
// name in its own (uuid5), so a Placement that was lost or restored gets the same
// ones again, and a child with another uuid is somebody else's.
package inventory

import (
	"maps"
	"math"
	"slices"

	"berth/claims/pci"
	"berth/placementclient"
	"berth/topology"
)

// Ratios are how often one unit is given away. Zero is unset.
type Ratios struct {
	CPU  float64 `json:"cpu"`
	RAM  float64 `json:"ram"`
	Disk float64 `json:"disk"`
}

// Input is everything a report is computed from.
type Input struct {
	UUID, Name string // of the root provider

	Host     *topology.Host     // never nil: without one there is nothing to report
	Arch     string             // the kernel's word, "x86_64"; empty for unknown
	DiskGB   int64              // size of the filesystem that holds guests' disks, GiB rounded down
	Reserved topology.Resources // kept from guests
	Cells    CellOptions        // which CPUs are dedicated, which shared
	Fixed    Ratios             // the operator's; zero keeps what stands in Placement
	Initial  Ratios             // where nothing stands in Placement
	// Hypervisor is what guests can have here; nil while it is not known, and then no
	// trait that depends on it is taken away.
	Hypervisor *Hypervisor
	// Holding says that a move has a half on this tree: then nothing that an
	// allocation could be refused by is made tighter, so that it can go back, and the
	// tree keeps the shape that stands.
	Holding bool

	Shape    Shape  // that the operator wants; empty for Flat
	Disabled bool   // nobody shall be sent here: COMPUTE_STATUS_DISABLED
	Sharing  string // uuid of a provider outside the tree that has the guests' DISK_GB; empty for the root

	Devices  []pci.Device // what device_spec gives to guests, of Host (claims/pci.Devices)
	Unusable []Unusable   // what no new claim may touch now; devices of it are reserved
	Mdev     []EnabledMdev
	// Held is what every claim of the host holds. A device that somebody holds is
	// counted for as long, also when it is gone from Host or Devices.
	Held []Held

	// Config is what Nova's provider config files say (package providerconfig), in
	// the files' order.
	Config []ProviderConfig
	// Applied is Report.Applied of the last report; the zero value where none is known.
	Applied Applied
}

// Capacity is what claims are fitted in: claims.Capacity under another name,
// since this package knows nobody who holds state.
type Capacity struct {
	Total    topology.Resources
	Reserved topology.Resources
	Ratios   Ratios
}

// Report is the host's tree as it shall stand in Placement, and what goes with it.
type Report struct {
	// Tree has the shape that is computed: the wanted one, but for Holding, when it
	// is the one that stands.
	Tree     *Tree
	Wanted   Shape // Input.Shape
	Standing Shape // the shape in Placement; empty where nothing that tells it stands

	Capacity Capacity
	// Cells is for FitCells. It is Input.Cells, and in the nested shape each cell
	// keeps its part of the reserve besides, as its provider in Placement does: so
	// the claim lock gives no memory of a cell that Placement would refuse.
	Cells CellOptions

	// Applied is what to keep for the next Compute, across restarts, before anything
	// of this report is written. It does not change in a steady state.
	Applied Applied
	// Reasons are remarks on provider config files, and on devices: what of them was
	// not applied, and why.
	Reasons []Reason
}

// Reshapes reports whether inventories and allocations must change their
// providers together (POST /reshaper) before Placement can say what Tree says.
func (r Report) Reshapes() bool { return r.Standing != "" && r.Standing != r.Tree.Shape }

const mib = 1 << 20

// Compute gives the report. standing is the host's tree as Placement has it now,
// children of others and a sharing provider included or not; nil for a host that it
// does not know.
func Compute(in Input, standing []Standing) Report {
	b := newBuilder(in, standing)
	b.root()
	if b.tree.Shape == Nested {
		b.cells()
	}
	b.devices()
	b.mdevs()
	b.configure()
	b.retire()
	b.report.Applied.normalise()
	return b.report
}

func ratio(given ...float64) float64 {
	for _, v := range given {
		if v > 0 {
			return v
		}
	}
	return 1
}

// loosest keeps of both what refuses least.
func loosest(want, now placementclient.Inventory) placementclient.Inventory {
	want.MaxUnit = max(want.MaxUnit, now.MaxUnit)
	want.AllocationRatio = max(want.AllocationRatio, now.AllocationRatio)
	want.Reserved = min(want.Reserved, now.Reserved)
	want.MinUnit, want.StepSize = min(want.MinUnit, max(now.MinUnit, 1)), min(want.StepSize, max(now.StepSize, 1))
	return want
}

// Equal reports whether Placement says of a provider already what the report says.
// Names and parents are not compared.
func (p Provider) Equal(s Standing) (sameInventories, sameTraits bool) {
	sorted := slices.Clone(s.Traits)
	slices.Sort(sorted)
	return maps.EqualFunc(p.Inventories, s.Inventories, same), slices.Equal(p.Traits, sorted)
}

// same compares ratios as Placement's database keeps them: MySQL's FLOAT gives
// back six digits, and a difference behind them would be written for ever.
func same(a, b placementclient.Inventory) bool {
	const digits = 1e-5
	close := math.Abs(a.AllocationRatio-b.AllocationRatio) <= digits*max(a.AllocationRatio, b.AllocationRatio)
	a.AllocationRatio, b.AllocationRatio = 0, 0
	return close && a == b
}
