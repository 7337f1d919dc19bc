package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"berth/agent/guard"
	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
)

// libvirt asks the guard before it starts a guest or takes one in, whoever wants it: the agent
// itself, or a person with virsh. An agent that is not there answers nobody, and nothing starts.

// guarded is libvirt's hook on a machine: it refuses what the guard refuses.
func (w *world) guarded(m *machine, uuid string, operation guard.Operation) error {
	a := m.agent
	if w.guestOf(uuid) == nil || a == nil || w.mutant != nil && w.mutant.NoGuard {
		return nil // the world is being made, or it is nobody's
	}
	if a.dead() || a.host == nil {
		return fault.New(fault.Forbidden, "%s of %s on %s: the guard does not answer", operation, uuid, m.name)
	}
	decision, reasons := guard.Decide(a.guardFacts(uuid, operation))
	switch decision {
	case guard.Allow, guard.AllowArrival:
		return nil
	}
	text := "it is no guest of this host"
	if len(reasons) > 0 {
		text = reasons[0].Message
	}
	return fault.New(fault.Forbidden, "%s of %s on %s: %s", operation, uuid, m.name, text)
}

// guardFacts is agent.(*guardian).facts. An arrival's document names the migration by which its
// source sends it.
func (a *agent) guardFacts(uuid string, operation guard.Operation) guard.Facts {
	f := guard.Facts{Operation: operation, Marked: true, DocMigration: a.w.leaving[uuid].migration}
	if inst, known := a.tracker.Instance(uuid); known {
		f.Known, f.TokenHere, f.Holder = true, inst.Token.State == claims.TokenHere, inst.Token.Holder
		f.Leaving, _ = a.host.Moving(uuid)
		if a.host.Starts(uuid) || a.host.Lives(uuid) {
			f.Leaving = ""
		}
		f.Left = a.host.LeftByHand(uuid)
		f.Unconfirmed, _ = a.host.Unconfirmed(uuid)
		if f.TokenHere && operation != guard.Migrate {
			f.Alive = host.Alive(a.host, inst)
		}
	}
	for _, c := range a.tracker.ByInstance(uuid) {
		switch o := c.Owner; o.Kind {
		case claims.KindInstance:
			f.Claimed = true
		case claims.KindLiveMigration:
			f.Arrival = &guard.Arrival{Migration: o.Migration, Foreign: a.host.External().Foreign(o), Undone: a.host.External().Undone(o), Pending: c.State == claims.Pending}
		case claims.KindResize, claims.KindEvacuation:
			if !f.TokenHere && !(f.Known && c.State == claims.Held) {
				f.Arrival = &guard.Arrival{Migration: o.Migration, Cold: true}
			}
		}
	}
	return f
}

// virshEvery: in one random run of so many somebody has virsh on all hosts.
const virshEvery = 3

func (w *world) virshes() bool {
	return w.chaos != nil && (w.mutant == nil && w.options.Seed%virshEvery == 0 || w.mutant != nil && w.mutant.ByHand)
}

// virsh is that person: while moves are asked for he starts guests wherever they seem to be off.
func (w *world) virsh() {
	r := rand.New(rand.NewPCG(w.options.Seed, 5))
	for w.sim.Elapsed() < 40*time.Second {
		_ = w.outside.Sleep(context.Background(), time.Duration(r.IntN(1500))*time.Millisecond)
		g, m := w.guests[r.IntN(len(w.guests))], w.machines[w.names[r.IntN(len(w.names))]]
		g.startedByHand(w, m)
	}
}

// startedByHand is a person with virsh on any host, who starts a guest wherever he finds a
// definition of it that is off: at its own host, or of a copy that has left, or is to come.
func (g *guest) startedByHand(w *world, m *machine) {
	if m.off || m.away > 0 || m.hung || m.blind {
		return
	}
	ctx := context.Background()
	d, err := m.fake.Domain(ctx, g.uuid)
	if err != nil || d.Active() || d.State != driver.ShutOff {
		return
	}
	own := m.holds(g)
	if own {
		w.uses(g)
		if w.moving(g) && !w.verifying(g) {
			g.anyPower = true
		}
	}
	w.fault(m.name, "somebody starts "+g.name+" with virsh")
	if err := m.fake.Start(ctx, g.uuid, false); err != nil {
		w.note("virsh", err.Error())
	} else if own {
		g.off, g.paused = false, false
	}
	w.look()
}
