package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/fault"
)

// chaos breaks things by chance, until its budget is spent or its time is over. Each
// run has its own leaning, so that some meet many faults of one kind and none of another.
type chaos struct {
	w      *world
	rng    *rand.Rand
	rate   float64 // of a fault at a point
	budget int
	until  time.Duration
	events int // of begin that are still to come
	lean   [causes]int
}

// The causes of trouble at a point, of which a run has more or less.
const (
	byDeath    = iota // the acting agent dies
	byMessage         // the message, call or commit goes wrong
	byWorld           // anything else in the world
	byFarDeath        // the agent of another host dies
	causes
)

func newChaos(w *world) *chaos {
	r := rand.New(rand.NewPCG(w.options.Seed, 3))
	c := &chaos{w: w, rng: r, rate: []float64{0.005, 0.02, 0.05, 0.1}[r.IntN(4)], budget: 1 + r.IntN(8), until: 90 * time.Second}
	for i := range c.lean {
		c.lean[i] = []int{0, 1, 4}[r.IntN(3)]
	}
	c.lean[r.IntN(causes)]++ // never nothing
	return c
}

// cause draws one.
func (c *chaos) cause() int {
	sum := 0
	for _, n := range c.lean {
		sum += n
	}
	n := c.rng.IntN(sum)
	for i, m := range c.lean {
		if n -= m; n < 0 {
			return i
		}
	}
	return byDeath
}

// done says whether nothing more will break.
func (c *chaos) done() bool {
	return c.events == 0
}

func (c *chaos) spent() bool { return c.budget <= 0 || c.w.sim.Elapsed() > c.until }

// downtime is how long something is away: mostly short, sometimes longer than a
// lease.
func (c *chaos) downtime() time.Duration {
	d := time.Duration(c.rng.Int64N(int64(5 * time.Second)))
	if c.rng.IntN(5) == 0 {
		d = time.Duration(c.rng.Int64N(int64(3 * time.Minute)))
	}
	return d
}

// at is asked at every enumerated point.
func (c *chaos) at(a *agent, k kind, what string, before bool) fate {
	if c.spent() {
		return goesWell
	}
	if before && k == ofPlacement && c.lean[byMessage] > 0 && !strings.Contains(what, "GET") && c.rng.IntN(16) == 0 {
		// A move writes to Placement three times only, and each is a matter of its own.
		c.budget--
		return c.impatient(a, []fate{requestLate, requestLate, answerLost, raced}[c.rng.IntN(4)])
	}
	if c.rng.Float64() >= c.rate {
		return goesWell
	}
	c.budget--
	switch c.cause() {
	case byDeath:
		a.m.kill(c.downtime())
		return goesWell
	case byFarDeath:
		c.machine().kill(c.downtime())
		return goesWell
	case byWorld:
		c.anything()
		return goesWell
	}
	if !before {
		c.budget++
		return goesWell
	}
	switch k {
	case ofCommit:
		return []fate{refused, answerLost}[c.rng.IntN(2)]
	case ofDriver:
		return []fate{requestLost, answerLost, refused}[c.rng.IntN(3)]
	case ofVerb:
		return c.impatient(a, []fate{requestLost, requestLate, requestLate, twice, answerLost}[c.rng.IntN(5)])
	case ofStream:
		return []fate{refused, answerLost}[c.rng.IntN(2)]
	case ofDisk:
		return refused
	case ofPlacement:
		return c.impatient(a, []fate{requestLost, requestLate, requestLate, twice, answerLost, refused, raced}[c.rng.IntN(7)])
	}
	return goesWell
}

// impatient has users abort their moves, now and then, when a message of theirs is late.
func (c *chaos) impatient(a *agent, f fate) fate {
	if f != requestLate || c.rng.IntN(2) > 0 {
		return f
	}
	for _, m := range c.w.moves {
		if m.from == a.m.name && m.accepted {
			a.process.Go("abort", func() {
				_ = a.process.Sleep(context.Background(), 10*time.Millisecond)
				_ = a.conductor.Abort(context.Background(), m.uuid) // or it comes too late
			})
		}
	}
	return f
}

// fateOf is asked where somebody only looks.
func (c *chaos) fateOf(_ *agent, k kind, _ string) fate {
	if c.lean[byMessage] == 0 || c.spent() || c.rng.Float64() >= c.rate/8 {
		return goesWell
	}
	c.budget--
	return []fate{requestLost, answerLost}[c.rng.IntN(2)]
}

// begin plans what breaks at moments of its own.
func (c *chaos) begin() {
	for range c.rng.IntN(3) {
		at := time.Duration(c.rng.Int64N(int64(20 * time.Second)))
		c.events++
		c.w.outside.Go("chaos", func() {
			_ = c.w.outside.Sleep(context.Background(), at)
			c.anything()
			c.events--
		})
	}
}

// anything breaks something of the world.
func (c *chaos) anything() {
	w := c.w
	m, other, d := c.machine(), c.machine(), c.downtime()
	switch c.rng.IntN(11) {
	case 0:
		m.kill(d)
	case 1:
		m.killLibvirt(d)
	case 2:
		m.hangLibvirt(d)
	case 3:
		w.cutNetwork(m, other, d)
	case 4:
		w.cutData(m, other, d)
	case 5:
		w.placementAway(d)
	case 6:
		m.diskFull(d)
	case 7:
		m.stepClock(time.Duration(c.rng.Int64N(int64(2*time.Hour))) - time.Hour)
	case 8:
		m.killIncoming()
	case 9:
		m.reboot(d)
	case 10:
		m.killForwarder()
	}
}

