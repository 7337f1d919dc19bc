// Package simruntime is a runtime for simulations: many processes in one, one
// actor at a time, in an order drawn from a seed, on a clock that moves only
// when every actor waits. The same seed gives the same run.
//
// Actors must wait only in Sleep, in Yield, or for nothing: one that blocks on a
// channel or a mutex that another actor holds stops the whole simulation. A
// Process can be killed at any scheduling point; its actors end there, as the
// threads of a killed process do, except that deferred functions run.
package simruntime

import (
	"context"
	"fmt"
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
	actors []*actor
	timers []*timer
	parked chan struct{}
	// current is the actor that runs; nil while the scheduler does.
	current *actor
}

// Epoch is the wall clock at the start of every simulation.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type actor struct {
	process *Process
	name    string
	resume  chan struct{}
	ready   bool            // wants to run now
	until   time.Duration   // otherwise: wants to run then
	ctx     context.Context // or when this ends
	over    bool
}

type timer struct {
	at   time.Duration
	fire func()
	dead bool
}

// New makes a simulation whose order is drawn from seed.
func New(seed uint64) *Simulation {
	return &Simulation{rng: rand.New(rand.NewPCG(seed, 0x6265727468)), parked: make(chan struct{})}
}

// Rand is the simulation's own source of chance: use no other.
func (s *Simulation) Rand() *rand.Rand { return s.rng }

// Elapsed is the simulated time since the start.
func (s *Simulation) Elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Process makes a process that can be killed apart from others. boot is the id
// of its host's boot.
func (s *Simulation) Process(name, boot string) *Process {
	return &Process{sim: s, name: name, boot: boot}
}

// Run schedules actors until stop says so (asked between any two), until nobody
// has anything left to do, or until limit of simulated time has passed, which is
// an error that names one who still waits.
func (s *Simulation) Run(limit time.Duration, stop func() bool) error {
	end := s.Elapsed() + limit
	for turns := 0; !stop(); turns++ {
		a := s.next()
		if a == nil {
			return nil
		}
		if s.Elapsed() > end {
			return fmt.Errorf("the simulation does not come to rest within %s: %s still waits", limit, a.name)
		}
		if turns >= maxTurns {
			return fmt.Errorf("the simulation does not come to rest within %d turns, at %s: %s runs", maxTurns, s.Elapsed(), a.name)
		}
		s.turn(a)
	}
	return nil
}

// maxTurns ends a simulation whose actors spin without the clock moving;
// arbitrary, a hundred times what the longest story here takes.
const maxTurns = 1_000_000

// turn lets one actor run to its next scheduling point.
func (s *Simulation) turn(a *actor) {
	s.mu.Lock()
	s.current = a
	s.mu.Unlock()
	a.resume <- struct{}{}
	<-s.parked
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
}

// next picks who runs, moving the clock if nobody can run now; nil when nobody
// ever will.
func (s *Simulation) next() *actor {
	for {
		s.mu.Lock()
		var can []*actor
		live := s.actors[:0]
		wake, any := time.Duration(0), false
		for _, a := range s.actors {
			if a.over {
				continue
			}
			live = append(live, a)
			if a.ready || a.process.dead || a.until <= s.now || a.ctx.Err() != nil {
				can = append(can, a)
			} else if !any || a.until < wake {
				wake, any = a.until, true
			}
		}
		s.actors = live
		if len(can) > 0 {
			a := can[s.rng.IntN(len(can))]
			a.ready = false
			s.mu.Unlock()
			return a
		}
		if !any {
			s.mu.Unlock()
			return nil
		}
		var fire []func()
		timers := s.timers[:0]
		for _, t := range s.timers {
			if !t.dead && t.at < wake {
				wake = t.at
			}
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

// Shutdown kills every process and lets all actors end. The simulation cannot be
// used afterwards; without it the goroutines of waiting actors stay.
func (s *Simulation) Shutdown() {
	s.mu.Lock()
	for _, a := range s.actors {
		a.process.dead = true
	}
	s.mu.Unlock()
	for a := s.next(); a != nil; a = s.next() {
		s.turn(a)
	}
}

// Process is one operating system process of the simulation: a runtime.Runtime.
type Process struct {
	sim  *Simulation
	name string
	boot string
	dead bool // guarded by sim.mu
}

var _ runtime.Runtime = (*Process)(nil)

// Kill ends the process. Its actors end at the point where they wait, or, for
// the one that runs, at its next scheduling point.
func (p *Process) Kill() {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	p.dead = true
}

// Dead says whether the process was killed.
func (p *Process) Dead() bool {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	return p.dead
}

// Now is Epoch plus the simulated time.
func (p *Process) Now() time.Time { return Epoch.Add(p.sim.Elapsed()) }

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
	a := &actor{process: p, name: p.name + "/" + name, resume: make(chan struct{}), ready: true}
	s.actors = append(s.actors, a)
	go func() {
		defer func() {
			s.mu.Lock()
			a.over = true
			s.mu.Unlock()
			s.parked <- struct{}{}
		}()
		<-a.resume
		if p.Dead() {
			return
		}
		f()
	}()
}

// Sleep waits on the simulated clock, or until ctx ends.
func (p *Process) Sleep(ctx context.Context, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		p.Yield()
		return err
	}
	p.wait(ctx, d, false)
	return context.Cause(ctx)
}

// Yield lets others run at this moment.
func (p *Process) Yield() { p.wait(context.Background(), 0, true) }

func (p *Process) wait(ctx context.Context, d time.Duration, ready bool) {
	if p.Dead() {
		goruntime.Goexit()
	}
	s := p.sim
	s.mu.Lock()
	a := s.current // one actor runs at a time, so it is the caller
	if a == nil {
		s.mu.Unlock()
		panic("simruntime: Sleep or Yield outside of an actor")
	}
	a.ready, a.until, a.ctx = ready, s.now+max(d, 0), ctx
	s.mu.Unlock()
	s.parked <- struct{}{}
	<-a.resume
	if p.Dead() {
		goruntime.Goexit()
	}
}

// WithTimeout ends the context when the simulated clock gets there.
func (p *Process) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(ctx)
	t := &timer{fire: func() { cancel(context.DeadlineExceeded) }}
	s := p.sim
	s.mu.Lock()
	t.at = s.now + d
	s.timers = append(s.timers, t)
	s.mu.Unlock()
	return out, func() {
		s.mu.Lock()
		t.dead = true
		s.mu.Unlock()
		cancel(context.Canceled)
	}
}
