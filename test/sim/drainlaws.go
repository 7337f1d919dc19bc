package sim

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/migration/drain"
)

// leavesHost is called when a drain begins a move, and takes it in. It holds that the host is
// closed by then, that the move is the one that the drain has named, durably, that its guest is
// on no other of its moves, and that not more are under way than may be.
func (w *world) leavesHost(a *agent, m drain.Move) *move {
	d, g := w.drainOf(a.m.name), w.guestOf(m.Guest)
	if w.door(a.m) == "" {
		w.violate("%s leaves %s, which is drained and takes new guests", g.name, a.m.name)
	}
	var named drain.Guest
	if err := json.Unmarshal(w.records(a.m, drainBucket)[m.UUID+"/"+m.Guest], &named); err != nil || named.Migration != m.Migration || named.State != drain.Moving {
		w.violate("a drain of %s begins move %s of %s, its record says %s, %s (%v)", a.m.name, m.Migration, g.name, named.State, named.Migration, err)
	}
	under := 1
	var before *move
	for _, o := range w.moves {
		if o.queue != d || o.uuid == m.Migration {
			continue
		}
		rec, err := a.conductor.Get(context.Background(), o.uuid)
		if err != nil {
			continue // it was named, and never begun
		}
		o.accepted, o.last = true, rec
		if o.guest == g {
			if before = o; !rec.Done() {
				w.violate("a drain of %s begins move %s of %s, which is on %s", a.m.name, m.Migration, g.name, o.uuid)
			}
		}
		if !rec.Done() && !o.doubts {
			under++
		}
	}
	if under > d.Outbound {
		w.violate("a drain of %s has %d moves under way, want %d at most", a.m.name, under, d.Outbound)
	}
	if o := w.moveOf(migration.Ref{Migration: m.Migration}); o != nil {
		return o
	}
	g.off, g.paused = w.power(g)
	if w.waits(g) == nil {
		g.data, g.change = w.rests(g), change{ranSince: true}
	}
	o := &move{
		uuid: m.Migration, guest: g, from: a.m.name, by: a.m.name, queue: d, after: before, asked: 1,
		kind: migration.TypeLiveMigration, old: w.now(g), off: g.off, paused: g.paused,
	}
	if m.How == drain.HowCold {
		o.kind, o.ending = migration.TypeMigration, itself
	}
	w.moves = append(w.moves, o)
	return o
}

// drainWrites is called before a commit: who failed goes behind all who have not. Of a move that
// was in doubt when another was begun it notes so: a drain counts it only once it hears that it
// is no more.
func (w *world) drainWrites(a *agent, batch []store.Mutation) {
	for _, mutation := range batch {
		var next drain.Guest
		if mutation.Bucket != drainBucket || !strings.Contains(mutation.Key, "/") || mutation.Value == nil || json.Unmarshal(mutation.Value, &next) != nil {
			continue
		}
		if next.State != drain.Moving {
			continue
		}
		view, err := a.drainer.Get(context.Background(), "")
		if err != nil {
			continue
		}
		for _, g := range view.Guests {
			has := func(code string) bool {
				return slices.ContainsFunc(g.Reasons, func(r fault.Reason) bool { return r.Code == code })
			}
			if o := w.moveOf(migration.Ref{Migration: g.Migration}); o != nil && has("in_doubt") {
				o.doubts = true
			}
			waits := has("moving")
			if next.Attempts > 0 && g.State == drain.Waiting && g.Attempts == 0 && g.Busy == 0 && g.How != drain.HowUnknown && !waits {
				w.violate("a drain of %s begins with %s, which failed before, and %s waits", a.m.name, next.Name, g.Name)
			}
		}
	}
}

// drainWrote is called after a commit: the host is closed while its drain runs.
func (w *world) drainWrote(m *machine) {
	var rec drain.Drain
	d := w.drainOf(m.name)
	if d == nil {
		return
	}
	if raw := w.records(m, drainBucket)[d.uuid]; json.Unmarshal(raw, &rec) == nil && rec.State == drain.Running && rec.Closed && w.door(m) == "" {
		w.violate("%s takes new guests while it is drained", m.name)
	}
}

// arrivals holds how many guests that can wait may be on their way to a host.
func (w *world) arrivals(m *machine) {
	n := 0
	for _, c := range w.claimsOn(m) {
		o := w.moveOf(migration.Ref{Migration: c.Owner.Migration})
		if (c.State == claims.Pending || c.State == claims.Arriving) && o != nil && (o.queue != nil || o.kind == migration.TypeLiveMigration) {
			n++
		}
	}
	if w.story.Inbound > 0 && n > w.story.Inbound {
		w.violate("%d guests are on their way to %s, want %d at most", n, m.name, w.story.Inbound)
	}
}

// drainsAtRest holds that a drain says what is, and has left nothing under way.
func (w *world) drainsAtRest() {
	for _, d := range w.drains {
		w.drainAtRest(d)
	}
}

func (w *world) drainAtRest(d *emptied) {
	m := w.machines[d.Host]
	if !w.drainOver(d) {
		w.violate("the drain of %s is not over: %s", d.Host, d.last.State)
		return
	}
	want := ""
	if d.Closed {
		want = byOperator
	} else if d.accepted && !d.last.Reopened {
		want = d.uuid
	}
	if is := w.door(m); is != want {
		w.leave(leftRecord, "at the end %s is closed by %q, want %q", d.Host, is, want)
	}
	if !d.accepted {
		if w.quiet() {
			w.violate("the drain of %s was not accepted", d.Host)
		}
		return
	}
	w.note("operator", "drain of", d.Host, "is", string(d.last.State))
	if w.quiet() && d.Want != "" && d.last.State != d.Want {
		w.violate("the drain of %s is %s, want %s", d.Host, d.last.State, d.Want)
	}
	list, err := m.agent.conductor.List(context.Background())
	if err != nil {
		w.violate("at the end: %v", err)
	}
	for _, rec := range list {
		if rec.Queue == d.uuid && !rec.Done() && rec.Outcome != migration.OutcomeInDoubt {
			w.leave(leftRecord, "at the end of the drain of %s move %s is %s", d.Host, rec.UUID, rec.Status)
		}
	}
	left := 0
	for _, g := range w.guests {
		i := slices.IndexFunc(d.last.Guests, func(o drain.Guest) bool { return o.Instance == g.uuid })
		if i < 0 {
			if g.home == d.Host && !w.vanished(g) {
				w.violate("the drain of %s does not tell of %s", d.Host, g.name)
			}
			continue
		}
		said, here := d.last.Guests[i], slices.Equal(w.holders(g.uuid), []string{d.Host})
		doubted := w.inDoubt(g) || slices.ContainsFunc(said.Reasons, func(r fault.Reason) bool { return r.Code == "in_doubt" })
		switch said.State {
		case drain.Moved, drain.Gone:
			if here && !doubted {
				w.violate("the drain of %s says that %s is %s, and it is there", d.Host, g.name, said.State)
			}
			continue
		case drain.Moving:
			w.violate("the drain of %s is over, and %s is moving", d.Host, g.name)
		default:
			if !here && !doubted && !w.vanished(g) {
				w.violate("the drain of %s says that %s is %s, and it is not there", d.Host, g.name, said.State)
			}
		}
		left++
	}
	if (d.last.State == drain.Done) != (left == 0) {
		w.violate("the drain of %s is %s, and has left %d guests", d.Host, d.last.State, left)
	}
}
