package agent

import (
	"context"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

// controller is what a conductor does to a live migration on its way.
type controller interface {
	Tune(ctx context.Context, uuid string, t migration.Tuning, by string) error
	ForceComplete(ctx context.Context, uuid, by string) error
}

func (s migrationService) controller() (controller, error) {
	c, able := any(s.a.conductor).(controller)
	if !able {
		return nil, fault.New(fault.Forbidden, "change a live migration on its way: the conductor cannot")
	}
	return c, nil
}

// Set implements api.Migrations.
func (s migrationService) Set(ctx context.Context, ref string, in api.SetMigration) (migration.Migration, error) {
	there := func(c *api.Client, ctx context.Context, id string) (migration.Migration, error) {
		return c.SetMigration(ctx, id, in)
	}
	return s.decide(ctx, "change migration "+ref, ref, s.near, there, func(ctx context.Context, id string) (migration.Migration, error) {
		c, err := s.controller()
		if err == nil {
			err = c.Tune(ctx, id, in.Tuning(), api.CallerWords(ctx))
		}
		if err != nil {
			return migration.Migration{}, err
		}
		return s.a.conductor.Get(ctx, id)
	})
}

// ForceComplete implements api.Migrations.
func (s migrationService) ForceComplete(ctx context.Context, ref string) (migration.Migration, error) {
	return s.decide(ctx, "force migration "+ref+" to complete", ref, s.near, (*api.Client).ForceComplete, func(ctx context.Context, id string) (migration.Migration, error) {
		c, err := s.controller()
		if err == nil {
			err = c.ForceComplete(ctx, id, api.CallerWords(ctx))
		}
		if err != nil {
			return migration.Migration{}, err
		}
		return s.a.conductor.Get(ctx, id)
	})
}
