package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/watchdog"
	"berth/migration"
)

// DeathPlan is a host that is taken for dead.
type DeathPlan struct {
	Host  string
	At    time.Duration
	Alone bool          // it is cut off from everybody, and its guests run on; else it loses its power
	Proof fleet.Proof   // by which it counts as dead
	By    string        // whose agent is asked for it
	Back  time.Duration // how long after it went it is as before; 0 for never
	// Wrong: an operator gives his word for the death of a host that lives. Then its guests run
	// twice until it is reached again; nothing else may have them do so.
	Wrong bool
	// Forget: it never comes back, and is forgotten when its guests are elsewhere.
	Forget bool
}

// death is one.
type death struct {
	DeathPlan
	proven bool
	twice  bool // a guest of it ran twice, as it must where the word was wrong
	over   bool // nobody tries to prove it any more
	forget wish
}

// dies plays a host's death: what becomes of it, the proof, and its return.
func (w *world) dies(d *death) {
	ctx, m := context.Background(), w.machines[d.Host]
	defer func() { d.over = true }()
	_ = w.outside.Sleep(ctx, d.At)
	if m.off {
		return
	}
	w.note("story", "death of", m.name)
	back := d.Back
	if back == 0 {
		back = time.Hour
	}
	if d.Alone {
		w.isolate(m, back)
	} else {
		m.die(d.Back)
	}
	for w.sim.Elapsed() < w.mended+patience {
		_ = w.outside.Sleep(ctx, 3*time.Second)
		a := w.machines[d.By].agent
		if a == nil || a.dead() || !a.ready {
			continue
		}
		err := w.prove(ctx, a, m, d)
		if err == nil {
			d.proven = true
			w.note("operator", m.name, "counts as dead")
			return
		}
		w.note("operator", m.name, "does not count as dead:", err.Error())
		if errors.Is(err, fault.Forbidden) && !m.off && !m.alone {
			return // it was back before anybody came to it
		}
	}
}

// prove has a host declared dead by one agent: agent's own order, with the boot that was
// told of before the proof.
func (w *world) prove(ctx context.Context, a *agent, m *machine, d *death) error {
	h, err := a.records.Host(ctx, m.name)
	if err != nil {
		return err
	}
	dead := fleet.Death{Host: m.name, Proof: d.Proof, By: "operator", Because: "looked", Boot: h.Boot}
	switch d.Proof {
	case fleet.ProofSelfFence:
		_, err = a.records.DeclareDeadByLease(ctx, m.name, a.m.name, "host:"+a.m.name)
		return err
	case fleet.ProofFenced:
		if !m.off {
			// The hook: it is off, and boots when somebody puts it on again.
			m.fence(d.Back)
		}
	case fleet.ProofOperator:
		if !m.off && !d.Wrong {
			return fault.New(fault.Forbidden, "he has looked: it lives")
		}
	}
	_, err = a.records.DeclareDead(ctx, dead)
	return err
}

// die takes a machine's power; for good where d is 0.
func (m *machine) die(d time.Duration) {
	if d > 0 {
		m.reboot(d)
		return
	}
	if m.off || m.away > 0 || m.hung {
		return
	}
	m.off, m.lost = true, true
	m.w.look()
	m.end("the machine is gone for good")
	m.fake.Crash()
	m.w.look()
}

// fence switches a machine off, whatever its state.
func (m *machine) fence(d time.Duration) {
	m.away, m.hung, m.blind = 0, false, false
	m.die(d)
}

// isolate cuts a machine off from all others, Placement and the records.
func (w *world) isolate(m *machine, d time.Duration) {
	if m.alone || m.off {
		return
	}
	m.alone = true
	w.fault(m.name, "cut off from all")
	each := func(f func(other string)) {
		for _, other := range w.names {
			if other != m.name && !w.cuts[pair(m.name, other)] {
				f(other)
			}
		}
	}
	each(func(other string) { w.fleet.CutData(m.name, other); w.fleet.CutManagement(m.name, other) })
	w.later(d, "heal the network of "+m.name, func() {
		m.alone = false
		each(func(other string) { w.fleet.HealData(m.name, other); w.fleet.HealManagement(m.name, other) })
	})
}

