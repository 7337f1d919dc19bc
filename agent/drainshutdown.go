package agent

import (
	"context"
	"sync"
	"time"

	"berth/agent/doctor"
	"berth/internal/fault"
	"berth/migration/drain"
	"berth/systemd"
)

// shutdowns drains this host when the machine is about to go down or to sleep, where [drain]
// on_shutdown asks for it: logind waits for the lock that is held here, as long as its
// InhibitDelayMaxSec allows. The lock is released when the drain is over, however it ended, when
// the machine goes on without it, and when the agent stops: nothing here waits for logind, so
// neither waits for the other.
type shutdowns struct {
	a    *Agent
	dial func(ctx context.Context) (inhibitor, error)
	// drains are the drainer's; a test has its own.
	drains interface {
		Begin(ctx context.Context, r drain.Request) (drain.Drain, error)
		Watch(ctx context.Context, host string) (<-chan drain.Drain, error)
		CallOff(ctx context.Context, by string) error
	}

	// mu guards the rest; nothing is called under it.
	mu    sync.Mutex
	holds bool          // a lock is held
	delay time.Duration // logind's limit, as last read; 0 before
	err   error         // why no lock is held, where one is wanted
}

// inhibitor is systemd.Logind.
type inhibitor interface {
	Delay(ctx context.Context) (time.Duration, error)
	Down(ctx context.Context) (bool, error)
	// Lock has the machine wait until release.
	Lock(ctx context.Context) (release func() error, err error)
	Going() <-chan systemd.Going
	Close()
}

type logind struct{ *systemd.Logind }

func (l logind) Lock(ctx context.Context) (func() error, error) {
	lock, err := l.Inhibit(ctx, "berth", "guests are moved to other hosts")
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func newShutdowns(a *Agent) *shutdowns {
	return &shutdowns{a: a, drains: a.drainer, dial: func(ctx context.Context) (inhibitor, error) {
		l, err := systemd.DialLogind(ctx, "")
		if err != nil {
			return nil, err
		}
		return logind{l}, nil
	}}
}

// The pauses: until a change of on_shutdown by a reload is seen, and until a bus that is not there
// is looked for again. Arbitrary.
const (
	shutdownLook  = 2 * time.Second
	shutdownAgain = 30 * time.Second
)

func (s *shutdowns) wanted() bool { return s.a.config().Drain.OnShutdown && !s.a.observing() }

// run works until ctx ends.
func (s *shutdowns) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !s.wanted() {
			s.note(false, 0, nil)
			_ = s.a.rt.Sleep(ctx, shutdownLook) // its end is looked at in the loop
			continue
		}
		err := s.serve(ctx)
		if ctx.Err() != nil || err == nil {
			continue
		}
		s.mu.Lock()
		told := s.err != nil
		s.mu.Unlock()
		if !told {
			s.a.log.Warn("this host cannot be drained when it shuts down", "error", err)
		}
		s.note(false, 0, err)
		_ = s.a.rt.Sleep(ctx, shutdownAgain)
	}
	return nil
}

func (s *shutdowns) note(holds bool, delay time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds, s.err = holds, err
	if delay > 0 {
		s.delay = delay
	}
}

// lock says whether a lock is held.
func (s *shutdowns) lock() doctor.Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return doctor.Lock{Held: s.holds, Delay: s.delay, Err: s.err}
}

// serve holds a lock over one connection, until that or the wish for it ends.
func (s *shutdowns) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	delay, err := l.Delay(ctx)
	if err != nil {
		return err
	}
	if down, err := l.Down(ctx); err == nil && down {
		s.empty(ctx, l.Going()) // the agent was restarted on the way down; logind gives no lock now
	}
	release, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	// Of the lock held last; the connection's end releases it too.
	defer func() { _ = release() }()
	s.note(true, delay, nil)
	s.a.log.Info("shutdown waits until this host is drained", "at_most", delay)
	for s.wanted() {
		going, open, err := s.next(ctx, l.Going())
		switch {
		case err != nil:
			return err
		case !open:
			return fault.New(fault.Unavailable, "the connection to logind has ended")
		case going == nil:
			continue
		case !going.Down:
			if err := s.callOff(ctx); err != nil {
				return err
			}
			continue
		}
		back := s.empty(ctx, l.Going())
		if err := release(); err != nil {
			return err
		}
		s.note(false, delay, nil)
		if !back {
			if back = s.awaitBack(ctx, l.Going()); !back {
				return fault.New(fault.Unavailable, "the connection to logind has ended")
			}
		}
		if err := s.callOff(ctx); err != nil {
			return err
		}
		again, err := l.Lock(ctx)
		if err != nil {
			return err // run tries again; what was held is released
		}
		release = again
		s.note(true, delay, nil)
	}
	return nil
}

// next waits for a signal, and not for ever: it is nil when none has come for a while.
func (s *shutdowns) next(ctx context.Context, ch <-chan systemd.Going) (g *systemd.Going, open bool, err error) {
	look, cancel := s.a.rt.WithTimeout(ctx, shutdownLook)
	defer cancel()
	select {
	case going, open := <-ch:
		return &going, open, nil
	case <-look.Done():
		return nil, true, ctx.Err()
	}
}

// awaitBack waits until the machine has come back; false where that is not told.
func (s *shutdowns) awaitBack(ctx context.Context, ch <-chan systemd.Going) bool {
	for {
		select {
		case going, open := <-ch:
			if !open || !going.Down {
				return open
			}
		case <-ctx.Done():
			return false
		}
	}
}

// callOff opens the host again: it stays up.
func (s *shutdowns) callOff(ctx context.Context) error {
	s.a.log.Info("the machine stays up: what was done for its end is taken back")
	return s.drains.CallOff(ctx, "shutdown")
}

// empty drains the host until that is over, and waits no longer when the machine stays up, which
// is back. A drain that goes on already serves as well.
func (s *shutdowns) empty(ctx context.Context, ch <-chan systemd.Going) (back bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.a.log.Info("the machine goes down: its guests are moved away")
	if _, err := s.drains.Begin(ctx, drain.Request{Kind: drain.KindDrain, Host: s.a.name, By: "shutdown", Shutdown: true}); err != nil && fault.KindOf(err) != fault.Exists {
		s.a.log.Error("the host goes down with its guests", "error", err)
		return false
	}
	views, err := s.drains.Watch(ctx, "")
	if err != nil {
		s.a.log.Error("the host goes down, and nobody knows with which guests", "error", err)
		return false
	}
	for {
		select {
		case d, open := <-views:
			if !open || d.State.Over() {
				s.a.log.Info("the machine may go down", "drain", d.UUID, "state", string(d.State))
				return false
			}
		case going, open := <-ch:
			if !open {
				return false
			}
			if !going.Down {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}
