package drain

import (
	"context"
	"fmt"

	"berth/internal/fault"
)

// onlyDoubt reports whether nothing but moves in doubt is left to wait for.
func (q *queue) onlyDoubt() bool {
	doubts := false
	for _, g := range q.all() {
		if g.State == Waiting && q.state() == Running || g.State == Moving && !g.doubt {
			return false
		}
		doubts = doubts || g.State == Moving
	}
	return doubts
}

// leaveDoubts counts guests as failed whose moves nobody can decide: they go on by themselves,
// and the drain does not wait for them.
func (q *queue) leaveDoubts(ctx context.Context) {
	for _, g := range q.all() {
		if g.State != Moving {
			continue
		}
		q.d.mu.Lock()
		q.turn++
		g.Turn = q.turn
		q.d.mu.Unlock()
		g.State, g.EndedAt, g.doubt = Failed, q.d.cfg.Runtime.Now(), false
		if !q.put(ctx, g) {
			return
		}
	}
}

// cut ends a drain whose boot is over.
func (q *queue) cut(ctx context.Context) {
	for _, g := range q.all() {
		if g.State == Moving || g.State == Waiting {
			g.State = Failed
			g.Reasons = []fault.Reason{{Code: "host_restarted", Message: "the machine went down before it had left", Change: "drain the host by hand, before it goes down"}}
			if !q.put(ctx, g) {
				return
			}
		}
	}
	if q.end(ctx) {
		q.reopen(ctx)
	}
}

// reopen gives back what was before the host was closed.
func (q *queue) reopen(ctx context.Context) {
	q.until(ctx, "open "+q.req.Host+" to new guests as before", func() error {
		if q.head().Closed {
			if err := q.d.cfg.Host.Open(ctx, q.head()); err != nil {
				return err
			}
		}
		return q.change(ctx, func(rec *Drain) { rec.Reopened = true })
	})
}

// end writes what became of every guest, then that the drain is over. It is false when ctx
// ended before.
func (q *queue) end(ctx context.Context) bool {
	left := 0
	for _, g := range q.all() {
		if g.left() {
			left++
		}
		q.d.mu.Lock()
		saved := q.saved[g.Instance] && g.State != Waiting // why it waits is kept at the end alone
		q.d.mu.Unlock()
		if !saved && !q.put(ctx, g) {
			return false
		}
	}
	aborted := q.state() == Aborting
	if aborted && q.head().Closed && !q.until(ctx, "open "+q.req.Host+" to new guests as before", func() error { return q.d.cfg.Host.Open(ctx, q.head()) }) {
		return false
	}
	ok := q.until(ctx, "write the end of the drain", func() error {
		return q.change(ctx, func(rec *Drain) {
			rec.EndedAt = q.d.cfg.Runtime.Now()
			switch {
			case aborted && left > 0:
				rec.State = Aborted
			case left > 0:
				rec.State = Incomplete
			default:
				rec.State = Done
			}
			rec.Reopened = rec.Reopened || aborted
		})
	})
	if ok {
		q.d.cfg.Logger.Info("drain is over", "drain", q.req.UUID, "host", q.req.Host, "state", string(q.state()), "left_behind", fmt.Sprint(left))
		q.d.prune(ctx)
	}
	return ok
}