// dead says whether somebody has proven that a host is dead.
func (w *world) dead(host string) bool {
	for _, d := range w.deaths {
		if d.Host == host && d.proven {
			return true
		}
	}
	return false
}

// deceived says whether a guest may run twice: its host was declared dead by a wrong word, and
// is cut off still.
func (w *world) deceived(g *guest) bool {
	for _, d := range w.deaths {
		if d.Wrong && d.proven && d.Host == g.home && w.machines[d.Host].alone {
			d.twice = true
			return true
		}
	}
	return false
}

// missed says whether nobody could prove it, and nobody tries any more.
func (w *world) missed(host string) bool {
	for _, d := range w.deaths {
		if d.Host == host && d.over {
			return true
		}
	}
	return false
}

// dog is a machine's watchdog.
type dog struct {
	armed bool
	fed   time.Duration // on the world's clock
}

// budget is that of the hosts that fence themselves.
var budget = watchdog.Budget{Lease: 30 * time.Second, Timeout: 5 * time.Second}

// bites is a machine's watchdog: it resets the machine when it was not fed in time.
func (m *machine) bites() {
	for {
		_ = m.w.outside.Sleep(context.Background(), 250*time.Millisecond)
		if m.dog.armed && !m.off && m.w.sim.Elapsed() >= m.dog.fed+budget.Timeout {
			m.dog.armed = false
			m.away, m.hung, m.blind = 0, false, false
			m.reboot(8 * time.Second)
		}
	}
}

// leases keeps a host's lease, and feeds its watchdog by it alone: agent's own loops, whose
// decisions are package watchdog's.
func (a *agent) leases(ctx context.Context) error {
	var chain watchdog.Chain
	boot := a.rt.Boot().ID
	a.rt.Go("lease", func() {
		for ctx.Err() == nil {
			begun := a.rt.Boot().Since
			limited, cancel := a.rt.WithTimeout(ctx, budget.RenewEvery())
			if a.records.KeepAlive(limited, a.m.name, boot, fleet.Seconds(budget.Lease/time.Second)) == nil {
				chain = chain.Renewed(begun)
			} else if refused, err := a.records.NoQuorum(limited); err == nil && !refused {
				chain = chain.NoQuorum(budget, begun, a.rt.Boot().Since)
			}
			cancel()
			_ = a.rt.Sleep(ctx, budget.RenewEvery())
		}
	})
	told := false
	for ctx.Err() == nil {
		now, always := a.rt.Boot().Since, a.w.mutant != nil && a.w.mutant.FedAlways
		if dog := &a.m.dog; budget.May(chain, now) || dog.armed && always {
			if !dog.armed && a.host.BootConfirmed() {
				dog.armed = true
			}
			dog.fed = a.w.sim.Elapsed()
			if dog.armed && !told {
				limited, cancel := a.rt.WithTimeout(ctx, time.Second)
				told = a.records.Armed(limited, a.m.name, boot, fleet.Seconds(budget.Lease/time.Second), nil) == nil
				cancel()
				continue // the answer may have been long in coming
			}
		}
		_ = a.rt.Sleep(ctx, budget.FeedEvery())
	}
	return nil
}

// The fleet's records as they are now.

// inRecords is a guest's record; nil where there is none.
func (w *world) inRecords(uuid string) *fleet.Instance {
	if w.store == nil {
		return nil
	}
	rec, err := w.looker.Get(context.Background(), "instances/"+uuid)
	if err != nil {
		return nil
	}
	was, read := w.recordRead[uuid]
	if !read || !bytes.Equal(was.raw, rec.Value) {
		was = readRecord{raw: rec.Value}
		if err := json.Unmarshal(rec.Value, &was.record); err != nil {
			w.violate("the record of %s: %v", uuid, err)
		}
		w.recordRead[uuid] = was
	}
	in := was.record
	return &in
}

