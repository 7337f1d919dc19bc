package sim

import (
	"context"
	"time"

	"berth/agent/host/processes"
	"berth/driver"
)

// losesProcess has libvirtd lose the process of a guest that runs, as one does that cannot read
// the status file of a domain: it says that the guest is off, and its CPUs run on until somebody
// ends the process. No other copy may start meanwhile, here or elsewhere.
func (g *guest) losesProcess(w *world, most time.Duration) {
	m := g.at(w)
	if m == nil || m.away > 0 || m.hung || m.blind || g.lost != nil || !g.persistent {
		return
	}
	ctx := context.Background()
	if d, err := m.fake.Domain(ctx, g.uuid); err != nil || d.State != driver.Running {
		return
	}
	if job, err := m.fake.Job(ctx, g.uuid); err != nil || job.InFlight() {
		return // its stream would end with libvirtd
	}
	w.fault(m.name, "libvirtd loses the process of "+g.name)
	g.lost = m
	m.fake.Forget(g.uuid)
	w.look()
	g.mayBeOff = true
	w.later(most, "end the process of "+g.name, func() {
		m.fake.EndForgotten(g.uuid)
		g.lost = nil
		w.look()
	})
}

// besideLost holds that no copy of a guest starts beside a process that libvirtd has lost.
func (w *world) besideLost(g *guest, host, what string) {
	if g.lost == nil {
		return
	}
	if pids, err := g.lost.fake.Processes().Of(g.uuid); g.lost.name == host || err == nil && len(pids) > 0 {
		w.violate("guest %s is %s on %s, and libvirtd of %s has lost a process of it, which runs", g.name, what, host, g.lost.name)
	}
}

// processes are those that an agent finds on its machine.
func (w *world) processes(m *machine) processes.Finder {
	if w.mutant != nil && w.mutant.NoProcs {
		return nobodyRuns{}
	}
	return m.fake.Processes()
}

type nobodyRuns struct{}

func (nobodyRuns) Of(string) ([]int, error) { return nil, nil }
