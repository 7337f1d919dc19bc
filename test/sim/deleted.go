package sim

import (
	"context"
	"time"

	"berth/agent/host"
)

// deletes is the operator of instances that were lost with their host's memory: a transient one that
// ran when the host lost its power is nowhere any more. Where the agent had no time to note that it was
// transient, or several went at once, nothing tells it from one whose definition libvirtd did not load:
// berth status names it, with berth instance delete as the remedy. He looks first, and keeps the disk.
func (w *world) deletes() {
	ctx := context.Background()
	for {
		_ = w.outside.Sleep(ctx, 10*time.Second)
		if w.sim.Elapsed() < w.mended+operatorsPatience {
			continue
		}
		for _, name := range w.names {
			a := w.machines[name].agent
			for _, g := range w.lostOn(name) {
				w.asks(ctx, a, "delete "+g.name, func(ctx context.Context, b *agent) error {
					_, err := b.host.Delete(ctx, g.uuid, host.DeleteOptions{})
					return err
				})
			}
		}
	}
}

// lostOn are the instances that a host's status names as kept without a domain, and of which he finds
// nothing on any host.
func (w *world) lostOn(name string) (out []*guest) {
	a := w.machines[name].agent
	if a == nil || a.dead() || !a.ready {
		return nil
	}
	for _, held := range a.host.Vanished() {
		if g := w.guestOf(held.UUID); g != nil && !g.persistent && g.mayBeOff && !w.moving(g) && w.nowhere(g) {
			out = append(out, g)
		}
	}
	return out
}

// undeleted reports whether an operator has still to say of an instance that it is lost.
func (w *world) undeleted() bool {
	for _, name := range w.names {
		if len(w.lostOn(name)) > 0 {
			return true
		}
	}
	return false
}

// nowhere reports whether no host has a domain of an instance.
func (w *world) nowhere(g *guest) bool {
	for _, name := range w.names {
		if _, err := w.machines[name].fake.Domain(context.Background(), g.uuid); err == nil {
			return false
		}
	}
	return true
}
