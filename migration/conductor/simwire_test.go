package conductor_test

import (
	"context"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/operation/operationtest"
)

// hostWire is a host as one conductor's process reaches it.
type hostWire struct {
	w *world
	p *simruntime.Process
	h *simHost
}

var _ migration.Host = hostWire{}

func (x hostWire) reachable() bool {
	if x.h.unasked {
		x.w.violate("the dead host %s was asked", x.h.name)
	}
	return !x.h.cut
}

// read is a call that changes nothing: it can fail, but there is nothing in it
// that a crash or a late message could spoil.
func read[T any](x hostWire, do func() (T, error)) (T, error) {
	x.p.Yield()
	if !x.reachable() {
		var zero T
		return zero, fault.New(fault.Unavailable, "host %s: no route to host", x.h.name)
	}
	return do()
}

func act(x hostWire, verb string, do func() error) error {
	_, err := wire(x.w, x.p, verb+" on "+x.h.name, x.reachable, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// Ask implements migration.Host.
func (x hostWire) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if x.h.noVerbs && newer[op.Name] {
		return nil, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonPeerTooOld, Message: "host " + x.h.name + " runs an older berth"})
	}
	if x.h.deafens && op.Name == operation.FinishEvacuation.Name {
		return nil, x.p.Sleep(ctx, time.Hour)
	}
	do := func() (any, error) { return operationtest.Ask(ctx, x.h, ref, op, in) }
	if op.ReadOnly || op.Name == operation.ShippedSoFar.Name {
		return read(x, do)
	}
	return wire(x.w, x.p, operationtest.Method(op)+" on "+x.h.name, x.reachable, do)
}

// newer are operations that an older agent does not know.
var newer = map[string]bool{
	operation.PrepEvacuation.Name: true, operation.RollbackPrepEvacuation.Name: true, operation.AcceptEvacuated.Name: true, operation.FinishEvacuation.Name: true,
	operation.SnapshotDisks.Name: true, operation.DropSnapshot.Name: true, operation.SendDisks.Name: true,
	operation.Disconnect.Name: true, operation.Reconnect.Name: true, operation.HideInstance.Name: true, operation.ShowInstance.Name: true,
	operation.CopyInstance.Name: true, operation.RemoveCopy.Name: true, operation.ReadVolumes.Name: true, operation.CarryVolumes.Name: true,
}

func (x hostWire) Describe(ctx context.Context) (migration.Description, error) {
	return read(x, func() (migration.Description, error) { return x.h.Describe(ctx) })
}
