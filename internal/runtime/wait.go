package runtime

import (
	"context"
	"sync"
)

// Waiter is something that an actor waits for.
type Waiter interface {
	// Try takes what is waited for if it is there, and says whether it was. It
	// never blocks, and takes no lock under which anything waits.
	Try() bool
	// Take blocks until it is there and takes it, or until ctx ends, and says
	// whether it was there. A simulation never calls it.
	Take(ctx context.Context) bool
}

// Await waits until done is closed, or ctx ends, whose cause it then returns. A
// closed channel wins over an ended context.
func Await(ctx context.Context, rt Runtime, done <-chan struct{}) error {
	return rt.Block(ctx, &receiver[struct{}]{ch: done})
}

// Receive takes the next value of ch; open is false when ch was closed and is
// empty. An error is ctx's cause, and nothing was taken.
func Receive[T any](ctx context.Context, rt Runtime, ch <-chan T) (v T, open bool, err error) {
	r := &receiver[T]{ch: ch}
	err = rt.Block(ctx, r)
	return r.value, r.open, err
}

type receiver[T any] struct {
	ch    <-chan T
	value T
	open  bool
}

func (r *receiver[T]) Try() bool {
	select {
	case r.value, r.open = <-r.ch:
		return true
	default:
		return false
	}
}

func (r *receiver[T]) Take(ctx context.Context) bool {
	select {
	case r.value, r.open = <-r.ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// Lock is a mutual exclusion that may be held while its holder waits: for a
// commit, for a hypervisor. The zero value is free.
type Lock struct {
	// mu guards free; nothing else happens under it.
	mu   sync.Mutex
	free chan struct{} // nil when nobody holds the lock; closed when its holder lets go
}

// Lock waits for its turn, or until ctx ends, whose cause it then returns. The
// order of those who wait is nobody's promise.
func (l *Lock) Lock(ctx context.Context, rt Runtime) error {
	for {
		l.mu.Lock()
		free := l.free
		if free == nil {
			l.free = make(chan struct{})
		}
		l.mu.Unlock()
		if free == nil {
			return nil
		}
		if err := Await(ctx, rt, free); err != nil {
			return err
		}
	}
}

// Unlock lets the next one have it. It panics when nobody holds the lock.
func (l *Lock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.free)
	l.free = nil
}

// Group waits for actors that it started. The zero value is ready.
type Group struct {
	// mu guards the rest; nothing else happens under it.
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n gets to 0; nil when it was 0 when last asked
}

// Go runs f as an actor of rt that Wait waits for.
func (g *Group) Go(rt Runtime, name string, f func()) {
	g.mu.Lock()
	if g.n++; g.n == 1 {
		g.empty = make(chan struct{})
	}
	g.mu.Unlock()
	rt.Go(name, func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.n--; g.n == 0 {
				close(g.empty)
			}
		}()
		f()
	})
}

// Wait blocks until no actor of the group is left, those included that were
// started while it waited.
func (g *Group) Wait(rt Runtime) {
	for {
		g.mu.Lock()
		n, empty := g.n, g.empty
		g.mu.Unlock()
		if n == 0 {
			return
		}
		_ = Await(context.Background(), rt, empty) // its context never ends
	}
}
