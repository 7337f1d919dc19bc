package libvirt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"berth/internal/fault"
)

// link keeps one connection for one purpose: control, statistics, or one
// migration. It connects when somebody calls and there is no connection.
//
// A call that outlives its caller's deadline cannot be cancelled; only the end
// of its connection ends it. So the connection is retired: new calls get a new
// one, calls that others wait for may finish on the old one, and when the last
// of those has its answer or its own deadline the old one is closed. One hung
// call thus neither leaks nor makes its neighbours' outcome unknown.
type link struct {
	d    *Driver
	name string

	// mu guards what follows, and the sessions' fields. It is innermost: nothing
	// blocks under it.
	mu       sync.Mutex
	closed   bool
	current  *session          // for new calls; nil when there is none
	sessions map[*session]bool // every open one, the retired too
	dialing  *dialing
}

// session is one connection of a link.
type session struct {
	conn    Conn
	pending int // calls that somebody waits for
	retired bool
	// gone is closed when the daemon was found not to answer at all: who only reads
	// need not wait for its own deadline.
	gone chan struct{}
}

// dialing is an attempt to connect that several callers may wait for.
type dialing struct {
	done chan struct{} // closed when err is valid
	err  error
}

func (l *link) acquire(ctx context.Context) (*session, error) {
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return nil, errClosed
		}
		if s := l.current; s != nil && !s.lost() {
			s.pending++
			l.mu.Unlock()
			return s, nil
		}
		lost := l.dropLocked()
		a := l.dialing
		if a == nil {
			a = &dialing{done: make(chan struct{})}
			l.dialing = a
			if !l.d.spawn(l.name+" dial", func() { l.dial(a) }) {
				l.dialing = nil
				l.mu.Unlock()
				return nil, errClosed
			}
		}
		l.mu.Unlock()
		if lost != nil {
			lost.conn.Close()
		}
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("connecting: %w", context.Cause(ctx))
		}
	}
}

// dial connects on behalf of whoever waits; the deadline is the driver's, so
// that one impatient caller does not spoil it for the next.
func (l *link) dial(a *dialing) {
	conn, err := l.d.dial(l.d.ctx)
	l.mu.Lock()
	l.dialing, a.err = nil, err
	closed := l.closed
	if err == nil && !closed {
		l.current = &session{conn: conn, gone: make(chan struct{})}
		l.sessions[l.current] = true
	}
	l.mu.Unlock()
	close(a.done)
	if err == nil && closed {
		conn.Close()
	}
}

// dropLocked takes the current session out of use; what its calls in flight do
// with it is theirs.
func (l *link) dropLocked() (idle *session) {
	s := l.current
	l.current = nil
	if s == nil {
		return nil
	}
	s.retired = true
	if s.pending > 0 {
		return nil
	}
	delete(l.sessions, s)
	return s
}

func (s *session) lost() bool {
	if s.retired {
		return true
	}
	select {
	case <-s.conn.Done():
		return true
	default:
		return false
	}
}

// release ends one call's use of a session; abandoned when its answer never came.
func (l *link) release(s *session, abandoned bool) {
	l.mu.Lock()
	s.pending--
	s.retired = s.retired || abandoned
	idle := s.retired && s.pending == 0
	if idle {
		delete(l.sessions, s)
	}
	l.mu.Unlock()
	if idle {
		s.conn.Close()
	}
}

// retire makes the next call connect anew, and ends what only reads.
func (l *link) retire() {
	l.mu.Lock()
	for s := range l.sessions {
		select {
		case <-s.gone:
		default:
			close(s.gone)
		}
	}
	idle := l.dropLocked()
	l.mu.Unlock()
	if idle != nil {
		idle.conn.Close()
	}
}

// close ends the link; calls in flight lose their answers.
func (l *link) close() {
	l.mu.Lock()
	l.closed, l.current = true, nil
	open := slices.Collect(maps.Keys(l.sessions))
	clear(l.sessions)
	l.mu.Unlock()
	for _, s := range open {
		s.conn.Close()
	}
}

// request is one call: what it is, for messages and for its outcome.
type request struct {
	verb    string // "start"
	uuid    string // of the domain; empty when none is meant
	changes bool   // a lost answer is in doubt
	patient bool   // ctx alone bounds the wait
}

func (r request) String() string {
	if r.uuid == "" {
		return r.verb
	}
	return r.verb + " domain " + r.uuid
}

// do runs f on the link's connection in a goroutine of its own and waits for it
// no longer than ctx or the driver's own deadline.
func do[T any](ctx context.Context, l *link, r request, f func(Conn) (T, error)) (T, error) {
	var zero T
	d := l.d
	if _, ok := ctx.Deadline(); !ok && !r.patient {
		var cancel context.CancelFunc
		ctx, cancel = d.rt.WithTimeout(ctx, d.o.CallTimeout)
		defer cancel()
	}
	if ctx.Err() != nil {
		return zero, fault.New(fault.Unavailable, "%s: %w", r, context.Cause(ctx))
	}
	s, err := l.acquire(ctx)
	if err != nil {
		return zero, fault.New(fault.Unavailable, "%s: libvirt %s: %w", r, d.where(), err)
	}
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	if !d.spawn(l.name+" "+r.verb, func() {
		v, err := f(s.conn)
		ch <- answer{v, err}
	}) {
		l.release(s, true)
		return zero, fault.New(fault.Unavailable, "%s: %w", r, errClosed)
	}
	gone := s.gone
	if r.changes {
		gone = nil // the answer may come, and decides
	}
	select {
	case a := <-ch:
		l.release(s, false)
		if a.err != nil {
			return zero, d.explain(r, a.err)
		}
		return a.v, nil
	case <-ctx.Done():
		l.release(s, true)
		return zero, d.explain(r, fmt.Errorf("%w: no answer: %w", ErrLost, context.Cause(ctx)))
	case <-gone:
		l.release(s, true)
		return zero, d.explain(r, fmt.Errorf("%w: the daemon does not answer", ErrLost))
	}
}

// run is do for calls that answer nothing.
func run(ctx context.Context, l *link, r request, f func(Conn) error) error {
	_, err := do(ctx, l, r, func(c Conn) (struct{}, error) { return struct{}{}, f(c) })
	return err
}

// explain gives an error of a binding its kind.
func (d *Driver) explain(r request, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.New(kindOf(err, r.changes), "%s: %w", r, err)
}
