package sim

import (
	"context"

	"berth/claims"
	"berth/migration"
)

// coldMutants are the breakages of moves that have their guest while it is off.
func coldMutants() []Mutant {
	verbs := func(f func(v coldVerbs) migration.ColdVerbs) func(*agent, migration.ColdVerbs) migration.ColdVerbs {
		return func(a *agent, h migration.ColdVerbs) migration.ColdVerbs { return f(coldVerbs{h, a}) }
	}
	return []Mutant{
		{Name: "power-on-forgotten", What: "a guest that was powered off for a move which is undone stays off",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noPowerOn{v} })},
		{Name: "hand-over-before-off", What: "the token is handed over while the guest runs",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return earlyHandOver{v} })},
		{Name: "held-half-released", What: "the source's half is released when the token is handed over",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noHold{v} })},
		{Name: "kept-disk-removed", What: "the source's disks are removed before the move is confirmed",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return hastyDisks{v} })},
		{Name: "revert-keeps-flavor", What: "a guest that was taken back keeps the flavor that it was to have",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return newFlavor{v} })},
		{Name: "power-state-lost", What: "a guest starts where it comes to, whatever its user had chosen",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return alwaysOn{v} })},
		{Name: "unapply-forgotten", What: "the undo of a change in place does nothing",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noUnapply{v} })},
		{Name: "old-not-given-up", What: "a confirmed change in place keeps what the guest had before",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noFinishChange{v} })},
		{Name: "source-not-confirmed", What: "a confirmed move leaves the source's half",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noConfirmSource{v} })},
		{Name: "reverted-not-cleaned", What: "a guest that was handed back leaves all that was made for it",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return noCleanUpReverted{v} })},
		{Name: "context-dropped-at-hand-over", What: "the source drops its context when it hands the guest over",
			Cold: verbs(func(v coldVerbs) migration.ColdVerbs { return dropsContext{v} })},
	}
}

// coldVerbs are a host's, and whose they are.
type coldVerbs struct {
	migration.ColdVerbs
	a *agent
}

type noPowerOn struct{ coldVerbs }

func (noPowerOn) PowerOn(context.Context, migration.Ref) error { return nil }

type earlyHandOver struct{ coldVerbs }

func (h earlyHandOver) PowerOff(context.Context, migration.Ref, migration.PowerOffRequest) (migration.PoweredOff, error) {
	return migration.PoweredOff{PowerState: migration.PowerRunning}, nil
}

func (h earlyHandOver) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.a.tracker.SurrenderHeld(ctx, ref, claims.KindResize, to, migration.PowerRunning)
	return migration.Commit{
		Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To, Power: migration.PowerRunning,
	}, err
}

type noHold struct{ coldVerbs }

func (h noHold) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.coldVerbs.HandOver(ctx, ref, to)
	if err == nil {
		for _, half := range h.a.tracker.ByMigration(ref.Migration) {
			_ = h.a.tracker.Release(ctx, half.Owner)
		}
	}
	return c, err
}

type hastyDisks struct{ coldVerbs }

func (h hastyDisks) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.coldVerbs.HandOver(ctx, ref, to)
	if g := h.a.w.guestOf(ref.Instance); err == nil && g.disk == local {
		h.a.m.files.Rename(g.path(), images+"/gone")
	}
	return c, err
}

type newFlavor struct{ coldVerbs }

func (h newFlavor) FinishRevert(ctx context.Context, ref migration.Ref) error {
	err := h.coldVerbs.FinishRevert(ctx, ref)
	if i, ok := h.a.tracker.Instance(ref.Instance); ok && err == nil {
		i.Flavor = large
		_, err = h.a.tracker.PutInstance(ctx, i)
	}
	return err
}

type alwaysOn struct{ coldVerbs }

func (h alwaysOn) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.coldVerbs.HandOver(ctx, ref, to)
	c.Power = migration.PowerRunning
	return c, err
}

type noUnapply struct{ coldVerbs }

func (noUnapply) UnapplyChange(context.Context, migration.Ref) error { return nil }

type noFinishChange struct{ coldVerbs }

func (noFinishChange) FinishChange(context.Context, migration.Ref) error { return nil }

type noConfirmSource struct{ coldVerbs }

func (noConfirmSource) ConfirmSource(context.Context, migration.Ref) error { return nil }

type noCleanUpReverted struct{ coldVerbs }

func (noCleanUpReverted) CleanUpReverted(context.Context, migration.Ref) error { return nil }

type dropsContext struct{ coldVerbs }

func (h dropsContext) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.coldVerbs.HandOver(ctx, ref, to)
	if err == nil {
		_ = h.a.tracker.DropContext(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt})
	}
	return c, err
}
