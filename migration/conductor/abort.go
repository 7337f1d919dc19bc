package conductor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// Abort asks for a migration to be given up and undone. It returns when the
// wish is durable; Watch tells what came of it. It is fault.Forbidden, with the
// reason, from the moment the source's domain has left (then only forward is
// possible) and when the migration is over. An abort may still come too late on
// its way: then the migration completes and says so by its status. Safe to repeat.
func (c *Conductor) Abort(ctx context.Context, uuid string) error {
	c.mu.Lock()
	s := c.stories[uuid]
	var m migration.Migration
	if s != nil {
		m = s.view()
	}
	c.mu.Unlock()
	switch {
	case s == nil:
		return fault.New(fault.NotFound, "migration %s is not known here", uuid)
	case m.Done():
		return fault.New(fault.Forbidden, "abort migration %s: it is over: %s", uuid, m.Outcome)
	case m.Stage == migration.StageFinished:
		return fault.Refuse(fault.Forbidden, "abort migration "+uuid, fault.Reason{
			Code: "finished", Message: "the move is finished, and waits to be confirmed or reverted", Have: string(m.Status),
			Change: "revert it: berth resize revert " + cmp.Or(m.InstanceName, m.InstanceUUID),
		})
	case !s.decisions().abortable(m), s.decisions().seenInPostCopy(ctx, m):
		return fault.Refuse(fault.Forbidden, "abort migration "+uuid, tooLate(m))
	}
	if err := c.cfg.Store.Put(ctx, bucketAborts, uuid, []byte(`true`)); err != nil {
		return fmt.Errorf("abort migration %s: %w", uuid, err)
	}
	err := s.decisions().abort()
	if errors.Is(err, fault.Forbidden) {
		err = fault.Refuse(fault.Forbidden, "abort migration "+uuid, tooLate(m))
	}
	c.mu.Lock()
	ended, run := s.rec.Done() || s.resting, c.run
	c.mu.Unlock()
	if ended && run != nil {
		c.dropAbort(run, uuid) // it ended while the wish was written
	}
	return err
}

// tooLate is why a migration can only be finished.
func tooLate(m migration.Migration) fault.Reason {
	if byPostCopy(m) {
		return fault.Reason{
			Code: "post_copy_began", Message: "post-copy has begun: the guest runs at " + m.DestCompute + ", part of its memory is still at " + m.SourceCompute + ", and neither half can go on without the other",
			Have: string(m.Status), Change: "wait for its end; more bandwidth brings it nearer: berth migration set " + m.UUID + " --bandwidth none",
		}
	}
	return fault.Reason{
		Code: "past_point_of_no_return", Message: fmt.Sprintf("the migration is %s, and can only be finished", m.Status), Have: string(m.Status),
	}
}

// seenInPostCopy asks the source whether a guest whose second job is being begun has left by it.
// A source that does not answer is no reason to refuse: the undo asks it again, and decides.
func (s decisions) seenInPostCopy(ctx context.Context, m migration.Migration) bool {
	if m.Step != migration.StepPostCopy || m.Phase != task.Doing {
		return false
	}
	ref := migration.Ref{Migration: s.name(), Instance: m.InstanceUUID, Attempt: m.Attempt, Step: migration.StepStream}
	var st migration.StreamStatus
	err := s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		st, err = operation.StreamStatus.Ask(ctx, h, ref)
		return err
	})
	fact := sourceFact(&st, true)
	return err == nil && (fact == SourcePostCopy || fact == SourceLost || fact == SourceMigrated)
}
