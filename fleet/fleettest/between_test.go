package fleettest

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/fleet"
	"berth/internal/fault"
)

// TestRecords_WhatHappensBetweenALookAndItsCommitCounts: each step of the protocol rests on what
// it has read, and somebody else writes right before its commit.
func TestRecords_WhatHappensBetweenALookAndItsCommitCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		step    func(f fixture, t fleet.TakeOver) error
		between func(f fixture) error // by another process
		dead    bool                  // the source counts as dead before
		want    string                // the refusal's reason
	}{
		"a death by a lease, and its host renews it": {
			func(f fixture, _ fleet.TakeOver) error {
				_, err := f.DeclareDeadByLease(f.t.Context(), source, first, "operator:alice")
				return err
			},
			func(f fixture) error { return f.KeepAlive(f.t.Context(), source, bootOne, leaseLength) }, false, "lease_stands",
		},
		"a death by a lease, and its host disarms its watchdog": {
			func(f fixture, _ fleet.TakeOver) error {
				_, err := f.DeclareDeadByLease(f.t.Context(), source, first, "operator:alice")
				return err
			},
			func(f fixture) error { return f.Armed(f.t.Context(), source, bootOne, 0, witnesses) }, false, "no_self_fence",
		},
		"a death, and its host boots": {
			func(f fixture, _ fleet.TakeOver) error {
				d := operatorsWord()
				d.Boot = bootOne
				_, err := f.DeclareDead(f.t.Context(), d)
				return err
			},
			func(f fixture) error { _, err := f.Return(f.t.Context(), source, bootTwo); return err }, false, "host_came_back",
		},
		"a take-over, and its destination dies": {
			func(f fixture, t fleet.TakeOver) error { _, err := f.Records.TakeOver(f.t.Context(), t); return err },
			func(f fixture) error {
				_, err := f.DeclareDead(f.t.Context(), fleet.Death{Host: first, Proof: fleet.ProofFenced})
				return err
			}, true, "destination_dead",
		},
		"a take-over, and its source returns": {
			func(f fixture, t fleet.TakeOver) error { _, err := f.Records.TakeOver(f.t.Context(), t); return err },
			func(f fixture) error { _, err := f.Return(f.t.Context(), source, bootOne); return err }, true, "source_returned",
		},
		"a guest's record, and its host is declared dead": {
			func(f fixture, _ fleet.TakeOver) error {
				in := instance(source, 1)
				in.Name = "vm2"
				_, err := f.PutInstance(f.t.Context(), in)
				return err
			},
			func(f fixture) error { _, err := f.DeclareDead(f.t.Context(), operatorsWord()); return err }, false, "declared_dead",
		},
		"a host's record, and it is declared dead": {
			func(f fixture, _ fleet.TakeOver) error {
				return f.Armed(f.t.Context(), source, bootOne, 2*leaseLength, witnesses)
			},
			func(f fixture) error { _, err := f.DeclareDead(f.t.Context(), operatorsWord()); return err }, false, "declared_dead",
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &aheadClock{}
			memory := NewMemory(clock)
			client := memory.Client("asked")
			f, other := newFixture(t, client), newFixture(t, memory.Client("other"))
			f.Records = fleet.New(client, clock)
			f.host(source, false)
			f.host(first, false)
			f.instance(source, 1)
			if err := f.Armed(t.Context(), source, bootOne, leaseLength, witnesses); err != nil {
				t.Fatal(err)
			}
			var asked fleet.TakeOver
			if tt.dead {
				f.dead()
				asked = f.asked("m-1", first)
			} else {
				// Its lease is over for long enough.
				_, _ = f.DeclareDeadByLease(t.Context(), source, first, "operator:alice") // begins the watch
				for range 3 {
					clock.ahead += 25 * time.Second
					if err := f.WatchLapsed(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			done := false
			client.Before = func(_ context.Context, c Call) Outcome {
				if c.Verb == "commit" && !done {
					done = true
					if err := tt.between(other); err != nil {
						t.Error(err)
					}
				}
				return Answered
			}
			err := tt.step(f, asked)
			if !done {
				t.Fatal("it has committed nothing")
			}
			f.refused(name, err, fault.Forbidden, tt.want)
		})
	}
}

// TestRecords_ALookThatFailsBreaksTheWatchOfALease: nobody knows what was there meanwhile.
func TestRecords_ALookThatFailsBreaksTheWatchOfALease(t *testing.T) {
	clock := &aheadClock{}
	memory := NewMemory(clock)
	f := newFixture(t, memory.Client("asked"))
	f.Records = fleet.New(f.store, clock)
	f.host(source, true)
	if err := f.Armed(t.Context(), source, bootOne, leaseLength, witnesses); err != nil {
		t.Fatal(err)
	}
	_, _ = f.DeclareDeadByLease(t.Context(), source, first, "operator:alice") // begins the watch
	for i := range 3 {
		clock.ahead += 25 * time.Second
		memory.SetDown(i == 1)
		if err := f.WatchLapsed(t.Context()); (err != nil) != (i == 1) {
			t.Fatal(err)
		}
	}
	if _, err := f.DeclareDeadByLease(t.Context(), source, first, "operator:alice"); !errors.Is(err, fault.Busy) {
		t.Errorf("declared dead though a look has failed: %v", err)
	}
}

// TestRecords_ArmedIsWrittenWhereItIsNew: another length is, and that it is not fed is always.
func TestRecords_ArmedIsWrittenWhereItIsNew(t *testing.T) {
	f := newFixture(t, NewMemory(&aheadClock{}).Client("asked"))
	f.host(source, false)
	var last uint64
	for i, step := range []struct {
		length fleet.Seconds
		writes bool
	}{{30, true}, {30, false}, {60, true}, {0, true}, {0, true}} {
		if err := f.Armed(t.Context(), source, bootOne, step.length, witnesses); err != nil {
			t.Fatal(err)
		}
		now := mustGet(t, f.store, "hosts/"+source).Revision
		if h, err := f.Host(t.Context(), source); err != nil || h.Lease != step.length || i > 0 && (now != last) != step.writes {
			t.Errorf("step %d: %+v, %v, written %v", i, h, err, now != last)
		}
		last = now
	}
}
