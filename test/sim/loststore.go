package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"berth/agent/host"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
)

// LossPlan is what becomes of the store of the fleet's records at a moment.
type LossPlan struct {
	At   time.Duration
	From time.Duration // of the backup that it is restored from; 0 for emptied
	// Untold: its files were put back, and it does not tell that it is older than it was. A host that
	// has seen a later revision does.
	Untold bool
	// Kind: a store of the other kind is put in its place, empty, and all agents are started again.
	Kind bool
	// Dark is how long Placement is silent then; 0 for not at all.
	Dark time.Duration
}

// newStore makes an empty store.
func (w *world) newStore(embedded bool) {
	w.store = fleettest.NewMemory(w.outside)
	w.looker = w.store.Client("the world")
	if embedded {
		w.store.Serve()
	}
}

// loses plays it.
func (w *world) loses(l LossPlan) {
	ctx := context.Background()
	w.pending++
	defer func() { w.pending-- }()
	var backup []fleet.Record
	var counted []storetest.Record
	if l.From > 0 {
		_ = w.outside.Sleep(ctx, l.From)
		backup, counted = w.store.Records(), w.placement.mem.Records()
		w.note("story", "the fleet's records are backed up")
	}
	if d := l.At - w.sim.Elapsed(); d > 0 {
		_ = w.outside.Sleep(ctx, d)
	}
	w.storeRuns++
	switch {
	case l.Kind:
		w.fault("records", "a store of another kind is in their place")
		w.newStore(!w.machines[w.names[0]].embedded)
		for _, name := range w.names {
			m := w.machines[name]
			m.embedded = !m.embedded
			m.kill(time.Second)
		}
	case l.From == 0:
		w.fault("records", "emptied")
		w.store.Restore(nil, true)
	default:
		w.fault("records", "restored from a backup")
		w.store.Restore(backup, !l.Untold)
	}
	if w.machines[w.names[0]].embedded && !l.Kind {
		w.store.Serve()
		w.uncounted = true
		w.placement.restore(counted)
	}
	w.recorded()
	if l.Dark > 0 {
		w.placementAway(l.Dark)
	}
	w.outside.Go("operator", w.restores)
}

// restore has the embedded Placement go on with other records; none for those that it has.
func (s *service) restore(records []storetest.Record) {
	s.kill(time.Second)
	if records != nil {
		s.mem = storetest.NewMemoryOf(records)
	}
}

// restores is the operator of a store that lost its records: he does what berth status tells him,
// once hosts wait for him.
func (w *world) restores() {
	ctx := context.Background()
	for {
		_ = w.outside.Sleep(ctx, 10*time.Second)
		if w.sim.Elapsed() < w.mended+operatorsPatience {
			continue
		}
		for _, name := range w.names {
			a := w.machines[name].agent
			if a == nil || a.dead() || !a.ready {
				continue
			}
			if a.keeper.Unproven() {
				w.rewrites(ctx, a)
			}
			for _, uuid := range slices.Sorted(maps.Keys(a.host.Held())) {
				w.freesHeld(ctx, a, w.guestOf(uuid))
			}
		}
	}
}

// rewrites is what he does for one that waits for other hosts to write again. A host that is gone is
// declared dead. One that the store has for the holder of an instance of another is stopped, declared
// dead, and started again once the other has written.
func (w *world) rewrites(ctx context.Context, a *agent) {
	for _, name := range w.names {
		if m := w.machines[name]; m.lost && !w.inStore(fleet.DeathsPrefix+name) {
			w.declares(ctx, a, name)
		}
	}
	for _, g := range w.guests {
		rec, at := w.inRecords(g.uuid), w.holders(g.uuid)
		if rec == nil || len(at) != 1 || rec.Host == at[0] || w.machines[rec.Host] == nil {
			continue
		}
		m := w.machines[rec.Host]
		if m.off || m.agent == nil || m.agent.dead() {
			continue
		}
		m.kill(time.Minute)
		w.declares(ctx, w.machines[at[0]].agent, m.name)
		return
	}
}

