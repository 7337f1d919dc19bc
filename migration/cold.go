package migration

import (
	"time"

	"berth/topology"
)

// Change is what a resize or a rebuild asks for. Neither is a cold migration: the
// guest as it is, elsewhere.
type Change struct {
	Flavor *topology.Flavor `json:"flavor,omitempty"`
	Image  *Image           `json:"image,omitempty"`
}

// Image is what a rebuilt guest boots from: a file on its host.
type Image struct {
	Path   string `json:"path"`
	Format string `json:"format,omitempty"` // raw or qcow2; by the path's ending when empty, never by its contents
	// Properties are Nova's image properties (hw_numa_nodes, …), which ask for a topology
	// beside the flavor's extra specs.
	Properties map[string]string `json:"properties,omitempty"`
}

// Wanted is a guest as a change would have it, in amounts, cells and devices. It is
// computed by the host that has the guest, by its own aliases.
type Wanted struct {
	Flavor      topology.Flavor         `json:"flavor"`
	Resources   topology.Resources      `json:"resources"`
	Topology    *topology.GuestTopology `json:"numa_topology,omitempty"`
	PCIRequests []topology.PCIRequest   `json:"pci_requests,omitempty"`
	Grow        []DiskGrowth            `json:"grow,omitempty"` // disks that become larger; none ever becomes smaller
	Image       *Image                  `json:"image,omitempty"`
}

// DiskGrowth is a disk that becomes larger.
type DiskGrowth struct {
	Target      string `json:"target"`
	VirtualSize int64  `json:"virtual_size_bytes"`
}

// HandOverRequest names the host that gets the instance.
type HandOverRequest struct {
	To string `json:"to"`
}

// PowerOffRequest says how a guest is powered off.
type PowerOffRequest struct {
	// Timeout is how long the guest is given to shut itself down; 0 pulls the plug at
	// once. A paused guest cannot, and is not asked.
	Timeout time.Duration `json:"timeout"`
	// Kind is the move's type (TypeResize, …), and Destination where the guest goes; empty
	// where it stays.
	Kind        string `json:"migration_type"`
	Destination string `json:"dest_compute,omitempty"`
}

// PoweredOff is what the guest's user had chosen before.
type PoweredOff struct {
	PowerState PowerState `json:"power_state"`
	// Pulled: the guest did not shut itself down in time.
	Pulled bool `json:"pulled,omitempty"`
}

// PrepRequest asks a host to get ready.
type PrepRequest struct {
	Kind      string   `json:"migration_type"`
	Guest     Guest    `json:"guest"`
	Wanted    Wanted   `json:"wanted"`
	CopyDisks []string `json:"copy_disks,omitempty"` // targets that will be shipped
	Source    string   `json:"source_compute"`
}

// PreparedCold is a destination that waits for the guest.
type PreparedCold struct {
	Files []ShipFile `json:"files,omitempty"` // to be shipped, in this order; a backing file before what stands on it
}

// ShipFile is one file of a disk that is shipped, byte by byte.
type ShipFile struct {
	Target string `json:"target"` // disk that it is of
	Path   string `json:"path"`   // the same on both hosts
	// Compare: a backing file that the destination has already. Its pieces are read and
	// written as checksums alone, and one that differs is refused.
	Compare bool `json:"compare,omitempty"`
}

// DiskRange asks for a piece of a file. Offset is a multiple of ShipBlock.
type DiskRange struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"` // at most; a host may give less, but never less than one block that is there
	// SumOnly asks for the piece without its Data.
	SumOnly bool `json:"sum_only,omitempty"`
}

// DiskPiece is a part of a file that is shipped: one block of ShipBlock bytes, fewer at
// the file's end, or any number of blocks of zeros. Length 0 at Offset is its end.
type DiskPiece struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Zero   bool   `json:"zero,omitempty"` // nothing but zeros, and no Data
	Sum    string `json:"sum,omitempty"`  // SHA-256 of Data, hexadecimal; empty where Zero
	Size   int64  `json:"size"`           // of the whole file
	// Version is the file's as it was read: inode, size, time of the last change. Another
	// one says that somebody wrote to it meanwhile.
	Version string `json:"version"`
	Data    []byte `json:"-"`
}

// Shipped is how far files are, or are to be.
type Shipped struct {
	Files []ShippedFile `json:"files"`
}

// ShippedFile is one of them.
type ShippedFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"` // durable from the start of the file on
	// Sum is the checksum of those bytes: see ShipSum. Version is the file's at the source
	// as the pieces gave it; empty before the first.
	Sum     string `json:"sum,omitempty"`
	Version string `json:"version,omitempty"`
	// Sealed: it is whole and in its place.
	Sealed bool `json:"sealed,omitempty"`
}

// LongestShutdown is the longest that an instance may be given to shut itself down. Arbitrary;
// sums with instants stay far from the ends of a time.Duration.
const LongestShutdown = 24 * time.Hour
