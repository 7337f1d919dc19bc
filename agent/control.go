package agent

import (
	"context"

	"berth/agent/api"
	"berth/migration"
)

// Set implements api.Migrations.
func (s migrationService) Set(ctx context.Context, ref string, in api.SetMigration) (migration.Migration, error) {
	there := func(c *api.Client, ctx context.Context, id string) (migration.Migration, error) {
		return c.SetMigration(ctx, id, in)
	}
	return s.decide(ctx, "change migration "+ref, ref, s.whoConducts, there, func(ctx context.Context, id string) (migration.Migration, error) {
		if err := s.a.conductor.Tune(ctx, id, in.Tuning(), api.CallerWords(ctx)); err != nil {
			return migration.Migration{}, err
		}
		return s.a.conductor.Get(ctx, id)
	})
}

// ForceComplete implements api.Migrations.
func (s migrationService) ForceComplete(ctx context.Context, ref string) (migration.Migration, error) {
	return s.decide(ctx, "force migration "+ref+" to complete", ref, s.whoConducts, (*api.Client).ForceComplete, func(ctx context.Context, id string) (migration.Migration, error) {
		if err := s.a.conductor.ForceComplete(ctx, id, api.CallerWords(ctx)); err != nil {
			return migration.Migration{}, err
		}
		return s.a.conductor.Get(ctx, id)
	})
}
