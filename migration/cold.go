package migration

import (
	"context"
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

// ColdVerbs are the host verbs of guests that are moved or changed while they are
// off: cold migration, resize, rebuild. What is said of Host holds for them: each is
// safe to repeat with its Ref, and one whose undo has been here is refused as late.
//
// A move to another host hands the token over before the guest starts there, and back
// when it is reverted, under the next attempt's number. A change on one host hands
// nothing over: what the guest held is exchanged for what it is to hold.
//
// Attempts. All of a move carries the attempt that brings the guest, and so does its
// confirmation, and UnapplyChange, PowerOn and AbortClaim when a change on one host is
// reverted: they concern what that attempt made. PowerOff and its undo before any revert
// carry the revert's own attempt, and so does all of a handing back.
type ColdVerbs interface {
	// PlanChange computes what the change would make of the guest, or refuses it with
	// every reason: a flavor that makes no sense, a disk that would shrink, an image that
	// does not fit. It changes nothing. Asked of the host that has the guest.
	PlanChange(ctx context.Context, instance string, c Change) (Wanted, error)

	// PowerOff ends the guest's domain: it is asked to shut down, and after the timeout
	// its plug is pulled. What its user had chosen (running, paused, shut off) is durable
	// before. Hooks of resize_instance run before, at the source of a move. Asked of
	// the holder of the token.
	PowerOff(ctx context.Context, ref Ref, p PowerOffRequest) (PoweredOff, error)
	// PowerOn is the undo: the guest is again as its user had it. Nothing is started
	// where the token is not, or where it was off before.
	PowerOn(ctx context.Context, ref Ref) error

	SourceColdVerbs
	DestinationColdVerbs
	InPlaceVerbs
}

// SourceColdVerbs are asked of the host that a guest leaves cold, and comes back to when
// the move is reverted.
type SourceColdVerbs interface {
	// HandOver is the commit of a cold move: with its domain seen off by PowerOff of this
	// attempt, the host durably surrenders the token to the host named. What the guest
	// holds here stays held for the move until it is confirmed. The same attempt asking
	// again gets the same Commit. fault.Forbidden after KeepGuest. A reverted move is
	// handed back by the destination with the same verb.
	HandOver(ctx context.Context, ref Ref, to string) (Commit, error)
	// KeepGuest is the other decision, and the undo of HandOver: a HandOver of this attempt
	// is refused from now on. fault.Forbidden once the token has left.
	KeepGuest(ctx context.Context, ref Ref) error

	// ConfirmSource ends the guest's half here, after the move was confirmed: definition,
	// disks that were shipped, claim, record, context. Runs confirm_resize.
	ConfirmSource(ctx context.Context, ref Ref) error

	// AwaitReturn makes the half that is held here ready to take the guest back by this
	// attempt. Refused when definition or disks are no longer there.
	AwaitReturn(ctx context.Context, ref Ref) error
	// CancelReturn is its undo: the half is held as before.
	CancelReturn(ctx context.Context, ref Ref) error
	// FinishRevert gives the guest back as it was before the move: definition, claim,
	// power state as the user had chosen it then. Runs finish_revert_resize.
	FinishRevert(ctx context.Context, ref Ref) error

	// ReadDisk gives a piece of a file that is to be shipped; the domain is off. A range
	// of length 0 asks for size and version alone.
	ReadDisk(ctx context.Context, ref Ref, r DiskRange) (DiskPiece, error)
}

// DestinationColdVerbs are asked of the host that a guest goes to cold.
type DestinationColdVerbs interface {
	// PrepResize gets ready: networks, volumes, room for disks that will be shipped under
	// private names, hooks of prep_resize; then the claim is arriving.
	PrepResize(ctx context.Context, ref Ref, p PrepRequest) (PreparedCold, error)
	// RollbackPrepResize is the undo, after a half-done one too; it runs
	// rollback_prep_resize. fault.Forbidden when the token is here.
	RollbackPrepResize(ctx context.Context, ref Ref) error

	// ShippedSoFar makes what has come durable and says how far that is.
	ShippedSoFar(ctx context.Context, ref Ref) (Shipped, error)
	// WriteDisk keeps a piece. A piece whose checksum is wrong is refused and nothing of
	// it kept; so is one of another version than those before it.
	WriteDisk(ctx context.Context, ref Ref, p DiskPiece) error
	// SealDisks ends the shipping: every file is whole by its checksum, durable, and in its
	// place.
	SealDisks(ctx context.Context, ref Ref, want Shipped) error

	// AcceptHanded durably accepts the token of a commit that names this host's claim.
	// Nothing is started by it.
	AcceptHanded(ctx context.Context, ref Ref, c Commit) error
	// FinishResize makes the guest live here: disks grown, definition from this host's
	// claim, started or left off as its user had it, claim bound, hooks of finish_resize.
	// An error of kind Unavailable, InDoubt or Busy is worth another try; any other says
	// that the guest cannot live here, and the conductor takes it back.
	FinishResize(ctx context.Context, ref Ref) error
	// ConfirmDestination ends the move here: its context goes.
	ConfirmDestination(ctx context.Context, ref Ref) error

	// CleanUpReverted removes what a guest that was handed back left here: definition,
	// disks that were made for it, networks, claim, record. Runs revert_resize.
	CleanUpReverted(ctx context.Context, ref Ref) error
}

// InPlaceVerbs change a guest on its own host: a resize that stays, a rebuild.
type InPlaceVerbs interface {
	// PrepChange makes ready what the change needs while the guest still runs: disks that
	// become larger or come from an image are made under private names, beside the old
	// ones; hooks of prep_resize or pre_rebuild_instance run.
	PrepChange(ctx context.Context, ref Ref, p PrepRequest) error
	// RollbackPrepChange is the undo; it runs rollback_prep_resize or
	// rollback_rebuild_instance.
	RollbackPrepChange(ctx context.Context, ref Ref) error

	// ApplyChange puts the new in the place of the old, which is kept: disks, claim,
	// definition. The domain is off.
	ApplyChange(ctx context.Context, ref Ref) error
	// UnapplyChange is the undo, and the revert of a change that was started: the domain
	// is ended if it runs, and the old is in its place again.
	UnapplyChange(ctx context.Context, ref Ref) error

	// StartChanged gives the changed guest the power state that its user had chosen; hooks
	// of finish_resize or post_rebuild_instance run.
	StartChanged(ctx context.Context, ref Ref) error

	// FinishChange gives up what the guest held before: old disks, claim, context. There
	// is no way back from it. Of a resize it is the confirmation, and runs confirm_resize.
	FinishChange(ctx context.Context, ref Ref) error
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
