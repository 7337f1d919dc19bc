package sim

import (
	"cmp"
	"context"

	"berth/migration"
	"berth/migration/conductor"
)

// evacuation are the host's verbs for guests of dead hosts.
func (a *agent) evacuation() migration.EvacuationVerbs {
	if m := a.w.mutant; m != nil && m.Evacuation != nil {
		return m.Evacuation(a, a.host)
	}
	return a.host
}

func evacuationGet[T any](ctx context.Context, p peer, name string, f func(context.Context, migration.EvacuationVerbs) (T, error)) (T, error) {
	return verb(ctx, p, ofVerb, name, func(ctx context.Context, b *agent) (T, error) { return f(ctx, b.evacuation()) })
}

func evacuationAct(ctx context.Context, p peer, name string, f func(context.Context, migration.EvacuationVerbs) error) error {
	_, err := evacuationGet(ctx, p, name, func(ctx context.Context, h migration.EvacuationVerbs) (struct{}, error) { return struct{}{}, f(ctx, h) })
	return err
}

var _ migration.EvacuationVerbs = peer{}

func (p peer) PrepEvacuation(ctx context.Context, ref migration.Ref, r migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
	return evacuationGet(ctx, p, "PrepEvacuation", func(ctx context.Context, h migration.EvacuationVerbs) (migration.PreparedEvacuation, error) {
		return h.PrepEvacuation(ctx, ref, r)
	})
}

func (p peer) RollbackPrepEvacuation(ctx context.Context, ref migration.Ref) error {
	return evacuationAct(ctx, p, "RollbackPrepEvacuation", func(ctx context.Context, h migration.EvacuationVerbs) error {
		return p.a.w.undone(p.m, ref, "prepared_evacuation", h.RollbackPrepEvacuation(ctx, ref))
	})
}

func (p peer) AcceptEvacuated(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	return evacuationAct(ctx, p, "AcceptEvacuated", func(ctx context.Context, h migration.EvacuationVerbs) error {
		err := h.AcceptEvacuated(ctx, ref, c)
		if err == nil {
			p.a.w.tokenAnswered(p.m, c)
		}
		return err
	})
}

func (p peer) FinishEvacuation(ctx context.Context, ref migration.Ref) (migration.FinishedEvacuation, error) {
	return evacuationGet(ctx, p, "FinishEvacuation", func(ctx context.Context, h migration.EvacuationVerbs) (migration.FinishedEvacuation, error) {
		return h.FinishEvacuation(ctx, ref)
	})
}

// ask of the fleet by a conductor: its points are the commits below it, and the mutants'.
func (a *agent) fleet() conductor.Fleet {
	if a.records == nil {
		return nil
	}
	var f conductor.Fleet = spoiled{lostGuests{a.records}, a}
	if m := a.w.mutant; m != nil && m.Fleet != nil {
		f = m.Fleet(a, f)
	}
	return f
}

// spoiled are the records as they are asked by a step that is to go wrong.
type spoiled struct {
	conductor.Fleet
	a *agent
}

func fleetGet[T any](s spoiled, what string, f func() (T, error)) (T, error) {
	then, instead := s.a.w.spoilVerb(s.a, what)
	if instead != nil {
		var none T
		return none, instead
	}
	v, err := f()
	if then != nil {
		err = cmp.Or(err, then())
		s.a.process.Yield() // it may have ended
	}
	return v, err
}

func (s spoiled) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	return fleetGet(s, "Lost", func() (migration.LostGuest, error) { return s.Fleet.Lost(ctx, instance) })
}

func (s spoiled) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	return fleetGet(s, "TakeOver", func() (migration.Commit, error) {
		c, err := s.Fleet.TakeOver(ctx, ref, g, to)
		if err == nil {
			s.a.w.tookOver(c)
		}
		return c, err
	})
}
