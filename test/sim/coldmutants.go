package sim

import (
	"context"

	"berth/claims"
	"berth/migration"
	"berth/migration/operation"
)

// coldMutants are the breakages of moves that have their guest while it is off.
func coldMutants() []Mutant {
	return []Mutant{
		{Name: "power-on-forgotten", What: "a guest that was powered off for a move which is undone stays off",
			Verbs: over(func(v verbs) migration.Host { return noPowerOn{v} })},
		{Name: "hand-over-before-off", What: "the token is handed over while the guest runs",
			Verbs: over(func(v verbs) migration.Host { return earlyHandOver{v} })},
		{Name: "held-half-released", What: "the source's half is released when the token is handed over",
			Verbs: over(func(v verbs) migration.Host { return noHold{v} })},
		{Name: "kept-disk-removed", What: "the source's disks are removed before the move is confirmed",
			Verbs: over(func(v verbs) migration.Host { return hastyDisks{v} })},
		{Name: "revert-keeps-flavor", What: "a guest that was taken back keeps the flavor that it was to have",
			Verbs: over(func(v verbs) migration.Host { return newFlavor{v} })},
		{Name: "power-state-lost", What: "a guest starts where it comes to, whatever its user had chosen",
			Verbs: over(func(v verbs) migration.Host { return alwaysOn{v} })},
		{Name: "unapply-forgotten", What: "the undo of a change in place does nothing",
			Verbs: over(func(v verbs) migration.Host { return noUnapply{v} })},
		{Name: "old-not-given-up", What: "a confirmed change in place keeps what the guest had before",
			Verbs: over(func(v verbs) migration.Host { return noFinishChange{v} })},
		{Name: "source-not-confirmed", What: "a confirmed move leaves the source's half",
			Verbs: over(func(v verbs) migration.Host { return noConfirmSource{v} })},
		{Name: "reverted-not-cleaned", What: "a guest that was handed back leaves all that was made for it",
			Verbs: over(func(v verbs) migration.Host { return noCleanUpReverted{v} })},
		{Name: "context-dropped-at-hand-over", What: "the source drops its context when it hands the guest over",
			Verbs: over(func(v verbs) migration.Host { return dropsContext{v} })},
	}
}

// verbs are a host's, and whose they are.
type verbs struct {
	migration.Host
	a *agent
}

// over makes a host of which a mutant's methods replace operations.
func over(f func(verbs) migration.Host) func(*agent, migration.Host) migration.Host {
	return func(a *agent, h migration.Host) migration.Host { return f(verbs{h, a}) }
}

type noPowerOn struct{ verbs }

func (noPowerOn) PowerOn(context.Context, migration.Ref) error { return nil }

type earlyHandOver struct{ verbs }

func (h earlyHandOver) PowerOff(context.Context, migration.Ref, migration.PowerOffRequest) (migration.PoweredOff, error) {
	return migration.PoweredOff{PowerState: migration.PowerRunning}, nil
}

func (h earlyHandOver) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := h.a.tracker.ReleaseHeldOwnership(ctx, ref, claims.KindResize, r.To, migration.PowerRunning)
	return migration.Commit{
		Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To, Power: migration.PowerRunning,
	}, err
}

type noHold struct{ verbs }

func (h noHold) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := operation.HandOver.Ask(ctx, h.verbs, ref, r)
	if err == nil {
		for _, half := range h.a.tracker.ByMigration(ref.Migration) {
			_ = h.a.tracker.Release(ctx, half.Owner)
		}
	}
	return c, err
}

type hastyDisks struct{ verbs }

func (h hastyDisks) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := operation.HandOver.Ask(ctx, h.verbs, ref, r)
	if g := h.a.w.guestOf(ref.Instance); err == nil && g.disk == local {
		h.a.m.files.Rename(g.path(), images+"/gone")
	}
	return c, err
}

type newFlavor struct{ verbs }

func (h newFlavor) FinishRevert(ctx context.Context, ref migration.Ref) error {
	err := operation.FinishRevert.Ask(ctx, h.verbs, ref)
	if i, ok := h.a.tracker.Instance(ref.Instance); ok && err == nil {
		i.Flavor = large
		_, err = h.a.tracker.PutInstance(ctx, i)
	}
	return err
}

type alwaysOn struct{ verbs }

func (h alwaysOn) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := operation.HandOver.Ask(ctx, h.verbs, ref, r)
	c.Power = migration.PowerRunning
	return c, err
}

type noUnapply struct{ verbs }

func (noUnapply) UnapplyChange(context.Context, migration.Ref) error { return nil }

type noFinishChange struct{ verbs }

func (noFinishChange) FinishChange(context.Context, migration.Ref) error { return nil }

type noConfirmSource struct{ verbs }

func (noConfirmSource) ConfirmSource(context.Context, migration.Ref) error { return nil }

type noCleanUpReverted struct{ verbs }

func (noCleanUpReverted) CleanUpReverted(context.Context, migration.Ref) error { return nil }

type dropsContext struct{ verbs }

func (h dropsContext) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := operation.HandOver.Ask(ctx, h.verbs, ref, r)
	if err == nil {
		_ = h.a.tracker.DropContext(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt})
	}
	return c, err
}
