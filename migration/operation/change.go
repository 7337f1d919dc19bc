package operation

import (
	"berth/migration"
)

// The operations of a change in place: a resize that stays on its host, a rebuild.
var (
	// PrepChange makes ready what the change needs while the guest still runs: disks that
	// become larger or come from an image are made under private names, beside the old
	// ones; hooks of prep_resize or pre_rebuild_instance run.
	PrepChange = Order[migration.PrepRequest]{before(migration.Before{Lock: true, Step: StepPrepChange, Stops: true, Manage: true}, define[migration.PrepRequest, None]("prep-change",
		"Make ready what a change in place needs, while the guest runs.", migration.AccessConductor, slow, nil))}

	// RollbackPrepChange is the undo; it runs rollback_prep_resize or
	// rollback_rebuild_instance.
	RollbackPrepChange = Step{before(migration.Before{Undoes: StepPrepChange}, define[None, None]("rollback-prep-change",
		"Undo prep-change.", migration.AccessConductor, slow, nil))}

	// ApplyChange puts the new in the place of the old, which is kept: disks, claim,
	// definition. The domain is off.
	ApplyChange = Step{before(migration.Before{Lock: true, Step: StepApplyChange, Stops: true}, define[None, None]("apply-change",
		"Put the new in the place of the old, which is kept.", migration.AccessConductor, slow, nil))}

	// UnapplyChange is the undo, and the revert of a change that was started: the domain
	// is ended if it runs, and the old is in its place again.
	UnapplyChange = Step{before(migration.Before{Undoes: StepApplyChange}, define[None, None]("unapply-change",
		"Undo apply-change: the old is in its place again.", migration.AccessConductor, slow, nil))}

	// StartChanged gives the changed guest the power state that its user had chosen; hooks
	// of finish_resize or post_rebuild_instance run.
	StartChanged = Step{before(migration.Before{Lock: true, Step: StepApplyChange}, define[None, None]("start-changed",
		"Give the changed guest its power state.", migration.AccessConductor, slow, nil))}

	// FinishChange gives up what the guest held before: old disks, claim, context. There
	// is no way back from it. Of a resize it is the confirmation, and runs confirm_resize.
	FinishChange = Step{before(migration.Before{Lock: true}, define[None, None]("finish-change",
		"Give up what the guest held before; no way back.", migration.AccessConductor, slow, nil))}
)
