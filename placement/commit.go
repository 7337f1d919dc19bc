package placement

import (
	"context"
	"maps"
	"sync"

	"berth/internal/runtime"
)

// state is the committed state and where it is kept.
//
// A write is decided, made visible in memory, and shares its commit with all that
// are decided while the commit before it waits for the disk. Nobody is answered
// before what he saw or did is durable: reads wait too, for the writes in the
// state that they were answered from. When a commit fails, all that it held and
// all that was decided on top of it is taken back, its writers are answered 500,
// and who had only read reads again.
//
// Lock order: committing, write, mu.
type state struct {
	disk  Store // nil: memory only
	close func() error
	rt    runtime.Runtime

	// committing is held by the one that waits for the disk.
	committing runtime.Lock
	// write serialises decisions: it is held from reading the state that a write is
	// decided on until it is applied, never while the disk is waited for.
	write sync.Mutex
	// mu guards what follows. Readers hold it for one request; a writer, who holds
	// write, takes it only to apply. Nothing slow happens under it.
	mu     sync.RWMutex
	b      *base
	open   *batch // writes that wait for their commit; nil for none
	flying *batch // writes whose commit is under way; nil for none
}

// batch is the writes of one commit.
type batch struct {
	changed *tx // the records that they leave
	before  *tx // the same records as they were before the first write
	done    chan struct{}
	err     error // set before done is closed
}

// wait gives what became of the commit; nil of no batch is nothing to wait for. A
// client that has gone is not waited with (ctx); what he wrote goes its way.
func (b *batch) wait(ctx context.Context, rt runtime.Runtime) error {
	if b == nil {
		return nil
	}
	if runtime.Await(ctx, rt, b.done) != nil {
		return givenUp(ctx)
	}
	return b.err
}

// unsettled is the newest batch that is in b and may not be durable. Called with mu held.
func (s *state) unsettled() *batch {
	if s.open != nil {
		return s.open
	}
	return s.flying
}

// view calls f with the state to read. What f saw last is durable when view gives
// nil; f is called again where it turned out not to be. The error is that ctx ended
// before.
func (s *state) view(ctx context.Context, f func(b *base)) error {
	look := func() *batch {
		s.mu.RLock()
		defer s.mu.RUnlock()
		f(s.b)
		return s.unsettled()
	}
	for look().wait(ctx, s.rt) != nil {
		if ctx.Err() != nil {
			return givenUp(ctx)
		}
	}
	return nil
}

// apply makes a decided transaction visible and part of a batch, for the caller,
// who holds write, to wait for once he has let go of it. leads says that the
// caller is the one to commit it.
func (s *state) apply(t *tx) (b *batch, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.empty() {
		return s.unsettled(), false
	}
	if s.disk == nil {
		s.b.apply(t)
		return nil, false
	}
	if s.open == nil {
		s.open, leads = &batch{changed: newTx(s.b, t.now), before: newTx(s.b, t.now), done: make(chan struct{})}, true
	}
	s.open.add(t)
	s.b.apply(t)
	return s.open, leads
}

// add takes a transaction in, before it is applied.
func (b *batch) add(t *tx) {
	remember(b.before.providers, t.b.providers, t.providers)
	remember(b.before.consumers, t.b.consumers, t.consumers)
	remember(b.before.classes, t.b.classes, t.classes)
	remember(b.before.traits, t.b.traits, t.traits)
	maps.Copy(b.changed.providers, t.providers)
	maps.Copy(b.changed.consumers, t.consumers)
	maps.Copy(b.changed.classes, t.classes)
	maps.Copy(b.changed.traits, t.traits)
}

// remember keeps what records are now that are about to change; nil for none.
func remember[T any](to table[T], now map[string]*T, changes table[T]) {
	for key := range changes {
		if _, known := to[key]; !known {
			to[key] = now[key]
		}
	}
}

// commit makes a batch durable; called by the one that leads it, without locks.
// One that comes while the disk is busy gathers others meanwhile.
func (s *state) commit(b *batch) error {
	ctx := context.Background() // whoever has gone away, his writes go their way
	if err := s.committing.Lock(ctx, s.rt); err != nil {
		return err
	}
	defer s.committing.Unlock()
	s.mu.Lock()
	if s.open != b { // the batch before it failed, and took it along
		s.mu.Unlock()
		return b.wait(ctx, s.rt)
	}
	s.open, s.flying = nil, b
	s.mu.Unlock()
	mutations, err := b.changed.mutations()
	if err == nil {
		err = s.disk.Enqueue(mutations...).Wait()
	}
	if err != nil {
		s.write.Lock() // whoever decides now decides on what is taken back
		defer s.write.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying = nil
	if err != nil && s.open != nil {
		s.takeBack(s.open, err)
		s.open = nil
	}
	if err != nil {
		s.takeBack(b, err)
		return err
	}
	close(b.done)
	return nil
}

// takeBack makes the state what it was before a batch.
func (s *state) takeBack(b *batch, err error) {
	s.b.apply(b.before)
	b.err = err
	close(b.done)
}
