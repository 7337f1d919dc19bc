// Package simruntime is a runtime for simulations: many processes in one, one
// actor at a time, in an order drawn from a seed, on a clock that moves only
// when every actor waits. The same seed gives the same run.
//
// Actors must wait only in what package runtime offers, in Yield, or for nothing:
// one that blocks on a channel by itself, or on a mutex that another actor holds
// while it waits, stops the whole simulation. A Process can be killed at any
// scheduling point; its actors end there, as the threads of a killed process do,
// except that deferred functions run. Those must have no effect outside of the
// process: a simulated world refuses what a dead process asks of it.
//
// A context that ends by another clock than the simulation's, or in a goroutine
// that is no actor, makes a run that cannot be repeated.
package simruntime

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"time"

	"berth/internal/runtime"
)

// Simulation schedules actors. Make one with New; call Run from one goroutine.
type Simulation struct {
	rng *rand.Rand

	// mu guards what follows. It is held for moments only, never while an actor
	// runs, so that actors' own goroutines and the scheduler may both use it.
	mu     sync.Mutex
	now    time.Duration
	skips  time.Duration // what Skip has added to it
	actors []*actor
	timers []*timer
	// current is the actor that runs; nil while the scheduler does.
	current *actor
	idle    []*coroutine // those that no actor has
	can     []*actor     // those of one turn; kept for its memory
	turns   int
	trace   func(at time.Duration, actor string)
}

// Epoch is the wall clock at the start of every simulation.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type actor struct {
	process *Process
	name    string
	f       func()
	on      *coroutine      // nil before its first turn
	ready   bool            // wants to run now
	until   time.Duration   // otherwise: wants to run then
	waiter  runtime.Waiter  // or when this has come; nil for none
	ctx     context.Context // or when this ends
	got     bool            // waiter's has come, and was taken
	over    bool
}

// forever is later than any simulation lasts.
const forever = time.Duration(math.MaxInt64)

type timer struct {
	at   time.Duration
	fire func()
	dead bool
}

// New makes a simulation whose order is drawn from seed.
func New(seed uint64) *Simulation {
	return &Simulation{rng: rand.New(rand.NewPCG(seed, 0x6265727468))}
}

// Rand is the simulation's own source of chance: use no other.
func (s *Simulation) Rand() *rand.Rand { return s.rng }

// OnTurn has f be told who runs at every turn; nil ends that. f must not call the
// simulation.
func (s *Simulation) OnTurn(f func(at time.Duration, actor string)) { s.trace = f }

// Turns counts the turns so far.
func (s *Simulation) Turns() int { return s.turns }

// Waiting names the actors that have not ended, in the order in which they began.
func (s *Simulation) Waiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, a := range s.actors {
		if !a.over {
			out = append(out, a.name)
		}
	}
	return out
}

// Elapsed is the simulated time since the start.
func (s *Simulation) Elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Skip moves the clock on at once, as if all machines had been suspended together:
// whoever sleeps wakes late, at the same moment. It does not count for Run's limit.
func (s *Simulation) Skip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.skips = s.now+d, s.skips+d
}

// counted is the time that counts for Run's limit.
func (s *Simulation) counted() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now - s.skips
}

// Process makes a process that can be killed apart from others. boot is the id
// of its host's boot.
func (s *Simulation) Process(name, boot string) *Process {
	return &Process{sim: s, name: name, boot: boot}
}

// Run schedules actors until stop says so (asked between any two), until nobody
// has anything left to do but to wait for what nobody will bring (Waiting names
// them), or until limit of simulated time has passed, which is
// an error that names one who still waits.
func (s *Simulation) Run(limit time.Duration, stop func() bool) error {
	first, end := s.turns, s.counted()+limit
	var err error
	s.drive(func() { err = s.run(first, end, stop) })
	return err
}

func (s *Simulation) run(first int, end time.Duration, stop func() bool) error {
	for !stop() {
		a := s.next()
		if a == nil {
			return nil
		}
		if s.counted() > end {
			return fmt.Errorf("the simulation does not come to rest by %s: %s still waits", s.Elapsed(), a.name)
		}
		if s.turns-first >= maxTurns {
			return fmt.Errorf("the simulation does not come to rest within %d turns, at %s: %s runs", maxTurns, s.Elapsed(), a.name)
		}
		s.turn(a)
	}
	return nil
}

// maxTurns ends a simulation whose actors spin without the clock moving;
// arbitrary, a hundred times what the longest story here takes.
const maxTurns = 1_000_000

// turn lets one actor run to its next scheduling point. It does not return when the
// actor ends there by Goexit: see drive.
func (s *Simulation) turn(a *actor) {
	s.turns++
	if s.trace != nil {
		s.trace(s.Elapsed(), a.name)
	}
	s.mu.Lock()
	if a.on == nil && a.process.dead {
		a.over = true // before it began
		s.mu.Unlock()
		return
	}
	s.current = a
	s.mu.Unlock()
	s.switchTo(a)
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
}

