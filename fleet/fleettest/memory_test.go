package fleettest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// bubble is the clock of a synctest bubble.
type bubble struct {
	runtime.System
	began time.Time
}

func (b *bubble) Boot() runtime.BootTime {
	return runtime.BootTime{ID: "boot", Since: time.Since(b.began)}
}

func memory(*testing.T) func() fleet.Store {
	m := fleettest.NewMemory(&bubble{began: time.Now()})
	return func() fleet.Store { return m.Client("client") }
}

func TestMemory_IsAStore(t *testing.T) { fleettest.TestStore(t, memory) }

func TestMemory_TellsItsIncarnation(t *testing.T) { fleettest.TestIncarnations(t, memory) }

func TestMemory_HasLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { fleettest.TestLeases(t, memory, 30, time.Sleep) })
}

func TestMemory_KeepsRecords(t *testing.T) {
	fleettest.TestRecords(t, memory, true)
	fleettest.TestRecords(t, func(*testing.T) func() fleet.Store {
		m := fleettest.NewMemory(&bubble{began: time.Now()})
		return func() fleet.Store { return m.Client("client").RecordsOnly() }
	}, false)
}

func TestMemory_WhileItIsDownNoLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory(&bubble{began: time.Now()})
		c := m.Client("a")
		if err := c.Lease(t.Context(), "alive/a", []byte("boot"), 30); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		m.SetDown(true)
		if _, err := c.NoQuorum(t.Context()); err != nil {
			t.Errorf("it is down for all, and says %v", err)
		}
		if _, err := c.Get(t.Context(), "alive/a"); !errors.Is(err, fault.Unavailable) {
			t.Errorf("get while it is down: %v", err)
		}
		time.Sleep(time.Hour)
		m.SetDown(false)
		time.Sleep(29 * time.Second)
		if _, err := c.Get(t.Context(), "alive/a"); err != nil {
			t.Errorf("29 s after it is back: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := c.Get(t.Context(), "alive/a"); !errors.Is(err, fault.NotFound) {
			t.Errorf("31 s after it is back: %v", err)
		}
	})
}

func TestMemory_FaultsAreWhatTheySay(t *testing.T) {
	m := fleettest.NewMemory(&runtime.System{})
	c := m.Client("a")
	for _, tt := range []struct {
		outcome fleettest.Outcome
		kind    fault.Kind
		done    bool
		landed  bool
	}{
		{fleettest.Answered, "", true, true}, {fleettest.Refused, fault.Unavailable, false, false},
		{fleettest.Lost, fault.InDoubt, true, true}, {fleettest.Late, fault.InDoubt, false, true},
	} {
		c.Before = nil
		if err := c.Commit(t.Context(), nil, fleet.Change{Key: "k"}); err != nil {
			t.Fatal(err)
		}
		c.Before = func(context.Context, fleettest.Call) fleettest.Outcome { return tt.outcome }
		if kind := fault.KindOf(c.Commit(t.Context(), nil, fleet.Change{Key: "k", Value: []byte("v")})); kind != tt.kind {
			t.Errorf("outcome %d: %q, want %q", tt.outcome, kind, tt.kind)
		}
		if done := len(m.Records()) == 1; done != tt.done {
			t.Errorf("outcome %d: done is %v", tt.outcome, done)
		}
		m.Land()
		if landed := len(m.Records()) == 1; landed != tt.landed {
			t.Errorf("outcome %d: after landing done is %v", tt.outcome, landed)
		}
	}
}

// TestMemory_FilesPutBack_HasNotWhatWasToldSince: its clock is past what was lost.
func TestMemory_FilesPutBack_HasNotWhatWasToldSince(t *testing.T) {
	m := fleettest.NewMemory(&runtime.System{})
	c := m.Client("a")
	m.Serve()
	files := m.Records()
	if err := c.Commit(t.Context(), nil, fleet.Change{Key: "hosts/a", Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	told, err := c.Moment(t.Context())
	if has, err2 := c.Has(t.Context(), told); !has || err != nil || err2 != nil {
		t.Errorf("before: %t, %v, %v", has, err, err2)
	}
	m.Restore(files, false)
	m.Serve()
	now, err := c.Moment(t.Context())
	if has, err2 := c.Has(t.Context(), told); has || err != nil || err2 != nil || now.Revision <= told.Revision || now.Incarnation != told.Incarnation {
		t.Errorf("put back: %t, %+v, told %+v, %v, %v", has, now, told, err, err2)
	}
}
