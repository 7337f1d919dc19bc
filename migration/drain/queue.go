package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// queue is one drain. Its actor is drive; each move that is under way has an actor of its own.
type queue struct {
	d *Drainer
	// kick is filled when something has happened that drive should decide on.
	kick chan struct{}
	// turns has the actors write the head one after the other.
	turns runtime.Lock

	req Request // as it was asked for; never changed once it is known to anybody

	// Guarded by Drainer.mu.
	rec      Drain // without Guests
	guests   map[string]*Guest
	saved    map[string]bool // guests whose record is as they are
	turn     int             // of the last failure
	ends     int             // how many moves have ended, or guests gone
	watchers map[chan Drain]func() bool
	shown    time.Duration // when watchers were last told, on the boot clock
	past     []Sample      // moves that were measured, as of the last look at the guests
}

func newQueue(d *Drainer) *queue {
	return &queue{d: d, kick: make(chan struct{}, 1), guests: map[string]*Guest{}, saved: map[string]bool{}, watchers: map[chan Drain]func() bool{}}
}

// head is the drain without its guests.
func (q *queue) head() Drain {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.rec
}

// bootOver reports whether the drain was for the end of a boot that is over.
func (q *queue) bootOver() bool {
	return q.req.Shutdown && q.head().Boot != q.d.cfg.Runtime.Boot().ID
}

func (q *queue) key(instance string) string { return q.req.UUID + "/" + instance }

// putHead makes a head durable.
func (q *queue) putHead(ctx context.Context, rec Drain) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return fault.New(fault.Internal, "write drain %s: %w", rec.UUID, err)
	}
	return q.d.cfg.Store.Put(ctx, bucket, rec.UUID, raw)
}

// change makes a change of the head durable, then visible. It returns an error only where the
// write failed.
func (q *queue) change(ctx context.Context, f func(*Drain)) error {
	if err := q.turns.Lock(ctx, q.d.cfg.Runtime); err != nil {
		return err
	}
	defer q.turns.Unlock()
	q.d.mu.Lock()
	rec := q.rec
	q.d.mu.Unlock()
	f(&rec)
	if err := q.putHead(ctx, rec); err != nil {
		return err
	}
	q.d.mu.Lock()
	q.rec = rec
	q.publishLocked()
	q.d.mu.Unlock()
	return nil
}

// put makes a guest's record durable, then visible, and tries until it can; it is false when
// ctx ended before.
func (q *queue) put(ctx context.Context, g Guest) bool {
	raw, err := json.Marshal(g)
	if err != nil {
		q.d.cfg.Logger.Error("a guest's record cannot be written", "drain", q.req.UUID, "instance", g.Instance, "error", err)
		return false
	}
	if !q.until(ctx, "write the record of guest "+g.Instance, func() error { return q.d.cfg.Store.Put(ctx, bucket, q.key(g.Instance), raw) }) {
		return false
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.guests[g.Instance], q.saved[g.Instance] = &g, true
	q.publishLocked()
	return true
}

// until does something until it succeeds; it is false when ctx ended before.
func (q *queue) until(ctx context.Context, what string, f func() error) bool {
	for told := false; ctx.Err() == nil; told = true {
		err := f()
		if err == nil {
			return true
		}
		if !told && ctx.Err() == nil {
			q.d.cfg.Logger.Warn("a drain waits until it can go on", "drain", q.req.UUID, "doing", what, "error", err)
		}
		_ = q.d.cfg.Runtime.Sleep(ctx, 2*time.Second) // its end is looked at in the loop
	}
	return false
}

func (q *queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// abort makes the wish durable and wakes the queue.
func (q *queue) abort(ctx context.Context, by string) error {
	state := q.state()
	switch {
	case state.Over():
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "drain_over", Message: "it is over: " + string(state), Have: string(state)})
	case state == Aborting:
		return nil
	}
	err := q.change(ctx, func(rec *Drain) {
		if !rec.State.Over() {
			rec.State = Aborting
		}
	})
	if err == nil {
		q.d.cfg.Logger.Info("drain is being aborted", "drain", q.req.UUID, "by", by)
		q.wake()
	}
	return err
}

