package sim

import (
	"context"
	"slices"
	"time"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// lose ends the agent of a move's conductor for good: a third host, which has nothing of
// the guest.
func (w *world) lose() {
	for _, m := range w.moves {
		c := w.conductor(m)
		if !m.apart || c.lost || c.agent == nil || m.from == c.name || m.asked == 0 || w.hasAny(c) {
			continue
		}
		w.fault(c.name, "gone for good")
		c.kill(0)
		c.lost = true
		return
	}
}

// hasAny says whether a host has anything of any guest.
func (w *world) hasAny(m *machine) bool {
	return len(w.claimsOn(m)) > 0 || slices.ContainsFunc(w.guests, func(g *guest) bool { return w.tokens[g.uuid][m.name] != claims.Token{} })
}

// settledApart says whether a move is over whose conductor is gone for good: its hosts have
// done what they do alone, and an operator has said the rest.
func (w *world) settledApart(m *move) bool {
	if m.orphan || m.last.Done() {
		return true
	}
	// Before the source decides alone, or after.
	patience := operatorsPatience
	if w.options.Seed%2 == 0 {
		patience += conductorSilence
	}
	if !m.settling && w.sim.Elapsed() > w.mended+patience {
		m.settling = true
		w.outside.Go("operator", func() { w.settleApart(m) })
	}
	return false
}

// settleApart is the operator: he looks where the guest is, and says so on both hosts; first
// on the one that is to give way.
func (w *world) settleApart(m *move) {
	defer func() { m.settling = false }()
	at := m.from
	holders := w.holders(m.guest.uuid)
	if d := w.claimants(m); len(d) > 0 {
		m.claimed = d
	}
	if len(holders) == 1 && w.story.NoStart != holders[0] {
		at = holders[0]
	} else if d := w.claimants(m); len(d) > 0 && w.options.Seed%3 > 0 && w.story.NoStart != d[0] {
		at = d[0]
	}
	w.note("operator", "the guest of", m.uuid, "is at", at)
	hosts := slices.DeleteFunc(slices.Clone(w.names), func(name string) bool { return name == at || w.machines[name].lost })
	for _, name := range append(hosts, at) {
		word := migration.Settlement{GuestIsAt: at, Gone: []string{m.by}, Why: "looked at both hosts", By: "operator"}
		if name == at && !slices.Contains(holders, at) {
			// He has looked: nothing of the guest runs there.
			if word.Gone = append(word.Gone, m.claimed...); at != m.from {
				word.Gone = []string{m.by, m.from}
			}
		}
		if err := w.say(name, m, word); err != nil && fault.KindOf(err) != fault.NotFound {
			w.note("operator", "was not heard on", name, err.Error())
			_ = w.outside.Sleep(context.Background(), operatorsPatience)
			return
		}
	}
	m.orphan = true
	outcome, status := migration.OutcomeUndone, migration.StatusFailed
	switch {
	case at != m.from:
		outcome, status = migration.OutcomeCompleted, migration.StatusCompleted
	case m.last.Moved > 0:
		outcome, status = migration.OutcomeReverted, migration.StatusReverted
	}
	m.last.Outcome, m.last.Status, m.last.DestCompute = outcome, status, at
}

// claimants are the hosts beside its source that have a claim of a move.
func (w *world) claimants(m *move) []string {
	var out []string
	for _, name := range w.names {
		if name != m.from && slices.ContainsFunc(w.claimsOn(w.machines[name]), func(c claims.Claim) bool { return c.Owner.Instance == m.guest.uuid }) {
			out = append(out, name)
		}
	}
	return out
}

// say gives a host an operator's word.
func (w *world) say(host string, m *move, word migration.Settlement) error {
	a := w.machines[host].agent
	if a == nil || a.dead() || !a.ready {
		return unreachable("connection refused by " + host)
	}
	ctx, cancel := w.outside.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	x := peer{a: a, m: a.m}.send(ctx, "settle", func(ctx context.Context, b *agent) {
		_, err = b.host.SettleApart(ctx, m.uuid, word)
		if fault.KindOf(err) == fault.NotFound {
			_, err = b.host.SettleArrival(ctx, m.uuid, word)
		}
	})
	_ = runtime.Await(ctx, w.outside, x.done)
	if x.err != nil {
		return x.err
	}
	return err
}
