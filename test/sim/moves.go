package sim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/topology"
)

// move is a migration that somebody wants.
type move struct {
	uuid       string
	guest      *guest
	from       string        // where the guest is when it is asked for
	by         string        // whose agent conducts it; from, but for a move that shares nothing
	apart      bool          // it shares nothing
	alternates []string      // that are tried where to refuses
	after      *move         // that it waits for; nil for none
	to         string        // empty to let candidates decide
	at         time.Duration // when it is asked for
	abortAfter time.Duration // 0 for never; from the start of the run
	options    migration.Options
	priority   int

	// Of a move that has its guest while it is off.
	kind    string
	flavor  *topology.Flavor // that is wanted; nil for as it is
	old     topology.Flavor  // that the guest had when it was asked for
	off     bool             // so did its user have it
	paused  bool
	since   bool // he has used it since it was reverted
	ending  ending
	later   time.Duration // how long it waits for the user's word
	uses    []int         // what he does with the guest meanwhile; see used
	loss    bool          // of an evacuation: what was written may be lost
	stopped bool          // so the guest stays off

	queue  *emptied // the drain that it is of; nil for none
	doubts bool     // of a drain: it was seen in doubt

	asked    int
	accepted bool
	refused  error // why it was not accepted, in the end
	last     migration.Migration
	doubted  time.Duration // since when it is in doubt; 0 for not
	doubt    time.Duration // when it was seen in doubt the last time
	settling bool          // an operator is about to say where the guest is
	claimed  []string      // the destinations that had a claim when he first looked
	orphan   bool          // he has, on its hosts, since its conductor is gone for good
}

// ask wants a migration as a user does: it asks the host's agent, and again while
// nobody answers or the hosts are not up.
func (w *world) ask(m *move) {
	ctx := context.Background()
	_ = w.outside.Sleep(ctx, m.at)
	for m.after != nil && !w.isOver(m.after) {
		_ = w.outside.Sleep(ctx, 500*time.Millisecond)
	}
	for m.kind == migration.TypeEvacuation && !w.dead(m.guest.home) && (w.mutant == nil || !w.mutant.Living) {
		if w.missed(m.guest.home) {
			m.asked = givenUp // nobody could say that it is dead
			return
		}
		_ = w.outside.Sleep(ctx, 500*time.Millisecond)
	}
	if at := w.holders(m.guest.uuid); len(at) == 1 {
		m.from = at[0]
	}
	g := m.guest
	g.off, g.paused = w.power(g)
	if w.waits(g) == nil {
		g.data = w.rests(g)
		g.change = change{ranSince: true}
	}
	m.old, m.off, m.paused = w.now(g), g.off, g.paused
	if m.kind == migration.TypeEvacuation {
		g.ranSince = false // its host is off
	}
	if m.to == here {
		m.to = m.from
	}
	if !m.apart && m.kind != migration.TypeEvacuation {
		m.by = m.from
	}
	conductor := w.conductor(m)
	for !m.accepted && m.asked < 40 {
		m.asked++
		a := conductor.agent
		if a == nil || a.dead() || !a.ready {
			_ = w.outside.Sleep(ctx, time.Second)
			continue
		}
		var err error
		p := peer{a: a, m: conductor}
		x := p.send(ctx, "LiveMigrate", func(ctx context.Context, b *agent) {
			err = b.begin(ctx, m)
		})
		_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
		err = cmp.Or(x.err, err)
		if err == nil {
			m.accepted = true
			w.note("user", "move accepted", m.uuid)
			break
		}
		w.note("user", "move not accepted:", err.Error())
		m.refused = err
		if k := fault.KindOf(err); k == fault.DoesNotFit || k == fault.Invalid || k == fault.Forbidden && m.asked > 3 {
			break
		}
		_ = w.outside.Sleep(ctx, 2*time.Second)
	}
	if !m.accepted {
		// One answer may have been lost all the same.
		m.accepted = w.known(m)
		m.asked = givenUp
	}
	if m.cold() && m.accepted {
		w.outside.Go("user", func() { w.word(m) })
	}
	for m.accepted && m.abortAfter > 0 && !m.last.Done() && !conductor.lost {
		if d := m.abortAfter - w.sim.Elapsed(); d > 0 {
			_ = w.outside.Sleep(ctx, d)
		}
		if a := conductor.agent; a.ready && !a.dead() {
			w.note("user", "abort", m.uuid)
			p := peer{a: a, m: conductor}
			x := p.send(ctx, "Abort", func(ctx context.Context, b *agent) { _ = b.conductor.Abort(ctx, m.uuid) })
			_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
			return
		}
		_ = w.outside.Sleep(ctx, time.Second)
	}
}