func (w *world) inStore(key string) bool {
	_, err := w.looker.Get(context.Background(), key)
	return err == nil
}

func (w *world) declares(ctx context.Context, by *agent, host string) {
	if by == nil || by.dead() || by.records == nil {
		return
	}
	_, err := by.records.DeclareDead(ctx, fleet.Death{Host: host, Proof: fleet.ProofOperator, By: "operator", Because: "looked"})
	w.note("operator", host, "is declared dead", errText(err))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// freesHeld is what he does for an instance that is in doubt: where it is nowhere else he says so, and
// where another host has it he deletes it here.
func (w *world) freesHeld(ctx context.Context, a *agent, g *guest) {
	at := w.holders(g.uuid)
	if len(at) != 1 || w.moving(g) {
		return
	}
	if at[0] != a.m.name {
		w.asks(ctx, a, "delete "+g.name, func(ctx context.Context, b *agent) error {
			_, err := b.host.Delete(ctx, g.uuid, host.DeleteOptions{Force: true, Disks: g.disk == local})
			return err
		})
		return
	}
	for host, c := range g.copies {
		if host != a.m.name && c != noCopy {
			return
		}
	}
	w.forces(ctx, a, g)
}

// forces is berth instance start --force-owner.
func (w *world) forces(ctx context.Context, a *agent, g *guest) {
	w.asks(ctx, a, "start "+g.name+" --force-owner", func(ctx context.Context, b *agent) error {
		if err := b.host.ConfirmByHand(ctx, g.uuid, "looked", "operator"); err != nil || g.off {
			return err
		}
		return b.host.Start(ctx, g.uuid, false)
	})
}

// asks has an operator ask an agent for something.
func (w *world) asks(ctx context.Context, a *agent, what string, f func(context.Context, *agent) error) {
	if a.dead() {
		return
	}
	ctx, cancel := w.outside.WithTimeout(ctx, time.Minute)
	defer cancel()
	var err error
	x := peer{a: a, m: a.m}.send(ctx, what, func(ctx context.Context, b *agent) { err = f(ctx, b) })
	late := runtime.Await(ctx, w.outside, x.done)
	w.note("operator", what, "on", a.m.name, errText(cmp.Or(late, x.err, err)))
}

// witnesses reports whether an instance of some host waits for a witness still, or a host for others to
// write again.
func (w *world) witnesses() bool {
	for _, name := range w.names {
		a := w.machines[name].agent
		if len(w.story.Losses) == 0 || a == nil || a.dead() || !a.ready {
			continue
		}
		if a.keeper.Unproven() {
			return true
		}
		for _, inst := range a.host.Owned() {
			if _, waits := a.host.Unconfirmed(inst.UUID); waits {
				return true
			}
		}
	}
	return false
}

// lostStoreStories are those of stores that lose their records after an evacuation, or while a host
// is off: its instances run nowhere twice, and none waits for ever.
func lostStoreStories() []*Story {
	var out []*Story
	add := func(name string, back time.Duration, l LossPlan, change func(*Story)) {
		s := &Story{
			Name: "lost store, " + name, Hosts: hosts(3), Records: true, Etcd: true, Sharing: true, Guests: []GuestPlan{{Host: "a", Flavor: small, Disk: shared, Autostart: true}},
			Deaths: []DeathPlan{{Host: "a", By: "c", At: 9 * time.Second, Proof: fleet.ProofFenced, Back: back}}, Losses: []LossPlan{l}, Pace: slow,
			Moves: []MovePlan{{Kind: migration.TypeEvacuation, By: "c", To: "b", At: 9 * time.Second}}, Want: migration.OutcomeCompleted,
		}
		if change != nil {
			change(s)
		}
		out = append(out, s)
	}
	embedded := func(s *Story) { s.Embedded, s.Etcd = true, false }
	const before, after, soon = 8 * time.Second, 35 * time.Second, 60 * time.Second
	add("restored", soon, LossPlan{At: after, From: before}, nil)
	add("restored, Placement silent", soon, LossPlan{At: after, From: before, Dark: 3 * time.Minute}, nil)
	add("put back as it was", soon, LossPlan{At: after, From: before, Untold: true, Dark: 3 * time.Minute}, nil)
	add("emptied", soon, LossPlan{At: after, Dark: 3 * time.Minute}, nil)
	add("of another kind", soon, LossPlan{At: after, Kind: true, Dark: 3 * time.Minute}, nil)
	add("embedded, restored", soon, LossPlan{At: after, From: before}, embedded)
	add("embedded, put back as it was", soon, LossPlan{At: after, From: before, Untold: true}, embedded)
	add("embedded, restored, and its new host was off", soon, LossPlan{At: after, From: before}, func(s *Story) {
		embedded(s)
		s.Events = []Event{{At: after + time.Second, Name: "b loses its power", Do: func(w *world) error { w.machines["b"].reboot(10 * time.Second); return nil }}}
	})
	add("embedded, emptied", soon, LossPlan{At: after}, embedded)
	add("embedded, of another kind", soon, LossPlan{At: after, Kind: true, Dark: 3 * time.Minute}, embedded)
	add("never comes back", 0, LossPlan{At: after, From: before}, nil)
	add("embedded, never comes back", 0, LossPlan{At: after, From: before}, embedded)
	decided := func(s *Story) {
		s.Guests[0].Autostart = true
		s.decides(5*time.Second, "b")
		s.Deaths[0].At, s.Moves[0].At = 60*time.Second, 60*time.Second
		s.Events = append(s.Events, Event{At: 85 * time.Second, Name: "Placement is silent", Do: func(w *world) error { w.placementAway(2 * time.Minute); return nil }})
	}
	add("an older decision", 40*time.Second, LossPlan{At: 20 * time.Second, From: 4 * time.Second}, decided)
	rebooted := func(s *Story) {
		s.Deaths, s.Moves, s.Want = nil, nil, ""
		s.Events = []Event{{At: 30 * time.Second, Name: "a loses its power", Do: func(w *world) error { w.machines["a"].reboot(30 * time.Second); return nil }}}
	}
	add("a host was off", 0, LossPlan{At: after, From: before, Dark: 3 * time.Minute}, rebooted)
	add("embedded, a host was off", 0, LossPlan{At: after, From: before}, func(s *Story) { rebooted(s); embedded(s) })
	return out
}

// decides has the record of the first guest forged, as any host can in etcd: it names another host.
// The guest runs on where it is, in doubt, and an operator decides that it is there.
func (s *Story) decides(at time.Duration, forged string) {
	s.Events = append(s.Events,
		Event{At: at, Name: "the record of vm1 is forged", Do: func(w *world) error {
			g := w.guests[0]
			rec := w.inRecords(g.uuid)
			if rec == nil || rec.Host != g.home {
				return nil
			}
			rec.Host, rec.Epoch, rec.Migration = forged, rec.Epoch+1, ""
			value, err := json.Marshal(rec)
			if err != nil {
				return err
			}
			w.fault("records", "that of "+g.name+" names "+forged)
			if err := w.store.Client("forger").Commit(context.Background(), nil, fleet.Change{Key: fleet.InstancesPrefix + g.uuid, Value: value}); err != nil {
				return err
			}
			w.machines[g.home].kill(time.Second) // the next agent looks at each record
			return nil
		}},
		Event{At: at + 10*time.Second, Name: "an operator decides whose vm1 is", Do: func(w *world) error {
			if a := w.machines[w.guests[0].home].agent; a != nil && !a.dead() && a.ready {
				w.forces(context.Background(), a, w.guests[0])
			}
			return nil
		}})
}
