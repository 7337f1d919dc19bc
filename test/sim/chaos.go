package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"berth/agent/guard"
	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/store/storetest"
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
	aim    *aim // nil for none
	shots  int  // at it, that are left
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
	c.takeAim()
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
	if before != (c.aim != nil && c.aim.dies) && c.aimed(what) {
		return c.aimedFate(a)
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
		return []fate{refused, answerLost, requestLate}[c.rng.IntN(3)]
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

// placementCommits is asked at every point of a commit of Placement's store.
func (c *chaos) placementCommits(at storetest.Point) storetest.Outcome {
	if c.spent() || c.lean[byWorld]+c.lean[byMessage] == 0 || c.rng.Float64() >= c.rate {
		return storetest.Commit
	}
	c.budget--
	s := c.w.placement
	if c.lean[byWorld] == 0 || at == storetest.BeforeCommit && c.lean[byMessage] > 0 && c.rng.IntN(2) == 0 {
		c.w.fault("placement", "disk")
		return []storetest.Outcome{storetest.Fail, storetest.FailWritten}[c.rng.IntN(2)]
	}
	s.kill(c.downtime())
	s.process.Yield() // it ends here
	return storetest.Commit
}

// impatient has users abort their moves, now and then, when a message of theirs is late.
func (c *chaos) impatient(a *agent, f fate) fate {
	if f != requestLate || c.rng.IntN(2) > 0 {
		return f
	}
	c.abort(a.m, 10*time.Millisecond)
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

// troubles are what can break of the world, each with its weight.
func troubles() []trouble {
	return []trouble{
		{4, func(c *chaos, m *machine) { m.kill(c.downtime()) }},
		{4, func(c *chaos, m *machine) { m.killLibvirt(c.downtime()) }},
		{2, func(c *chaos, m *machine) { m.stopLibvirt(c.downtime()) }},
		{3, func(c *chaos, m *machine) { m.hangLibvirt(c.downtime()) }},
		{2, func(c *chaos, m *machine) { m.failReads(c.downtime()) }},
		{4, func(c *chaos, m *machine) { c.w.cutNetwork(m, c.machine(), c.downtime()) }},
		{3, func(c *chaos, m *machine) { c.w.cutData(m, c.machine(), c.downtime()) }},
		{2, func(c *chaos, _ *machine) { c.w.placementAway(c.downtime()) }},
		{3, func(c *chaos, _ *machine) { c.w.placement.kill(c.downtime()) }},
		{3, func(c *chaos, m *machine) { c.w.otherWriter(m, c.rng.IntN(writes), c.downtime()) }},
		{2, func(c *chaos, m *machine) { m.diskFull(c.downtime()) }},
		{2, func(c *chaos, m *machine) { m.diskBroken(c.downtime()) }},
		{2, func(c *chaos, m *machine) { m.stepClock(time.Duration(c.rng.Int64N(int64(2*time.Hour))) - time.Hour) }},
		{4, func(_ *chaos, m *machine) { m.killIncoming() }},
		{2, func(c *chaos, _ *machine) { c.guest().killed(c.w) }},
		{4, func(c *chaos, m *machine) { m.reboot(c.downtime()) }},
		{3, func(_ *chaos, m *machine) { m.killForwarder() }},
		{3, func(c *chaos, _ *machine) { c.guest().breaks(c.w) }},
		{4, func(c *chaos, _ *machine) { c.guest().used(c.w, c.rng.IntN(uses)) }},
		{4, func(c *chaos, _ *machine) { c.guest().losesProcess(c.w, c.downtime()) }},
	}
}

type trouble struct {
	weight int
	do     func(c *chaos, m *machine)
}

// anything breaks something of the world.
func (c *chaos) anything() {
	all, sum := troubles(), 0
	for _, t := range all {
		sum += t.weight
	}
	n, m := c.rng.IntN(sum), c.machine()
	for _, t := range all {
		if n -= t.weight; n < 0 {
			t.do(c, m)
			return
		}
	}
}

func (c *chaos) guest() *guest { return c.w.guests[c.rng.IntN(len(c.w.guests))] }

func (c *chaos) machine() *machine { return c.w.machines[c.w.names[c.rng.IntN(len(c.w.names))]] }

// phases plays a story's events, and asks at the door of every host who comes.
func (w *world) phases() {
	for _, e := range w.story.Events {
		if e.Phase == "" && !e.InHalves {
			w.happens(e)
		}
	}
	played := map[int]bool{}
	w.fleet.FaultPhase(func(phase, uuid string) error {
		w.look()
		if w.chaos != nil {
			w.chaos.phase(phase, uuid)
		}
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
			if call == "Start" && name == w.story.NoStart && w.guestOf(uuid) != nil {
				return fault.New(fault.Internal, "start %s: no such machine type", uuid)
			}
			if call == "Start" {
				if d, err := m.fake.Domain(context.Background(), uuid); err == nil && d.Active() {
					return nil // libvirt asks nobody: it runs
				}
				return w.guarded(m, uuid, guard.Start)
			}
			if call != "Arrive" || w.mutant != nil && w.mutant.NoGate {
				return nil
			}
			if err := w.guarded(m, uuid, guard.Migrate); err != nil {
				w.note(name, err.Error())
				return err
			}
			err := w.admitted(m, uuid)
			if err != nil {
				w.note(name, "turned away a stream of", uuid)
			}
			return err
		})
	}
}

// happens has an event of a story come to pass.
func (w *world) happens(e Event) {
	w.later(e.At, e.Name, func() {
		w.note("story", e.Name)
		_ = e.Do(w) // an event of a moment is nobody's answer
		w.look()
	})
}

// awaited says whether an arriving claim names a guest: what a stream's ticket stands
// for.
func (w *world) awaited(m *machine, uuid string) bool {
	return slices.ContainsFunc(w.claimsOn(m), func(c claims.Claim) bool { return c.Owner.Instance == uuid && c.State == claims.Arriving })
}
