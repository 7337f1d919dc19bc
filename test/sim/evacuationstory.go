package sim

import (
	"math/rand/v2"
	"time"

	"berth/fleet"
	"berth/migration"
	"berth/topology"
)

// evacuationStories are those of guests whose host a dies: c is asked, and takes them to b or
// another. Then a comes back, or never does.
func evacuationStories() []*Story {
	var out []*Story
	add := func(name string, g GuestPlan, d DeathPlan, m MovePlan, change func(*Story)) {
		g.Host = "a"
		if g.Flavor.VCPUs == 0 {
			g.Flavor = small
		}
		d.Host, d.By = "a", "c"
		if d.At == 0 {
			d.At = 9 * time.Second // its records are there by then
		}
		m.Kind, m.By, m.At = migration.TypeEvacuation, "c", 9*time.Second
		s := &Story{
			Name: "evacuation, " + name, Hosts: hosts(3), Records: true, Sharing: g.Disk == shared, Guests: []GuestPlan{g}, Deaths: []DeathPlan{d}, Moves: []MovePlan{m},
			Pace: slow, Want: migration.OutcomeCompleted, SelfFence: d.Proof == fleet.ProofSelfFence,
		}
		if change != nil {
			change(s)
		}
		out = append(out, s)
	}
	fenced := func(back time.Duration) DeathPlan {
		return DeathPlan{Proof: fleet.ProofFenced, Back: back}
	}
	toB := MovePlan{To: "b"}
	const soon, late = 40 * time.Second, 4 * time.Minute
	add("shared disk, comes back", GuestPlan{Disk: shared}, fenced(soon), toB, nil)
	add("shared disk, never comes back", GuestPlan{Disk: shared}, fenced(0), toB, nil)
	add("its host is forgotten", GuestPlan{Disk: shared}, DeathPlan{Proof: fleet.ProofFenced, Forget: true}, toB, nil)
	add("no disk, to its conductor", GuestPlan{}, fenced(soon), MovePlan{To: "c"}, nil)
	add("autostart, comes back late", GuestPlan{Disk: shared, Autostart: true}, fenced(late), toB, nil)
	add("autostart, comes back in between", GuestPlan{Disk: shared, Autostart: true}, fenced(3200*time.Millisecond), toB, func(s *Story) { s.Want = "" })
	add("chosen by candidates", GuestPlan{Disk: shared}, fenced(soon), MovePlan{}, nil)
	add("disk made anew", GuestPlan{Disk: local}, fenced(soon), MovePlan{To: "b", Loss: true}, nil)
	add("data would be lost", GuestPlan{Disk: local}, fenced(soon), toB, func(s *Story) { s.Want = migration.OutcomeRefused })
	add("stays off", GuestPlan{Disk: shared}, fenced(soon), MovePlan{To: "b", Stopped: true}, func(s *Story) { s.Guests[0].Off = true })
	add("paused", GuestPlan{Disk: shared, Paused: true}, fenced(soon), toB, nil)
	add("second destination", GuestPlan{Disk: shared}, fenced(soon), MovePlan{To: "b", Alternates: []string{"c"}}, func(s *Story) {
		s.Hosts[1].Capacity, s.Hosts[1].Told = topology.Resources{VCPUs: 0, MemoryMB: 6144, DiskGB: 100}, roomy
	})
	add("an operator's word", GuestPlan{Disk: shared}, DeathPlan{Proof: fleet.ProofOperator, Back: soon}, toB, nil)
	add("cut off, and a wrong word", GuestPlan{Disk: shared}, DeathPlan{Proof: fleet.ProofOperator, Alone: true, Wrong: true, Back: soon}, toB, nil)
	add("cut off and fenced", GuestPlan{Disk: shared, Autostart: true}, DeathPlan{Proof: fleet.ProofFenced, Alone: true, Back: soon}, toB, nil)
	add("cut off, fences itself", GuestPlan{Disk: shared, Autostart: true}, DeathPlan{Proof: fleet.ProofSelfFence, Alone: true, Back: 90 * time.Second, At: 20 * time.Second}, toB, nil)
	add("fences itself, never comes back", GuestPlan{Disk: shared}, DeathPlan{Proof: fleet.ProofSelfFence, At: 20 * time.Second}, toB, nil)
	add("all records away for a while", GuestPlan{Disk: shared}, fenced(soon), toB, func(s *Story) {
		s.Events = []Event{{At: 12400 * time.Millisecond, Name: "the fleet's records are away", Do: func(w *world) error {
			w.later(20*time.Second, "the fleet's records are back", w.storeAway())
			return nil
		}}}
	})
	return out
}

// drawEvacuation makes a story by chance in which hosts die and come back.
func drawEvacuation(r *rand.Rand) *Story {
	n := 3 + r.IntN(2)
	s := &Story{Name: "drawn, evacuations", Hosts: hosts(n), Records: true, Sharing: r.IntN(3) > 0, Streams: true, Pace: slow, SelfFence: r.IntN(4) == 0}
	by := string(rune('a' + n - 1))
	d := DeathPlan{Host: "a", At: 8*time.Second + time.Duration(r.IntN(6000))*time.Millisecond, By: by, Alone: r.IntN(2) == 0, Proof: fleet.ProofFenced}
	switch {
	case s.SelfFence:
		d.Proof, d.At = fleet.ProofSelfFence, d.At+12*time.Second
	case !d.Alone && r.IntN(3) == 0:
		d.Proof = fleet.ProofOperator
	}
	d.Back = []time.Duration{3 * time.Second, 6 * time.Second, 15 * time.Second, 40 * time.Second, 3 * time.Minute}[r.IntN(5)] + time.Duration(r.IntN(3000))*time.Millisecond
	s.Deaths = []DeathPlan{d}
	for i := range 1 + r.IntN(3) {
		g := GuestPlan{Host: "a", Flavor: small, Autostart: r.IntN(2) == 0, Paused: r.IntN(6) == 0, Disk: []disk{noDisk, shared, shared, local}[r.IntN(4)]}
		m := MovePlan{Guest: i, Kind: migration.TypeEvacuation, By: by, At: d.At + time.Duration(r.IntN(3000))*time.Millisecond, Loss: g.Disk == local}
		if r.IntN(2) == 0 {
			m.To = []string{"b", by}[r.IntN(2)]
			if m.To == "b" && r.IntN(2) == 0 {
				m.Alternates = []string{by}
			}
		}
		if r.IntN(6) == 0 {
			m.AbortAfter = m.At + 3*time.Second + time.Duration(r.IntN(3000))*time.Millisecond
		}
		s.Guests, s.Moves = append(s.Guests, g), append(s.Moves, m)
	}
	if n > 3 && r.IntN(4) == 0 {
		s.Hosts[1].Told, s.Hosts[1].Capacity = roomy, topology.Resources{VCPUs: 1, MemoryMB: 512, DiskGB: 2}
	}
	return s
}
