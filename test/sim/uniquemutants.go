package sim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"berth/agent/audit"
	"berth/claims"
	"berth/driver"
	"berth/internal/store"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// uniqueMutants are the breakages of what one instance has alone: CPUs, pages and functions.
func uniqueMutants() []Mutant {
	return []Mutant{
		{Name: "pins-not-applied", What: "an instance arrives by the domain XML of its source, with the CPUs, cells and functions of that",
			Verbs: func(a *agent, h migration.Host) migration.Host { return unbound{h, a} }},
		{Name: "pages-left-at-undo", What: "the undo of a claim gives its amounts back, and leaves its cells and functions on the disk",
			Ledger: func(_ *agent, s ledger) claims.Store { return leavesPlace{s} }},
		{Name: "place-forgotten", What: "an agent that starts does not count the CPUs, pages and functions of the claims that it finds",
			Ledger: func(_ *agent, s ledger) claims.Store { return forgetsPlace{s} }},
		{Name: "function-given-back-twice", What: "what an aborted claim held is given back once more, whoever holds it by then", Rare: true,
			Verbs: func(a *agent, h migration.Host) migration.Host { return givesTwice{h, a} }},
		{Name: "guard-admits-all", What: "the guard lets a guest start without token and claim", NoGuard: true, ByHand: true},
		{Name: "processes-not-asked", What: "a guest is off when libvirtd says so, whatever runs", NoProcs: true, Rare: true},
		{Name: "saved-not-asked", What: "nobody asks libvirt what it has saved of a guest", Saves: true,
			Calls: func(_ *agent, l libvirt) driver.Driver { return nothingSaved{l} }},
		{Name: "audit-in-hand-over", What: "an audit knows no moves, and gives back in the middle of one",
			Audit: func(l audit.Ledger) audit.Ledger {
				l.Moves = nil
				l.Claims = slices.DeleteFunc(slices.Clone(l.Claims), func(c audit.Claim) bool { return c.Migration != "" })
				return l
			}},
		{Name: "audit-without-claims", What: "an audit does not know what a claim was given, and counts its amounts alone",
			Audit: func(l audit.Ledger) audit.Ledger {
				l.Claims = slices.Clone(l.Claims)
				for i := range l.Claims {
					l.Claims[i].Held.Assignment = topology.Assignment{}
				}
				return l
			}},
	}
}

type unbound struct {
	migration.Host
	a *agent
}

func (h unbound) PreLiveMigration(ctx context.Context, ref migration.Ref, q migration.PreLiveRequest) (migration.Prepared, error) {
	p, err := operation.PreLiveMigration.Ask(ctx, h.Host, ref, q)
	for _, m := range h.a.w.moves {
		if m.uuid != ref.Migration || err != nil {
			continue
		}
		if text, err := h.a.w.machines[m.from].fake.XML(ctx, ref.Instance, driver.Live); err == nil {
			p.DestinationXML = text
		}
	}
	return p, err
}

type leavesPlace struct{ ledger }

func (s leavesPlace) Enqueue(mutations ...store.Mutation) *store.Pending {
	mutations = slices.Clone(mutations)
	for i, m := range mutations {
		if m.Bucket != "claims" || m.Value != nil {
			continue
		}
		raw, found, err := s.Get(context.Background(), m.Bucket, m.Key)
		var c claims.Claim
		if err != nil || !found || json.Unmarshal(raw, &c) != nil || c.Owner.Migration == "" || c.Assignment.IsZero() {
			continue
		}
		mutations[i].Value = raw
	}
	return s.ledger.Enqueue(mutations...)
}

type forgetsPlace struct{ ledger }

func (s forgetsPlace) List(ctx context.Context, bucket string) (map[string][]byte, error) {
	all, err := s.ledger.List(ctx, bucket)
	if bucket != "claims" {
		return all, err
	}
	out := map[string][]byte{}
	for key, raw := range all {
		var c map[string]any
		if json.Unmarshal(raw, &c) == nil {
			delete(c, "assignment")
			delete(c, "numa_topology")
			delete(c, "pci_requests")
			raw, _ = json.Marshal(c)
		}
		out[key] = raw
	}
	return out, err
}

type givesTwice struct {
	migration.Host
	a *agent
}

func (h givesTwice) AbortClaim(ctx context.Context, ref migration.Ref) error {
	var held []int
	for _, c := range h.a.tracker.ByMigration(ref.Migration) {
		for _, cell := range c.Assignment.Cells {
			held = append(held, cell.Exclusive()...)
		}
	}
	err := operation.AbortClaim.Ask(ctx, h.Host, ref)
	if err != nil || len(held) == 0 {
		return err
	}
	a := h.a
	a.process.Go("given back again", func() {
		_ = a.process.Sleep(context.Background(), 3*time.Second)
		for _, c := range a.tracker.List() {
			if c.State == claims.Bound && slices.ContainsFunc(c.Assignment.Cells, func(cell topology.AssignedCell) bool {
				return slices.ContainsFunc(held, cell.Exclusive().Contains)
			}) {
				_ = a.tracker.Release(context.Background(), c.Owner)
			}
		}
	})
	return nil
}
