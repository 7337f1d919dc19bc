package sim

import (
	"context"
	"encoding/json"
	"slices"

	"berth/claims"
	"berth/driver"
	"berth/migration"
	"berth/topology"
)

// diskSize is how large a guest's disk is at first, and newImage what a rebuilt guest's
// disk begins with: the contents of imageFile.
const (
	diskSize  = 1 << 30
	newImage  = "a new image"
	imageFile = images + "/new-image.raw"
)

// change is what a move that has a guest while it is off does to it.
type change struct {
	mayBeStopped map[string]bool // by host: its agent was asked to end the guest, and it has not run there since
	unapplied    *agent          // that takes a change back just now; what a hung hypervisor starts meanwhile it ends too
	before       string          // what its disk had when it was ended, which a revert gives back
	applied      bool            // a new disk or image was put in the place of the old
	back         bool            // the old was asked for again
	ranSince     bool            // it ran after the last of the two
}

// cold says whether a move is one that has its guest while it is off.
func (m *move) cold() bool { return m.kind != migration.TypeLiveMigration }

// inPlace says whether it is one that leaves the guest where it is: named so by the one
// who asked, or where it went.
func (m *move) inPlace() bool {
	return m.kind == migration.TypeRebuild || m.cold() && (m.to == m.from || m.last.DestCompute == m.from)
}

// grows says whether the guest's disk becomes larger by it.
func (m *move) grows() bool {
	return m.flavor != nil && m.guest.disk != noDisk && m.flavor.DiskGB > m.old.DiskGB && m.flavor.DiskGB<<30 > diskSize
}

// keepsDisk says whether the old disk is kept as it was until the move is confirmed.
func (m *move) keepsDisk() bool {
	return m.guest.disk != noDisk && (m.kind == migration.TypeRebuild || m.grows() || m.guest.disk == local && !m.inPlace())
}

// moveOf is the move that a verb is of; nil for none that anybody asked for.
func (w *world) moveOf(ref migration.Ref) *move {
	for _, m := range w.moves {
		if m.uuid == ref.Migration {
			return m
		}
	}
	return nil
}

// mayStop notes that a host is asked to end a guest. A message that comes late is not
// noted again: what it ends is ended against the law.
func (w *world) mayStop(m *machine, ref migration.Ref) {
	g := w.guestOf(ref.Instance)
	if g == nil {
		return
	}
	if g.mayBeStopped == nil {
		g.mayBeStopped = map[string]bool{}
	}
	g.mayBeStopped[m.name] = true
}

// leaves notes what a guest's disk had when it was ended by the move itself, not by its
// revert.
func (w *world) leaves(a *agent, ref migration.Ref) {
	g := w.guestOf(ref.Instance)
	if rec, err := a.conductor.Get(context.Background(), ref.Migration); err == nil && g != nil && rec.Stage == migration.StageMove && !g.applied {
		g.before = g.data
	}
}

// changes notes that the new is put in the place of the old.
func (w *world) changes(ref migration.Ref) {
	if g := w.guestOf(ref.Instance); g != nil && !g.applied {
		g.applied, g.back, g.ranSince = true, false, false
	}
}

// comesBack notes that the old is to be as it was.
func (w *world) comesBack(ref migration.Ref) {
	if g := w.guestOf(ref.Instance); g != nil && !g.back {
		g.back, g.ranSince = true, false
	}
}

// returned notes that the token of a guest which had left cold is where it came from: from
// then on its host gives it back by itself, whoever asks for it.
func (w *world) returned(g *guest) {
	for _, m := range slices.Backward(w.moves) {
		if m.guest != g || m.asked == 0 {
			continue
		}
		if m.cold() && m.accepted && m.from == g.holder {
			w.comesBack(migration.Ref{Instance: g.uuid})
		}
		return
	}
}

// contents are what a guest may find on its disk when it starts: what it wrote last; and
// while a move changes it, what the move has kept for it, or brought.
func (w *world) contents(g *guest) []string {
	out := []string{g.data}
	for _, m := range w.moves {
		if m.guest != g || !m.cold() || m.asked == 0 {
			continue
		}
		if g.back && m.keepsDisk() {
			out = append(out, g.before)
		}
		if m.kind == migration.TypeEvacuation && m.loss && g.disk == local {
			out = append(out, newImage)
		}
		if m.kind == migration.TypeRebuild && g.applied && !g.ranSince {
			out = append(out, newImage)
		}
	}
	return out
}

// wrote notes that a guest ran on a host, and has written to its disk.
func (w *world) wrote(g *guest, host string) {
	g.ranSince = true
	if g.mayBeStopped[host] && !g.applied && !g.back && !w.visits(g, host) {
		g.before = g.data // its user let it run when it was about to be ended
	}
	if a := g.unapplied; a == nil || a.dead() {
		clear(g.mayBeStopped)
	}
}

// visits says whether a guest is on a host to which a cold move has brought it, so that
// what is kept of it elsewhere does not change by what it writes.
func (w *world) visits(g *guest, host string) bool {
	return slices.ContainsFunc(w.moves, func(m *move) bool {
		return m.guest == g && m.cold() && m.accepted && !m.last.Done() && m.from != host
	})
}

