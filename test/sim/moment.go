package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// look takes in what happened in the hypervisors since the last look.
func (w *world) look() {
	for _, e := range w.fleet.Since(w.seen) {
		w.seen++
		w.trace.note(w.sim.Elapsed(), e.Host, e.UUID, e.What)
		w.linkChanged(e.Host, e.What)
		if g := w.guestOf(e.UUID); g != nil {
			w.happened(g, e.Host, e.What)
		}
	}
}

// happened holds one change of a guest on a host against the laws.
func (w *world) happened(g *guest, host, what string) {
	w.stays(g, host, what)
	switch {
	case strings.HasPrefix(what, "VIOLATION"):
		if !w.deceived(g) {
			w.violate("guest %s runs twice: on %s", g.name, host)
		}
	case strings.HasPrefix(what, "migration to "):
		if to, begins := strings.CutSuffix(strings.TrimPrefix(what, "migration to "), " begins"); begins {
			g.arriving, g.copies[to] = to, incoming
			w.sets(g, host, to)
			w.arrives(g, host, to)
		}
	case strings.Contains(what, " (post-copy"):
		w.inHalves(g, host, what)
	case strings.HasPrefix(what, "running ("):
		w.jobOver(g.uuid)
		w.runs(g, host, what)
	case what == "paused (user)" && g.copies[host] == noCopy: // it booted so
		g.copies[host] = whole
		clear(g.mayBeStopped)
		w.goesOn(g, host)
		w.claimed(g, host)
	case strings.HasPrefix(what, "paused ("):
		if g.copies[host] == incoming && what != "paused (migrating)" {
			g.copies[host] = whole
		}
		if g.copies[host] == whole {
			w.jobOver(g.uuid)
		}
	case strings.HasPrefix(what, "shut off ("):
		w.ends(g, host, what)
		w.jobOver(g.uuid)
	}
}

// ends is called when a copy is no more. The guest is off when the last one goes that
// has all of it, or where it lived: there it can die as any guest can.
func (w *world) ends(g *guest, host, what string) {
	was := g.copies[host]
	g.copies[host] = noCopy
	if was == half {
		w.halfEnds(g, host, what)
	}
	if was != whole {
		return
	}
	last := true
	for _, c := range g.copies {
		last = last && c != whole
	}
	switch {
	case w.stopping == [2]string{host, g.uuid} && g.mayBeStopped[host]:
	case w.stopping == [2]string{host, g.uuid} && last && !g.mayBeOff:
		w.violate("the agent of %s stops %s, whose only copy that was", host, g.name)
	case last, w.machines[host].holds(g) && what != "shut off (migrated)" && what != "shut off (daemon)":
		g.mayBeOff = true
	}
}

// runs is called when a guest's CPUs begin to run on a host.
func (w *world) runs(g *guest, host, what string) {
	if w.comes(g) {
		g.mayBeOff = false
	}
	if g.copies[host] == half && host == g.arriving {
		w.isWhole(g, host) // it has run here since, and all its memory has come
		return
	}
	if g.copies[host] == half {
		w.violate("guest %s is %s on %s, and part of it is on %s", g.name, what, host, g.arriving)
	}
	if h := w.holders(g.uuid); !slices.Contains(h, host) {
		w.violate("guest %s is %s on %s, whose ledger does not hold its token (%v does)", g.name, what, host, h)
	}
	if g.copies[host] == stale {
		w.violate("guest %s is %s on %s, whose copy is older than the guest", g.name, what, host)
	}
	if g.copies[host] == incoming {
		w.violate("guest %s is %s on %s before its memory was complete", g.name, what, host)
	}
	w.besideLost(g, host, what)
	w.goesOn(g, host)
	w.writes(g, host, what)
	w.claimed(g, host)
	w.isWhole(g, host)
}

// writes is what a guest that begins to run does to its disk.
func (w *world) writes(g *guest, host, what string) {
	if g.disk != noDisk {
		files := w.machines[host].files
		if have, _, exists := files.Data(g.path()); !exists || !slices.Contains(w.contents(g), have) {
			w.violate("guest %s is %s on %s, whose disk has %q, want one of %q", g.name, what, host, have, w.contents(g))
		}
		g.writes++
		g.data = fmt.Sprintf("%s wrote %d", g.name, g.writes)
		files.Write(g.path(), g.data)
	}
	w.wrote(g, host)
}

// isWhole notes that the newest of a guest, all of it, is on a host.
func (w *world) isWhole(g *guest, host string) {
	g.copies[host], g.torn = whole, false
	for other, c := range g.copies {
		if other != host && c == whole {
			g.copies[other] = stale
		}
	}
}

