package migration

import (
	"context"

	"berth/topology"
)

// ApartVerbs are the host verbs by which a guest is moved while it is off between two
// hosts that share nothing and never talk to each other: neither opens a connection to
// the other, and a third host's agent may conduct. They stand beside ColdVerbs, which
// such a move uses too; what is said there of attempts and repetition holds for them.
type ApartVerbs interface {
	SourceApartVerbs
	DestinationApartVerbs
}

// SourceApartVerbs are asked of the host that the guest leaves.
type SourceApartVerbs interface {
	// Reaches says whether this host's agent reaches another's, with a connection made for
	// the question: nil, or why not (fault.Unavailable, fault.Forbidden, fault.NotFound). It
	// changes nothing. Disks go straight where it does.
	Reaches(ctx context.Context, host string) error

	// SnapshotDisks holds, durably, the files of the disks named as they are, with their
	// backing files: the guest is off, so the file is its own snapshot, and whoever writes to
	// it is noticed. fault.Forbidden, naming the process, while one of them is open for writing.
	// ReadDisk and SendDisks give nothing else after it. Disks on storage that both hosts share
	// are not named and stay what they are.
	SnapshotDisks(ctx context.Context, ref Ref, targets []string) (Snapshot, error)
	// DropSnapshot is the undo.
	DropSnapshot(ctx context.Context, ref Ref) error

	// Disconnect takes the guest, which is off, from its networks and volumes here, so that
	// they can be connected where it goes: what its definition needs stands on record.
	// Repeated it does nothing more.
	Disconnect(ctx context.Context, ref Ref) error
	// Reconnect is the undo: the guest may be started here as before.
	Reconnect(ctx context.Context, ref Ref) error

	// SendDisks ships the files straight to the destination, by the very verbs by which a
	// conductor would: ShippedSoFar, WriteDisk, SealDisks. It returns when all is sealed;
	// called again it joins what is under way, or goes on from where the destination is. It
	// goes on when whoever called is gone, until DropSnapshot or PowerOn; fault.Busy when ctx
	// ends first. fault.Unavailable when nothing moved for a while: then the conductor may
	// carry them. fault.Forbidden where this attempt holds no snapshot.
	SendDisks(ctx context.Context, ref Ref, r SendRequest) error

	// HideInstance makes the copy here the one that is not shown, after the destination's
	// is. Safe to repeat; nothing follows from it but what people see.
	HideInstance(ctx context.Context, ref Ref) error

	// CarryVolumes makes durable, before a guest is handed back, what it was given and lost
	// where it was meanwhile; FinishRevert writes its definition by it. It ends with
	// CancelReturn.
	CarryVolumes(ctx context.Context, ref Ref, v VolumeChanges) error
}

// DestinationApartVerbs are asked of the host that the guest goes to.
type DestinationApartVerbs interface {
	// CopyInstance sets up the instance's record here, hidden: it is not listed, its token is
	// elsewhere, and nothing can be asked of it but by its migration. fault.Exists when another
	// guest here has its name, or this one lives here.
	CopyInstance(ctx context.Context, ref Ref, i InstanceCopy) error
	// RemoveCopy is the undo. fault.Forbidden when the token is here.
	RemoveCopy(ctx context.Context, ref Ref) error
	// ShowInstance makes the copy here the one that is shown.
	ShowInstance(ctx context.Context, ref Ref) error

	// ReadVolumes says what the guest, which is off, was given and lost here since it came:
	// disks by network or on storage that the other host names alike. fault.Forbidden, with
	// every reason, for a disk that cannot be taken back with it: a file of this host alone.
	ReadVolumes(ctx context.Context, ref Ref) (VolumeChanges, error)
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
