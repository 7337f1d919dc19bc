package conductor_test

import (
	"context"

	"berth/migration"
)

func (x hostWire) PlanChange(ctx context.Context, instance string, c migration.Change) (migration.Wanted, error) {
	return read(x, func() (migration.Wanted, error) { return x.h.PlanChange(ctx, instance, c) })
}

func (x hostWire) PowerOff(ctx context.Context, ref migration.Ref, p migration.PowerOffRequest) (migration.PoweredOff, error) {
	return wire(x.w, x.p, "PowerOff on "+x.h.name, x.reachable, func() (migration.PoweredOff, error) { return x.h.PowerOff(ctx, ref, p) })
}

func (x hostWire) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	return wire(x.w, x.p, "HandOver on "+x.h.name, x.reachable, func() (migration.Commit, error) { return x.h.HandOver(ctx, ref, to) })
}

func (x hostWire) PrepResize(ctx context.Context, ref migration.Ref, p migration.PrepRequest) (migration.PreparedCold, error) {
	return wire(x.w, x.p, "PrepResize on "+x.h.name, x.reachable, func() (migration.PreparedCold, error) { return x.h.PrepResize(ctx, ref, p) })
}

func (x hostWire) PrepChange(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	return act(x, "PrepChange", func() error { return x.h.PrepChange(ctx, ref, p) })
}

func (x hostWire) AcceptHanded(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	return act(x, "AcceptHanded", func() error { return x.h.AcceptHanded(ctx, ref, c) })
}

func (x hostWire) ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	return read(x, func() (migration.Shipped, error) { return x.h.ShippedSoFar(ctx, ref) })
}

func (x hostWire) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	return act(x, "WriteDisk", func() error { return x.h.WriteDisk(ctx, ref, p) })
}

func (x hostWire) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return act(x, "SealDisks", func() error { return x.h.SealDisks(ctx, ref, want) })
}

func (x hostWire) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	return read(x, func() (migration.DiskPiece, error) { return x.h.ReadDisk(ctx, ref, r) })
}

func (x hostWire) ConfirmSource(ctx context.Context, ref migration.Ref) error {
	return act(x, "ConfirmSource", func() error { return x.h.ConfirmSource(ctx, ref) })
}

func (x hostWire) AwaitReturn(ctx context.Context, ref migration.Ref) error {
	return act(x, "AwaitReturn", func() error { return x.h.AwaitReturn(ctx, ref) })
}

func (x hostWire) CancelReturn(ctx context.Context, ref migration.Ref) error {
	return act(x, "CancelReturn", func() error { return x.h.CancelReturn(ctx, ref) })
}

func (x hostWire) FinishRevert(ctx context.Context, ref migration.Ref) error {
	return act(x, "FinishRevert", func() error { return x.h.FinishRevert(ctx, ref) })
}

func (x hostWire) RollbackPrepResize(ctx context.Context, ref migration.Ref) error {
	return act(x, "RollbackPrepResize", func() error { return x.h.RollbackPrepResize(ctx, ref) })
}

func (x hostWire) FinishResize(ctx context.Context, ref migration.Ref) error {
	return act(x, "FinishResize", func() error { return x.h.FinishResize(ctx, ref) })
}

func (x hostWire) ConfirmDestination(ctx context.Context, ref migration.Ref) error {
	return act(x, "ConfirmDestination", func() error { return x.h.ConfirmDestination(ctx, ref) })
}

func (x hostWire) CleanUpReverted(ctx context.Context, ref migration.Ref) error {
	return act(x, "CleanUpReverted", func() error { return x.h.CleanUpReverted(ctx, ref) })
}

func (x hostWire) RollbackPrepChange(ctx context.Context, ref migration.Ref) error {
	return act(x, "RollbackPrepChange", func() error { return x.h.RollbackPrepChange(ctx, ref) })
}

func (x hostWire) ApplyChange(ctx context.Context, ref migration.Ref) error {
	return act(x, "ApplyChange", func() error { return x.h.ApplyChange(ctx, ref) })
}

func (x hostWire) UnapplyChange(ctx context.Context, ref migration.Ref) error {
	return act(x, "UnapplyChange", func() error { return x.h.UnapplyChange(ctx, ref) })
}

func (x hostWire) StartChanged(ctx context.Context, ref migration.Ref) error {
	return act(x, "StartChanged", func() error { return x.h.StartChanged(ctx, ref) })
}

func (x hostWire) FinishChange(ctx context.Context, ref migration.Ref) error {
	return act(x, "FinishChange", func() error { return x.h.FinishChange(ctx, ref) })
}

func (x hostWire) PowerOn(ctx context.Context, ref migration.Ref) error {
	return act(x, "PowerOn", func() error { return x.h.PowerOn(ctx, ref) })
}

func (x hostWire) KeepGuest(ctx context.Context, ref migration.Ref) error {
	return act(x, "KeepGuest", func() error { return x.h.KeepGuest(ctx, ref) })
}
