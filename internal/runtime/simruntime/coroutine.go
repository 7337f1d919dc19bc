package simruntime

import (
	"fmt"
	"iter"
	goruntime "runtime"
	"runtime/debug"
)

// coroutine runs one actor after the other. It is switched to and from directly,
// without the machine's scheduler, and keeps its stack from one actor to the next.
type coroutine struct {
	next  func() (struct{}, bool) // runs it until it yields
	stop  func()                  // ends it between two actors
	yield func(struct{}) bool
	actor *actor
}

func (s *Simulation) newCoroutine() *coroutine {
	c := &coroutine{}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		for s.play(c.actor); yield(struct{}{}); s.play(c.actor) {
		}
	})
	return c
}

// play runs an actor from its beginning to its end.
func (s *Simulation) play(a *actor) {
	defer func() {
		s.mu.Lock()
		a.over = true
		s.mu.Unlock()
		if p := recover(); p != nil {
			// Whoever switches to a coroutine gets its panic without its stack.
			panic(fmt.Sprintf("actor %s: %v\n%s", a.name, p, debug.Stack()))
		}
	}()
	a.f()
}

// switchTo runs an actor until it waits or is over.
func (s *Simulation) switchTo(a *actor) {
	if a.on == nil {
		if n := len(s.idle); n > 0 {
			a.on, s.idle = s.idle[n-1], s.idle[:n-1]
		} else {
			a.on = s.newCoroutine()
		}
		a.on.actor = a
	}
	a.on.next()
	if a.over {
		s.idle = append(s.idle, a.on)
		a.on.actor, a.on = nil, nil
	}
}

// drive calls f until it returns. An actor that ends by Goexit ends the goroutine that
// has switched to it as well, which therefore is one of drive's own; the next one goes
// on.
func (s *Simulation) drive(f func()) {
	for returned := false; !returned; {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f()
			returned = true
		}()
		<-ended
		if !returned && s.current == nil {
			goruntime.Goexit() // it was f's own: a test that gives up
		}
		s.current = nil
	}
	for _, c := range s.idle {
		c.stop()
	}
	s.idle = nil
}
