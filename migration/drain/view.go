package drain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// orderedLocked are copies of all guests in the order in which they go.
func (q *queue) orderedLocked() []Guest {
	all := slices.Collect(maps.Values(q.guests))
	slices.SortFunc(all, before) // pointers: guests are large, and of some hosts many
	out := make([]Guest, 0, len(all))
	for _, g := range all {
		out = append(out, *g)
	}
	return out
}

// viewLocked is the drain as people see it: guests that have left first, then those on their
// way, those that wait, and those that stay.
func (q *queue) viewLocked() Drain {
	out := q.rec
	out.Guests = q.orderedLocked()
	if !out.State.Over() {
		out.Left = Estimate(slices.Concat(q.past, samples(out.Guests)), out.Guests, q.d.cfg.Runtime.Boot().Since, q.d.cfg.Limits().Outbound)
	}
	slices.SortStableFunc(out.Guests, func(a, b Guest) int {
		group := func(g Guest) int {
			switch g.State {
			case Moved, Gone:
				return 0
			}
			return 1 + slices.Index([]GuestState{Moving, Waiting, Failed, Stays}, g.State)
		}
		x, y := group(a), group(b)
		if x == 0 && y == 0 {
			return a.EndedAt.Compare(b.EndedAt)
		}
		return cmp.Compare(x, y)
	})
	return out
}

// publishLocked hands the present view to every watcher; one that has not read the last view
// gets only this one.
func (q *queue) publishLocked() {
	if len(q.watchers) == 0 {
		return
	}
	q.shown = q.d.cfg.Runtime.Boot().Since
	view := q.viewLocked()
	for ch, stop := range q.watchers {
		select {
		case <-ch:
		default:
		}
		ch <- view
		if view.State.Over() {
			stop()
			delete(q.watchers, ch)
			close(ch)
		}
	}
}

// Plan is what a drain would do. It holds nothing.
type Plan struct {
	Request
	Guests   []Guest // in the order in which they would go; those that stay last
	Limits   Limits
	Estimate time.Duration // 0 for unknown
}

// Plan asks of every guest how it could leave. It changes nothing. What could not be asked of a
// guest is one of its reasons.
func (d *Drainer) Plan(ctx context.Context, r Request) (Plan, error) {
	if r.Kind == KindDrain {
		r.Host = cmp.Or(r.Host, d.cfg.Local)
	}
	doing := "plan to " + string(r.Kind) + " host " + r.Host
	if err := d.validate(doing, r); err != nil {
		return Plan{}, err
	}
	list, err := d.cfg.Host.Guests(ctx, r)
	if err != nil {
		return Plan{}, fmt.Errorf("%s: %w", doing, err)
	}
	if err := unknownGuests(doing, r, list); err != nil {
		return Plan{}, err
	}
	q := newQueue(d) // that nobody drives, and nothing keeps
	q.req, q.rec = r, Drain{Request: r, State: Running}
	q.merge(list, 0)
	q.plan(ctx, 0)
	guests := q.all()
	slices.SortStableFunc(guests, func(a, b Guest) int {
		stays := func(g Guest) int {
			if g.State == Stays {
				return 1
			}
			return 0
		}
		return cmp.Compare(stays(a), stays(b))
	})
	limits := d.cfg.Limits()
	return Plan{Request: r, Guests: guests, Limits: limits, Estimate: Estimate(d.cfg.Samples(), guests, 0, limits.Outbound)}, ctx.Err()
}