// rests is what the disk of a guest has when all is over.
func (w *world) rests(g *guest) string {
	if g.ranSince {
		return g.data
	}
	for _, m := range slices.Backward(w.moves) {
		switch {
		case m.guest != g || !m.cold() || !m.accepted:
			continue
		case m.stays() && (m.kind == migration.TypeRebuild || m.kind == migration.TypeEvacuation && m.loss && g.disk == local):
			return newImage
		case !m.stays() && g.back && m.keepsDisk():
			return g.before
		}
		break
	}
	return g.data
}

// stays says whether what a move was to bring is there: it is done, or waits to be
// confirmed.
func (m *move) stays() bool {
	return m.last.Outcome == migration.OutcomeCompleted || m.finished()
}

// finished says whether a move waits for somebody's word, and nobody will say it.
func (m *move) finished() bool { return m.ending == leave && m.last.Status == migration.StatusFinished }

// waits is the move of a guest that waits for somebody's word; nil for none.
func (w *world) waits(g *guest) *move {
	for _, m := range w.moves {
		if m.guest == g && m.accepted && m.finished() {
			return m
		}
	}
	return nil
}

// now is the flavor that a guest has when all is over.
func (w *world) now(g *guest) topology.Flavor {
	f := g.flavor
	for _, m := range w.moves {
		if m.guest == g && m.accepted && m.flavor != nil && m.stays() {
			f = *m.flavor
		}
	}
	return f
}

// size is how large its disk is then.
func (w *world) size(g *guest) int64 {
	var n int64 = diskSize
	for _, m := range w.moves {
		if m.guest == g && m.accepted && m.stays() && m.grows() {
			n = m.flavor.DiskGB << 30
		}
	}
	return n
}

// claimed holds that a guest runs with what is claimed for it where it runs: by the
// claim that is the instance's own, or by that of the move that brings it.
func (w *world) claimed(g *guest, host string) {
	m := w.machines[host]
	if m.off || m.hung || m.blind || m.away > 0 {
		return // its libvirt answers nobody
	}
	d, err := m.fake.Domain(context.Background(), g.uuid)
	if err != nil || !d.Active() {
		return // it has ended since
	}
	here := w.claimsOn(m)
	for _, c := range here {
		comes := c.Owner.Kind != claims.KindInstance && c.State == claims.Arriving
		if c.Owner.Instance == g.uuid && (c.Owner.Kind == claims.KindInstance || comes) && d.VCPUs == c.Resources.VCPUs+c.Resources.PCPUs && d.MemoryMB == c.Resources.MemoryMB {
			w.usesItsOwn(g, m, c)
			return
		}
	}
	w.violate("guest %s runs on %s with %d VCPU and %d MiB, and its claims there are %s", g.name, host, d.VCPUs, d.MemoryMB, ofGuest(here, g))
}

// ofGuest tells a guest's claims.
func ofGuest(all []claims.Claim, g *guest) []string {
	out := []string{}
	for _, c := range all {
		if c.Owner.Instance == g.uuid {
			out = append(out, string(c.Owner.Kind)+" "+string(c.State)+" "+c.Resources.String())
		}
	}
	return out
}

// giverKeeps holds what a host keeps of a guest that it has handed over cold: until the
// move is confirmed its room and its context, or when it hands the guest back, until the
// other has bound it, all that it had.
func (w *world) giverKeeps(ref migration.Ref, c migration.Commit, when string) {
	m := w.moveOf(ref)
	if m == nil {
		return
	}
	from := w.machines[c.From]
	if from == nil {
		w.violate("the commit of %s names the host %q %s", m.guest.name, c.From, when)
		return
	}
	w.keeps(from, m, when)
}

func (w *world) keeps(from *machine, m *move, when string) {
	if !slices.ContainsFunc(w.claimsOn(from), func(c claims.Claim) bool { return c.Owner.Instance == m.guest.uuid }) {
		w.violate("%s holds no room for %s any more %s", from.name, m.guest.name, when)
	}
	if !w.hasContext(from, m.uuid) {
		w.violate("%s has no context of %s any more %s", from.name, m.guest.name, when)
	}
}

// hasContext says whether a host remembers what a move changes: beside its claim, or in it.
func (w *world) hasContext(on *machine, migrated string) bool {
	var h struct{ Context *json.RawMessage }
	if json.Unmarshal(w.records(on, "halves")[migrated], &h) == nil && h.Context != nil {
		return true
	}
	return slices.ContainsFunc(w.claimsOn(on), func(c claims.Claim) bool { return c.Context != nil && c.Context.Migration == migrated })
}

// power is what a guest's user had chosen; when its last move was reverted, before that.
func (w *world) power(g *guest) (off, paused bool) {
	off, paused = g.off, g.paused
	for _, m := range w.moves {
		switch {
		case m.guest != g || !m.accepted:
		case m.last.Outcome == migration.OutcomeReverted && !m.since:
			off, paused = m.off, m.paused
		default:
			off, paused = g.off, g.paused
		}
	}
	return off, paused
}

// uses has a user find his guest as it is: what he chooses now is after every revert so far.
func (w *world) uses(g *guest) {
	for _, m := range w.moves {
		if m.guest == g {
			w.read(m)
		}
	}
	g.off, g.paused = w.power(g)
	for _, m := range w.moves {
		m.since = m.since || m.guest == g && m.last.Outcome == migration.OutcomeReverted
	}
}

// powerWanted is it in libvirt's words.
func (w *world) powerWanted(g *guest) driver.State {
	off, paused := w.power(g)
	switch {
	case off:
		return driver.ShutOff
	case paused:
		return driver.Paused
	}
	return driver.Running
}
