package inventory

import (
	"maps"

	"berth/placementclient"
	"berth/topology"
)

// Shape is how a host shows itself in Placement.
type Shape string

// The shapes.
const (
	// Flat has VCPU, PCPU, MEMORY_MB and DISK_GB on the root; PCI and mediated
	// devices are its children, as Nova has them.
	Flat Shape = "flat"
	// Nested has a child for each NUMA cell (HW_NUMA_ROOT) with its CPUs, below it
	// one for each page size with its memory, and the devices of the cell.
	Nested Shape = "nested"
)

// Standing is one provider of the host's tree, or a sharing one that it uses, as
// it was last read from Placement.
type Standing struct {
	Provider    placementclient.ResourceProvider
	Inventories map[string]placementclient.Inventory
	Traits      []string // sorted
	Aggregates  []string // sorted; nil where nobody asked
}

// Provider is one provider of the host's tree as it shall stand. Only Berth's own
// are in a Tree: what others hang below the root is left alone.
type Provider struct {
	UUID        string
	Name        string
	Parent      string // uuid; empty for the root
	Inventories map[string]placementclient.Inventory
	Traits      []string // sorted
}

// Tree is the host in Placement's words, and where in it what a claim holds is
// counted. Nothing changes a Tree after it was computed.
type Tree struct {
	Shape     Shape
	Providers []Provider // root first, each parent before its children
	// Disk is who has DISK_GB: the root, or a sharing provider, which is nobody's
	// child; empty for nobody.
	Disk string
}

// Held is what a claim holds: the values of claims.Claim of the same names.
type Held struct {
	Resources  topology.Resources
	Assignment topology.Assignment
}

// Root is the uuid of the root provider.
func (t *Tree) Root() string { return t.Providers[0].UUID }

// Owns reports whether a provider is one of the tree's own. A sharing provider is
// not.
func (t *Tree) Owns(rp string) bool {
	for _, p := range t.Providers {
		if p.UUID == rp {
			return true
		}
	}
	return false
}

// Uses reports whether what a guest of this host holds of a provider may be
// counted there: it is the tree's own, or the sharing one with its disks.
func (t *Tree) Uses(rp string) bool { return t.Owns(rp) || rp != "" && rp == t.Disk }

// Place gives what a claim holds, by provider: exactly what Placement shall say.
// now is what its consumer holds already, nil for nothing: a guest that floats over
// the cells of a nested tree stays counted where it is counted, as long as the sums
// are right. Classes of nothing are left out, as Placement knows no allocation of
// zero.
func (t *Tree) Place(h Held, now map[string]placementclient.Resources) map[string]placementclient.Resources {
	root, disk := placementclient.Resources{}, placementclient.Resources{}
	for class, n := range map[string]int64{
		placementclient.ClassVCPU: int64(h.Resources.VCPUs), placementclient.ClassPCPU: int64(h.Resources.PCPUs),
		placementclient.ClassMemoryMB: h.Resources.MemoryMB,
	} {
		if n > 0 {
			root[class] = n
		}
	}
	on := root
	if t.Disk != "" && t.Disk != t.Root() {
		on = disk
	}
	if h.Resources.DiskGB > 0 {
		on[placementclient.ClassDiskGB] = h.Resources.DiskGB
	}
	out := map[string]placementclient.Resources{t.Disk: disk}
	out[t.Root()] = root // the one with the disks may be the root itself
	maps.DeleteFunc(out, func(_ string, r placementclient.Resources) bool { return len(r) == 0 })
	return out
}

// Rehome gives what a consumer that no claim is known of shall hold in this tree,
// from what it holds of the tree as it stood: the same sums of each class, on
// providers that have the class.
func (t *Tree) Rehome(now map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	for rp, r := range now {
		to := t.Root()
		if t.Uses(rp) {
			to = rp
		}
		if out[to] == nil {
			out[to] = placementclient.Resources{}
		}
		for class, n := range r {
			out[to][class] += n
		}
	}
	return out
}
