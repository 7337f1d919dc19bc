package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/auditor/facts"
	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// reports says whether hosts keep their own tree in Placement and audit what is held of it: in
// one random run of so many, and where that is what a mutant breaks; never where hosts have less
// than they say.
func (w *world) reports() bool {
	o, s := w.options, w.story
	if w.mutant != nil && w.mutant.Audit == nil || w.mutant == nil && (o.Story != nil || o.Seed%reportEvery != 1) {
		return false
	}
	return !slices.ContainsFunc(s.Hosts, func(h HostPlan) bool { return h.Capacity != roomy || h.Told.VCPUs > 0 })
}

const reportEvery = 16

// standing is the host's tree in Placement as it is known, false while nobody knows it.
func (a *agent) standing() (*inventory.Tree, bool) {
	if a.reporter == nil {
		return a.m.tree, true
	}
	t, known := a.reporter.Tree()
	if known {
		a.m.tree = t
	}
	return t, known
}

// newReporter makes the parts of an agent that keep its tree.
func (a *agent) newReporter() {
	m := a.m
	a.reporter = reporter.New(reporter.Options{
		Placement: a.client, Runtime: a.rt, Logger: a.w.log, Name: m.name, UUID: m.provider, Interval: time.Minute, Jitter: a.rng.Float64,
		Input: func() (inventory.Input, bool, string) {
			var held []inventory.Held
			for _, c := range a.tracker.List() {
				held = append(held, heldOf(c))
			}
			in := m.input(held)
			in.Holding, in.Shape = a.holding(), m.shape
			return in, true, ""
		},
		Held: func(consumer string) (inventory.Held, bool) {
			for _, c := range a.tracker.ByInstance(consumer) {
				if c.Owner.Migration == "" {
					return heldOf(c), true
				}
			}
			return inventory.Held{}, false
		},
		Moving: func(consumer string) bool {
			rec, err := a.conductor.Get(context.Background(), consumer)
			return len(a.tracker.ByMigration(consumer)) > 0 || err == nil && !rec.Done()
		},
		Migration: func(consumer string) bool {
			_, known := a.tracker.Context(consumer)
			_, err := a.conductor.Get(context.Background(), consumer)
			return known || err == nil
		},
		Remembered: m.remembered, Keep: func(_ context.Context, r reporter.Remembered) error { m.remembered = r; return nil },
	})
	a.auditor = auditor.New(auditor.Options{
		Host: m.name, Placement: a.client, Runtime: a.rt, Logger: a.w.log, Tree: a.standing, Report: a.reporter.Sync, Interval: time.Hour,
		Ledger: func() audit.Ledger { return a.recorded(a.facts().Ledger()) }, Domains: a.facts().Domains, Peers: others{a}, Alone: a.host.Alone,
	})
}

func heldOf(c claims.Claim) inventory.Held {
	return inventory.Held{Resources: c.Resources, Assignment: c.Assignment, Consumer: c.Owner.Instance}
}

// holding is agent.(*hardware).holding.
func (a *agent) holding() bool {
	if len(a.tracker.Contexts()) > 0 || slices.ContainsFunc(a.tracker.List(), func(c claims.Claim) bool { return c.Owner.Migration != "" }) {
		return true
	}
	list, err := a.conductor.List(context.Background())
	return err != nil || slices.ContainsFunc(list, func(m migration.Migration) bool { return !m.Done() })
}

func (a *agent) facts() facts.Of {
	return facts.Of{Host: a.m.name, Tracker: a.tracker, Conductor: a.conductor, Moves: a.host, Driver: a.driver}
}

// recorded is what an audit is told of the ledger.
func (a *agent) recorded(l audit.Ledger) audit.Ledger {
	if m := a.w.mutant; m != nil && m.Audit != nil {
		return m.Audit(l)
	}
	return l
}

// others are the hosts beside an agent's own, as an audit asks them.
type others struct{ a *agent }

var _ auditor.Peers = others{}

// Hosts implements auditor.Peers.
func (o others) Hosts(context.Context) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(o.a.w.names), func(name string) bool { return name == o.a.m.name }), nil
}

