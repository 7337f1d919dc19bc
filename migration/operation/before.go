package operation

import (
	"context"

	"berth/migration"
)

// The steps under which hosts write the tombstones of undone operations. They are the hosts' own, so
// that an operation and its undo meet, whatever a conductor calls the step of each.
const (
	StepClaim            = "claim"
	StepContext          = "record_context"
	StepPreLiveMigration = "pre_live_migration"
	StepPrepResize       = "prep_resize"
	StepPrepEvacuation   = "prep_evacuation"
	StepPrepChange       = "prep_change"
	StepApplyChange      = "apply_change"
	StepPowerOff         = "power_off"
	StepSnapshot         = "snapshot_disks"
	StepDisconnect       = "disconnect_source"
	StepCopy             = "copy_instance"
	StepReturn           = "await_return"
)

// before says what a host sees to before it does an operation.
func before[In, Out any](b migration.Before, o Operation[In, Out]) Operation[In, Out] {
	o.Before = b
	return o
}

// UnlessDone adds when an attempt has had the operation done: its answer is then given again, also by
// a host that only observes.
func (h Handler) UnlessDone(done func(migration.Ref) (bool, error)) Handler {
	h.Done = done
	return h
}

// Unless adds why there is nothing to undo any more, nil while there is. It is asked twice: a refused
// undo writes no tombstone, and the instance may have arrived while the undo waited for the lock.
func (h Handler) Unless(refused func(context.Context, migration.Ref) error) Handler {
	h.Refused = refused
	return h
}

// Then adds what is done with the answer after the lock was given back.
func (o Operation[In, Out]) Then(h Handler, then func(context.Context, migration.Ref, In, Out) (Out, error)) Handler {
	h.Then = func(ctx context.Context, ref migration.Ref, in, out any) (any, error) {
		return then(ctx, ref, in.(In), out.(Out))
	}
	return h
}