// next picks who runs, moving the clock if nobody can run now; nil when nobody
// ever will.
func (s *Simulation) next() *actor {
	for {
		s.mu.Lock()
		can, live, wake := s.can[:0], s.actors[:0], forever
		for _, a := range s.actors {
			if a.over {
				continue
			}
			live = append(live, a)
			if a.runnable(s.now) {
				can = append(can, a)
			} else {
				wake = min(wake, a.until)
			}
		}
		s.actors, s.can = live, can
		if len(can) > 0 {
			a := can[s.rng.IntN(len(can))]
			a.ready = false
			s.mu.Unlock()
			return a
		}
		var fire []func()
		timers := s.timers[:0]
		for _, t := range s.timers {
			if !t.dead && t.at < wake {
				wake = t.at
			}
		}
		if wake == forever || len(live) == 0 {
			s.mu.Unlock()
			return nil
		}
		s.now = max(s.now, wake)
		for _, t := range s.timers {
			switch {
			case t.dead:
			case t.at <= s.now:
				fire = append(fire, t.fire)
			default:
				timers = append(timers, t)
			}
		}
		s.timers = timers
		s.mu.Unlock()
		for _, f := range fire {
			f()
		}
	}
}

// runnable reports whether an actor has what it waits for.
func (a *actor) runnable(now time.Duration) bool {
	if a.ready || a.process.dead || a.until <= now {
		return true
	}
	if a.waiter != nil && a.waiter.Try() {
		a.waiter, a.got, a.ready = nil, true, true
		return true
	}
	return a.ctx.Err() != nil
}

// Shutdown kills every process and lets all actors end. The simulation cannot be
// used afterwards; without it the goroutines of waiting actors stay.
func (s *Simulation) Shutdown() {
	s.mu.Lock()
	for _, a := range s.actors {
		a.process.dead = true
	}
	s.mu.Unlock()
	s.drive(func() {
		for a := s.next(); a != nil; a = s.next() {
			s.turn(a)
		}
	})
}

// Process is one operating system process of the simulation: a runtime.Runtime.
type Process struct {
	sim   *Simulation
	name  string
	boot  string
	dead  bool          // guarded by sim.mu
	clock time.Duration // how far its wall clock is ahead; guarded by sim.mu
}

var _ runtime.Runtime = (*Process)(nil)

// Kill ends the process. Its actors end at the point where they wait, or, for
// the one that runs, at its next scheduling point.
func (p *Process) Kill() {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	p.dead = true
}

// Die is Kill, and the actor that calls it, whose process it must be, ends here.
func (p *Process) Die() {
	p.Kill()
	goruntime.Goexit()
}

// Dead says whether the process was killed.
func (p *Process) Dead() bool {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	return p.dead
}

// StepClock moves the process's wall clock, not its boot clock, by d, which may be
// negative.
func (p *Process) StepClock(d time.Duration) {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	p.clock += d
}

// Now is Epoch plus the simulated time, and what StepClock added.
func (p *Process) Now() time.Time {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	return Epoch.Add(p.sim.now + p.clock)
}

// Boot is the simulated time under the process's boot id.
func (p *Process) Boot() runtime.BootTime {
	return runtime.BootTime{ID: p.boot, Since: p.sim.Elapsed()}
}

// Go starts an actor; it first runs when the scheduler picks it.
func (p *Process) Go(name string, f func()) {
	s := p.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.dead {
		return
	}
	s.actors = append(s.actors, &actor{process: p, name: p.name + "/" + name, f: f, ready: true, until: forever, ctx: context.Background()})
}

// Sleep waits on the simulated clock, or until ctx ends.
func (p *Process) Sleep(ctx context.Context, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		p.Yield()
		return err
	}
	p.wait(ctx, actor{until: d})
	return context.Cause(ctx)
}

// Yield lets others run at this moment.
func (p *Process) Yield() { p.wait(context.Background(), actor{ready: true}) }

// Block waits for w, or until ctx ends. What is there already is taken at once,
// without letting others run.
func (p *Process) Block(ctx context.Context, w runtime.Waiter) error {
	if p.Dead() {
		goruntime.Goexit()
	}
	if w.Try() {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		p.Yield()
		return err
	}
	if p.wait(ctx, actor{until: forever, waiter: w}) {
		return nil
	}
	return context.Cause(ctx)
}

// wait parks the actor that runs until what how says has come, and reports whether
// it was how's waiter. An actor may wait on the runtime of another process, as one
// who calls a server does; it is its own death that ends it.
func (p *Process) wait(ctx context.Context, how actor) (got bool) {
	s := p.sim
	s.mu.Lock()
	a := s.current // one actor runs at a time, so it is the caller
	if a == nil {
		s.mu.Unlock()
		panic("simruntime: an actor's wait outside of an actor")
	}
	if a.process.dead {
		s.mu.Unlock()
		goruntime.Goexit()
	}
	a.ready, a.waiter, a.ctx, a.got, a.until = how.ready, how.waiter, ctx, false, forever
	if how.until < forever-s.now {
		a.until = s.now + max(how.until, 0)
	}
	s.mu.Unlock()
	a.on.yield(struct{}{})
	if a.process.Dead() {
		goruntime.Goexit()
	}
	return a.got
}

// WithTimeout ends the context when the simulated clock gets there.
func (p *Process) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(ctx)
	t := &timer{fire: func() { cancel(context.DeadlineExceeded) }}
	s := p.sim
	s.mu.Lock()
	t.at = s.now + d
	at := Epoch.Add(t.at + p.clock)
	s.timers = append(s.timers, t)
	s.mu.Unlock()
	if was, has := ctx.Deadline(); has && was.Before(at) {
		at = was
	}
	return deadline{out, at}, func() {
		s.mu.Lock()
		t.dead = true
		s.mu.Unlock()
		cancel(context.Canceled)
	}
}

// deadline is a context that says when it ends. Its embedded one is context's own,
// so those made from it end with it without a goroutine.
type deadline struct {
	context.Context
	at time.Time
}

// Deadline is on the process's wall clock.
func (d deadline) Deadline() (time.Time, bool) { return d.at, true }
