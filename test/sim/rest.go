package sim

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/agent/host"
	"berth/agent/inventory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// atRest holds what must hold when all is up again and every move is over.
func (w *world) atRest() {
	w.look()
	if !w.over {
		for _, m := range w.moves {
			w.violate("move of %s is not over: status %q, outcome %q, phase %q, step %q: %v",
				m.guest.name, m.last.Status, m.last.Outcome, m.last.Phase, m.last.Step, m.last.Error.Err())
		}
		return
	}
	for _, m := range w.moves {
		w.told(m)
	}
	for _, g := range w.guests {
		w.lives(g)
		w.savedAtRest(g)
	}
	for _, name := range w.names {
		w.leftOn(w.machines[name])
	}
	if !w.uncounted {
		w.allocated()
	}
	w.recordsAtRest()
	w.drainsAtRest()
	for _, d := range w.deaths {
		w.forgottenAtRest(d)
		if d.Wrong && w.quiet() && !d.twice {
			w.violate("no guest of %s ran twice: the word was not wrong", d.Host)
		}
	}
}

// grace is how long what is left may take to go by itself: longer than a lease and
// any message. A world that is clean before does not wait for it.
const grace = 70 * time.Second

// grace is longer where a destination keeps what it answered until nobody asks any more.
func (w *world) grace() time.Duration {
	if w.store != nil {
		return conductorSilence + grace
	}
	return grace
}

// age lets the time go by for which a host keeps tombstones, once, in some of the runs:
// in those of a story itself, and in one of sixteen others.
func (w *world) age() bool {
	n := w.options.Seed
	if b := w.options.Break; b != nil {
		n = uint64(b.At)
	}
	if w.old || n%16 != 0 && !w.quiet() || w.story.SelfFence {
		return false
	}
	w.note("world", "a week goes by")
	w.old, w.calm = true, 0
	w.sim.Skip(claims.TombstoneKeep)
	w.mended = w.sim.Elapsed()
	for _, m := range w.machines {
		m.aged = m.boots
	}
	return true
}

// clean says whether all would be held now.
func (w *world) clean() bool {
	text, violations, said := len(w.trace.text), w.violations, w.said
	w.violations, w.said, w.over = nil, map[string]bool{}, true
	defer clear(w.left)
	w.atRest()
	clean := len(w.violations) == 0
	w.trace.text, w.violations, w.said, w.over = w.trace.text[:text], violations, said, false
	return clean
}

// inDoubt says whether a move of the guest ended in doubt: then nothing of it is
// held but what is held at every moment.
func (w *world) inDoubt(g *guest) bool {
	return slices.ContainsFunc(w.moves, func(m *move) bool { return m.guest == g && m.last.Outcome == migration.OutcomeInDoubt })
}

// told holds that a move says what is.
func (w *world) told(m *move) {
	if !m.accepted {
		if want := w.story.Want; w.quiet() && want != "" && want != migration.OutcomeRefused {
			w.violate("move of %s was not accepted: %v", m.guest.name, m.refused)
		}
		w.note("user", "move was never accepted", m.uuid)
		return
	}
	w.trace.notef(w.sim.Elapsed(), "move %s: %s, %s, attempt %d to %s", m.uuid, m.last.Status, m.last.Outcome, m.last.Attempt, m.last.DestCompute)
	if m.orphan {
		return // by its hosts alone
	}
	if want := w.story.Want; want != "" && w.quiet() && m.last.Outcome != want {
		w.violate("move of %s ended %q (%v), want %q", m.guest.name, m.last.Outcome, m.last.Error.Err(), want)
	}
	if m.finished() {
		w.heldBy(m)
	}
	if w.quiet() && m.ending == leave && !m.finished() {
		w.violate("move of %s is %s, want it finished", m.guest.name, m.last.Status)
	}
	later := slices.ContainsFunc(w.moves, func(o *move) bool { return o.guest == m.guest && o.after == m && o.accepted })
	if later {
		return
	}
	at := w.holders(m.guest.uuid)
	if w.vanished(m.guest) {
		return
	}
	switch m.last.Outcome {
	case migration.OutcomeCompleted:
		if !slices.Equal(at, []string{m.last.DestCompute}) {
			w.violate("move of %s says it completed to %s, its token is on %v", m.guest.name, m.last.DestCompute, at)
		}
	case migration.OutcomeUndone, migration.OutcomeRefused, migration.OutcomeReverted:
		if !slices.Equal(at, []string{m.from}) {
			w.violate("move of %s says %s, its token is on %v, want %s", m.guest.name, m.last.Outcome, at, m.from)
		}
	case migration.OutcomeInDoubt:
		if m.last.Error == nil {
			w.violate("move of %s is in doubt and does not say why", m.guest.name)
		}
	}
}

