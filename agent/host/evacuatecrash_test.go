package host_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"berth/driver"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
)

// through does steps as a conductor does: one that fails is asked for again, after its host's
// agent was killed and started anew.
func (e *evacuation) through(steps func() []step) {
	e.t.Helper()
	for i, s := range steps() {
		var err error
		for range 4 {
			if err = steps()[i].do(); err == nil {
				break
			}
			e.crash()
		}
		if err != nil {
			e.t.Fatalf("%s: %v", s.name, err)
		}
	}
}

// back undoes what was prepared, in the same way.
func (e *evacuation) back() {
	e.t.Helper()
	for i, s := range slices.Backward(e.prepared()) {
		var err error
		for range 4 {
			if undo := e.prepared()[i].undo; undo == nil {
				break
			} else if err = undo(); err == nil {
				break
			}
			e.crash()
		}
		if err != nil {
			e.t.Fatalf("undo %s: %v", s.name, err)
		}
	}
}

// everyFault breaks b once, at the nth chance of each kind, until there is none (some of them
// where the race detector looks on); arm sets it up, and gives what tells whether it came to that.
func everyFault(t *testing.T, arm func(e *evacuation, nth int) (reached func() bool), then func(e *evacuation, before picture)) {
	t.Helper()
	for nth, more := 1, true; more && !t.Failed(); nth += min(stride, 5) {
		e := newEvacuation(t, driver.Running)
		before := e.picture()
		reached := arm(e, nth)
		then(e, before)
		if more = reached(); t.Failed() {
			t.Errorf("at chance %d", nth)
		}
	}
}

// faults are all that can end or cut off a verb.
var faults = map[string]func(e *evacuation, nth int) func() bool{
	"a write that is lost":           commitFault(storetest.Fail),
	"a write that is not answered":   commitFault(storetest.FailWritten),
	"a call to libvirt that is lost": callFault(false),
	"an answer of libvirt's":         callFault(true),
	"a change of a file":             fileFault,
	"a question to the records":      recordsFault,
}

func commitFault(what storetest.Outcome) func(e *evacuation, nth int) func() bool {
	return func(e *evacuation, nth int) func() bool {
		var n atomic.Int32 // who looks on makes calls, too
		e.b.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
			if int(n.Add(1)) == nth {
				return what
			}
			return storetest.Commit
		})
		return func() bool { return int(n.Load()) >= nth }
	}
}

func callFault(answered bool) func(e *evacuation, nth int) func() bool {
	return func(e *evacuation, nth int) func() bool {
		var n atomic.Int32 // who looks on makes calls, too
		lose := func(call, _ string) error {
			if int(n.Add(1)) != nth {
				return nil
			}
			switch call {
			case "Node", "Domains", "Domain", "XML", "Job", "CheckCPU", "Events":
				return fault.New(fault.Unavailable, "%s was lost", call)
			}
			return fault.New(fault.InDoubt, "%s was lost", call)
		}
		if answered {
			e.b.fake.FaultReply(lose)
		} else {
			e.b.fake.Fault(lose)
		}
		return func() bool { return int(n.Load()) >= nth }
	}
}

func fileFault(e *evacuation, nth int) func() bool {
	var n atomic.Int32
	e.world.OnStep(func(string, string, string) error {
		if int(n.Add(1)) == nth {
			return fault.New(fault.Unavailable, "killed")
		}
		return nil
	})
	return func() bool { return int(n.Load()) >= nth }
}

func recordsFault(e *evacuation, nth int) func() bool {
	var n atomic.Int32
	e.client.Before = func(context.Context, fleettest.Call) fleettest.Outcome {
		if int(n.Add(1)) == nth {
			return fleettest.Lost
		}
		return fleettest.Answered
	}
	return func() bool { return int(n.Load()) >= nth }
}

// TestEvacuation_KilledAnywhereItComesAllTheSame ends b's agent at each write, call, change of a
// file and question in turn.
func TestEvacuation_KilledAnywhereItComesAllTheSame(t *testing.T) {
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyFault(t, arm, func(e *evacuation, _ picture) {
				e.through(e.prepared)
				e.through(e.finished)
				e.heal()
				e.lives(driver.Running)
				if n := e.fleet.RunningCopies(e.ref.Instance); n != 1 {
					t.Errorf("%d running copies", n)
				}
			})
		})
	}
}

// TestEvacuation_KilledAnywhereItGoesBack is the same for one that is taken back, after the whole
// of its preparation and in the middle of it.
func TestEvacuation_KilledAnywhereItGoesBack(t *testing.T) {
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyFault(t, arm, func(e *evacuation, before picture) {
				for _, s := range e.prepared() {
					if err := s.do(); err != nil {
						e.crash()
						break
					}
				}
				e.back()
				e.heal()
				e.same("after it was taken back", before)
				if _, err := e.b.fake.Domain(t.Context(), e.ref.Instance); !errors.Is(err, fault.NotFound) {
					t.Errorf("it is defined here: %v", err)
				}
			})
		})
	}
}

// TestEvacuation_KilledAnywhereItFinishesAlone is the same for one that nobody conducts any more
// once it was given to b.
func TestEvacuation_KilledAnywhereItFinishesAlone(t *testing.T) {
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The verbs' own are all looked at above.
			for nth, more := 1, true; more && !t.Failed(); nth += 2 + min(stride, 5) {
				e := newEvacuation(t, driver.Running)
				e.all(e.prepared())
				e.must("take over", e.takeOver())
				e.crash()
				reached := arm(e, nth)
				e.looks(func() bool {
					d, err := e.b.fake.Domain(t.Context(), e.ref.Instance)
					return err == nil && d.Active() && len(e.b.Waiting()) == 0 && len(e.world.Host("b").Marked()) == 0
				})
				more = reached()
				e.crash()
				e.heal()
				e.all(e.finished())
				e.lives(driver.Running)
				if t.Failed() {
					t.Errorf("at chance %d", nth)
				}
			}
		})
	}
}
