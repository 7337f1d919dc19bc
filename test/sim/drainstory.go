package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"berth/migration/drain"
	"berth/topology"
)

// drainStories are those in which host a is emptied.
func drainStories() []*Story {
	var out []*Story
	add := func(name string, n int, d DrainPlan, guests []GuestPlan, change func(*Story)) {
		for i := range guests {
			guests[i].Host = "a"
			if guests[i].Flavor.VCPUs == 0 {
				guests[i].Flavor = small
			}
		}
		d.Host, d.At = "a", time.Second
		if d.Outbound == 0 {
			d.Outbound = 2
		}
		s := &Story{Name: "drain, " + name, Hosts: hosts(n), Streams: true, Guests: guests, Drains: []DrainPlan{d}, Inbound: 2, Pace: slow}
		if change != nil {
			change(s)
		}
		out = append(out, s)
	}
	// Placement thinks that the destination has more room than there is.
	narrow := func(r topology.Resources) func(*Story) {
		return func(s *Story) { s.Hosts[1].Told, s.Hosts[1].Capacity = roomy, r }
	}
	add("several guests", 3, DrainPlan{Want: drain.Done}, []GuestPlan{{}, {Paused: true}, {Disk: local}, {Off: true, Disk: local}}, nil)
	add("one is refused", 2, DrainPlan{Want: drain.Incomplete, To: []string{"b"}, Outbound: 1, Priorities: map[string]int{"vm1": 5}}, []GuestPlan{{Flavor: large}, {}, {}},
		narrow(topology.Resources{VCPUs: 4, MemoryMB: 600, DiskGB: 20}))
	add("its destination is busy", 2, DrainPlan{Want: drain.Done, Outbound: 3}, []GuestPlan{{}, {}, {}}, func(s *Story) { s.Inbound = 1 })
	add("a guest vanishes", 2, DrainPlan{Want: drain.Done, Outbound: 1}, []GuestPlan{{}, {}, {Transient: true}}, func(s *Story) {
		s.Events = []Event{{At: 2 * time.Second, Name: "a guest dies", Do: func(w *world) error { w.guests[2].killed(w); return nil }}}
	})
	add("aborted", 2, DrainPlan{Want: drain.Aborted, AbortAfter: 2500 * time.Millisecond}, []GuestPlan{{}, {}, {}}, nil)
	add("of a closed host, aborted", 2, DrainPlan{Want: drain.Aborted, AbortAfter: 2500 * time.Millisecond, Closed: true}, []GuestPlan{{}, {}, {}}, nil)
	return out
}

// drawDrain makes a story by chance in which a host is emptied.
func drawDrain(r *rand.Rand) *Story {
	n := 2 + r.IntN(3)
	s := &Story{Name: "drawn, a drain", Hosts: hosts(n), Sharing: r.IntN(2) == 0, Streams: true, Pace: slow, Inbound: 1 + r.IntN(2)}
	d := DrainPlan{Host: "a", At: time.Second, Outbound: 1 + r.IntN(3), Closed: r.IntN(4) == 0, Priorities: map[string]int{}}
	for i := range 2 + r.IntN(3) {
		g := GuestPlan{Host: "a", Flavor: small, Paused: r.IntN(6) == 0, Off: r.IntN(5) == 0, Disk: []disk{noDisk, shared, local}[r.IntN(3)]}
		if r.IntN(3) == 0 {
			g.Flavor = large
			d.Priorities[fmt.Sprint("vm", i+1)] = 1 + r.IntN(3)
		}
		g.Transient = !g.Off && r.IntN(6) == 0
		s.Guests = append(s.Guests, g)
	}
	if r.IntN(3) == 0 {
		d.AbortAfter = d.At + time.Duration(r.IntN(12000))*time.Millisecond
	}
	if r.IntN(2) == 0 {
		d.To = []string{"b"}
		s.Hosts[1].Told, s.Hosts[1].Capacity = roomy, topology.Resources{VCPUs: 6, MemoryMB: 900, DiskGB: 20}
	}
	s.Drains = []DrainPlan{d}
	return s
}