// drive does the drain until it is over or ctx ends.
func (q *queue) drive(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // of the moves that were left in doubt, too
	rt := q.d.cfg.Runtime
	if q.bootOver() {
		q.cut(ctx)
		return
	}
	if !q.close(ctx) {
		return
	}
	if !q.until(ctx, "look at the guests of "+q.req.Host, func() error { return q.look(ctx) }) {
		return
	}
	q.resume(ctx)
	looked, seen := rt.Boot().Since, -1 // seen: the count of ends at the last look
	var alone time.Duration             // since when only moves in doubt are left
	for ctx.Err() == nil {
		now := rt.Boot()
		q.d.mu.Lock()
		ends, state := q.ends, q.rec.State
		q.d.mu.Unlock()
		if state == Aborting {
			q.abortMoves(ctx)
		}
		if ends != seen || now.Since-looked >= q.d.cfg.Look {
			if err := q.look(ctx); err != nil {
				q.d.cfg.Logger.Warn("the guests of a host that is drained could not be read", "drain", q.req.UUID, "error", err)
			} else {
				seen = ends
			}
			looked = rt.Boot().Since
		}
		if state == Running && q.plan(ctx, planParallel) {
			q.wake()
		}
		dec := q.decide()
		switch {
		case dec.Over && seen == ends:
			if q.end(ctx) {
				return
			}
		case q.onlyDoubt():
			if alone == 0 {
				alone = now.Since
			}
			if now.Since-alone >= q.d.cfg.Doubt {
				q.leaveDoubts(ctx)
				continue
			}
		default:
			alone = 0
		}
		for _, id := range dec.Begin {
			q.beginMove(ctx, id)
		}
		pause := q.d.cfg.Look
		if dec.Wake > 0 {
			pause = min(pause, dec.Wake)
		}
		q.pause(ctx, pause)
	}
}

// pause waits until something has happened, at most for d.
func (q *queue) pause(ctx context.Context, d time.Duration) {
	ctx, cancel := q.d.cfg.Runtime.WithTimeout(ctx, max(d, time.Millisecond))
	defer cancel()
	_, _, _ = runtime.Receive(ctx, q.d.cfg.Runtime, q.kick) // either is fine
}

// close closes the host to new guests; nothing moves before. It is false when ctx ended.
func (q *queue) close(ctx context.Context) bool {
	if q.req.Kind != KindDrain || q.head().Closed {
		return true
	}
	return q.until(ctx, "close "+q.req.Host+" to new guests", func() error {
		if err := q.d.cfg.Host.Close(ctx, q.head()); err != nil {
			return err
		}
		return q.change(ctx, func(rec *Drain) { rec.Closed = true })
	})
}

// look reads the host's guests.
func (q *queue) look(ctx context.Context) error {
	q.d.mu.Lock()
	before := q.ends
	q.d.mu.Unlock()
	list, err := q.d.cfg.Host.Guests(ctx, q.req)
	if err != nil {
		return err
	}
	past := q.d.cfg.Samples()
	q.d.mu.Lock()
	q.past = past
	q.d.mu.Unlock()
	q.merge(list, before)
	return nil
}

