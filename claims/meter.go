package claims

import (
	"sync"
	"time"
)

// Meter is told how long the tracker takes. It is called by many at once, never under the
// claim lock, and must not block.
type Meter interface {
	// Claimed is told of each answer of Claim, with the kind of claim that was asked for:
	// how long it took, the commit included, and the error that was answered.
	Claimed(kind string, took time.Duration, err error)
	// LockHeld is told for how long the claim lock was held.
	LockHeld(d time.Duration)
}

// lock is a mutex that tells for how long it was held. Without a meter no clock is read.
type lock struct {
	sync.Mutex
	meter Meter            // nil for nobody
	now   func() time.Time // monotonic within a process
	since time.Time        // when it was taken; guarded by Mutex
}

// Lock takes the lock.
func (l *lock) Lock() {
	l.Mutex.Lock()
	if l.meter != nil {
		l.since = l.now()
	}
}

// Unlock lets it go, and tells for how long it was held.
func (l *lock) Unlock() {
	if l.meter == nil {
		l.Mutex.Unlock()
		return
	}
	held := l.now().Sub(l.since)
	l.Mutex.Unlock()
	l.meter.LockHeld(held)
}

// measured runs f, an answer of Claim.
func (t *Tracker) measured(kind Kind, f func() (Claim, error)) (Claim, error) {
	if t.mu.meter == nil {
		return f()
	}
	began := t.runtime.Now()
	c, err := f()
	t.mu.meter.Claimed(string(kind), t.runtime.Now().Sub(began), err)
	return c, err
}
