package migration

import (
	"berth/topology"
)

// SnapshotRequest says which disks are held as they are.
type SnapshotRequest struct {
	Targets []string `json:"targets"` // of disks
}

// ReachRequest names the host whose agent is to be reached.
type ReachRequest struct {
	Host string `json:"host"` // provider's name
}

// InstanceCopy is all that a host knows of an instance beside its resources.
type InstanceCopy struct {
	UUID      string          `json:"instance_uuid"`
	Name      string          `json:"name"`
	Flavor    topology.Flavor `json:"flavor"`
	ProjectID string          `json:"project_id,omitempty"`
	UserID    string          `json:"user_id,omitempty"`
	Autostart bool            `json:"autostart,omitempty"`
	Epoch     uint64          `json:"epoch"` // of the source's token
}

// Snapshot is the files of a guest that is off, as they are held.
type Snapshot struct {
	Files []SnapshotFile `json:"files"`
}

// SnapshotFile is one of them.
type SnapshotFile struct {
	Target    string `json:"target"`
	Path      string `json:"path"`
	Size      int64  `json:"size_bytes"`
	Allocated int64  `json:"allocated_bytes"` // of the size; the rest are holes
	Version   string `json:"version"`         // see DiskPiece.Version
}

// SendRequest asks a source to ship.
type SendRequest struct {
	Destination string     `json:"dest_compute"`
	Files       []ShipFile `json:"files"`
	Bandwidth   uint64     `json:"bandwidth_bytes,omitempty"` // bytes a second; 0 for no bound
}

// VolumeChanges is what a guest was given and lost while it was elsewhere.
type VolumeChanges struct {
	// Attached are disk elements of domain XML, as its definition has them.
	Attached []string `json:"attached,omitempty"`
	Detached []string `json:"detached,omitempty"` // targets
	// Files are the files and devices on which attached disks stand, as the host sees them
	// on which they were attached: where the other one sees others, they stay.
	Files []VolumeFile `json:"files,omitempty"`
	// Remarks are what else it was given there, in words: it does not come back with it.
	Remarks []string `json:"remarks,omitempty"`
	// All: with what the guest came there is not on record any more, so Attached are all
	// disks that it has there, and Detached says nothing. The host that it goes back to
	// holds them against its own definition.
	All bool `json:"all,omitempty"`
}

// VolumeFile is one of them.
type VolumeFile struct {
	Target     string `json:"target"`
	Path       string `json:"path"`
	Filesystem string `json:"filesystem,omitempty"` // see Disk.Filesystem; empty where nobody knows
}

// Way is how the disks of a guest that is off come to its destination.
type Way string

// The ways.
const (
	WayNone     Way = ""         // nothing is to be shipped
	WayStraight Way = "straight" // from the source's agent to the destination's
	WayRelay    Way = "relay"    // by the conductor, since the two do not reach each other
)