// vanished says whether a guest is no more: something killed it, and it was transient,
// so that no definition says that there ever was one.
func (w *world) vanished(g *guest) bool {
	return !g.persistent && g.mayBeOff && len(w.holders(g.uuid)) == 0 && w.nowhere(g)
}

// quiet says whether nothing was broken on purpose.
func (w *world) quiet() bool {
	return w.options.Break == nil && w.options.Spoil == nil && w.chaos == nil && w.mutant == nil
}

// lives holds that a guest is where its token is, as its user left it, and nowhere
// else.
func (w *world) lives(g *guest) {
	if w.inDoubt(g) {
		return
	}
	at := w.holders(g.uuid)
	if w.vanished(g) {
		return
	}
	if len(at) != 1 {
		w.violate("at the end %d hosts hold the token of %s: %v", len(at), g.name, at)
		return
	}
	if w.machines[at[0]].lost {
		return // it waits for its host, or for the next who asks
	}
	if shown := w.shown(g); !slices.Equal(shown, at) {
		w.violate("at the end the record of %s is shown by %v, its token is on %v", g.name, shown, at)
	}
	for _, name := range w.names {
		if w.machines[name].lost {
			continue // nobody asks it any more
		}
		d, err := w.machines[name].fake.Domain(context.Background(), g.uuid)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			if name == at[0] {
				w.violate("at the end guest %s is nowhere (its memory lost: %v), its token is on %s", g.name, g.mayBeOff, name)
			}
			continue
		case err != nil:
			w.violate("at the end: %v", err)
			continue
		case name != at[0] && !d.Active() && w.waitsBeside(g, name):
			continue // as it was before the move, until that is confirmed
		case name != at[0]:
			w.leave(leftDomain, "at the end %s has a domain of %s, %s (%s), whose token is on %s", name, g.name, d.State, d.Reason, at[0])
			continue
		}
		if g.disk != noDisk {
			if have, size, exists := w.machines[name].files.Data(g.path()); !exists || have != w.rests(g) || size != w.size(g) {
				w.violate("at the end the disk of %s on %s has %q and %d bytes, want %q and %d", g.name, name, have, size, w.rests(g), w.size(g))
			}
		}
		text, err := w.machines[name].fake.XML(context.Background(), g.uuid, driver.Persistent)
		if has := strings.Contains(text, g.volumePath()); err != nil || has != g.volume {
			w.violate("at the end guest %s has the volume that was attached on %s: %v, want %v (%v)", g.name, name, has, g.volume, err)
		}
		if now := w.now(g); d.VCPUs != now.VCPUs || d.MemoryMB != now.MemoryMB {
			w.violate("at the end guest %s has %d VCPU and %d MiB on %s, want %d and %d", g.name, d.VCPUs, d.MemoryMB, name, now.VCPUs, now.MemoryMB)
		}
		want := w.powerWanted(g)
		// A user may have done something that was not on record yet when his host was lost.
		lags := g.anyPower || g.autostart || w.chaos != nil && w.comes(g)
		if d.State != want && !(lags && d.Active()) && !(g.mayBeOff && d.State == driver.ShutOff && !(w.quiet() && w.comes(g) && name != g.home)) {
			w.violate("at the end guest %s is %s (%s) on %s, want %s", g.name, d.State, d.Reason, name, want)
		}
		if !d.Persistent && (g.persistent || name != g.home) {
			w.violate("at the end guest %s has no definition on %s", g.name, name)
		}
	}
}

// shown are the hosts that list a guest. One that a move keeps where the guest was is
// hidden where the move shares nothing; else it is known by its token.
func (w *world) shown(g *guest) []string {
	var out []string
	for _, name := range w.names {
		var i claims.Instance
		raw, known := w.records(w.machines[name], "instances")[g.uuid]
		if !known || w.machines[name].lost || json.Unmarshal(raw, &i) == nil && i.Hidden {
			continue
		}
		if m := w.waits(g); m != nil && !m.apart && i.Token.State != claims.TokenHere {
			continue
		}
		out = append(out, name)
	}
	return out
}

