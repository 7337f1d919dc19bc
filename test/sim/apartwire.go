package sim

import (
	"context"

	"berth/migration"
)

// apart are the host's verbs for guests that are moved between hosts that share nothing.
func (a *agent) apart() migration.ApartVerbs {
	if m := a.w.mutant; m != nil && m.Apart != nil {
		return m.Apart(a, a.host)
	}
	return a.host
}

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

func apartGet[T any](ctx context.Context, p peer, k kind, name string, f func(context.Context, migration.ApartVerbs) (T, error)) (T, error) {
	return verb(ctx, p, k, name, func(ctx context.Context, b *agent) (T, error) { return f(ctx, b.apart()) })
}

func apartAct(ctx context.Context, p peer, name string, f func(context.Context, migration.ApartVerbs) error) error {
	_, err := apartGet(ctx, p, ofVerb, name, func(ctx context.Context, h migration.ApartVerbs) (struct{}, error) { return struct{}{}, f(ctx, h) })
	return err
}

var _ migration.ApartVerbs = peer{}

func (p peer) Reaches(ctx context.Context, host string) error {
	_, err := apartGet(ctx, p, ofQuestion, "Reaches", func(ctx context.Context, h migration.ApartVerbs) (struct{}, error) {
		return struct{}{}, h.Reaches(ctx, host)
	})
	return err
}

func (p peer) SnapshotDisks(ctx context.Context, ref migration.Ref, targets []string) (migration.Snapshot, error) {
	return apartGet(ctx, p, ofVerb, "SnapshotDisks", func(ctx context.Context, h migration.ApartVerbs) (migration.Snapshot, error) {
		return h.SnapshotDisks(ctx, ref, targets)
	})
}

func (p peer) DropSnapshot(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "DropSnapshot", func(ctx context.Context, h migration.ApartVerbs) error { return h.DropSnapshot(ctx, ref) })
}

func (p peer) Disconnect(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "Disconnect", func(ctx context.Context, h migration.ApartVerbs) error { return h.Disconnect(ctx, ref) })
}

func (p peer) Reconnect(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "Reconnect", func(ctx context.Context, h migration.ApartVerbs) error { return h.Reconnect(ctx, ref) })
}

func (p peer) SendDisks(ctx context.Context, ref migration.Ref, r migration.SendRequest) error {
	return apartAct(ctx, p, "SendDisks", func(ctx context.Context, h migration.ApartVerbs) error { return h.SendDisks(ctx, ref, r) })
}

func (p peer) HideInstance(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "HideInstance", func(ctx context.Context, h migration.ApartVerbs) error { return h.HideInstance(ctx, ref) })
}

func (p peer) CarryVolumes(ctx context.Context, ref migration.Ref, v migration.VolumeChanges) error {
	return apartAct(ctx, p, "CarryVolumes", func(ctx context.Context, h migration.ApartVerbs) error { return h.CarryVolumes(ctx, ref, v) })
}

func (p peer) CopyInstance(ctx context.Context, ref migration.Ref, i migration.InstanceCopy) error {
	return apartAct(ctx, p, "CopyInstance", func(ctx context.Context, h migration.ApartVerbs) error { return h.CopyInstance(ctx, ref, i) })
}

func (p peer) RemoveCopy(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "RemoveCopy", func(ctx context.Context, h migration.ApartVerbs) error {
		return p.a.w.undone(p.m, ref, "copy", h.RemoveCopy(ctx, ref))
	})
}

func (p peer) ShowInstance(ctx context.Context, ref migration.Ref) error {
	return apartAct(ctx, p, "ShowInstance", func(ctx context.Context, h migration.ApartVerbs) error { return h.ShowInstance(ctx, ref) })
}

func (p peer) ReadVolumes(ctx context.Context, ref migration.Ref) (migration.VolumeChanges, error) {
	return apartGet(ctx, p, ofQuestion, "ReadVolumes", func(ctx context.Context, h migration.ApartVerbs) (migration.VolumeChanges, error) {
		return h.ReadVolumes(ctx, ref)
	})
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
