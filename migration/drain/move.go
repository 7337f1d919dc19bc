package drain

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// beginMove names a move in the guest's record, then has it begun.
func (q *queue) beginMove(ctx context.Context, instance string) {
	id, err := uuid.NewRandomFromReader(q.d.cfg.Random)
	if err != nil {
		q.d.cfg.Logger.Error("no uuid could be made for a move", "drain", q.req.UUID, "error", err)
		return
	}
	q.d.mu.Lock()
	g := *q.guests[instance]
	q.d.mu.Unlock()
	g.State, g.Migration, g.Reasons, g.EndedAt = Moving, id.String(), nil, time.Time{}
	g.BegunAt, g.Begun = q.d.cfg.Runtime.Now(), q.d.cfg.Runtime.Boot()
	if q.put(ctx, g) {
		q.spawn(ctx, g, true)
	}
}

// resume goes on with the moves that were under way when the process ended.
func (q *queue) resume(ctx context.Context) {
	list, err := q.d.cfg.Host.Guests(ctx, q.req)
	q.d.mu.Lock()
	guests := q.orderedLocked()
	q.d.mu.Unlock()
	for _, g := range guests {
		if g.State == Moving {
			// Unread, it is taken for there: the conductor refuses a guest that is not.
			here := err != nil || slices.ContainsFunc(list, func(p Present) bool { return p.Instance == g.Instance })
			q.spawn(ctx, g, here)
		}
	}
}

func (q *queue) spawn(ctx context.Context, g Guest, here bool) {
	q.d.group.Go(q.d.cfg.Runtime, "drain move "+g.Migration, func() { q.move(ctx, g, here) })
}

// move begins one move, unless it has been, and follows it to its end. here says that the guest
// was seen on the host.
func (q *queue) move(ctx context.Context, g Guest, here bool) {
	host := q.d.cfg.Host
	m, err := host.Get(ctx, g.Migration)
	switch {
	case fault.KindOf(err) != fault.NotFound:
	case !here:
		q.gone(ctx, g.Instance)
		return
	case q.state() != Running:
		// It was named, and not begun: nothing is to be given up.
		q.ended(ctx, g.Instance, fateBusy, nil)
		return
	default:
		m, err = host.Begin(ctx, Move{Request: q.req, Guest: g.Instance, How: g.How, Migration: g.Migration})
	}
	q.wake() // an abort may have been asked for meanwhile
	for err == nil && !m.Done() && ctx.Err() == nil {
		var ch <-chan migration.Migration
		if ch, err = host.Watch(ctx, g.Migration); err != nil {
			break
		}
		for open := true; open && ctx.Err() == nil; {
			var next migration.Migration
			if next, open, _ = runtime.Receive(ctx, q.d.cfg.Runtime, ch); open && next.UUID != "" {
				m = next
				q.seen(g.Instance, m)
			}
		}
	}
	if ctx.Err() != nil {
		return // it goes on at the next start
	}
	f, why := fateOf(m, err)
	if f == fateGivenUp && q.state() != Running {
		f = fateBusy // by this drain's own abort
	}
	q.ended(ctx, g.Instance, f, why)
}

func (q *queue) state() State {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.rec.State
}

// tellProgress is how often watchers hear of progress alone. Arbitrary.
const tellProgress = time.Second

// seen keeps the last look at a move.
func (q *queue) seen(instance string, m migration.Migration) {
	q.d.mu.Lock()
	g := q.guests[instance]
	doubt := m.Outcome == migration.OutcomeInDoubt || m.Status == migration.StatusError
	changed := g.doubt != doubt
	queued := m.Status == migration.StatusQueued
	if doubt && changed {
		g.doubted = q.d.cfg.Runtime.Boot().Since
	}
	to := cmp.Or(m.DestCompute, g.To)
	// That a stream is a little further is told once in a while: a view is of all guests.
	tell := changed || queued != g.queued || to != g.To || q.d.cfg.Runtime.Boot().Since-q.shown >= tellProgress
	g.doubt, g.queued, g.waited, g.progress, g.Reasons, g.To = doubt, queued, m.Waited, m.Progress, m.Waits, to
	if doubt {
		g.Reasons = inDoubt(m)
	}
	if tell {
		q.publishLocked()
	}
	q.d.mu.Unlock()
	if changed {
		q.wake()
	}
}

func inDoubt(m migration.Migration) []fault.Reason {
	out := fault.Reason{Code: "in_doubt", Message: "its move " + m.UUID + " cannot go on at present", Have: m.UUID, Change: "berth migration show " + m.UUID}
	if m.Error != nil {
		out.Message += ": " + m.Error.Message
	}
	return []fault.Reason{out}
}

// ended keeps what a move came to.
func (q *queue) ended(ctx context.Context, instance string, f fate, why []fault.Reason) {
	rt := q.d.cfg.Runtime
	q.d.mu.Lock()
	q.ends++
	if f == fateFailed || f == fateGivenUp || f == fateRefused {
		q.turn++
	}
	g := q.guests[instance].after(f, why, rt.Now(), rt.Boot(), q.turn, q.d.cfg.Limits())
	g.ended = q.ends
	if f == fateMoved {
		// A slot is free, here or there: who waits for one need not wait out his pause.
		for _, other := range q.guests {
			if other.State == Waiting && other.Busy > 0 {
				other.After = runtime.BootTime{}
			}
		}
	}
	q.d.mu.Unlock()
	if q.put(ctx, g) {
		q.d.cfg.Logger.Info("move of a drain ended", "drain", q.req.UUID, "instance", instance, "migration", g.Migration, "came_to", string(f), "attempts", g.Attempts, "took", g.Took)
		q.wake()
	}
}

// gone keeps that a guest has left while nobody knows its move any more.
func (q *queue) gone(ctx context.Context, instance string) {
	q.d.mu.Lock()
	q.ends++
	g := *q.guests[instance]
	g.State, g.EndedAt, g.ended = Gone, q.d.cfg.Runtime.Now(), q.ends
	q.d.mu.Unlock()
	if q.put(ctx, g) {
		q.wake()
	}
}

// abortMoves gives up what can be. One that is past return goes on to its end.
func (q *queue) abortMoves(ctx context.Context) {
	for _, g := range q.all() {
		if g.State != Moving {
			continue
		}
		if err := q.d.cfg.Host.Abort(ctx, g.Migration); err != nil && fault.KindOf(err) != fault.NotFound {
			q.d.cfg.Logger.Info("a move of an aborted drain goes on", "drain", q.req.UUID, "migration", g.Migration, "error", err)
		}
	}
}