// readRecord is a guest's record as it was read last.
type readRecord struct {
	raw    []byte
	record fleet.Instance
}

// overtaken says whether a guest was given to another host than the one whose ledger has a token of
// an earlier epoch, by the records or as that host's ledger has had it: that token is none any more,
// whatever the records lose.
func (w *world) overtaken(host, uuid string, epoch uint64) bool {
	if w.store == nil {
		return false
	}
	if high := w.highest[uuid]; high.Holder != host && high.Epoch > epoch {
		return true
	}
	rec := w.inRecords(uuid)
	return rec != nil && rec.Host != host && rec.Epoch > epoch && rec.Migration != "" // else no take-over has written it
}

// tookOver holds that what was answered is in the records, or was and has gone on since.
func (w *world) tookOver(c migration.Commit) {
	if rec := w.inRecords(c.Instance); rec == nil || rec.Epoch < c.Epoch || rec.Epoch == c.Epoch && rec.Host != c.To {
		w.violate("the token of %s was given to %s with epoch %d, and its record says %+v", c.Instance, c.To, c.Epoch, rec)
	}
}

// recorded is called after every commit of the records.
func (w *world) recorded() {
	for _, name := range w.names {
		w.tokensOf(w.machines[name])
	}
}

// recordsAtRest holds that the records are what is.
func (w *world) recordsAtRest() {
	if w.store == nil {
		return
	}
	gone := map[string]bool{}
	for _, name := range w.names {
		gone[name] = w.machines[name].lost
	}
	for _, rec := range w.store.Records() {
		var any struct {
			UUID   string `json:"instance_uuid"`
			Host   string `json:"host"`
			Source string `json:"source_compute"`
			Epoch  uint64 `json:"epoch"`
			Moving string `json:"moving"`
		}
		if rec.Key[:5] == "alive" {
			continue
		}
		if err := json.Unmarshal(rec.Value, &any); err != nil {
			w.violate("at the end the record %s: %v", rec.Key, err)
			continue
		}
		switch rec.Key[:6] {
		case "deaths":
			if !gone[any.Host] {
				w.leave(leftRecord, "at the end %s counts as dead", any.Host)
			}
		case "evacua":
			if !gone[any.Source] {
				w.leave(leftRecord, "at the end %s is not taken away", rec.Key)
			}
		case "instan":
			g := w.guestOf(any.UUID)
			if at := w.holders(any.UUID); !w.inDoubt(g) && (len(at) != 1 || at[0] != any.Host || w.tokens[any.UUID][any.Host].Epoch != any.Epoch) {
				w.violate("at the end the record of %s names %s with epoch %d, its token is on %v", g.name, any.Host, any.Epoch, at)
			}
		}
	}
	for _, g := range w.guests {
		if w.inRecords(g.uuid) == nil {
			w.violate("at the end nobody keeps a record of %s", g.name)
		}
	}
}

// evacuatedFrom says whether what a move keeps stays in Placement, since its dead source never
// comes back, or the store has lost what it would clean up by: then an audit names it.
func (w *world) evacuatedFrom(m *move) bool {
	gone := w.machines[m.from].lost && !w.forgotten(m.from) || w.storeRuns > 0
	return m.kind == migration.TypeEvacuation && m.last.Outcome == migration.OutcomeCompleted && gone
}

// makeStore makes the records of a story that has them.
func (w *world) makeStore() {
	if w.story.Records {
		w.newStore(w.story.Embedded)
	}
	for _, d := range w.story.Deaths {
		w.deaths = append(w.deaths, &death{DeathPlan: d})
	}
}
