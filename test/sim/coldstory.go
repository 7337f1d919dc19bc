package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"berth/fleet"
	"berth/migration"
	"berth/topology"
)

var (
	medium = topology.Flavor{Name: "medium", VCPUs: 2, MemoryMB: 512, DiskGB: 1}
	tiny   = topology.Flavor{Name: "tiny", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
)

// coldStories are those of guests that are moved or changed while they are off: every
// kind with every way in which a disk is kept and a guest is powered, and what may become
// of each.
func coldStories() []*Story {
	var out []*Story
	add := func(name string, g GuestPlan, m MovePlan, change func(*Story)) {
		g.Host = "a"
		if g.Flavor.VCPUs == 0 {
			g.Flavor = small
		}
		m.At = time.Second
		s := &Story{Name: name, Hosts: hosts(2), Sharing: g.Disk == shared, Guests: []GuestPlan{g}, Moves: []MovePlan{m}, Pace: slow, Want: migration.OutcomeCompleted}
		switch m.Ending {
		case reverted:
			s.Want = migration.OutcomeReverted
		case leave:
			s.Want = ""
		}
		if change != nil {
			change(s)
		}
		out = append(out, s)
	}
	for _, kind := range []struct {
		name string
		MovePlan
	}{
		{"cold migration", MovePlan{Kind: migration.TypeMigration, To: "b"}},
		{"resize", MovePlan{Kind: migration.TypeResize, To: "b", Flavor: &large}},
		{"resize in place", MovePlan{Kind: migration.TypeResize, To: here, Flavor: &large}},
		{"rebuild", MovePlan{Kind: migration.TypeRebuild, To: here}},
	} {
		for _, d := range []disk{noDisk, shared, local} {
			if kind.Kind == migration.TypeRebuild && d == noDisk {
				continue // of which there is nothing to rebuild
			}
			for _, power := range []struct {
				name string
				GuestPlan
			}{{"running", GuestPlan{}}, {"paused", GuestPlan{Paused: true}}, {"stopped", GuestPlan{Off: true}}} {
				g, name := power.GuestPlan, kind.name
				if g.Disk = d; d != noDisk {
					name += ", " + string(d) + " disk"
				}
				name += ", " + power.name
				if kind.Kind == migration.TypeRebuild {
					add(name, g, kind.MovePlan, nil)
					continue
				}
				for _, ending := range []ending{confirmed, reverted} {
					m := kind.MovePlan
					if m.Flavor != nil && d == noDisk {
						m.Flavor = &medium // there is no disk that could become larger
					}
					m.Ending, m.Later = ending, 2*time.Second
					add(name+", "+string(ending), g, m, nil)
				}
			}
		}
	}
	to := func(to string, e ending) MovePlan {
		return MovePlan{Kind: migration.TypeResize, To: to, Flavor: &medium, Ending: e, Later: time.Second}
	}
	add("resize, chosen by candidates", GuestPlan{Disk: shared}, to("", confirmed), nil)
	add("resize, second candidate", GuestPlan{}, to("", confirmed), func(s *Story) {
		s.Hosts = hosts(4)
		s.Hosts[1].Capacity, s.Hosts[1].Told = topology.Resources{VCPUs: 0, MemoryMB: 6144, DiskGB: 100}, roomy
	})
	add("resize, nobody takes it", GuestPlan{}, to("b", confirmed), func(s *Story) {
		s.Hosts[1].Capacity, s.Hosts[1].Told, s.Want = topology.Resources{VCPUs: 0, MemoryMB: 6144, DiskGB: 100}, roomy, migration.OutcomeRefused
	})
	add("resize in place, host full", GuestPlan{}, to(here, reverted), func(s *Story) {
		s.Hosts[0].Capacity = topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 1}
	})
	add("resize in place, to a smaller one", GuestPlan{Flavor: medium}, MovePlan{Kind: migration.TypeResize, To: here, Flavor: &tiny, Ending: leave}, nil)
	add("resize, waits", GuestPlan{Disk: local}, to("b", leave), nil)
	add("resize, confirms itself", GuestPlan{Disk: shared}, to("b", itself), nil)
	add("resize in place, confirms itself", GuestPlan{Disk: local}, to(here, itself), nil)
	add("resize, cannot start there", GuestPlan{Disk: local}, to("b", confirmed), func(s *Story) { s.NoStart, s.Want = "b", migration.OutcomeUndone })
	add("resize, aborted", GuestPlan{Disk: local}, to("b", confirmed), func(s *Story) { s.Moves[0].AbortAfter, s.Want = time.Second+15*time.Millisecond, "" })
	add("resize, stopped while it waits", GuestPlan{Disk: shared}, to("b", confirmed), func(s *Story) { s.Moves[0].Uses = []int{useStop} })
	add("resize, used while it waits, revert", GuestPlan{Disk: local}, to("b", reverted), func(s *Story) { s.Moves[0].Uses = []int{usePause, useStop, useStart} })
	add("resize, started while it waits", GuestPlan{Off: true}, to("b", confirmed), func(s *Story) { s.Moves[0].Uses = []int{useStart} })
	add("resize in place, used while it waits, revert", GuestPlan{Disk: local}, to(here, reverted), func(s *Story) { s.Moves[0].Uses = []int{useStop, useStart} })
	return out
}

