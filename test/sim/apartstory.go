package sim

import (
	"math/rand/v2"
	"time"

	"berth/migration"
	"berth/topology"
)

// The hosts of a move between hosts that share nothing: the guest is at a and goes to b,
// and c, which reaches both, conducts; d is for a destination that refuses.
var noNetwork = [][2]string{{"a", "b"}, {"a", "d"}, {"b", "d"}}

// apartStories are those of guests that are moved, while they are off, between hosts that
// share nothing, by a third host that conducts.
func apartStories() []*Story {
	var out []*Story
	add := func(name string, g GuestPlan, m MovePlan, change func(*Story)) {
		g.Host = "a"
		if g.Flavor.VCPUs == 0 {
			g.Flavor = small
		}
		m.At, m.By = time.Second, "c"
		if m.Later == 0 {
			m.Later = 2 * time.Second
		}
		s := &Story{
			Name: "share nothing, " + name, Hosts: hosts(3), Apart: noNetwork[:1], Sharing: g.Disk == shared, Streams: true,
			Guests: []GuestPlan{g}, Moves: []MovePlan{m}, Pace: slow, Want: migration.OutcomeCompleted,
		}
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
	cold := func(e ending) MovePlan { return MovePlan{Kind: migration.TypeMigration, To: "b", Ending: e} }
	resize := func(to string, e ending) MovePlan {
		return MovePlan{Kind: migration.TypeResize, To: to, Flavor: &medium, Ending: e}
	}
	straight := func(s *Story) { s.Apart = nil }
	fullB := func(s *Story) {
		s.Hosts = hosts(4)
		s.Hosts[1].Capacity, s.Hosts[1].Told = topology.Resources{VCPUs: 0, MemoryMB: 6144, DiskGB: 100}, roomy
		s.Apart = noNetwork
	}
	add("migration, local disk, running, confirm", GuestPlan{Disk: local}, cold(confirmed), nil)
	add("migration, no disk, stopped, revert", GuestPlan{Off: true}, cold(reverted), nil)
	add("resize, local disk, running, revert", GuestPlan{Disk: local}, resize("b", reverted), nil)
	add("resize, local disk, paused, confirm", GuestPlan{Disk: local, Paused: true}, resize("b", confirmed), nil)
	add("resize, shared disk, running, revert", GuestPlan{Disk: shared}, resize("b", reverted), nil)
	add("straight, local disk, running, confirm", GuestPlan{Disk: local}, cold(confirmed), straight)
	add("straight, local disk, stopped, revert", GuestPlan{Disk: local, Off: true}, resize("b", reverted), straight)
	add("second destination", GuestPlan{Disk: local}, resize("b", confirmed), func(s *Story) { fullB(s); s.Moves[0].Alternates = []string{"d"} })
	add("no destination", GuestPlan{Disk: local}, resize("b", confirmed), func(s *Story) { fullB(s); s.Want = migration.OutcomeRefused })
	add("chosen by candidates", GuestPlan{Disk: local}, resize("", confirmed), nil)
	add("conducted by the source", GuestPlan{Disk: local}, resize("b", reverted), func(s *Story) { straight(s); s.Moves[0].By = "a" })
	add("cannot start there", GuestPlan{Disk: local}, resize("b", confirmed), func(s *Story) { s.NoStart, s.Want = "b", migration.OutcomeUndone })
	add("aborted", GuestPlan{Disk: local}, resize("b", confirmed), func(s *Story) { s.Moves[0].AbortAfter, s.Want = time.Second+60*time.Millisecond, "" })
	add("waits", GuestPlan{Disk: local}, resize("b", leave), nil)
	add("confirms itself", GuestPlan{Disk: local}, resize("b", itself), nil)
	add("used while it waits, revert", GuestPlan{Disk: local}, resize("b", reverted), func(s *Story) { s.Moves[0].Uses = []int{usePause, useStop, useStart} })
	add("given a volume while it waits, revert", GuestPlan{Disk: local}, resize("b", reverted), func(s *Story) { s.Moves[0].Uses = []int{useAttach} })
	add("given a volume while it waits, confirm", GuestPlan{Disk: local}, resize("b", confirmed), func(s *Story) { s.Moves[0].Uses = []int{useAttach} })
	return out
}

// drawApart makes a story by chance in which every move shares nothing.
func drawApart(r *rand.Rand) *Story {
	n := 3 + r.IntN(2)
	s := &Story{Name: "drawn, share nothing", Hosts: hosts(n), Apart: noNetwork, Sharing: r.IntN(4) == 0, Streams: true, Pace: slow}
	if r.IntN(3) == 0 {
		s.Apart = nil
	}
	for i := range 1 + r.IntN(2) {
		g := GuestPlan{Host: []string{"a", "a", "b"}[r.IntN(3)], Flavor: small, Paused: r.IntN(5) == 0, Off: r.IntN(5) == 0, Disk: []disk{noDisk, shared, local, local}[r.IntN(4)]}
		m := MovePlan{Guest: i, At: time.Second + time.Duration(r.IntN(4000))*time.Millisecond, By: "c"}
		if r.IntN(3) > 0 {
			m.To = map[string]string{"a": "b", "b": "a"}[g.Host]
			if n > 3 && r.IntN(2) == 0 {
				m.Alternates = []string{"d"}
			}
		}
		m.Kind = []string{migration.TypeMigration, migration.TypeResize}[r.IntN(2)]
		if m.Kind == migration.TypeResize {
			m.Flavor = []*topology.Flavor{&medium, &large, &tiny}[r.IntN(3)]
		}
		drawEnding(r, &m)
		if r.IntN(3) == 0 {
			m.Uses = append(m.Uses, useAttach)
		}
		switch r.IntN(8) {
		case 0, 1:
			m.AbortAfter = m.At + time.Duration(r.IntN(2000))*time.Millisecond
		case 2:
			m.AbortAfter = m.At + time.Duration(r.IntN(80))*time.Millisecond
		}
		s.Guests, s.Moves = append(s.Guests, g), append(s.Moves, m)
	}
	if n > 3 && r.IntN(3) == 0 && s.Guests[0].Host == "a" && s.Guests[len(s.Guests)-1].Host == "a" {
		s.Hosts[1].Told, s.Hosts[1].Capacity = roomy, topology.Resources{VCPUs: 1, MemoryMB: 512, DiskGB: 2}
	}
	return s
}
