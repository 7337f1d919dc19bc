package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

// A guest in post-copy runs at its destination while part of its memory is still at the source:
// each of the two has a half of it, and neither is a guest without the other.

var (
	_ driver.PostCopier        = libvirt{}
	_ driver.PostCopyRecoverer = libvirt{}
	_ migration.PostCopySource = peer{}
)

// StartPostCopy implements driver.PostCopier.
func (l libvirt) StartPostCopy(ctx context.Context, uuid string) error {
	return l.do(ctx, "StartPostCopy", func(ctx context.Context) error { return l.Fake.StartPostCopy(ctx, uuid) })
}

// FailPostCopy implements driver.PostCopyRecoverer.
func (l libvirt) FailPostCopy(ctx context.Context, uuid string) error {
	return l.do(ctx, "FailPostCopy", func(ctx context.Context) error { return l.Fake.FailPostCopy(ctx, uuid) })
}

// RecoverPostCopy lasts as Migrate does. Where there are streams it goes by new connections.
func (l libvirt) RecoverPostCopy(ctx context.Context, uuid string, m driver.Migration) error {
	return l.do(ctx, "RecoverPostCopy", func(ctx context.Context) error {
		if g := l.a.w.guestOf(uuid); g != nil {
			if err := l.a.w.admitted(l.a.w.machines[g.arriving], uuid); err != nil {
				return fault.New(fault.InDoubt, "recover post-copy of %s: %w", uuid, err)
			}
		}
		return l.Fake.RecoverPostCopy(ctx, uuid, m)
	})
}

// source is this agent's own host: a source conducts its live moves itself.
func (p peer) source(ctx context.Context, name string, f func(context.Context, migration.PostCopySource) error) error {
	_, err := verb(ctx, p, ofVerb, name, func(ctx context.Context, b *agent) (struct{}, error) {
		h := migration.PostCopySource(b.host)
		if m := b.w.mutant; m != nil && m.PostCopy != nil {
			h = m.PostCopy(b, b.host)
		}
		return struct{}{}, f(ctx, h)
	})
	return err
}

// EndStream implements migration.PostCopySource.
func (p peer) EndStream(ctx context.Context, ref migration.Ref) error {
	return p.source(ctx, "EndStream", func(ctx context.Context, h migration.PostCopySource) error { return h.EndStream(ctx, ref) })
}

// StartPostCopy implements migration.PostCopySource.
func (p peer) StartPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return p.source(ctx, "StartPostCopy", func(ctx context.Context, h migration.PostCopySource) error { return h.StartPostCopy(ctx, ref, s) })
}

// RecoverPostCopy implements migration.PostCopySource.
func (p peer) RecoverPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return p.source(ctx, "RecoverPostCopy", func(ctx context.Context, h migration.PostCopySource) error { return h.RecoverPostCopy(ctx, ref, s) })
}

// inHalves is called when a domain is, or is again, in post-copy, whole or broken.
func (w *world) inHalves(g *guest, host, what string) {
	if strings.Contains(what, "failed") {
		w.disconnect(g.uuid)
	}
	if was := g.copies[host]; was == half {
		return
	} else if host != g.arriving {
		if was != whole {
			w.violate("guest %s is %s on %s, which does not have all its memory", g.name, what, host)
		}
		g.copies[host] = half
		return
	}
	l := w.leaving[g.uuid]
	from := l.from.name
	if h := w.holders(g.uuid); len(h) != 1 || h[0] != from {
		w.violate("guest %s is %s on %s, and its token is on %v, want its source %s", g.name, what, host, h, from)
	}
	if key := fmt.Sprintf("%s/%d/post_copy_asked", l.migration, l.attempt); w.records(l.from, "verbs")[key] == nil {
		w.violate("guest %s is %s on %s, and its source has no record %s", g.name, what, host, key)
	}
	if o := w.moveOf(migration.Ref{Migration: l.migration}); o != nil && o.options.PostCopy != options.On {
		w.violate("guest %s is %s on %s, and nobody permits it", g.name, what, host)
	}
	g.copies[host] = half
	if j, by := w.journeys[g.uuid]; by {
		j.dest.kept = true
	}
	if !w.halved {
		w.halved = true
		for _, e := range w.story.Events {
			if e.InHalves {
				w.happens(e)
			}
		}
	}
	if strings.HasPrefix(what, "running") {
		w.writes(g, host, what)
	}
	w.claimed(g, host)
}

// halfEnds is called when a half of a guest is no more: where it did not come together, what the
// other has is no guest any more either. Nobody of ours may be who ends the first of the two.
func (w *world) halfEnds(g *guest, host, what string) {
	for _, c := range g.copies {
		if c == whole {
			return // all of it had come
		}
	}
	if w.stopping == [2]string{host, g.uuid} && !g.givenUp && !g.torn {
		w.violate("the agent of %s stops %s (%s), of which that was a half", host, g.name, what)
	}
	g.mayBeOff, g.torn = true, true
}