// arrives holds law 2 and 10: a stream only where a claim awaits it.
func (w *world) arrives(g *guest, from, to string) {
	if w.awaited(w.machines[to], g.uuid) {
		return
	}
	w.violate("guest %s begins to arrive on %s from %s without a claim that awaits it", g.name, to, from)
}

// streamAsked counts the streams of an attempt: there is never a second.
func (w *world) streamAsked(a *agent, uuid string, m driver.Migration) {
	moving, _ := a.moving(uuid)
	attempt := 0
	for _, o := range w.moves {
		if rec, err := a.conductor.Get(context.Background(), o.uuid); err == nil && o.uuid == moving {
			attempt = rec.Attempt
		}
	}
	w.leaving[uuid] = departure{from: a.m, migration: moving, attempt: attempt}
	key := moving + " to " + m.DestinationURI
	if m.PostCopy {
		key += " by post-copy" // the second job of an attempt
	}
	if w.streams[key]++; w.streams[key] > 1 {
		w.violate("a stream of migration %s is asked for %d times", key, w.streams[key])
	}
}

// claimAnswered holds law 3: what was answered is durable.
func (w *world) claimAnswered(b *agent, ref migration.Ref, answer migration.ClaimAnswer) {
	for _, c := range w.claimsOn(b.m) {
		if c.ID == answer.Claim {
			return
		}
	}
	w.violate("%s answered with claim %s of attempt %d, which is not on its disk", b.m.name, answer.Claim, ref.Attempt)
}

// tokenAnswered holds it of tokens: who says that one has left, or has come, has on its
// disk none of an epoch before.
func (w *world) tokenAnswered(m *machine, c migration.Commit) {
	if t, known := w.tokens[c.Instance][m.name]; known && t.State == claims.TokenHere && t.Epoch < c.Epoch {
		w.violate("%s answered that the token of %s goes from %s to %s as %d, and its disk says %+v", m.name, c.Instance, c.From, c.To, c.Epoch, t)
	}
}

// undone notes what an undo has answered: from then on its verb has no effect.
func (w *world) undone(m *machine, ref migration.Ref, what string, err error) error {
	if err == nil {
		w.gone[undoing{m.name, ref.Migration, ref.Attempt, what}] = true
		w.copies(m)
	}
	return err
}

// copies holds that a copy of an instance which was removed is not there, nor ever again.
func (w *world) copies(m *machine) {
	for _, raw := range w.records(m, "copies") {
		var c claims.Copy
		if err := json.Unmarshal(raw, &c); err != nil {
			w.violate("the ledger of %s: %v", m.name, err)
		}
		if w.gone[undoing{m.name, c.Migration, c.Attempt, "copy"}] {
			w.violate("%s has a copy of attempt %d of migration %s, though it was removed", m.name, c.Attempt, c.Migration)
		}
	}
}

// undoing names the undo of one verb.
type undoing struct {
	host, migration string
	attempt         int
	what            string // claim, copy, or the verb's memory
}

// sourceHolds holds what a source keeps until its guest is bound at the destination:
// claim and context.
func (w *world) sourceHolds(ref migration.Ref, when string) {
	for _, m := range w.moves {
		if m.uuid != ref.Migration {
			continue
		}
		from := w.machines[m.from]
		if !slices.ContainsFunc(w.claimsOn(from), func(c claims.Claim) bool { return c.Owner.Instance == ref.Instance && c.State == claims.Bound }) {
			w.violate("%s has no claim of %s any more %s", m.from, m.guest.name, when)
		}
		raw := w.records(from, "halves")[ref.Migration]
		var h struct{ Context *json.RawMessage }
		if json.Unmarshal(raw, &h) != nil || h.Context == nil {
			w.violate("%s has no context of %s any more %s", m.from, m.guest.name, when)
		}
	}
}

// committed is called after every commit of a machine's store.
func (w *world) committed(m *machine, mutations []store.Mutation) {
	for _, mutation := range mutations {
		switch mutation.Bucket {
		case "instances":
			w.tokensOf(m)
		case "copies":
			w.copies(m)
		case drainBucket, doorBucket:
			w.drainWrote(m)
		case "claims":
			w.fits(m)
			w.arrivals(m)
			w.ownOnce(m)
			for _, c := range w.claimsOn(m) {
				if c.Owner.Migration != "" && w.gone[undoing{m.name, c.Owner.Migration, c.Owner.Attempt, "claim"}] {
					w.violate("%s has a claim of attempt %d of migration %s again, though it was aborted", m.name, c.Owner.Attempt, c.Owner.Migration)
				}
			}
		case "verbs":
			if parts := strings.Split(mutation.Key, "/"); mutation.Value != nil && len(parts) == 3 {
				attempt, _ := strconv.Atoi(parts[1]) // of a key that claims made
				if w.gone[undoing{m.name, parts[0], attempt, parts[2]}] {
					w.violate("%s remembers %s again, though it was undone", m.name, mutation.Key)
				}
			}
		}
	}
}

