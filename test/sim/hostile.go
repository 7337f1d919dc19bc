package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	agents "berth/agent"
	"berth/fleet"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
)

// hostileName is a host with a good certificate that is no party to any move, and has no instance.
// It knows all names, and asks for whatever there is to ask for.
const hostileName = "x"

// A hostile host is at work for so long, and asks so soon again at most.
const (
	hostileFor   = 30 * time.Second
	hostilePause = 200 * time.Millisecond
)

// hostile is that host.
func (w *world) hostile() {
	r := rand.New(rand.NewPCG(w.options.Seed, 8))
	for w.sim.Elapsed() < hostileFor {
		_ = w.outside.Sleep(context.Background(), time.Duration(r.Int64N(int64(hostilePause))))
		m, g := w.machines[w.names[r.IntN(len(w.names))]], w.guests[r.IntN(len(w.guests))]
		if w.store != nil && r.IntN(2) == 0 {
			w.forges(r, m, g)
		} else {
			w.intrudes(r, m, g)
		}
	}
	w.pending--
}

// intrudes asks a host for one thing, in the name of a move of a guest or of one that is none.
func (w *world) intrudes(r *rand.Rand, m *machine, g *guest) {
	if b := m.agent; b == nil || b.dead() || m.off || b.host == nil {
		return
	}
	ref := migration.Ref{Migration: id("77777777", r.IntN(8)), Instance: g.uuid, Attempt: 1 + r.IntN(2)}
	if len(w.moves) > 0 && r.IntN(4) > 0 {
		move := w.moves[r.IntN(len(w.moves))].uuid
		if _, recorded := agents.PartiesOf(m.agent.tracker).Parties(move, ""); recorded || w.foreseen() {
			ref.Migration = move
		}
	}
	what, serve := w.intrusion(r, m, ref)
	w.fault(m.name, "host x asks for "+what+" of "+g.name)
	ctx, cancel := w.outside.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	x := peer{m: m}.send(ctx, what+" by host x", func(ctx context.Context, b *agent) {
		if err := serve(ctx, b); err != nil {
			w.note(m.name, "answers host x:", err.Error())
		}
	})
	_ = runtime.Await(ctx, w.outside, x.done)
	w.look()
}

// foreseen says whether the hostile host knows of a move before the asked host does. Then it can
// have that refused: an undo that comes first is taken from anybody, and is of one attempt alone.
func (w *world) foreseen() bool { return w.options.Seed%2 == 0 }

// intrusion draws what is asked for.
func (w *world) intrusion(r *rand.Rand, m *machine, ref migration.Ref) (what string, serve func(context.Context, *agent) error) {
	all := operation.All()
	if n := r.IntN(len(all) + 3); n < len(all) {
		op := all[n]
		_, in := op.Unpack(op.NewRequest())
		in = w.forged(m, ref, in)
		return op.Name, func(ctx context.Context, b *agent) error {
			if err := b.mayAskFor(hostileName, op, ref, in); err != nil {
				return err
			}
			_, err := b.verbs().Ask(ctx, ref, op, in)
			return err
		}
	}
	return "yield-token", func(ctx context.Context, b *agent) error {
		if err := b.mayYield(hostileName, ref); err != nil {
			return err
		}
		return b.host.YieldToken(ctx, ref, highEpoch, hostileName)
	}
}

// highEpoch is above all that a run comes to.
const highEpoch = 1 << 40

// forged fills an input with what serves the hostile host.
func (w *world) forged(m *machine, ref migration.Ref, in any) any {
	switch in := in.(type) {
	case migration.Commit:
		in = migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: highEpoch, From: hostileName, To: m.name, Power: migration.PowerRunning}
		in.Seal = &migration.Seal{Chain: [][]byte{[]byte(hostileName)}, Signature: seals{m}.sign(in), At: time.Unix(0, 0)}
		return in
	case migration.EvacuationRequest:
		in.Source = w.guestOf(ref.Instance).home
		return in
	}
	return in
}

// forges writes records of others, but for what a dead host had: any host may take that over.
func (w *world) forges(r *rand.Rand, m *machine, g *guest) {
	if _, err := w.looker.Get(context.Background(), fleet.DeathsPrefix+g.home); err == nil {
		return
	}
	value := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			w.violate("a forged record: %v", err)
		}
		return b
	}
	taken := fleet.Change{Key: fleet.InstancesPrefix + g.uuid, Value: value(fleet.Instance{UUID: g.uuid, Name: g.name, Host: hostileName, Epoch: highEpoch})}
	forged := [][]fleet.Change{
		{{Key: fleet.DeathsPrefix + m.name, Value: value(fleet.Death{Host: m.name, Proof: fleet.ProofFenced})}},
		{{Key: fleet.DeathsPrefix + m.name}},
		{taken},
		{taken, {Key: fmt.Sprintf("evacuated/%s/%s", g.home, id("77777777", 1)), Value: value(fleet.Evacuated{Migration: id("77777777", 1), Instance: g.uuid, Source: g.home, To: hostileName, Epoch: highEpoch})}},
		{{Key: taken.Key}},
		{{Key: "hosts/" + m.name}},
		{{Key: "alive/" + m.name}},
	}
	changes := forged[r.IntN(len(forged))]
	w.fault("records", "host x writes "+changes[0].Key)
	err := w.permitted(hostileName, changes)
	if err == nil {
		err = w.store.Client(hostileName).Commit(context.Background(), nil, changes...)
	}
	if err != nil {
		w.note("records", "answer host x:", err.Error())
	}
	w.recorded()
}

// hostileStories are those with a hostile host: what it asks for changes nothing of any guest. A
// move that it knew of before the destination did may come to nothing by it.
func hostileStories() []*Story {
	guest := func(g GuestPlan) []GuestPlan {
		g.Host, g.Flavor = "a", small
		return []GuestPlan{g, {Host: "b", Flavor: small, Disk: local}}
	}
	out := []*Story{
		{Name: "live move", Hosts: hosts(2), Streams: true, Guests: guest(GuestPlan{Disk: local}), Moves: []MovePlan{{To: "b", At: 3 * time.Second}}},
		{Name: "resize, confirm", Hosts: hosts(2), Guests: guest(GuestPlan{Disk: local}),
			Moves: []MovePlan{{Kind: migration.TypeResize, To: "b", Flavor: &large, Ending: confirmed, Later: 8 * time.Second, At: 3 * time.Second}}},
		{Name: "migration of one that is off, revert", Hosts: hosts(2), Guests: guest(GuestPlan{Disk: shared, Off: true}), Sharing: true,
			Moves: []MovePlan{{Kind: migration.TypeMigration, To: "b", Ending: reverted, Later: 8 * time.Second, At: 3 * time.Second}}},
		{Name: "nothing moves", Hosts: hosts(2), Records: true, Guests: guest(GuestPlan{Disk: local})},
		{Name: "evacuation", Hosts: hosts(3), Records: true, Sharing: true, Guests: guest(GuestPlan{Disk: shared}),
			Deaths: []DeathPlan{{Host: "a", By: "c", At: 9 * time.Second, Proof: fleet.ProofFenced, Back: 20 * time.Second}},
			Moves:  []MovePlan{{Kind: migration.TypeEvacuation, By: "c", To: "b", At: 9 * time.Second}}},
	}
	for _, s := range out {
		s.Name, s.Pace, s.Hostile = "hostile host, "+s.Name, slow, true
	}
	return out
}