// drawCold makes a move one that has its guest while it is off.
func drawCold(r *rand.Rand, s *Story, m *MovePlan) {
	m.Kind = []string{migration.TypeMigration, migration.TypeResize, migration.TypeResize, migration.TypeRebuild}[r.IntN(4)]
	if m.Kind == migration.TypeRebuild {
		m.To = here
		return
	}
	if m.Kind == migration.TypeResize {
		m.Flavor = []*topology.Flavor{&medium, &large, &tiny}[r.IntN(3)]
		if r.IntN(3) == 0 {
			m.To = here
		}
	}
	drawEnding(r, m)
}

// drawEnding draws what becomes of a move that waits for its user's word, and what he
// does with his guest meanwhile.
func drawEnding(r *rand.Rand, m *MovePlan) {
	m.Ending = []ending{confirmed, confirmed, reverted, reverted, reverted, itself, leave}[r.IntN(7)]
	m.Later = time.Duration(r.IntN(8000)) * time.Millisecond
	for range r.IntN(3) {
		m.Uses = append(m.Uses, []int{useStop, usePause, useStart}[r.IntN(3)])
	}
}

// StoriesOf are fleets in which one of migration's stories is played, by its name there:
// each of its steps asks somebody something in one of them at least.
func StoriesOf(name string) []*Story {
	story := func(m MovePlan, change func(*Story)) *Story {
		m.At, m.Later = time.Second, time.Second
		s := &Story{Name: name, Hosts: hosts(3), Streams: true, Guests: []GuestPlan{{Host: "a", Flavor: small, Disk: local}}, Moves: []MovePlan{m}, Pace: slow}
		if change != nil {
			change(s)
		}
		return s
	}
	tightSource := func(s *Story) { s.Hosts[0].Capacity = topology.Resources{VCPUs: 1, MemoryMB: 256, DiskGB: 1} }
	resize := func(to string, e ending) MovePlan {
		return MovePlan{Kind: migration.TypeResize, To: to, Flavor: &large, Ending: e}
	}
	apart := func(m MovePlan) []*Story {
		m.By = "c"
		return []*Story{story(m, func(s *Story) { s.Hosts, s.Apart = hosts(4), noNetwork })}
	}
	switch name {
	case "drain":
		return slices.DeleteFunc(drainStories(), func(s *Story) bool { return s.Drains[0].AbortAfter > 0 })
	case "drain, aborted":
		return slices.DeleteFunc(drainStories(), func(s *Story) bool { return s.Name != name })
	case "live-migration-post-copy":
		return []*Story{story(MovePlan{Options: byHalves()}, func(s *Story) { s.Pace, s.Guests[0].Disk = hot, shared })}
	case "live-migration":
		return []*Story{story(MovePlan{}, nil)}
	case "migration":
		return []*Story{story(MovePlan{Kind: migration.TypeMigration, Ending: confirmed}, nil)}
	case "resize":
		return []*Story{story(resize("", confirmed), tightSource)}
	case "resize-in-place":
		return []*Story{story(resize(here, confirmed), nil), story(resize("", confirmed), nil)}
	case "rebuild":
		return []*Story{story(MovePlan{Kind: migration.TypeRebuild, To: here}, nil)}
	case "confirm":
		return []*Story{story(resize("b", confirmed), nil)}
	case "confirm-in-place":
		return []*Story{story(MovePlan{Kind: migration.TypeResize, To: here, Flavor: &tiny, Ending: confirmed}, func(s *Story) { s.Guests[0].Flavor = medium })}
	case "revert":
		return []*Story{story(resize("b", reverted), nil)}
	case "revert-in-place":
		return []*Story{story(resize(here, reverted), nil)}
	case "share-nothing-migration":
		return apart(MovePlan{Kind: migration.TypeMigration, To: "b", Alternates: []string{"d"}, Ending: confirmed})
	case "share-nothing-resize":
		return apart(resize("b", confirmed))
	case "evacuation":
		var out []*Story
		for _, loss := range []bool{false, true} {
			g := GuestPlan{Host: "a", Flavor: small, Disk: shared}
			if loss {
				g.Disk = local
			}
			out = append(out, &Story{
				Name: name, Hosts: hosts(4), Records: true, Sharing: !loss, Guests: []GuestPlan{g}, Pace: slow,
				Deaths: []DeathPlan{{Host: "a", At: 9 * time.Second, By: "c", Proof: fleet.ProofFenced, Back: 40 * time.Second}},
				Moves:  []MovePlan{{Kind: migration.TypeEvacuation, By: "c", At: 9 * time.Second, Loss: loss}},
			})
		}
		return out
	case "revert-by-itself":
		return []*Story{story(resize("b", confirmed), func(s *Story) { s.NoStart = "b" })}
	}
	return nil
}

// PartOf says whether a move is just now in the part of it that one of migration's stories
// is.
func PartOf(name string) func(migration.Migration) bool {
	return func(m migration.Migration) bool {
		switch name {
		case "confirm", "confirm-in-place":
			return m.Stage == migration.StageConfirm
		case "revert", "revert-in-place":
			return m.Stage == migration.StageRevert && m.Unfit == nil
		case "revert-by-itself":
			return m.Stage == migration.StageRevert && m.Unfit != nil
		case "resize-in-place":
			return m.Stage == migration.StageMove && m.InPlace
		}
		return m.Stage == migration.StageMove && (name == "rebuild" || !m.InPlace)
	}
}
