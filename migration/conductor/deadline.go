package conductor

import (
	"context"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

// attemptLimit is how long one attempt of a guest's may take. The default is the rule
// of Nova's live_migration_completion_timeout: 800 s for each GiB of memory and of
// disks, which may all be copied, of at least two. Where the options allow the transfer longer,
// it has that, with its switch-over and the time to prepare it: what is to be done at its own
// deadline must come first.
func (c *Conductor) attemptLimit(g migration.Guest, o migration.Options) time.Duration {
	limit := c.cfg.AttemptTimeout
	if limit <= 0 {
		limit = 800 * time.Second * time.Duration(max(2, g.Resources.MemoryMB/1024+g.Resources.DiskGB))
	}
	if plan, err := convergePlan(o, g); err == nil && plan.Deadline > 0 {
		limit = max(limit, c.cfg.SlowVerbTimeout+plan.Deadline+plan.Overtime())
	}
	return limit
}

// setDeadline begins the time of an attempt.
func (s timeLimits) setDeadline(rec *migration.Migration) {
	now := s.c.cfg.Runtime.Boot()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.until = runtime.BootTime{ID: now.ID, Since: now.Since + s.limit}
	rec.Deadline = s.c.cfg.Runtime.Now().Add(s.limit)
}

// renewDeadline begins the time of an attempt anew, durably, after a wait that is no part of
// it: by the time that was over an attempt would be given up after a restart. It tries until
// it can; an error is ctx's cause.
func (s timeLimits) renewDeadline(ctx context.Context) error {
	s.setDeadline(&s.rec)
	for {
		err := s.save(ctx)
		if err == nil {
			return nil
		}
		s.c.cfg.Logger.Error("the deadline of an attempt cannot be written, trying again", "migration", s.uuid, "error", err)
		if err := s.c.cfg.Runtime.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// deadline gives an attempt up when its time is over, and says what it waited for then. Past
// the last moment at which it can be given up that is refused, and rightly so: what is forward
// is retried, and shown.
func (s timeLimits) deadline(ctx context.Context, t *task.Task, attempt int) {
	if s.limit <= 0 {
		return // of an agent that knew no deadlines
	}
	var until runtime.BootTime
	var waits []fault.Reason
	for slept := false; ; slept = true {
		s.c.mu.Lock()
		over := slept && s.until == until
		until, waits = s.until, s.turn.why
		s.c.mu.Unlock()
		if over {
			break
		}
		now := s.c.cfg.Runtime.Boot()
		left := until.Since - now.Since
		if until.ID != now.ID {
			left = s.limit // instants of two boots cannot be compared: the time begins anew
		}
		if s.c.cfg.Runtime.Sleep(ctx, max(0, left)) != nil {
			return
		}
	}
	why := fault.Reason{
		Code:    codeDeadline,
		Message: fmt.Sprintf("attempt %d was not over after %s", attempt, s.limit),
		Change:  "look what it waited for (berth migration show " + s.rec.UUID + "); set [migration] attempt_timeout higher if it only needs longer",
	}
	if len(waits) > 0 {
		why.Message += ", and waited for its turn"
		why.Change = "make room for it, or set [migration] attempt_timeout higher"
	}
	if err := t.Cancel(fault.Refuse(fault.Unavailable, s.kind, append([]fault.Reason{why}, waits...)...)); err != nil {
		s.c.cfg.Logger.Warn("an attempt is past its deadline and can only go forward", "migration", s.uuid, "attempt", attempt, "error", err)
	}
}
