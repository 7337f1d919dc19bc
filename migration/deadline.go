package migration

import (
	"context"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/task"
)

// attemptLimit is how long one attempt of a guest's may take. The default is the rule
// of Nova's live_migration_completion_timeout: 800 s for each GiB of memory and of
// disks, which may all be copied, of at least two.
func (c *Conductor) attemptLimit(g Guest) time.Duration {
	if c.cfg.AttemptTimeout > 0 {
		return c.cfg.AttemptTimeout
	}
	return 800 * time.Second * time.Duration(max(2, g.Resources.MemoryMB/1024+g.Resources.DiskGB))
}

// setDeadline begins the time of an attempt.
func (s *story) setDeadline(rec *Migration) {
	now := s.c.cfg.Runtime.Boot()
	s.until = runtime.BootTime{ID: now.ID, Since: now.Since + s.limit}
	rec.Deadline = s.c.cfg.Runtime.Now().Add(s.limit)
}

// deadline gives an attempt up when its time, until, is over. Past the last moment at which
// it can be given up that is refused, and rightly so: what is forward is retried, and
// shown. It looks at nothing of the story that the next attempt changes.
func (s *story) deadline(ctx context.Context, t *task.Task, until runtime.BootTime, attempt int) {
	if s.limit <= 0 {
		return // of an agent that knew no deadlines
	}
	now := s.c.cfg.Runtime.Boot()
	left := until.Since - now.Since
	if until.ID != now.ID {
		left = s.limit // instants of two boots cannot be compared: the time begins anew
	}
	if s.c.cfg.Runtime.Sleep(ctx, max(0, left)) != nil {
		return
	}
	why := fault.Refuse(fault.Unavailable, s.kind, fault.Reason{
		Code:    codeDeadline,
		Message: fmt.Sprintf("attempt %d was not over after %s", attempt, s.limit),
		Change:  "look what it waited for (berth migration show); set [migration] attempt_timeout higher if it only needs longer",
	})
	if err := t.Cancel(why); err != nil {
		s.c.cfg.Logger.Warn("an attempt is past its deadline and can only go forward", "migration", s.uuid, "attempt", attempt, "error", err)
	}
}