// merge joins what is on the host with the records. A guest whose move ended after the look
// began, before ends, may be in the list and gone.
func (q *queue) merge(list []Present, before int) {
	now := q.d.cfg.Runtime.Now()
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	here := map[string]bool{}
	for _, p := range list {
		if p.Off && q.req.Shutdown {
			continue
		}
		here[p.Instance] = true
		g := q.guests[p.Instance]
		if g == nil {
			g = &Guest{Instance: p.Instance, State: Waiting}
			q.guests[p.Instance] = g
		}
		was := *g
		if g.State == Moving || g.ended > before {
			continue
		}
		if g.State == Moved || g.State == Gone {
			*g = Guest{Instance: p.Instance, State: Waiting, Turn: g.Turn, Attempts: g.Attempts}
		}
		if g.Power != p.Power {
			g.How = HowUnknown
		}
		g.Name, g.Power, g.SizeMB, g.waits = p.Name, p.Power, p.SizeMB, p.Waits
		g.Priority = cmp.Or(q.req.Priorities[p.Instance], q.req.Priorities[p.Name])
		switch {
		case g.State == Failed:
		case len(p.Blocked) > 0:
			g.State, g.Reasons, g.How = Stays, p.Blocked, HowUnknown
		case g.State == Stays && g.How != HowStays:
			g.State, g.Reasons = Waiting, nil
		}
		if !same(was, *g) {
			q.saved[p.Instance] = false
		}
	}
	for id, g := range q.guests {
		if !here[id] && g.ended <= before && (g.State == Waiting || g.State == Stays || g.State == Failed) {
			q.ends++
			g.State, g.EndedAt, g.Reasons, g.waits, g.ended = Gone, now, nil, nil, q.ends
			q.saved[id] = false
		}
	}
	q.publishLocked()
}

func same(a, b Guest) bool {
	return a.State == b.State && a.How == b.How && a.Power == b.Power && a.Name == b.Name && slices.Equal(a.Reasons, b.Reasons)
}

// planParallel is how many ways are asked for at the same time. Arbitrary: a host that does not
// answer costs each of them seconds.
const planParallel = 8

// plan asks how guests can leave that wait and of which it is not known: the next few, so that
// they need not wait for all others, or all where few is 0. It says whether more are to be asked.
func (q *queue) plan(ctx context.Context, few int) (more bool) {
	var ask []Present
	now := q.d.cfg.Runtime.Boot().Since
	q.d.mu.Lock()
	for _, g := range q.orderedLocked() {
		if g.State != Waiting || g.How != HowUnknown || len(g.waits) > 0 || g.asks > now {
			continue
		}
		if more = few > 0 && len(ask) == few; more {
			break
		}
		ask = append(ask, Present{Instance: g.Instance, Name: g.Name, Power: g.Power, SizeMB: g.SizeMB})
	}
	q.d.mu.Unlock()
	q.d.ways(ctx, q.req, ask, func(p Present, w Way, err error) {
		q.d.mu.Lock()
		defer q.d.mu.Unlock()
		g := q.guests[p.Instance]
		if g == nil || g.State != Waiting {
			return
		}
		if err != nil {
			if g.Reasons = fault.ReasonsOf(err); len(g.Reasons) == 0 {
				g.Reasons = []fault.Reason{{Code: string(fault.KindOf(err)), Message: err.Error()}}
			}
			g.asks = now + q.d.cfg.Look
			return
		}
		g.How, g.To, g.Reasons, g.Lost = w.How, w.To, w.Reasons, w.Lost
		if w.How == HowStays {
			g.State = Stays
		}
		q.saved[p.Instance] = false
		q.publishLocked()
	})
	return more
}

// ways asks the ways of some guests, a few at a time, and tells each.
func (d *Drainer) ways(ctx context.Context, r Request, ask []Present, tell func(Present, Way, error)) {
	var workers runtime.Group
	next := make(chan Present, len(ask))
	for _, p := range ask {
		next <- p
	}
	close(next)
	for range min(planParallel, len(ask)) {
		workers.Go(d.cfg.Runtime, "plan of a drain", func() {
			for p := range next {
				w, err := d.cfg.Host.Way(ctx, r, p)
				tell(p, w, err)
			}
		})
	}
	workers.Wait(d.cfg.Runtime)
}

// decide decides, and keeps why who waits.
func (q *queue) decide() Decision {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	dec := Decide(q.rec.State, q.orderedLocked(), q.d.cfg.Runtime.Boot(), q.d.cfg.Limits())
	for id, why := range dec.Waits {
		if g := q.guests[id]; len(why) > 0 && (g.How != HowUnknown || len(g.Reasons) == 0) {
			g.Reasons = why
		}
	}
	q.publishLocked()
	return dec
}

func (q *queue) all() []Guest {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.orderedLocked()
}