// conductor is the machine whose agent conducts a move.
func (w *world) conductor(m *move) *machine { return w.machines[m.by] }

// known says whether its conductor has a record of a move.
func (w *world) known(m *move) bool {
	records, err := w.conductor(m).mem.List(context.Background(), "migrations")
	_, is := records[m.uuid]
	return err == nil && is
}

// clock looks twice a second whether all is over.
func (w *world) clock() {
	for {
		_ = w.outside.Sleep(context.Background(), 500*time.Millisecond)
		w.look()
		w.hears()
		now := w.sim.Elapsed()
		if w.pending > 0 || w.chaos != nil && !w.chaos.done() {
			w.mended = now
		}
		if !w.settled() {
			w.calm = 0
			if now > w.mended+patience {
				w.violate("nothing has been broken for %s, and not all is over", patience)
				w.stuck = true
				return
			}
			continue
		}
		if w.calm == 0 {
			w.calm = now
			w.note("world", "calm")
		}
		calm := now - w.calm
		clean := calm > 0 && calm%(10*time.Second) == 0 && w.placement.idle() && w.clean()
		if calm >= w.grace() || clean && !w.age() {
			w.over = true
		}
	}
}

// settled says whether every move is over, everything up and nothing more to come.
func (w *world) settled() bool {
	if w.pending > 0 || w.chaos != nil && !w.chaos.done() {
		return false
	}
	for _, name := range w.names {
		if m := w.machines[name]; !m.lost && (m.agent == nil || m.agent.dead() || !m.agent.ready) {
			return false
		}
	}
	over := true
	for _, m := range w.moves {
		over = w.isOver(m) && over // of each: an operator may be wanted
	}
	if !over || w.witnesses() || w.undeleted() {
		return false
	}
	for _, d := range w.deaths {
		if d.Forget && d.forget == unsaid {
			return false
		}
	}
	for _, d := range w.drains {
		if !w.drainOver(d) {
			return false
		}
	}
	return true
}

// isOver says whether a move has ended, or can go no further in this world.
func (w *world) isOver(m *move) bool {
	if m.queue != nil && !m.accepted {
		if m.accepted = w.known(m); !m.accepted {
			return true // it was named, and not begun: its drain is not over while it may be
		}
	}
	if !m.accepted {
		return m.asked >= givenUp
	}
	if w.conductor(m).lost {
		return w.settledApart(m)
	}
	a := w.conductor(m).agent
	if a.dead() || !a.ready {
		return false
	}
	rec, err := a.conductor.Get(context.Background(), m.uuid)
	if err != nil {
		return false
	}
	m.last = rec
	now := w.sim.Elapsed()
	if rec.Done() || m.finished() {
		return !lags(rec)
	}
	if rec.Outcome == migration.OutcomeInDoubt {
		m.doubt = now
	}
	switch {
	case m.doubt == 0 || now > m.doubt+time.Minute: // it comes and goes while a conductor tries again
		m.doubted = 0
	case m.doubted == 0:
		m.doubted = now
	case now > m.doubted+operatorsPatience && now > w.mended+operatorsPatience && !m.settling && w.undecidable(m):
		m.settling = true
		w.outside.Go("operator", func() { w.settle(m) })
	}
	return false
}

// lags says whether a destination that fell silent is still to be tidied up.
func lags(m migration.Migration) bool {
	return slices.ContainsFunc(m.Refusals, func(r migration.Refusal) bool { return r.Left })
}

// operatorsPatience is how long an operator leaves a move in doubt to itself. He is
// asked for nothing but what nobody else can know.
const operatorsPatience = 30 * time.Second

// settle is the operator: he looks where the guest really is and says so.
func (w *world) settle(m *move) {
	at := m.from
	for _, host := range w.names {
		if c := m.guest.copies[host]; c == whole {
			at = host
		}
	}
	if m.guest.torn {
		at = m.guest.arriving
		m.guest.givesUp(w)
	}
	w.note("operator", "the guest of", m.uuid, "is at", at)
	a := w.conductor(m).agent
	if a.dead() || !a.ready {
		m.settling = false
		return
	}
	ctx, cancel := w.outside.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	x := peer{a: a, m: a.m}.send(ctx, "settle", func(ctx context.Context, b *agent) {
		_, err = b.conductor.Settle(ctx, m.uuid, migration.Settlement{GuestIsAt: at, Why: "looked at both hosts", By: "operator"})
	})
	_ = runtime.Await(ctx, w.outside, x.done) // a word that is not heard is said again
	if err = cmp.Or(x.err, err); err != nil {
		w.note("operator", "was not heard:", err.Error())
		_ = w.outside.Sleep(ctx, operatorsPatience)
	}
	m.settling = false
}

// givenUp is what a user has asked who asks no more.
const givenUp = 1000
