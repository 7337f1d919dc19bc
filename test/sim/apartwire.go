package sim

import (
	"context"

	"berth/migration"
)

// strangers says whether there is no network between two hosts. They are not cut off from
// each other: neither knows the other's address.
func (w *world) strangers(a, b *machine) bool { return w.unrouted[pair(a.name, b.name)] }

// meets holds that two hosts that share nothing never talk: whoever opens a connection
// has been told by nobody that he may.
func (w *world) meets(a *agent, b *machine, what string) error {
	w.violate("%s opens a connection to %s, which it shares nothing with, for %s", a.m.name, b.name, what)
	return unreachable(what + ": no route to host")
}

// Reach is the connection that is made to see whether it can be, on somebody's question:
// nothing is said by it.
func (p peer) Reach(ctx context.Context) error {
	if err := p.a.rt.Sleep(ctx, latency); err != nil {
		return unreachable(err.Error())
	}
	if m := p.m; p.a.w.strangers(p.a.m, m) || p.a.w.cut(p.a.m, m) || m.off || m.agent == nil || m.agent.dead() {
		return unreachable("dial " + m.name + ": no route to host")
	}
	return nil
}

// fate is what agent.(*Agent) answers of an attempt: of one that it conducts between two
// others what the host says which the guest is to leave, else what its journal does.
func (a *agent) fate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	journaled, conducts := a.conductor.Fate(ref.Migration, ref.Attempt)
	if !conducts {
		return a.host.AttemptFate(ctx, ref)
	}
	m, err := a.conductor.Get(ctx, ref.Migration)
	if err != nil || journaled.Fate == migration.FateKept {
		return journaled, err
	}
	giver := m.SourceCompute
	if m.Moved > 0 && ref.Attempt > m.Moved {
		giver = m.DestCompute
	}
	if giver == a.m.name {
		return a.host.AttemptFate(ctx, ref)
	}
	told, err := peer{a, a.w.machines[giver]}.AttemptFate(ctx, ref)
	if err != nil || told.Fate == migration.FateUnknown {
		return journaled, nil
	}
	return told, nil
}
