package operation

import (
	"time"

	"berth/migration"
)

// The operations of instances that move while they are off. They are asked by the conductor, which is
// the source's agent or a third host's: of the destination on the way there, and once more when the
// migration is reverted.
var (
	// PlanChange computes what the change would make of the guest, or refuses it with
	// every reason: a flavor that makes no sense, a disk that would shrink, an image that
	// does not fit. It changes nothing. Asked of the host that has the guest.
	PlanChange = before(migration.Before{Lock: true, Manage: true}, define[migration.Change, migration.Wanted]("plan-change",
		"What a change would make of a guest; changes nothing.", migration.AccessLook, Quick, nil))

	// PowerOff ends the guest's domain: it is asked to shut down, and after the timeout
	// its plug is pulled. What its user had chosen (running, paused, shut off) is durable
	// before. Hooks of resize_instance run before, at the source of a move. Asked of
	// the holder of the token.
	PowerOff = limited(before(migration.Before{Lock: true, Step: StepPowerOff, Stops: true, Manage: true}, define[migration.PowerOffRequest, migration.PoweredOff]("power-off",
		"End the guest's domain: it is asked to shut down, then its plug is pulled.", migration.AccessConductor, slow+migration.LongestShutdown, nil)),
		func(p migration.PowerOffRequest) time.Duration { return slow + p.Timeout })

	// PowerOn is the undo: the guest is again as its user had it. Nothing is started
	// where the token is not, or where it was off before.
	PowerOn = Step{before(migration.Before{Undoes: StepPowerOff}, define[None, None]("power-on",
		"Undo power-off.", migration.AccessConductor, slow, nil))}

	// HandOver is the commit of a cold move: with its domain seen off by PowerOff of this
	// attempt, the host durably surrenders the token to the host named. What the guest
	// holds here stays held for the move until it is confirmed. The same attempt asking
	// again gets the same Commit. fault.Forbidden after KeepGuest. A reverted move is
	// handed back by the destination with the same verb.
	HandOver = before(migration.Before{Lock: true}, define[migration.HandOverRequest, migration.Commit]("hand-over",
		"The commit of a cold move, or of its return: the token leaves this host.", migration.AccessConductor, Quick, nil))

	// KeepGuest is the other decision, and the undo of HandOver: a HandOver of this attempt
	// is refused from now on. fault.Forbidden once the token has left.
	KeepGuest = Step{define[None, None]("keep-guest",
		"Refuse any later hand-over of this attempt.", migration.AccessConductor, Quick, nil)}

	// ConfirmSource ends the guest's half here, after the move was confirmed: definition,
	// disks that were shipped, claim, record, context. Runs confirm_resize.
	ConfirmSource = Step{before(migration.Before{Lock: true}, define[None, None]("confirm-source",
		"End the guest's half here, after the move was confirmed.", migration.AccessConductor, slow, nil))}

	// AwaitReturn makes the half that is held here ready to take the guest back by this
	// attempt. Refused when definition or disks are no longer there.
	AwaitReturn = Step{before(migration.Before{Lock: true, Step: StepReturn, Manage: true}, define[None, None]("await-return",
		"Make the half that is held here ready to take the guest back.", migration.AccessConductor, Quick, nil))}

	// CancelReturn is its undo: the half is held as before.
	CancelReturn = Step{define[None, None]("cancel-return",
		"Undo await-return.", migration.AccessConductor, Quick, nil)}

	// FinishRevert gives the guest back as it was before the move: definition, claim,
	// power state as the user had chosen it then. Runs finish_revert_resize.
	FinishRevert = Step{before(migration.Before{Lock: true}, define[None, None]("finish-revert",
		"Give the guest back as it was before the move.", migration.AccessConductor, slow, nil))}

	// PrepResize gets ready: networks, volumes, room for disks that will be shipped under
	// private names, hooks of prep_resize; then the claim is arriving.
	PrepResize = before(migration.Before{Lock: true, Step: StepPrepResize, Stops: true, Manage: true}, define[migration.PrepRequest, migration.PreparedCold]("prep-resize",
		"Get ready for a guest that comes while it is off.", migration.AccessDestination, slow, func(p migration.PrepRequest) migration.Named { return migration.Named{Source: p.Source} }))

	// RollbackPrepResize is the undo, after a half-done one too; it runs
	// rollback_prep_resize. fault.Forbidden when the token is here.
	RollbackPrepResize = Step{before(migration.Before{Undoes: StepPrepResize}, define[None, None]("rollback-prep-resize",
		"Undo prep-resize.", migration.AccessDestination, slow, nil))}

	// AcceptHanded durably accepts the token of a commit that names this host's claim.
	// Nothing is started by it.
	AcceptHanded = Order[migration.Commit]{before(migration.Before{Lock: true}, define[migration.Commit, None]("accept-handed",
		"Accept the token of a cold move, or of its return; nothing is started.", migration.AccessDestination, Quick, namesOfCommit))}

	// FinishResize makes the guest live here: disks grown, definition from this host's
	// claim, started or left off as its user had it, claim bound, hooks of finish_resize.
	// An error of kind Unavailable, InDoubt or Busy is worth another try; any other says
	// that the guest cannot live here, and the conductor takes it back.
	FinishResize = Step{before(migration.Before{Lock: true}, define[None, None]("finish-resize",
		"Make the guest live here: disks, definition, power state, claim bound.", migration.AccessDestination, slow, nil))}

	// ConfirmDestination ends the move here: its context goes.
	ConfirmDestination = Step{before(migration.Before{Lock: true}, define[None, None]("confirm-destination",
		"End the move here; the guest stays.", migration.AccessDestination, slow, nil))}

	// CleanUpReverted removes what a guest that was handed back left here: definition,
	// disks that were made for it, networks, claim, record. Runs revert_resize.
	CleanUpReverted = Step{before(migration.Before{Lock: true}, define[None, None]("clean-up-reverted",
		"Remove what a guest that was handed back left here.", migration.AccessDestination, slow, nil))}
)
