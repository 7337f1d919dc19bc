// Package dispatch does the operations of one host, and before each what its value says that it
// needs: input within its bounds, the instance's lock, no tombstone of its undo, a host that does more
// than observe.
//
// It reads tombstones and writes those of undos, through package memory. An operation's handler
// has the lock, and may be ended by its undo where the operation's value says so.
package dispatch

import (
	"context"

	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Dispatcher does the operations of one host. Safe for concurrent use.
type Dispatcher struct {
	Handlers operation.Handlers
	Memory   *memory.Memory
	Managing func() error // nil unless the host only observes
}

// Ask does one operation. It blocks while another works on the instance, no longer than ctx, and is
// fault.Busy then; fault.Invalid for an operation that this host does not do.
func (d *Dispatcher) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	h, ok := d.Handlers[op.Name]
	if !ok {
		return nil, fault.New(fault.Invalid, "this host has no operation %s", op.Name)
	}
	// Before any lock: a peer's lists may be as long as a body.
	if v, checks := in.(interface{ Validate() error }); checks {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	out, err := d.do(ctx, ref, h, in)
	if err == nil && h.Then != nil {
		return h.Then(ctx, ref, in, out)
	}
	return out, err
}

func (d *Dispatcher) do(ctx context.Context, ref migration.Ref, h operation.Handler, in any) (any, error) {
	b := h.Operation.Before
	if b.Undoes != "" {
		unlock, err := d.Memory.BeginUndo(ctx, ref, b.Undoes, func() error { return h.Refused(ctx, ref) })
		if err != nil {
			return nil, err
		}
		defer unlock()
		return h.Do(ctx, ref, in)
	}
	if b.Lock {
		unlock, err := d.Memory.Lock(ctx, ref.Instance)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	if b.Stops {
		// Before it is seen whether the undo has come: one that comes later finds it.
		stoppable, over := d.Memory.Stoppable(ctx, ref)
		defer over()
		ctx = stoppable
	}
	if b.Step != "" {
		if err := d.Memory.Late(ref, b.Step); err != nil {
			return nil, err
		}
	}
	if b.Manage {
		if err := d.mayBegin(ref, h); err != nil {
			return nil, err
		}
	}
	return h.Do(ctx, ref, in)
}

// mayBegin refuses an operation on a host that only observes, unless the attempt has had it done.
func (d *Dispatcher) mayBegin(ref migration.Ref, h operation.Handler) error {
	err := d.Managing()
	if err == nil || h.Done == nil {
		return err
	}
	done, lookErr := h.Done(ref)
	switch {
	case lookErr != nil:
		return lookErr
	case done:
		return nil
	}
	return err
}