func (c *chaos) machine() *machine { return c.w.machines[c.w.names[c.rng.IntN(len(c.w.names))]] }

// What can break in the world, each mended after d.

func (m *machine) killLibvirt(d time.Duration) {
	if m.off || m.away > 0 {
		return
	}
	m.away++
	m.w.fault(m.name, "libvirtd killed")
	m.fake.KillDaemon()
	m.w.look()
	m.w.later(d, "start libvirtd of "+m.name, func() { m.away--; m.fake.StartDaemon() })
}

func (m *machine) hangLibvirt(d time.Duration) {
	if m.off || m.hung {
		return
	}
	m.hung = true
	m.w.fault(m.name, "libvirtd hangs")
	m.fake.Hang(true)
	m.w.later(d, "wake libvirtd of "+m.name, func() { m.hung = false; m.fake.Hang(false) })
}

func (w *world) cutNetwork(a, b *machine, d time.Duration) {
	p := pair(a.name, b.name)
	if a == b || w.cuts[p] {
		return
	}
	w.cuts[p] = true
	w.fault(a.name+"-"+b.name, "network cut")
	w.fleet.CutData(a.name, b.name)
	w.fleet.CutManagement(a.name, b.name)
	w.later(d, "heal network", func() {
		delete(w.cuts, p)
		w.fleet.HealData(a.name, b.name)
		w.fleet.HealManagement(a.name, b.name)
	})
}

func (w *world) cutData(a, b *machine, d time.Duration) {
	if a == b || w.cuts[pair(a.name, b.name)] {
		return
	}
	w.fault(a.name+"-"+b.name, "data link cut")
	w.fleet.CutData(a.name, b.name)
	w.later(d, "heal data link", func() { w.fleet.HealData(a.name, b.name) })
}

func (w *world) placementAway(d time.Duration) {
	if w.placement.away {
		return
	}
	w.placement.away = true
	w.fault("placement", "away")
	w.later(d, "start placement", func() { w.placement.away = false })
}

func (m *machine) diskFull(d time.Duration) {
	if m.full {
		return
	}
	m.full = true
	m.w.fault(m.name, "disk full")
	m.w.later(d, "room on the disk of "+m.name, func() { m.full = false })
}

func (m *machine) stepClock(d time.Duration) {
	m.w.fault(m.name, "clock steps "+d.String())
	m.agent.process.StepClock(d)
}

// reboot pulls the machine's plug: agent, hypervisor and guests are gone at once, and
// what was not on its disk.
func (m *machine) reboot(d time.Duration) {
	if m.off || m.away > 0 || m.hung {
		return
	}
	w := m.w
	m.kill(0)
	m.off = true
	w.fault(m.name, "the machine loses its power")
	w.look()
	for _, g := range w.guests {
		if g.copies[m.name] == whole {
			g.mayBeOff = true
		}
	}
	m.fake.Crash()
	for _, f := range m.forwarders {
		f.ended = true
	}
	w.look()
	w.later(d, "boot "+m.name, func() {
		m.off = false
		m.boots++
		m.fake.Boot()
		m.boot()
	})
}

// killIncoming kills the QEMU of a guest that arrives here.
func (m *machine) killIncoming() {
	for _, g := range m.w.guests {
		switch g.copies[m.name] {
		case incoming, stale:
		case whole:
			if h := m.w.holders(g.uuid); len(h) == 1 && h[0] == m.name {
				continue // the guest itself
			}
			g.mayBeOff = true
		default:
			continue
		}
		m.w.fault(m.name, "QEMU of "+g.name+" killed")
		m.fake.CrashGuest(g.uuid)
		m.w.look()
		return
	}
}

// phases plays a story's events, and asks at the door of every host who comes.
func (w *world) phases() {
	for _, e := range w.story.Events {
		if e.Phase != "" {
			continue
		}
		w.later(e.At, e.Name, func() {
			w.note("story", e.Name)
			_ = e.Do(w) // an event of a moment is nobody's answer
			w.look()
		})
	}
	played := map[int]bool{}
	w.fleet.FaultPhase(func(phase, uuid string) error {
		w.look()
		if phase != drivertest.PhaseBegin && w.broken(uuid) {
			return fault.New(fault.Unavailable, "the stream has ended")
		}
		for i, e := range w.story.Events {
			if e.Phase == phase && !played[i] {
				played[i] = true
				w.note("story", e.Name)
				return e.Do(w)
			}
		}
		return nil
	})
	for _, name := range w.names {
		m := w.machines[name]
		m.fake.Fault(func(call, uuid string) error {
			if call != "Arrive" || w.mutant != nil && w.mutant.NoGate {
				return nil
			}
			err := w.admitted(m, uuid)
			if err != nil {
				w.note(name, "turned away a stream of", uuid)
			}
			return err
		})
	}
}

// awaited says whether an arriving claim names a guest: what a stream's ticket stands
// for.
func (w *world) awaited(m *machine, uuid string) bool {
	return slices.ContainsFunc(w.claimsOn(m), func(c claims.Claim) bool { return c.Owner.Instance == uuid && c.State == claims.Arriving })
}
