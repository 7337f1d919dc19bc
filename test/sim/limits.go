package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"berth/migration"
)

// Live moves take turns: a story says how many may leave a host at once, how many may be on
// their way between two hosts, and how many may come to one.

// way is where a guest travels just now, as the hypervisors have it; empty for nowhere.
type way struct{ from, to string }

// sets is called when a guest begins to travel. It holds what may be under way at once.
func (w *world) sets(g *guest, from, to string) {
	g.way = way{from, to}
	leave, between := 0, 0
	for _, o := range w.guests {
		if o != g && !w.travels(o) {
			continue
		}
		if o.way.from == from {
			leave++
		}
		if pair(o.way.from, o.way.to) == pair(from, to) {
			between++
		}
	}
	if most := w.story.Outbound; most > 0 && leave > most {
		w.violate("%d guests leave %s at once, want %d at most", leave, from, most)
	}
	if most := w.story.Link; most > 0 && between > most {
		w.violate("%d guests are on their way between %s and %s, want %d at most", between, from, to, most)
	}
}

// travels says whether the hypervisor that a guest leaves is sending it, or holds a half of it.
func (w *world) travels(g *guest) bool {
	m := w.machines[g.way.from]
	if m == nil || m.off || m.hung || m.blind || m.away > 0 {
		return false // it answers nobody
	}
	job, err := m.fake.Job(context.Background(), g.uuid)
	return err == nil && job.InFlight() || g.copies[m.name] == half
}

// stays notes that a guest travels no more.
func (w *world) stays(g *guest, host, what string) {
	over := strings.HasPrefix(what, "shut off (") || strings.HasPrefix(what, "running (") && !strings.Contains(what, "(post-copy")
	if g.way.from == host && (over || strings.HasPrefix(what, "migration to ") && strings.Contains(what, " fails")) {
		g.way = way{}
	}
}

// limit is one of a story's, as an agent is told it: none where a mutant does not hold it.
func (w *world) limit(most int, name string) func() int {
	if w.mutant != nil && w.mutant.Unbounded == name {
		most = 0
	}
	return func() int { return most }
}

// The limits, as mutants name them.
const (
	ofHost = "outbound"
	ofLink = "link"
)

// crowdStories are those in which live moves wait for each other.
func crowdStories() []*Story {
	crowd := func(name string, n int, s Story, guests ...MovePlan) *Story {
		s.Name, s.Hosts, s.Streams, s.Pace = "queue, "+name, hosts(n), true, slow
		for i, m := range guests {
			host := m.By
			m.Guest, m.By, m.At = i, "", time.Second
			s.Guests, s.Moves = append(s.Guests, GuestPlan{Host: host, Flavor: small}), append(s.Moves, m)
		}
		return &s
	}
	from := func(host, to string) MovePlan { return MovePlan{By: host, To: to} }
	aborted := from("a", "b")
	aborted.AbortAfter = 2 * time.Second
	done := Story{Want: migration.OutcomeCompleted}
	one, link, inbound := done, done, done
	one.Outbound, link.Link, inbound.Inbound = 1, 1, 1
	return []*Story{
		crowd("one leaves at a time", 2, one, from("a", "b"), from("a", "b"), from("a", "b")),
		crowd("aborted while it waits", 2, Story{Outbound: 1}, from("a", "b"), aborted),
		crowd("one on a link at a time", 2, link, from("a", "b"), from("a", "b")),
		crowd("one comes at a time", 3, inbound, from("a", "c"), from("b", "c")),
	}
}

// drawCrowd makes a story by chance in which more guests want to move than may at once; busy ones
// do not converge.
func drawCrowd(r *rand.Rand, busy bool) *Story {
	n := 2 + r.IntN(2)
	s := &Story{Hosts: hosts(n), Sharing: r.IntN(2) == 0, Streams: true, Pace: slow, Outbound: 1 + r.IntN(2)}
	if r.IntN(3) == 0 {
		s.Inbound = 1 + r.IntN(2)
	}
	if r.IntN(3) == 0 {
		s.Link = 1
	}
	o := migration.Options{}
	if busy {
		s.Pace, o = hot, byHalves()
	}
	for i := range 3 + r.IntN(2) {
		g := GuestPlan{Host: "a", Flavor: small, Paused: r.IntN(6) == 0, Transient: r.IntN(6) == 0, Disk: []disk{noDisk, shared, local}[r.IntN(3)]}
		m := MovePlan{Guest: i, At: time.Second + time.Duration(r.IntN(3000))*time.Millisecond, To: "b", Options: o}
		switch r.IntN(4) {
		case 0:
			m.To = "" // to whom candidates name
		case 1:
			g.Host, m.To = "b", "a"
		}
		if r.IntN(4) == 0 {
			m.AbortAfter = m.At + time.Duration(r.IntN(8000))*time.Millisecond
		}
		m.Priority = r.IntN(3) * 10
		s.Guests, s.Moves = append(s.Guests, g), append(s.Moves, m)
	}
	s.Name = fmt.Sprintf("drawn, %d guests in a queue", len(s.Guests))
	return s
}
