package claims_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
)

// ticking is a clock that goes on by a millisecond each time it is read.
type ticking struct {
	runtime.Runtime
	mu   sync.Mutex
	read int
}

func (c *ticking) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read++
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(c.read) * time.Millisecond)
}

// told is what a meter was told. Each time it hears of the lock it takes it by a
// question of its own: one that hears of it while it is held waits for ever.
type told struct {
	tracker *claims.Tracker
	asking  bool
	claimed []string
	took    time.Duration
	held    []time.Duration
}

func (m *told) Claimed(kind string, took time.Duration, err error) {
	word := "given"
	if err != nil {
		word = string(fault.KindOf(err))
	}
	m.claimed, m.took = append(m.claimed, kind+" "+word), took
}

func (m *told) LockHeld(d time.Duration) {
	m.held = append(m.held, d)
	if m.tracker != nil && !m.asking {
		m.asking = true
		m.tracker.Usage()
		m.asking = false
	}
}

func TestMeter_IsToldOfClaimsAndOfTheLock(t *testing.T) {
	m := &told{}
	tracker, err := claims.Open(ctx, claims.Options{
		Store: storetest.NewMemory(), Runtime: &ticking{Runtime: newClock()}, Host: "host-b", Capacity: capacity, Meter: m,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.tracker, m.held = tracker, nil
	if _, err := tracker.Claim(ctx, claims.Request{Owner: moveOwner("i1", "m1", 1), Resources: small}); err != nil {
		t.Fatal(err)
	}
	if len(m.claimed) != 1 || m.claimed[0] != "live-migration given" {
		t.Errorf("told of %q, want one claim that was given", m.claimed)
	}
	for _, d := range m.held {
		if d < time.Millisecond {
			t.Errorf("the lock was held for %s, though the clock goes on by a millisecond", d)
		}
	}
	// Twice for the claim: to choose, and to show what is durable; the rest are the meter's.
	if len(m.held) < 2 || m.took <= m.held[0] {
		t.Errorf("the claim took %s, the lock was held for %v: want the whole of it", m.took, m.held)
	}
	large := small
	large.MemoryMB = 1 << 30
	_, err = tracker.Claim(ctx, claims.Request{Owner: moveOwner("i2", "m2", 1), Resources: large})
	if !errors.Is(err, fault.DoesNotFit) || m.claimed[len(m.claimed)-1] != "live-migration does_not_fit" {
		t.Errorf("told of %q after %v, want the refusal", m.claimed, err)
	}
}

func TestMeter_WithoutOneNoClockIsRead(t *testing.T) {
	clock := &ticking{Runtime: newClock()}
	tracker, err := claims.Open(ctx, claims.Options{Store: storetest.NewMemory(), Runtime: clock, Host: "host-b", Capacity: capacity})
	if err != nil {
		t.Fatal(err)
	}
	before := clock.read
	tracker.Usage()
	tracker.List()
	if clock.read != before {
		t.Errorf("the clock was read %d times for two questions", clock.read-before)
	}
}
