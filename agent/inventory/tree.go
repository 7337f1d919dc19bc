package inventory

import (
	"strings"

	"github.com/google/uuid"

	"berth/placementclient"
	"berth/topology"
)

// Shape is how a host shows itself in Placement; see the package comment.
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
// counted. Nothing changes a Tree after it was computed. One of a root alone, with
// no field set but Shape, Providers and Disk, is that of a flat host without
// devices.
type Tree struct {
	Shape     Shape
	Providers []Provider // root first, each parent before its children
	// Retired are own providers that stand in Placement and are no more: deepest
	// first, everything of them reserved. They are to be deleted; where Placement says
	// that they are in use they are to stand as they are here, and what a guest holds
	// of them is still this host's.
	Retired []Provider
	// Disk is who has DISK_GB: the root, or a sharing provider, which is nobody's
	// child; empty for nobody.
	Disk string

	// Cells are the host's cells in a nested tree, ascending by id; nil in a flat one.
	Cells []TreeCell
	// Devices and Mdevs (by uuid) say where each device is counted: those that guests
	// may have, and those that they have.
	Devices map[topology.PCIAddress]Home
	Mdevs   map[string]Home

	used map[string]placementclient.Resources // see Beside
}

// TreeCell is a NUMA cell in a nested tree.
type TreeCell struct {
	ID       topology.CellID
	Provider string                       // uuid of who has its VCPU and PCPU
	Pages    map[topology.PageSize]string // by size, uuid of who has the MEMORY_MB
	Ordinary topology.PageSize            // the smallest size: memory of guests that ask for none
}

// Home is where one device is counted.
type Home struct {
	Provider string `json:"provider"` // uuid
	Class    string `json:"class"`
}

// Held is what a claim holds: the values of claims.Claim of the same names.
type Held struct {
	Resources  topology.Resources
	Assignment topology.Assignment
	// Consumer is its consumer's uuid. By it guests that float over a nested tree of
	// which no usage is known (see Tree.Beside) are put on different cells; it may be
	// empty.
	Consumer string
}

// Root is the uuid of the root provider.
func (t *Tree) Root() string { return t.Providers[0].UUID }

// Owns reports whether a provider is one of the tree's own, a retired one
// included. A sharing provider is not.
func (t *Tree) Owns(rp string) bool {
	if _, ok := t.provider(rp); ok {
		return true
	}
	for _, p := range t.Retired {
		if p.UUID == rp {
			return true
		}
	}
	return false
}

// Uses reports whether what a guest of this host holds of a provider may be
// counted there: it is the tree's own, or the sharing one with its disks.
func (t *Tree) Uses(rp string) bool { return t.Owns(rp) || rp != "" && rp == t.Disk }

func (t *Tree) provider(rp string) (*Provider, bool) {
	for i := range t.Providers {
		if t.Providers[i].UUID == rp {
			return &t.Providers[i], true
		}
	}
	return nil, false
}

func (t *Tree) cell(id topology.CellID) (*TreeCell, bool) {
	for i := range t.Cells {
		if t.Cells[i].ID == id {
			return &t.Cells[i], true
		}
	}
	return nil, false
}

// ChildUUID is the uuid of the child whose name is the host's, "_" and suffix:
// uuid5 of the suffix in the root's uuid. A root that is named otherwise than by a
// uuid has a name space all the same.
func ChildUUID(root, suffix string) string {
	space, err := uuid.Parse(root)
	if err != nil {
		space = uuid.NewSHA1(uuid.NameSpaceOID, []byte(root))
	}
	return uuid.NewSHA1(space, []byte(suffix)).String()
}

// childName is the host's name, "_" and suffix. Where that is longer than Placement
// takes, the end of the host's name makes room, and for a part of a uuid, since
// hosts may differ in their ends only.
func childName(root, host, suffix string) string {
	const longest = 200 // characters; a host's own are of one byte
	if over := len(host) + 1 + len(suffix) - longest; over > 0 {
		mark := "~" + ChildUUID(root, "")[:8]
		host = host[:len(host)-over-len(mark)] + mark
	}
	return host + "_" + suffix
}

// suffixOf gives the suffix of a child of Berth's from the name it has, also when
// the host has been renamed since; false for somebody else's.
func suffixOf(root string, p placementclient.ResourceProvider) (string, bool) {
	for rest := p.Name; ; {
		_, after, found := strings.Cut(rest, "_")
		if !found {
			return "", false
		}
		if ChildUUID(root, after) == p.UUID {
			return after, true
		}
		rest = after
	}
}
