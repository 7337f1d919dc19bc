package memory

import (
	"context"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Lock makes verbs on one instance come one after another. It waits no longer than
// ctx, and then says fault.Busy. The caller calls what it gets back.
func (m *Memory) Lock(ctx context.Context, instance string) (done func(), err error) {
	for {
		m.mu.Lock()
		held, taken := m.working[instance]
		if !taken {
			mine := make(chan struct{})
			m.working[instance] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.working, instance)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		if err := runtime.Await(ctx, m.rt, held); err != nil {
			return nil, fault.New(fault.Busy, "instance %s: another verb works on it: %w", instance, err)
		}
	}
}

// Stoppable is the context of a verb that its undo may end: one that makes disks or
// runs operators' programs. The caller has the instance's turn, and takes a Stoppable
// before it looks whether it is late: an undo that comes after the look finds it. It
// calls over when it is done.
func (m *Memory) Stoppable(ctx context.Context, ref migration.Ref) (_ context.Context, over func()) {
	ctx, stop := context.WithCancelCause(ctx)
	m.mu.Lock()
	m.running[Key(ref)] = stop
	m.mu.Unlock()
	return ctx, func() {
		m.mu.Lock()
		delete(m.running, Key(ref))
		m.mu.Unlock()
		stop(nil)
	}
}

// Stop ends a verb of this attempt that is Stoppable; it gives the instance's turn back
// by itself.
func (m *Memory) Stop(ref migration.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if stop := m.running[Key(ref)]; stop != nil {
		stop(fault.New(fault.Undone, "its undo has come"))
	}
}

// BeginUndo is how every undo of a verb begins that may still be at work: the verb's
// step is buried, so that it does not come late; what works on it is ended, since its
// caller may be long dead, and a hook, a copy or a guest take their minutes; and the
// undo gets the instance's turn, which it gives back by done.
//
// refused says why there is nothing to undo any more. It is asked before the burial,
// too: an undo that is refused must leave no trace in a move that has succeeded.
func (m *Memory) BeginUndo(ctx context.Context, ref migration.Ref, step string, refused func() error) (done func(), err error) {
	if err := refused(); err != nil {
		return nil, err
	}
	if err := m.WriteTombstone(ctx, ref, step); err != nil {
		return nil, err
	}
	m.Stop(ref)
	if done, err = m.Lock(ctx, ref.Instance); err != nil {
		return nil, err
	}
	if err := refused(); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// Alone runs f while no operation works on an instance. It waits no longer than ctx, and then says
// fault.Busy.
func (m *Memory) Alone(ctx context.Context, instance string, f func(ctx context.Context) error) error {
	unlock, err := m.Lock(ctx, instance)
	if err != nil {
		return err
	}
	defer unlock()
	return f(ctx)
}