// leftOn holds that a ledger has the guests that are there, and nothing else.
func (w *world) leftOn(m *machine) {
	if m.lost {
		return // nobody asks it any more
	}
	var doubt []string
	for _, g := range w.guests {
		if w.inDoubt(g) {
			doubt = append(doubt, g.uuid)
		}
	}
	for _, c := range w.claimsOn(m) {
		if slices.Contains(doubt, c.Owner.Instance) {
			continue
		}
		g := w.guestOf(c.Owner.Instance)
		if w.heldFor(g, m, c) {
			continue
		}
		if c.State != claims.Bound || c.Owner.Kind != claims.KindInstance || !slices.Contains(w.holders(c.Owner.Instance), m.name) {
			w.leave(leftClaim, "at the end %s has a claim of %s: %s %s of migration %q", m.name, g.name, c.Owner.Kind, c.State, c.Owner.Migration)
		} else {
			w.asAsked(m, g, c, w.now(g))
		}
	}
	for _, g := range w.guests {
		if h := w.holders(g.uuid); len(h) != 1 || h[0] != m.name || slices.Contains(doubt, g.uuid) {
			continue
		}
		if !slices.ContainsFunc(w.claimsOn(m), func(c claims.Claim) bool { return c.Owner.Instance == g.uuid }) {
			w.violate("at the end %s has no claim of its guest %s", m.name, g.name)
		}
	}
	if len(doubt) > 0 {
		return
	}
	for uuid, raw := range w.records(m, "instances") {
		g := w.guestOf(uuid)
		var i claims.Instance
		switch now := w.now(g); {
		case !slices.Contains(w.holders(uuid), m.name):
			if !w.waitsBeside(g, m.name) {
				w.leave(leftRecord, "at the end %s has a record of %s, which is not there: %v", m.name, g.name, w.tokens[uuid][m.name])
			}
		case json.Unmarshal(raw, &i) != nil || i.Flavor.Name != now.Name || i.Flavor.Resources() != now.Resources() || !maps.Equal(i.Flavor.ExtraSpecs, now.ExtraSpecs):
			w.violate("at the end %s says that %s has the flavor %s, want %s", m.name, g.name, i.Flavor.Name, now.Name)
		}
	}
	for uuid := range w.records(m, "copies") {
		w.leave(leftRecord, "at the end %s has a copy of %s that was to come", m.name, w.guestOf(uuid).name)
	}
	for migrated, raw := range w.records(m, "halves") {
		if o := w.moveOf(migration.Ref{Migration: migrated}); o != nil && o.finished() {
			continue // see heldBy
		}
		if w.old && m.aged == m.boots { // another boot's clock counts from its own start
			w.violate("at the end %s has tombstones of migration %s, past their use: %s", m.name, migrated, raw)
		}
		var h struct {
			Context json.RawMessage `json:"context"`
		}
		if err := json.Unmarshal(raw, &h); err != nil || h.Context != nil {
			w.leave(leftRecord, "at the end %s has a context of migration %s (%v)", m.name, migrated, err)
		}
	}
	for key := range w.records(m, "verbs") {
		about, uuid, _ := strings.Cut(key, "/1/")
		if about == "kept" && slices.Contains(w.holders(uuid), m.name) {
			continue // an operator's decision that it is here
		}
		about, _, _ = strings.Cut(key, "/")
		if o := w.moveOf(migration.Ref{Migration: strings.TrimPrefix(about, "settle-")}); o != nil && o.finished() {
			continue // what a revert needs
		}
		if !strings.HasPrefix(key, "autostart/") && !strings.HasPrefix(key, "strangers/") && !strings.HasPrefix(key, "definitions/") && !strings.HasPrefix(key, "fleet/") && !strings.HasPrefix(key, "origin/") && !strings.HasPrefix(key, "old-disks-") {
			w.leave(leftRecord, "at the end %s remembers %s", m.name, key)
		}
	}
	for _, bucket := range []string{"tasks", "aborts"} {
		for key := range w.records(m, bucket) {
			w.violate("at the end %s has the record %s/%s", m.name, bucket, key)
		}
	}
	w.files(m)
	w.streamsLeft(m)
	if t := m.agent.tracker; t != nil {
		if a := t.Audit(); !a.Agrees() {
			w.violate("at the end the ledger of %s does not agree with itself: %+v", m.name, a)
		}
	}
}

