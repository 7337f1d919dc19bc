package sim

import (
	"context"
	"slices"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/migration"
)

// unloadedFor is how long definitions are not loaded in a story: longer than an agent needs to
// release an instance that was undefined.
const unloadedFor = 30 * time.Second

// unloads has libvirtd restart without the definition of a guest, or, where all is set, with an
// empty folder in place of that of its definitions. Both are mended after d.
func (m *machine) unloads(g *guest, all bool, d time.Duration) {
	w := m.w
	set := func(on bool) {
		if all {
			m.fake.UnmountDefinitions(on)
		} else {
			m.fake.DamageDefinition(g.uuid, on)
		}
	}
	w.fault(m.name, "libvirtd does not load the definition of "+g.name)
	set(true)
	m.killLibvirt(time.Second)
	w.later(d, "load the definition of "+g.name, func() {
		w.stillHeld(g, m)
		set(false)
		m.killLibvirt(time.Second)
	})
}

// stillHeld holds that nothing of a guest was released whose definition was not loaded: its
// token, its claim and what it has in Placement.
func (w *world) stillHeld(g *guest, m *machine) {
	if at := w.holders(g.uuid); !slices.Equal(at, []string{m.name}) {
		w.violate("the definition of %s is not loaded on %s, and its token is on %v", g.name, m.name, at)
	}
	if !slices.ContainsFunc(w.claimsOn(m), func(c claims.Claim) bool { return c.Owner.Instance == g.uuid && c.State == claims.Bound }) {
		w.violate("the definition of %s is not loaded on %s, and its claim was released", g.name, m.name)
	}
	if got, err := w.placement.admin.Allocations(context.Background(), g.uuid); err != nil || !got.Exists() {
		w.violate("the definition of %s is not loaded on %s, and Placement does not count it (%v)", g.name, m.name, err)
	}
}

// unloadedStories are those of instances that are off while libvirtd does not load their
// definitions: nothing of them is released, and a move is asked for once they are back.
func unloadedStories() []*Story {
	var out []*Story
	for _, all := range []bool{false, true} {
		name := "definition not loaded"
		if all {
			name = "definitions not mounted"
		}
		out = append(out, &Story{
			Name: name, Hosts: hosts(2), Guests: []GuestPlan{{Host: "a", Flavor: small, Disk: local, Off: true}}, Pace: slow, Want: migration.OutcomeCompleted,
			Moves: []MovePlan{{Kind: migration.TypeMigration, To: "b", Ending: confirmed, At: unloadedFor + 10*time.Second}},
			Events: []Event{{At: 5 * time.Second, Name: name, Do: func(w *world) error {
				w.machines["a"].unloads(w.guests[0], all, unloadedFor)
				return nil
			}}},
		})
	}
	return out
}

// believesList is a host that takes what libvirt lists for all the definitions there are.
type believesList struct{ libvirt }

func (l believesList) Definitions(ctx context.Context) (driver.Definitions, error) {
	out := driver.Definitions{Folder: "/etc/libvirt/qemu", Identity: l.a.m.name}
	all, err := l.Fake.Domains(ctx)
	for _, d := range all {
		if d.Persistent {
			out.Files = append(out.Files, driver.DefinitionFile{Name: d.Name, UUID: d.UUID})
		}
	}
	return out, err
}

// unloadedMutants are those of definitions that were not loaded, found in the stories of these alone.
func unloadedMutants() []Mutant {
	return []Mutant{
		{Name: "list-believed", Among: unloadedStories, What: "what libvirt does not list was undefined",
			Calls: func(_ *agent, l libvirt) driver.Driver { return believesList{l} }},
	}
}
