package sim

import (
	"context"

	"berth/migration"
)

// cold are the host's verbs for guests that are moved or changed while they are off.
func (a *agent) cold() migration.ColdVerbs {
	if m := a.w.mutant; m != nil && m.Cold != nil {
		return m.Cold(a, a.host)
	}
	return a.host
}

func coldGet[T any](ctx context.Context, p peer, k kind, name string, f func(context.Context, migration.ColdVerbs) (T, error)) (T, error) {
	return verb(ctx, p, k, name, func(ctx context.Context, b *agent) (T, error) {
		return f(ctx, b.cold())
	})
}

func coldAct(ctx context.Context, p peer, name string, f func(context.Context, migration.ColdVerbs) error) error {
	_, err := coldGet(ctx, p, ofVerb, name, func(ctx context.Context, h migration.ColdVerbs) (struct{}, error) { return struct{}{}, f(ctx, h) })
	return err
}

func (p peer) PlanChange(ctx context.Context, instance string, c migration.Change) (migration.Wanted, error) {
	return coldGet(ctx, p, ofQuestion, "PlanChange", func(ctx context.Context, h migration.ColdVerbs) (migration.Wanted, error) {
		return h.PlanChange(ctx, instance, c)
	})
}

func (p peer) PowerOff(ctx context.Context, ref migration.Ref, r migration.PowerOffRequest) (migration.PoweredOff, error) {
	p.a.w.mayStop(p.m, ref)
	p.a.w.leaves(p.a, ref)
	return coldGet(ctx, p, ofVerb, "PowerOff", func(ctx context.Context, h migration.ColdVerbs) (migration.PoweredOff, error) {
		return h.PowerOff(ctx, ref, r)
	})
}

func (p peer) PowerOn(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "PowerOn", func(ctx context.Context, h migration.ColdVerbs) error { return h.PowerOn(ctx, ref) })
}

// HandOver is the commit of a cold move: whoever answers it has it on his disk.
func (p peer) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	return verb(ctx, p, ofVerb, "HandOver", func(ctx context.Context, b *agent) (migration.Commit, error) {
		c, err := b.cold().HandOver(ctx, ref, to)
		if err == nil {
			b.w.tokenAnswered(b.m, c)
		}
		return c, err
	})
}

func (p peer) KeepGuest(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "KeepGuest", func(ctx context.Context, h migration.ColdVerbs) error { return h.KeepGuest(ctx, ref) })
}

func (p peer) ConfirmSource(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "ConfirmSource", func(ctx context.Context, h migration.ColdVerbs) error { return h.ConfirmSource(ctx, ref) })
}

func (p peer) AwaitReturn(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "AwaitReturn", func(ctx context.Context, h migration.ColdVerbs) error { return h.AwaitReturn(ctx, ref) })
}

func (p peer) CancelReturn(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "CancelReturn", func(ctx context.Context, h migration.ColdVerbs) error { return h.CancelReturn(ctx, ref) })
}

func (p peer) FinishRevert(ctx context.Context, ref migration.Ref) error {
	p.a.w.comesBack(ref)
	return coldAct(ctx, p, "FinishRevert", func(ctx context.Context, h migration.ColdVerbs) error { return h.FinishRevert(ctx, ref) })
}

func (p peer) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	return coldGet(ctx, p, ofQuestion, "ReadDisk", func(ctx context.Context, h migration.ColdVerbs) (migration.DiskPiece, error) {
		return h.ReadDisk(ctx, ref, r)
	})
}

func (p peer) PrepResize(ctx context.Context, ref migration.Ref, r migration.PrepRequest) (migration.PreparedCold, error) {
	return coldGet(ctx, p, ofVerb, "PrepResize", func(ctx context.Context, h migration.ColdVerbs) (migration.PreparedCold, error) {
		return h.PrepResize(ctx, ref, r)
	})
}

func (p peer) RollbackPrepResize(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "RollbackPrepResize", func(ctx context.Context, h migration.ColdVerbs) error {
		return p.a.w.undone(p.m, ref, "prepared", h.RollbackPrepResize(ctx, ref))
	})
}

func (p peer) ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	return coldGet(ctx, p, ofQuestion, "ShippedSoFar", func(ctx context.Context, h migration.ColdVerbs) (migration.Shipped, error) {
		return h.ShippedSoFar(ctx, ref)
	})
}

func (p peer) WriteDisk(ctx context.Context, ref migration.Ref, d migration.DiskPiece) error {
	return coldAct(ctx, p, "WriteDisk", func(ctx context.Context, h migration.ColdVerbs) error { return h.WriteDisk(ctx, ref, d) })
}

func (p peer) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return coldAct(ctx, p, "SealDisks", func(ctx context.Context, h migration.ColdVerbs) error { return h.SealDisks(ctx, ref, want) })
}

func (p peer) AcceptHanded(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	p.a.w.giverKeeps(ref, c, "before the token is accepted")
	_, err := verb(ctx, p, ofVerb, "AcceptHanded", func(ctx context.Context, b *agent) (struct{}, error) {
		err := b.cold().AcceptHanded(ctx, ref, c)
		if err == nil {
			b.w.tokenAnswered(b.m, c)
		}
		return struct{}{}, err
	})
	return err
}

func (p peer) FinishResize(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "FinishResize", func(ctx context.Context, h migration.ColdVerbs) error { return h.FinishResize(ctx, ref) })
}

func (p peer) ConfirmDestination(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "ConfirmDestination", func(ctx context.Context, h migration.ColdVerbs) error { return h.ConfirmDestination(ctx, ref) })
}

func (p peer) CleanUpReverted(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "CleanUpReverted", func(ctx context.Context, h migration.ColdVerbs) error { return h.CleanUpReverted(ctx, ref) })
}

func (p peer) PrepChange(ctx context.Context, ref migration.Ref, r migration.PrepRequest) error {
	return coldAct(ctx, p, "PrepChange", func(ctx context.Context, h migration.ColdVerbs) error { return h.PrepChange(ctx, ref, r) })
}

func (p peer) RollbackPrepChange(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "RollbackPrepChange", func(ctx context.Context, h migration.ColdVerbs) error {
		return p.a.w.undone(p.m, ref, "prepared", h.RollbackPrepChange(ctx, ref))
	})
}

func (p peer) ApplyChange(ctx context.Context, ref migration.Ref) error {
	p.a.w.changes(ref)
	return coldAct(ctx, p, "ApplyChange", func(ctx context.Context, h migration.ColdVerbs) error { return h.ApplyChange(ctx, ref) })
}

func (p peer) UnapplyChange(ctx context.Context, ref migration.Ref) error {
	p.a.w.mayStop(p.m, ref)
	p.a.w.comesBack(ref)
	_, err := verb(ctx, p, ofVerb, "UnapplyChange", func(ctx context.Context, b *agent) (struct{}, error) {
		if g := b.w.guestOf(ref.Instance); g != nil {
			g.unapplied = b
			defer func() { g.unapplied = nil }()
		}
		return struct{}{}, b.cold().UnapplyChange(ctx, ref)
	})
	return err
}

func (p peer) StartChanged(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "StartChanged", func(ctx context.Context, h migration.ColdVerbs) error { return h.StartChanged(ctx, ref) })
}

func (p peer) FinishChange(ctx context.Context, ref migration.Ref) error {
	return coldAct(ctx, p, "FinishChange", func(ctx context.Context, h migration.ColdVerbs) error { return h.FinishChange(ctx, ref) })
}