// Knows implements auditor.Peers.
func (o others) Knows(ctx context.Context, host string, consumers []string) ([]auditor.Known, error) {
	m := o.a.w.machines[host]
	if m == nil {
		return nil, fault.New(fault.NotFound, "no peer is named %s", host)
	}
	if o.a.w.unrouted[pair(o.a.m.name, host)] {
		return nil, unreachable("connect to " + host + ": no route to host")
	}
	return verb(ctx, peer{o.a, m}, ofQuestion, "Knows", func(ctx context.Context, b *agent) ([]auditor.Known, error) {
		known := b.facts().Knows(ctx, consumers)
		if w := b.w; w.mutant != nil && w.mutant.Audit != nil {
			for i := range known {
				known[i].Busy, known[i].Moving = "", false
			}
		}
		return known, nil
	})
}

// busyReporting is how long a host reports and audits at every moment of a run; then it does so
// now and then.
const busyReporting = 75 * time.Second

// keepsTree has an agent report its host and audit what is held of it, at moments that come by
// chance. Now and then an operator wants the tree in another shape.
func (a *agent) keepsTree(ctx context.Context, known bool) error {
	w, m := a.w, a.m
	r := rand.New(rand.NewPCG(w.options.Seed, hash("reports "+m.name)+uint64(m.lives)))
	for {
		pause := time.Duration(r.IntN(4000)) * time.Millisecond
		if w.sim.Elapsed() > busyReporting {
			pause += 15 * time.Second
		} else if w.mutant == nil && r.IntN(6) == 0 {
			m.shape = []inventory.Shape{inventory.Flat, inventory.Nested}[r.IntN(2)]
			w.note(m.name, "an operator wants the tree", string(m.shape))
		}
		if err := a.rt.Sleep(ctx, pause); err != nil {
			return nil
		}
		limited, cancel := a.rt.WithTimeout(ctx, time.Minute)
		if r.IntN(2) == 0 || !known {
			err := a.reporter.Sync(limited)
			if known = err == nil; !known {
				w.note(m.name, "is not reported:", err.Error())
			}
		} else {
			got := a.auditor.Audit(limited, auditor.Order{Heal: true, AskAll: r.IntN(2) == 0, Patient: r.IntN(3) == 0})
			for _, row := range got.Rows {
				w.note(m.name, "audit:", string(row.Verdict), row.Code, row.Message)
			}
		}
		cancel()
	}
}

// bothCounted holds that while an instance is between two hosts Placement counts it on both: what
// it has where it came from, and what it will have where it goes.
func (w *world) bothCounted(ref migration.Ref, to *machine, when string) {
	m := w.moveOf(ref)
	if m == nil || !w.reporting || !w.placement.idle() {
		return
	}
	counted := func(of *machine) placementclient.Resources {
		if a := of.agent; a != nil {
			if _, known := a.standing(); !known {
				return nil // its tree is being reshaped
			}
		}
		out := placementclient.Resources{}
		for _, consumer := range []string{m.guest.uuid, m.uuid} {
			held, err := w.placement.admin.Allocations(context.Background(), consumer)
			if err != nil {
				return nil
			}
			for rp, r := range held.Allocations {
				if rp == sharing || !of.tree.Owns(rp) {
					continue
				}
				for class, n := range r {
					out[class] += n
				}
			}
		}
		return out
	}
	holds := func(on *machine, c claims.Claim) {
		has := counted(on)
		if has != nil && (has["VCPU"] < int64(c.Resources.VCPUs) || has["PCPU"] < int64(c.Resources.PCPUs) || has["MEMORY_MB"] < c.Resources.MemoryMB) {
			w.violate("%s is counted on %s with %v %s, and holds %s there", m.guest.name, on.name, has, when, c.Resources)
		}
	}
	for _, c := range w.claimsOn(w.machines[m.from]) {
		if c.Owner.Instance == m.guest.uuid && c.State == claims.Bound {
			holds(w.machines[m.from], c)
		}
	}
	for _, c := range w.claimsOn(to) {
		if c.Owner.Migration == m.uuid && c.State == claims.Arriving {
			holds(to, c)
		}
	}
}

// sums are what is held by class, wherever it is.
func sums(of map[string]placementclient.Resources) placementclient.Resources {
	out := placementclient.Resources{}
	for _, r := range of {
		for class, n := range r {
			out[class] += n
		}
	}
	return out
}

// countedAs says whether Placement has of a host what its claim holds. In a nested tree an
// instance that floats may be on any cell.
func (m *machine) countedAs(c claims.Claim, now placementclient.Allocations) bool {
	for rp := range now.Allocations {
		if !m.tree.Uses(rp) {
			return false
		}
	}
	return m.tree.Agrees(heldOf(c), now.Allocations)
}
