package sim

import (
	"cmp"
	"context"

	"berth/migration"
	"berth/migration/conductor"
)

// ask of the fleet by a conductor: its points are the commits below it, and the mutants'.
func (a *agent) fleet() conductor.Fleet {
	if a.records == nil {
		return nil
	}
	var f conductor.Fleet = spoiled{a.keeper.Evacuations(), a}
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
