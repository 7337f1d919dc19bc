package conductor

import (
	"context"
	"slices"
	"time"

	"berth/migration"
)

// An evacuation is done when its guest lives again. What the dead host had of it is still
// there, and so is the migration's half in Placement, until that host has come back and
// cleaned up, or was forgotten; then it is completed. The conductor only looks.

// cleanedSoon and cleanedLate are the pauses between two looks, growing while nothing
// changes: a host may be away for weeks. Arbitrary.
const (
	cleanedSoon = 15 * time.Second
	cleanedLate = 10 * time.Minute
)

// completeEvacuations looks until ctx ends.
func (c *Conductor) completeEvacuations(ctx context.Context) {
	var known []string
	for pause := cleanedSoon; c.cfg.Runtime.Sleep(ctx, pause) == nil; {
		before := known
		known = nil
		for _, s := range c.doneEvacuations() {
			if !s.evacuationSteps().completes(ctx) {
				known = append(known, s.uuid)
			}
		}
		if pause = min(2*pause, cleanedLate); !slices.Equal(before, known) || len(known) == 0 {
			pause = cleanedSoon
		}
	}
}

// doneEvacuations are those that are not completed, oldest first.
func (c *Conductor) doneEvacuations() []*story {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*story
	for _, s := range c.stories {
		if s.evacuates() && s.rec.Status == migration.StatusDone {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *story) int { return byAge(a.rec, b.rec) })
	return out
}

// completes makes a done evacuation completed where nothing of it is left at its source. No
// actor drives it, so that nobody else writes the record. What fails is tried again later.
func (s evacuationSteps) completes(ctx context.Context) bool {
	cleaned := false
	err := s.c.records(ctx, func(ctx context.Context, f Fleet) (err error) {
		cleaned, err = f.Cleaned(ctx, s.ref(migration.StepTakeOver), s.from)
		return err
	})
	if err != nil || !cleaned {
		return false
	}
	s.c.mu.Lock()
	rec := s.rec
	s.c.mu.Unlock()
	rec.Status, rec.UpdatedAt = migration.StatusCompleted, s.c.cfg.Runtime.Now()
	if err := s.put(ctx, rec); err != nil {
		s.c.cfg.Logger.Warn("an evacuation is completed and its record cannot be written, to be tried again", "migration", s.uuid, "error", err)
		return false
	}
	s.c.mu.Lock()
	s.rec = rec
	s.publishLocked()
	pruned := s.c.stories[s.uuid] != s.story
	s.c.mu.Unlock()
	if pruned { // meanwhile
		s.c.drop(ctx, bucketMigrations+"/"+s.uuid, func(ctx context.Context) error { return s.c.cfg.Store.Delete(ctx, bucketMigrations, s.uuid) })
	}
	s.c.cfg.Logger.Info("evacuation completed: nothing is left of the guest at its dead host", "migration", s.uuid, "instance", s.instance, "source", s.from)
	return true
}
