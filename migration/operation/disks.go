package operation

import (
	"context"

	"berth/migration"
)

// The operations by which the disks of an instance that is off are sent to its destination. Pieces
// travel as they are, not as JSON.
var (
	// SnapshotDisks holds, durably, the files of the disks named as they are, with their
	// backing files: the guest is off, so the file is its own snapshot, and whoever writes to
	// it is noticed. fault.Forbidden, naming the process, while one of them is open for writing.
	// ReadDisk and SendDisks give nothing else after it. Disks on storage that both hosts share
	// are not named and stay what they are.
	SnapshotDisks = before(migration.Before{Lock: true, Step: StepSnapshot}, define[migration.SnapshotRequest, migration.Snapshot]("snapshot-disks",
		"Hold the files of a guest that is off as they are.", migration.AccessConductor, slow, nil))

	// DropSnapshot is the undo.
	DropSnapshot = Step{before(migration.Before{Undoes: StepSnapshot}, define[None, None]("drop-snapshot",
		"Undo snapshot-disks.", migration.AccessConductor, slow, nil))}

	// ReadDisk gives a piece of a file that is to be shipped; the domain is off. A range
	// of length 0 asks for size and version alone.
	ReadDisk = readOnly(define[migration.DiskRange, migration.DiskPiece]("read-disk",
		"A piece of a file of a guest that is off. The answer is a frame.", migration.AccessConductor, pieceTime, nil))

	// ShippedSoFar makes what has come durable and says how far that is.
	ShippedSoFar = Query[migration.Shipped]{define[None, migration.Shipped]("shipped-so-far",
		"Make what has come of shipped files durable, and say how far that is.", migration.AccessShipment, slow, nil)}

	// WriteDisk keeps a piece. A piece whose checksum is wrong is refused and nothing of
	// it kept; so is one of another version than those before it.
	WriteDisk = Order[migration.DiskPiece]{define[migration.DiskPiece, None]("write-disk",
		"Keep a piece of a file. The request is a frame.", migration.AccessShipment, pieceTime, nil)}

	// SealDisks ends the shipping: every file is whole by its checksum, durable, and in its
	// place.
	SealDisks = Order[migration.Shipped]{define[migration.Shipped, None]("seal-disks",
		"End the shipping: every file is whole, durable and in its place.", migration.AccessShipment, slow, nil)}

	// Reaches says whether this host's agent reaches another's, with a connection made for
	// the question: nil, or why not (fault.Unavailable, fault.Forbidden, fault.NotFound). It
	// changes nothing. Disks go straight where it does.
	Reaches = Order[migration.ReachRequest]{define[migration.ReachRequest, None]("reaches",
		"Whether this host's agent reaches another's.", migration.AccessLook, Quick, nil)}

	// SendDisks ships the files straight to the destination, by the very verbs by which a
	// conductor would: ShippedSoFar, WriteDisk, SealDisks. It returns when all is sealed;
	// called again it joins what is under way, or goes on from where the destination is. It
	// goes on when whoever called is gone, until DropSnapshot or PowerOn; fault.Busy when ctx
	// ends first. fault.Unavailable when nothing moved for a while: then the conductor may
	// carry them. fault.Forbidden where this attempt holds no snapshot.
	SendDisks = Order[migration.SendRequest]{joined(define[migration.SendRequest, None]("send-disks",
		"Ship files straight to the destination. Busy where it goes on: ask again.", migration.AccessConductor, sendWait, nil))}
)

// Disks is a host as the two ends of its disks' way ask it.
type Disks struct{ Host migration.Host }

// ShippedSoFar asks for ShippedSoFar.
func (d Disks) ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	return ShippedSoFar.Ask(ctx, d.Host, ref)
}

// WriteDisk asks for WriteDisk.
func (d Disks) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	return WriteDisk.Ask(ctx, d.Host, ref, p)
}

// SealDisks asks for SealDisks.
func (d Disks) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return SealDisks.Ask(ctx, d.Host, ref, want)
}

// ReadDisk asks for ReadDisk.
func (d Disks) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	return ReadDisk.Ask(ctx, d.Host, ref, r)
}
