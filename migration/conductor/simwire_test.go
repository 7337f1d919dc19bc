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
	do := func() (any, error) { return operationtest.By(x.h).Ask(ctx, ref, op, in) }
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

func (x hostWire) Inspect(ctx context.Context, instance string) (migration.Guest, error) {
	return read(x, func() (migration.Guest, error) { return x.h.Inspect(ctx, instance) })
}

func (x hostWire) CheckSource(ctx context.Context, ref migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	return read(x, func() (migration.SourceAnswer, error) { return x.h.CheckSource(ctx, ref, a) })
}

func (x hostWire) RecordContext(ctx context.Context, ref migration.Ref, c migration.Context) error {
	return act(x, "RecordContext", func() error { return x.h.RecordContext(ctx, ref, c) })
}

func (x hostWire) DropContext(ctx context.Context, ref migration.Ref) error {
	return act(x, "DropContext", func() error { return x.h.DropContext(ctx, ref) })
}

func (x hostWire) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return act(x, "StartStream", func() error { return x.h.StartStream(ctx, ref, s) })
}

func (x hostWire) StreamStatus(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	return read(x, func() (migration.StreamStatus, error) { return x.h.StreamStatus(ctx, ref) })
}

func (x hostWire) TuneStream(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	return act(x, "TuneStream", func() error { return x.h.TuneStream(ctx, ref, t) })
}

func (x hostWire) Commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	return wire(x.w, x.p, "Commit on "+x.h.name, x.reachable, func() (migration.Commit, error) { return x.h.Commit(ctx, ref) })
}

func (x hostWire) Reclaim(ctx context.Context, ref migration.Ref) error {
	return act(x, "Reclaim", func() error { return x.h.Reclaim(ctx, ref) })
}

func (x hostWire) CleanUpSource(ctx context.Context, ref migration.Ref) error {
	return act(x, "CleanUpSource", func() error { return x.h.CleanUpSource(ctx, ref) })
}

func (x hostWire) CheckDestination(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	return read(x, func() (migration.CheckAnswer, error) { return x.h.CheckDestination(ctx, ref, c) })
}

func (x hostWire) Claim(ctx context.Context, ref migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	return wire(x.w, x.p, "Claim on "+x.h.name, x.reachable, func() (migration.ClaimAnswer, error) { return x.h.Claim(ctx, ref, c) })
}

func (x hostWire) RenewClaim(ctx context.Context, ref migration.Ref) error {
	return act(x, "RenewClaim", func() error { return x.h.RenewClaim(ctx, ref) })
}

func (x hostWire) AbortClaim(ctx context.Context, ref migration.Ref) error {
	return act(x, "AbortClaim", func() error { return x.h.AbortClaim(ctx, ref) })
}

func (x hostWire) PreLiveMigration(ctx context.Context, ref migration.Ref, q migration.PreLiveRequest) (migration.Prepared, error) {
	return wire(x.w, x.p, "PreLiveMigration on "+x.h.name, x.reachable, func() (migration.Prepared, error) { return x.h.PreLiveMigration(ctx, ref, q) })
}

func (x hostWire) RollbackPreLiveMigration(ctx context.Context, ref migration.Ref) error {
	return act(x, "RollbackPreLiveMigration", func() error { return x.h.RollbackPreLiveMigration(ctx, ref) })
}

func (x hostWire) AcceptToken(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	return act(x, "AcceptToken", func() error { return x.h.AcceptToken(ctx, ref, c) })
}

func (x hostWire) FinishDestination(ctx context.Context, ref migration.Ref) error {
	return act(x, "FinishDestination", func() error { return x.h.FinishDestination(ctx, ref) })
}

func (x hostWire) DestinationStatus(ctx context.Context, ref migration.Ref) (migration.DestinationStatus, error) {
	return read(x, func() (migration.DestinationStatus, error) { return x.h.DestinationStatus(ctx, ref) })
}