// hears has a destination's QEMU notice that the connections are gone by which the rest of a
// guest's memory came: its process tells it so, at once where it hears of it itself, and else
// when they have been silent for too long.
func (w *world) hears() {
	now := w.sim.Elapsed()
	for _, g := range w.guests {
		if g.copies[g.arriving] != half || g.copies[w.leaving[g.uuid].from.name] != half {
			continue
		}
		_, connected := w.journeys[g.uuid]
		since, dark := w.dark[pair(w.leaving[g.uuid].from.name, g.arriving)]
		if (!connected || w.broken(g.uuid)) && !dark || dark && now > since+deadAfter {
			w.fleet.BreakPostCopy(g.uuid)
			w.look()
		}
	}
}

// deadAfter is after how long without a sign of life the processes of a post-copy give up their
// connections, as in package stream.
const deadAfter = 10 * time.Second

// linkChanged notes which data links are cut, and since when.
func (w *world) linkChanged(link, what string) {
	a, b, _ := strings.Cut(link, "-")
	switch what {
	case "data link cut":
		w.dark[pair(a, b)] = w.sim.Elapsed()
	case "data link healed":
		delete(w.dark, pair(a, b))
	}
}

// givesUp is an operator who has seen that the halves of a guest cannot come together, and ends
// what is left.
func (g *guest) givesUp(w *world) {
	g.givenUp = true
	for _, name := range w.names {
		if g.copies[name] == half {
			w.note("operator", "ends the half of", g.name, "on", name)
			w.machines[name].fake.CrashGuest(g.uuid)
		}
	}
	w.look()
}

// breaks resets the connection by which the rest of a guest's memory comes.
func (g *guest) breaks(w *world) {
	for _, name := range w.names {
		if g.copies[name] == half {
			w.fault(name, "the post-copy of "+g.name+" breaks")
			w.fleet.BreakPostCopy(g.uuid)
			w.look()
			return
		}
	}
}

// hot is a guest that dirties its memory faster than the network carries it.
var hot = drivertest.Pace{
	Tick: 200 * time.Millisecond, Setup: 600 * time.Millisecond, Rate: 128 << 20, DirtyRate: 256 << 20,
	HandOver: 3 * time.Millisecond, Orphan: 4 * time.Second,
}

// byHalves are options of a move that ends by post-copy; where a guest cannot, it is given up.
func byHalves() migration.Options {
	return migration.Options{PostCopy: options.On, Schedule: "1:post-copy, 2:abort", PostCopyBandwidth: 64 << 20, Timeout: time.Minute}
}

// postCopyStories are those of guests that do not converge.
func postCopyStories() []*Story {
	var out []*Story
	add := func(name string, g GuestPlan, o migration.Options, want migration.Outcome, events ...Event) {
		g.Host, g.Flavor = "a", small
		out = append(out, &Story{
			Name: "post-copy, " + name, Hosts: hosts(2), Streams: true, Guests: []GuestPlan{g}, Moves: []MovePlan{{To: "b", At: time.Second, Options: o}},
			Pace: hot, Events: events, Want: want,
		})
	}
	in := func(name string, after time.Duration, do func(w *world)) Event {
		return Event{InHalves: true, At: after, Name: name, Do: func(w *world) error { do(w); return nil }}
	}
	add("as planned", GuestPlan{Disk: shared}, byHalves(), migration.OutcomeCompleted)
	add("not permitted", GuestPlan{}, migration.Options{Schedule: "2:abort"}, migration.OutcomeUndone)
	add("its link is cut", GuestPlan{}, byHalves(), migration.OutcomeCompleted,
		in("cut the data link", time.Second, func(w *world) { w.fleet.CutData("a", "b") }),
		in("heal the data link", 50*time.Second, func(w *world) { w.fleet.HealData("a", "b") }))
	add("its connection is reset", GuestPlan{}, byHalves(), migration.OutcomeCompleted,
		in("break it", time.Second, func(w *world) { w.guests[0].breaks(w) }))
	add("both agents die in it", GuestPlan{}, byHalves(), migration.OutcomeCompleted,
		in("the agents die", time.Second, func(w *world) { w.machines["b"].kill(3 * time.Second); w.machines["a"].kill(8 * time.Second) }))
	add("the destination's process dies", GuestPlan{}, byHalves(), migration.OutcomeCompleted,
		in("it dies", time.Second, func(w *world) { w.machines["b"].killForwarder() }))
	add("a half is lost", GuestPlan{}, byHalves(), migration.OutcomeCompleted,
		in("the source's QEMU dies", time.Second, func(w *world) { w.machines["a"].killIncoming() }))
	add("started again at its destination", GuestPlan{Disk: shared}, byHalves(), migration.OutcomeCompleted,
		in("the destination loses its power", time.Second, func(w *world) { w.machines["b"].reboot(time.Second) }),
		in("somebody starts it", time.Second, func(w *world) {
			for g := w.guests[0]; g.copies["b"] == noCopy && w.sim.Elapsed() < 5*time.Minute; _ = w.outside.Sleep(context.Background(), 100*time.Millisecond) {
				g.startedByHand(w, w.machines["b"])
			}
		}))
	return out
}
