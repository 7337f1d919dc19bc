package sim

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	changes "berth/agent/host/change"
	"berth/driver"
	"berth/migration"
)

// savedMemory is what `virsh managedsave` has left of a guest: it is of the disk as that was.
type savedMemory struct {
	host, disk string
	changed    bool // it is of a guest that was changed in place, and may be taken back
}

// changedOn reports whether a change of a guest in place is applied, and not over.
func (w *world) changedOn(g *guest, m *machine) bool {
	for key, raw := range w.records(m, "verbs") {
		var rec changes.Record
		about, what, _ := strings.Cut(key, "/")
		if o := w.moveOf(migration.Ref{Migration: about}); o == nil || o.guest != g || !strings.HasSuffix(what, "/"+changes.Memory) {
			continue
		}
		if json.Unmarshal(raw, &rec) == nil && rec.Applied {
			return true
		}
	}
	return false
}

// discards holds that an agent discards no memory that was saved, but that of a changed guest whose
// change it takes back: the disks that it is of go.
func (w *world) discards(g *guest, host string) {
	if g.saved == nil || g.saved.host != host {
		return
	}
	if !g.saved.changed {
		w.violate("the agent of %s discards the memory that was saved of %s", host, g.name)
	}
	g.saved = nil
}

// saverEvery: in one random run of so many somebody saves instances with virsh.
const saverEvery = 16

func (w *world) saves() bool {
	if len(w.story.Deaths) > 0 {
		return false // an evacuation gives up what its dead host has saved
	}
	return w.chaos != nil && (w.mutant == nil && w.options.Seed%saverEvery == 7 || w.mutant != nil && w.mutant.Saves)
}

// saver is that person: while moves are asked for he saves instances, and starts some again.
func (w *world) saver() {
	r := rand.New(rand.NewPCG(w.options.Seed, 6))
	for w.sim.Elapsed() < 40*time.Second {
		_ = w.outside.Sleep(context.Background(), time.Duration(r.IntN(1500))*time.Millisecond)
		g := w.guests[r.IntN(len(w.guests))]
		if r.IntN(2) == 0 {
			g.saves(w)
		} else if h := w.holders(g.uuid); len(h) == 1 {
			g.startedByHand(w, w.machines[h[0]])
		}
	}
	// A move that is to be undone waits until its instance has gone on from what was saved.
	for {
		_ = w.outside.Sleep(context.Background(), 10*time.Second)
		for _, g := range w.guests {
			if g.saved != nil && w.moving(g) && !w.verifying(g) {
				g.startedByHand(w, w.machines[g.saved.host])
			}
		}
	}
}

// saves is a person with virsh who saves a guest where it runs. It is off then, and its next
// start goes on from its memory.
func (g *guest) saves(w *world) {
	m := g.at(w)
	if m == nil || m.away > 0 || m.hung || m.blind || g.lost != nil || !g.persistent {
		return
	}
	ctx := context.Background()
	if d, err := m.fake.Domain(ctx, g.uuid); err != nil || d.State != driver.Running {
		return
	}
	if job, err := m.fake.Job(ctx, g.uuid); err != nil || job.InFlight() {
		return // libvirt saves nothing beside another job
	}
	w.uses(g)
	if w.moving(g) && !w.verifying(g) {
		g.anyPower = true
	}
	w.fault(m.name, "somebody saves "+g.name+" with virsh")
	asked := maps.Clone(g.mayBeStopped) // that he was quicker takes nothing back
	m.fake.SaveMemory(g.uuid)
	w.look()
	g.mayBeStopped, g.mayBeOff = asked, true
	disk, _, _ := m.files.Data(g.path())
	g.saved = &savedMemory{m.name, disk, w.changedOn(g, m)}
}

// goesOn holds that a guest whose memory is saved starts nowhere but from it, with its disk as
// it was.
func (w *world) goesOn(g *guest, host string) {
	s := g.saved
	if s == nil {
		return
	}
	g.saved = nil
	disk, _, _ := w.machines[host].files.Data(g.path())
	switch {
	case s.host != host:
		w.violate("guest %s starts on %s, and its memory is saved on %s", g.name, host, s.host)
	case g.disk != noDisk && disk != s.disk:
		w.violate("guest %s goes on from memory that was saved with the disk %q, and its disk has %q", g.name, s.disk, disk)
	}
}

// savedAtRest holds that memory which was saved is still there, where its guest is.
func (w *world) savedAtRest(g *guest) {
	if g.saved == nil {
		return
	}
	s, err := w.machines[g.saved.host].fake.Saved(context.Background(), g.uuid)
	if at := w.holders(g.uuid); err != nil || !s.Memory || !slices.Equal(at, []string{g.saved.host}) {
		w.violate("at the end the memory of %s that was saved on %s is there: %v (%v), and its token on %v", g.name, g.saved.host, s.Memory, err, at)
	}
}

// savedStories are those of instances that somebody saves before they are to be moved or
// changed: each is undone, and nothing of the guest was changed.
func savedStories() []*Story {
	var out []*Story
	for _, m := range []MovePlan{
		{Kind: migration.TypeMigration, To: "b", Ending: confirmed},
		{Kind: migration.TypeResize, To: "b", Flavor: &large, Ending: confirmed},
		{Kind: migration.TypeResize, To: here, Flavor: &large, Ending: confirmed},
		{Kind: migration.TypeRebuild, To: here},
	} {
		m.At = time.Second
		name := m.Kind
		if m.To == here {
			name += " in place"
		}
		out = append(out, &Story{
			Name: "saved, " + name, Hosts: hosts(2), Guests: []GuestPlan{{Host: "a", Flavor: small, Disk: local}}, Moves: []MovePlan{m}, Pace: slow, Want: migration.OutcomeUndone,
			Events: []Event{{At: 500 * time.Millisecond, Name: "somebody saves the guest", Do: func(w *world) error { w.guests[0].saves(w); return nil }}},
		})
	}
	return out
}

// nothingSaved is a libvirt that is not asked what it has saved.
type nothingSaved struct{ libvirt }

func (nothingSaved) Saved(context.Context, string) (driver.Saved, error) { return driver.Saved{}, nil }
