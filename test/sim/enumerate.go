package sim

import (
	"time"

	"berth/migration"
)

// How is one way in which something breaks at a point.
type How struct {
	Name string
	Do   func(w *world, a *agent)
}

// Hows are all of them. The agent is the one that acts at the point.
func Hows() []How {
	return []How{
		{"the acting agent dies", func(_ *world, a *agent) { a.m.kill(time.Second) }},
		{"the other agent dies", func(w *world, a *agent) { peerOf(w, a).kill(time.Second) }},
		{"the third agent dies", func(w *world, a *agent) { thirdOf(w, a).kill(time.Second) }},
		{"both agents die", func(w *world, a *agent) { peerOf(w, a).kill(3 * time.Second); a.m.kill(time.Second) }},
		{"the conductor is gone for good", func(w *world, _ *agent) { w.lose() }},
		{"its libvirtd dies", func(_ *world, a *agent) { a.m.killLibvirt(2 * time.Second) }},
		{"the other libvirtd dies", func(w *world, a *agent) { peerOf(w, a).killLibvirt(2 * time.Second) }},
		{"the arriving QEMU dies", func(w *world, a *agent) { a.m.killIncoming(); peerOf(w, a).killIncoming() }},
		{"the stream's process dies", func(w *world, a *agent) { a.m.killForwarder() }},
		{"the network to the third is cut", func(w *world, a *agent) { w.cutNetwork(a.m, thirdOf(w, a), 25*time.Second) }},
		{"the network is cut", func(w *world, a *agent) { w.cutNetwork(a.m, peerOf(w, a), 25*time.Second) }},
		{"placement is away", func(w *world, _ *agent) { w.placementAway(10 * time.Second) }},
		{"placement dies", func(w *world, _ *agent) { w.placement.kill(2 * time.Second) }},
		{"its machine loses its power", func(_ *world, a *agent) { a.m.reboot(3 * time.Second) }},
		{"the other machine loses its power", func(w *world, a *agent) { peerOf(w, a).reboot(3 * time.Second) }},
		{"the guest's QEMU dies", func(w *world, _ *agent) { w.guests[0].killed(w) }},
		{"the guest's user destroys it", func(w *world, _ *agent) { w.guests[0].used(w, 1) }},
		{"the guest's user pauses it", func(w *world, _ *agent) { w.guests[0].used(w, 2) }},
	}
}

// thirdOf is the one that is neither: of a move that shares nothing its destination, or of
// the destination its source.
func thirdOf(w *world, a *agent) *machine {
	other := peerOf(w, a)
	for _, m := range w.moves {
		for _, name := range append([]string{m.from}, w.destinations(m)...) {
			if m.apart && name != a.m.name && name != other.name {
				return w.machines[name]
			}
		}
	}
	return other
}

// destinations are where a move may have brought its guest.
func (w *world) destinations(m *move) []string {
	out := w.claimants(m)
	if m.to != "" && !contains(out, m.to) {
		out = append(out, m.to)
	}
	return out
}

// peerOf is the other host of the move that an agent is part of; before there is one,
// the first other host.
func peerOf(w *world, a *agent) *machine {
	for _, m := range w.moves {
		if to := w.destinations(m); m.kind == migration.TypeEvacuation && m.asked > 0 {
			if a.m.name == m.by && len(to) > 0 && to[0] != m.by {
				return w.machines[to[0]]
			}
			return w.conductor(m)
		}
		if m.apart && a.m.name != m.by {
			return w.conductor(m) // which nobody but it talks to
		}
		if a.m.name != m.from {
			return w.machines[m.from]
		}
		if to := w.destinations(m); len(to) > 0 {
			return w.machines[to[0]]
		}
	}
	for _, name := range w.names {
		if name != a.m.name {
			return w.machines[name]
		}
	}
	return a.m
}

// Case is one story with one thing broken at one point.
type Case struct {
	Story *Story
	At    int
	Place Point
	How   How
}

// Options are those of its run.
func (c Case) Options() Options {
	return Options{Seed: 1, Story: c.Story, Break: &Break{At: c.At, What: c.How.Name, Do: c.How.Do}}
}

// Cases are all points of all stories, each broken in each way.
func Cases(hows []How) []Case { return CasesOf(Stories(), hows) }

// CasesOf are those of some stories.
func CasesOf(stories []*Story, hows []How) []Case {
	var out []Case
	for _, s := range stories {
		r := Run(Options{Seed: 1, Story: s, KeepPoints: true})
		for at, p := range r.Places {
			for _, how := range hows {
				out = append(out, Case{Story: s, At: at, Place: p, How: how})
			}
		}
	}
	return out
}
