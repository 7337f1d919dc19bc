package sim

import "time"

// How is one way in which something breaks at a point.
type How struct {
	Name string
	Do   func(w *world, a *agent)
}

// Hows are all of them. The agent is the one that acts at the point.
func Hows() []How {
	peerOf := func(w *world, a *agent) *machine {
		for _, name := range w.names {
			if name != a.m.name {
				return w.machines[name]
			}
		}
		return a.m
	}
	return []How{
		{"the acting agent dies", func(_ *world, a *agent) { a.m.kill(time.Second) }},
		{"the other agent dies", func(w *world, a *agent) { peerOf(w, a).kill(time.Second) }},
		{"both agents die", func(w *world, a *agent) { peerOf(w, a).kill(3 * time.Second); a.m.kill(time.Second) }},
		{"its libvirtd dies", func(_ *world, a *agent) { a.m.killLibvirt(2 * time.Second) }},
		{"the other libvirtd dies", func(w *world, a *agent) { peerOf(w, a).killLibvirt(2 * time.Second) }},
		{"the arriving QEMU dies", func(w *world, a *agent) { a.m.killIncoming(); peerOf(w, a).killIncoming() }},
		{"the stream's process dies", func(w *world, a *agent) { a.m.killForwarder() }},
		{"the network is cut", func(w *world, a *agent) { w.cutNetwork(a.m, peerOf(w, a), 25*time.Second) }},
		{"placement is away", func(w *world, _ *agent) { w.placementAway(10 * time.Second) }},
	}
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
func Cases(hows []How) []Case {
	var out []Case
	for _, s := range Stories() {
		r := Run(Options{Seed: 1, Story: s, KeepPoints: true})
		for at, p := range r.Places {
			for _, how := range hows {
				out = append(out, Case{Story: s, At: at, Place: p, How: how})
			}
		}
	}
	return out
}
