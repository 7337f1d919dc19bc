package operation

import (
	"slices"

	"berth/migration"
)

// The operations of an evacuation, asked of the destination. The source is dead and asks nothing, so
// that another host conducts: the one that the claim on the destination names. At first contact a
// host's certificate is enough, since the token is given by the fleet's records alone, which the
// destination reads itself. What the source had is known from those records too; it gives way when it
// comes back. CheckDestination, Claim, RenewClaim and AbortClaim are asked as of every migration, with
// TypeEvacuation; the disks are then those of the record, and DiskView.Shared says that this host has
// the very file.
var (
	// PrepEvacuation makes all ready but the start: networks and volumes, the definition from this
	// host's claim, the disks that are not shared, made from the image under private names; hooks of
	// pre_evacuate. Then the claim is arriving. Refused, with every reason, where a disk is neither
	// shared nor made from an image, or would lose its data and AcceptLoss is not said. Nothing is
	// written to a disk that is shared.
	PrepEvacuation = before(migration.Before{Lock: true, Step: StepPrepEvacuation, Stops: true, Manage: true}, define[migration.EvacuationRequest, migration.PreparedEvacuation]("prep-evacuation",
		"Get ready for a guest of a dead host: all but the start.", migration.AccessDestination, slow,
		func(e migration.EvacuationRequest) migration.Named {
			return migration.Named{Source: e.Source, Evacuates: true}
		}))

	// RollbackPrepEvacuation is the undo, after a half-done one too. fault.Forbidden once the token is
	// here, or the fleet's records say that it was given to this host by this attempt;
	// fault.Unavailable while they do not answer.
	RollbackPrepEvacuation = Step{before(migration.Before{Undoes: StepPrepEvacuation}, define[None, None]("rollback-prep-evacuation", "Undo prep-evacuation.", migration.AccessDestination, slow, nil))}

	// AcceptEvacuated durably accepts the token that Fleet.TakeOver gave to this host. It goes by the
	// fleet's records, which the host reads itself, and never by what the conductor says.
	AcceptEvacuated = Order[migration.Commit]{before(migration.Before{Lock: true}, define[migration.Commit, None]("accept-evacuated",
		"Accept the token of a guest of a dead host, by the fleet's records.", migration.AccessDestination, Quick,
		func(c migration.Commit) migration.Named { return migration.Named{Source: c.From, Evacuates: true} }))}

	// FinishEvacuation makes the instance live here: disks in their places, defined, claim bound,
	// started unless it is to stay off; hooks of post_evacuate. An error of kind Unavailable, InDoubt
	// or Busy is worth another try. An instance that cannot be started is here all the same, off, and
	// FinishedEvacuation.NotStarted says why.
	FinishEvacuation = Query[migration.FinishedEvacuation]{before(migration.Before{Lock: true}, define[None, migration.FinishedEvacuation]("finish-evacuation",
		"Make the guest live here: disks, definition, claim bound, power state.", migration.AccessDestination, slow, nil))}
)

// All are the operations, in the order in which they are defined.
func All() []*migration.Operation { return slices.Clone(all) }
