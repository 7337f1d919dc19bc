// Package inventory says what a host is in Placement's words and in those of
// claims/fit: from the hardware, the reserve, the CPU sets and the ratios to the
// root provider's inventories and traits, and to the capacity and the cells that
// claims are fitted in.
//
// It is pure: values in, values out. Invariants: the inventories and the capacity
// of one Report say the same, so that what Placement would give away and what the
// claim lock would hold are one amount; classes and traits that others have set on
// the provider are kept; a ratio that stands in Placement is kept unless the
// operator fixed one (Nova: virt/driver _get_allocation_ratios).
package inventory

import (
	"maps"
	"math"
	"slices"

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
	// Holding says that a move has a half on this provider: then nothing that an
	// allocation could be refused by is made tighter, so that it can go back.
	Holding bool
}

// Capacity is what claims are fitted in: claims.Capacity under another name,
// since this package knows nobody who holds state.
type Capacity struct {
	Total    topology.Resources
	Reserved topology.Resources
	Ratios   Ratios
}

// Report is the root provider as it shall stand in Placement.
type Report struct {
	Inventories map[string]placementclient.Inventory
	Traits      []string // sorted
	Capacity    Capacity
}

const mib = 1 << 20

// Compute gives the report. inventories and standing, its traits, are what stands
// in Placement now; nil for a provider that does not exist yet.
func Compute(in Input, inventories map[string]placementclient.Inventory, standing []string) Report {
	dedicated, shared := in.Cells.cpus(in.Host)
	total := topology.Resources{
		VCPUs:    shared.Len(),
		PCPUs:    dedicated.Len(),
		MemoryMB: in.Host.MemoryBytes() / mib,
		DiskGB:   in.DiskGB,
	}
	// Placement refuses a reserve above the total; so much is reserved, then, that
	// nothing is left.
	reserved := topology.Resources{
		VCPUs:    min(in.Reserved.VCPUs, total.VCPUs),
		MemoryMB: min(in.Reserved.MemoryMB, total.MemoryMB),
		DiskGB:   min(in.Reserved.DiskGB, total.DiskGB),
	}
	r := Report{
		Inventories: maps.Clone(inventories),
		Capacity:    Capacity{Total: total, Reserved: reserved},
	}
	if r.Inventories == nil {
		r.Inventories = map[string]placementclient.Inventory{}
	}
	var once float64 // a dedicated CPU is given away once, whatever stands in Placement
	for _, c := range []struct {
		class           string
		total, reserved int64
		fixed, initial  float64
		ratio           *float64
	}{
		{placementclient.ClassVCPU, int64(total.VCPUs), int64(reserved.VCPUs), in.Fixed.CPU, in.Initial.CPU, &r.Capacity.Ratios.CPU},
		{placementclient.ClassPCPU, int64(total.PCPUs), 0, 1, 1, &once},
		{placementclient.ClassMemoryMB, total.MemoryMB, reserved.MemoryMB, in.Fixed.RAM, in.Initial.RAM, &r.Capacity.Ratios.RAM},
		{placementclient.ClassDiskGB, total.DiskGB, reserved.DiskGB, in.Fixed.Disk, in.Initial.Disk, &r.Capacity.Ratios.Disk},
	} {
		now, stands := inventories[c.class]
		*c.ratio = ratio(c.fixed, now.AllocationRatio, c.initial)
		if c.total <= 0 {
			// Placement knows no inventory of nothing. A class that went away is
			// taken out; Placement refuses that while it is allocated.
			delete(r.Inventories, c.class)
			continue
		}
		want := placementclient.Inventory{
			Total: min(c.total, placementclient.MaxInt), Reserved: c.reserved,
			MinUnit: 1, MaxUnit: min(c.total, placementclient.MaxInt), StepSize: 1, AllocationRatio: *c.ratio,
		}
		if in.Holding && stands {
			want = loosest(want, now)
			*c.ratio = want.AllocationRatio
		}
		r.Inventories[c.class] = want
	}
	r.Traits = traits(in, standing)
	return r
}

func ratio(fixed, stands, initial float64) float64 {
	for _, v := range []float64{fixed, stands, initial} {
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
	return want
}

// Equal reports whether Placement says already what the report says.
func (r Report) Equal(inventories map[string]placementclient.Inventory, traits []string) (sameInventories, sameTraits bool) {
	sorted := slices.Clone(traits)
	slices.Sort(sorted)
	return maps.EqualFunc(r.Inventories, inventories, same), slices.Equal(r.Traits, sorted)
}

// same compares ratios as Placement's database keeps them: MySQL's FLOAT gives
// back seven digits, and a difference behind them would be written for ever.
func same(a, b placementclient.Inventory) bool {
	const digits = 1e-6
	close := math.Abs(a.AllocationRatio-b.AllocationRatio) <= digits*max(a.AllocationRatio, b.AllocationRatio)
	a.AllocationRatio, b.AllocationRatio = 0, 0
	return close && a == b
}