// oldDisks gives the files that a host keeps of instances that were evacuated from it, and names.
func (w *world) oldDisks(m *machine) (paths []string) {
	for key, raw := range w.records(m, "verbs") {
		if !strings.HasPrefix(key, "old-disks-") {
			continue
		}
		var old host.OldDisks
		if err := json.Unmarshal(raw, &old); err != nil {
			w.violate("at the end %s has %s: %v", m.name, key, err)
		}
		for _, f := range old.Files {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// files holds that a host has the disks of its guests, and no other file.
func (w *world) files(m *machine) {
	want := map[string]bool{}
	for _, path := range w.oldDisks(m) {
		want[path] = true
	}
	if w.story.images() {
		want[imageFile] = true
	}
	for _, o := range w.moves {
		if o.orphan && o.from == m.name && o.guest.disk == local {
			// His word does not prove that the others are whole, and they are named.
			if _, _, exists := m.files.Data(o.guest.path()); exists {
				want[o.guest.path()] = true
			}
		}
	}
	for _, g := range w.guests {
		if o := w.waits(g); o != nil && g.disk == local && w.waitsBeside(g, m.name) {
			want[g.path()] = true
			if have, _, exists := m.files.Data(g.path()); exists && have != g.before {
				w.violate("at the end %s keeps the disk of %s with %q, want %q", m.name, g.name, have, g.before)
			}
		}
		if w.vanished(g) {
			// Its user may want the disk still: it is where the guest wrote last, and nowhere else.
			if have, _, exists := m.files.Data(g.path()); g.disk == local && exists && have == g.data {
				want[g.path()] = true
			}
			if g.disk == local && m.name == w.names[0] {
				w.diskKept(g)
			}
		}
		if g.disk == shared || g.disk == local && slices.Contains(w.holders(g.uuid), m.name) {
			want[g.path()] = true
		}
	}
	for _, path := range m.files.List() {
		if !want[path] && path != images && path != common && !w.keptFile(m, path) {
			w.leave(leftDisk, "at the end %s has the file %s", m.name, path)
		}
		delete(want, path)
	}
	for path := range want {
		w.violate("at the end %s does not have the disk %s", m.name, path)
	}
}

// diskKept holds that the disk of a guest that is no more is on one host, as it wrote it.
func (w *world) diskKept(g *guest) {
	var on []string
	for _, name := range w.names {
		if have, _, exists := w.machines[name].files.Data(g.path()); exists && have == g.data {
			on = append(on, name)
		}
	}
	if len(on) != 1 {
		w.violate("at the end the disk of %s, which is no more, is on %v", g.name, on)
	}
}

// waitsBeside says whether a host keeps what a guest had there, because the move by which
// it went waits to be confirmed.
func (w *world) waitsBeside(g *guest, host string) bool {
	m := w.waits(g)
	return m != nil && m.from == host && m.last.DestCompute != host
}

// heldFor says whether a claim is the half of a move that waits to be confirmed, and
// holds it to be what the guest had.
func (w *world) heldFor(g *guest, on *machine, c claims.Claim) bool {
	m := w.waits(g)
	if m == nil || on.name != m.from || c.Owner.Migration != m.uuid {
		return false
	}
	if c.State != claims.Held {
		w.violate("at the end %s keeps for %s a claim %s, want one held", on.name, g.name, c.State)
	}
	w.asAsked(on, g, c, m.old)
	return true
}

// heldBy holds that what a move waits with is all there: room and context where the
// guest was, and a context where it is.
func (w *world) heldBy(m *move) {
	w.keeps(w.machines[m.from], m, "at the end")
	if !m.inPlace() && !w.hasContext(w.machines[m.last.DestCompute], m.uuid) {
		w.violate("at the end %s has no context of %s, whose move waits to be confirmed", m.last.DestCompute, m.guest.name)
	}
	got, err := w.placement.admin.Allocations(context.Background(), m.uuid)
	if err != nil {
		w.violate("at the end: %v", err)
		return
	}
	from, to := w.machines[m.from], w.machines[m.last.DestCompute]
	kept := []map[string]placementclient.Resources{{}} // ways to count what is held to go back
	for _, c := range w.claimsOn(from) {
		if c.Owner.Migration == m.uuid {
			kept = from.placements(c)
		}
	}
	nested := from.tree.Shape == inventory.Nested || to.tree.Shape == inventory.Nested
	for _, want := range kept {
		w.lessInstance(want, m.guest, to)
		if got.SameResources(placementclient.Allocations{Allocations: want}) || nested && maps.Equal(sums(got.Allocations), sums(want)) {
			return
		}
	}
	w.violate("at the end migration %s holds %v in Placement, want %v", m.uuid, got.Allocations, kept[0])
}

// lessInstance takes off what the instance itself holds of the same provider, which is counted once.
func (w *world) lessInstance(want map[string]placementclient.Resources, g *guest, on *machine) {
	for _, c := range w.claimsOn(on) {
		if c.Owner.Instance != g.uuid || c.Owner.Kind != claims.KindInstance {
			continue
		}
		for rp, r := range on.place(c.Resources, c.Assignment) {
			for class, n := range r {
				if want[rp] != nil {
					want[rp][class] -= n
				}
			}
		}
	}
	for rp, r := range want {
		maps.DeleteFunc(r, func(_ string, n int64) bool { return n <= 0 })
		if len(r) == 0 {
			delete(want, rp)
		}
	}
}

// placements are the ways in which a host may count what a claim holds: an instance that floats over a
// nested tree stays on the cell where it once had room.
func (m *machine) placements(c claims.Claim) []map[string]placementclient.Resources {
	out := []map[string]placementclient.Resources{m.place(c.Resources, c.Assignment)}
	if m.tree.Shape != inventory.Nested || len(c.Assignment.Cells) > 0 {
		return out
	}
	amounts := sums(out[0])
	for _, cell := range m.tree.Providers {
		if _, has := cell.Inventories[placementclient.ClassVCPU]; !has {
			continue
		}
		for _, pages := range m.tree.Providers {
			if _, has := pages.Inventories[placementclient.ClassMemoryMB]; !has || pages.Parent != cell.UUID {
				continue
			}
			whole := map[string]placementclient.Resources{}
			for class, n := range amounts {
				at := cell.UUID
				switch class {
				case placementclient.ClassMemoryMB:
					at = pages.UUID
				case placementclient.ClassDiskGB:
					at = m.tree.Root()
				}
				if whole[at] == nil {
					whole[at] = placementclient.Resources{}
				}
				whole[at][class] = n
			}
			out = append(out, whole)
		}
	}
	return out
}

// keptFile says whether a file is what a move keeps that waits to be confirmed.
func (w *world) keptFile(on *machine, path string) bool {
	return slices.ContainsFunc(w.moves, func(m *move) bool {
		return m.finished() && m.keepsDisk() && strings.Contains(path, m.uuid) && (on.name == m.from || m.guest.disk == shared)
	})
}

func (w *world) records(m *machine, bucket string) map[string][]byte {
	records, err := m.mem.List(context.Background(), bucket)
	if err != nil {
		w.violate("at the end the store of %s: %v", m.name, err)
	}
	return records
}

// allocated holds that Placement equals the truth.
func (w *world) allocated() {
	ctx := context.Background()
	admin := w.placement.admin
	for _, g := range w.guests {
		at := w.holders(g.uuid)
		if w.inDoubt(g) || len(at) != 1 && !w.vanished(g) {
			continue
		}
		got, err := admin.Allocations(ctx, g.uuid)
		if err != nil {
			w.violate("at the end: %v", err)
			continue
		}
		var want placementclient.Allocations // of a guest that is no more: none
		if len(at) == 1 {
			m := w.machines[at[0]]
			for _, c := range w.claimsOn(m) { // of which leftOn holds that it is what its flavor asks
				if c.Owner.Instance != g.uuid || c.Owner.Kind != claims.KindInstance {
					continue
				}
				if want.Allocations = m.place(c.Resources, c.Assignment); m.countedAs(c, got) {
					want = got
				}
			}
		}
		if !got.SameResources(want) {
			w.violate("at the end %s holds %v in Placement, want %v", g.name, got.Allocations, want.Allocations)
		}
		if got.Exists() && got.ConsumerType != placementclient.ConsumerInstance {
			w.violate("at the end %s is a consumer of type %s", g.name, got.ConsumerType)
		}
	}
	providers := []string{}
	for _, name := range w.names {
		m := w.machines[name]
		if _, known := m.agent.standing(); !known {
			w.violate("at the end nobody knows the tree of %s in Placement: %s", name, m.agent.reporter.Status().Error)
		}
		for _, p := range slices.Concat(m.tree.Providers, m.tree.Retired) {
			providers = append(providers, p.UUID)
		}
	}
	if w.story.Sharing {
		providers = append(providers, sharing)
	}
	for _, rp := range providers {
		held, err := admin.ProviderAllocations(ctx, rp)
		if err != nil {
			w.violate("at the end: %v", err)
			continue
		}
		for _, consumer := range slices.Sorted(maps.Keys(held.Allocations)) {
			if w.guestOf(consumer) != nil || slices.ContainsFunc(w.moves, func(m *move) bool {
				return m.uuid == consumer && (m.last.Outcome == migration.OutcomeInDoubt || m.finished() || w.evacuatedFrom(m))
			}) {
				continue
			}
			w.leave(leftAllocation, "at the end %s holds %v of provider %s", consumer, held.Allocations[consumer], rp)
		}
	}
}