// ownOnce holds that a guest has one claim of its own on a host, while it has any beside
// that of a change which is not there yet.
func (w *world) ownOnce(m *machine) {
	own, kept := map[string]int{}, map[string]bool{}
	for _, c := range w.claimsOn(m) {
		if c.Owner.Kind == claims.KindInstance {
			own[c.Owner.Instance]++
		} else if c.State == claims.Held && slices.Contains(w.holders(c.Owner.Instance), m.name) {
			kept[c.Owner.Instance] = true
		}
	}
	for _, g := range w.guests {
		if n := own[g.uuid]; n > 1 || n == 0 && kept[g.uuid] {
			w.violate("%s has %d claims that are %s's own", m.name, n, g.name)
		}
	}
}

// tokensOf reads the tokens of a ledger.
func (w *world) tokensOf(m *machine) {
	records, err := m.mem.List(context.Background(), "instances")
	if err != nil {
		return // the agent has just died; the next one reads them
	}
	for _, g := range w.guests {
		if w.tokens[g.uuid] == nil {
			w.tokens[g.uuid] = map[string]claims.Token{}
		}
		delete(w.tokens[g.uuid], m.name)
		if raw, ok := records[g.uuid]; ok {
			var i claims.Instance
			if err := json.Unmarshal(raw, &i); err != nil {
				w.violate("the ledger of %s: instance %s: %v", m.name, g.name, err)
			}
			w.tokens[g.uuid][m.name] = i.Token
			if i.Token.State == claims.TokenHere && i.Token.Epoch > w.highest[g.uuid].Epoch {
				w.highest[g.uuid] = claims.Token{Epoch: i.Token.Epoch, Holder: m.name}
			}
		}
		if h := w.holders(g.uuid); len(h) > 1 {
			w.violate("the token of %s is on %s", g.name, strings.Join(h, " and "))
		} else if len(h) == 1 && g.holder != h[0] {
			g.holder = h[0]
			w.returned(g)
		}
	}
}

// claimsOn reads the claims of a ledger. Nobody may change them.
func (w *world) claimsOn(m *machine) []claims.Claim {
	records, err := m.mem.List(context.Background(), "claims")
	if err != nil {
		return nil
	}
	var out []claims.Claim
	for key, raw := range records {
		was, read := m.read[key]
		if !read || !bytes.Equal(was.raw, raw) {
			was = readClaim{raw: raw}
			if err := json.Unmarshal(raw, &was.claim); err != nil {
				w.violate("the ledger of %s: %v", m.name, err)
			}
			m.read[key] = was
		}
		out = append(out, was.claim)
	}
	slices.SortFunc(out, func(a, b claims.Claim) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// undecidable says whether the world itself has lost the answer to what became of a
// move's guest: its source is off and does not say why, while a whole copy is where
// it was to go.
func (w *world) undecidable(m *move) bool {
	ctx := context.Background()
	if m.guest.torn {
		return true
	}
	source := w.machines[m.from]
	if source.off || source.hung || source.blind || source.away > 0 {
		return false
	}
	from, err := source.fake.Domain(ctx, m.guest.uuid)
	gone := fault.KindOf(err) == fault.NotFound
	if err != nil && !gone {
		return false
	}
	if !gone && m.guest.copies[m.from] == half && m.guest.copies[m.guest.arriving] == whole {
		return true // it was started again where it came: nobody waits for what is here
	}
	if !gone && (from.Active() || from.Reason == driver.ReasonMigrated) {
		return false
	}
	for host, c := range m.guest.copies {
		if host != m.from && (c == whole || c == stale) {
			return true
		}
	}
	return gone
}

func (g *guest) String() string { return fmt.Sprintf("%s on %s", g.name, g.home) }

// comes says whether a guest is evacuated: then it is started anew, whatever became of it
// before.
func (w *world) comes(g *guest) bool {
	return slices.ContainsFunc(w.moves, func(m *move) bool {
		return m.guest == g && m.kind == migration.TypeEvacuation && m.asked > 0 && !m.stopped
	})
}
