package host_test

import (
	"errors"
	"fmt"
	"testing"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
)

// through runs steps as a conductor does: one that fails is asked for again, after its
// host's agent was killed and started anew.
func (c *cold) through(steps func() []step) {
	c.t.Helper()
	for i := range steps() {
		var err error
		for range 4 {
			// The hosts may be others than before.
			if err = steps()[i].do(); err == nil {
				break
			}
			c.a, c.b = c.restart("a"), c.restart("b")
		}
		if err != nil {
			c.t.Fatalf("%s: %v", steps()[i].name, err)
		}
	}
}

// TestCold_KilledAtAWrite ends both agents at commits of either host's ledger, by
// a commit that is lost and by one that is written and not answered, in a move that is
// reverted: it ends as one that nobody disturbed.
func TestCold_KilledAtAWrite(t *testing.T) {
	for _, on := range []string{"a", "b"} {
		for _, what := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
			t.Run(fmt.Sprintf("%s, %d", on, what), func(t *testing.T) {
				t.Parallel()
				each := 2 // simulations do all, of whole fleets (test/sim)
				if what == storetest.FailWritten {
					each = 5
				}
				for nth, reached := 1, true; reached; nth += each {
					reached = false
					l, v := coldLab(t)
					before := l.picture()
					c := newCold(t, l, v.UUID, &large)
					n := 0
					fail := func(int, []store.Mutation) storetest.Outcome {
						if n++; n == nth {
							reached = true
							return what
						}
						return storetest.Commit
					}
					l.hosts[on].store.OnCommit(fail)
					c.through(c.there)
					if n := l.fleet.RunningCopies(v.UUID); n != 1 {
						t.Fatalf("commit %d: %d running copies", nth, n)
					}
					l.hosts[on].store.OnCommit(fail)
					c.through(c.returning)
					l.hosts[on].store.OnCommit(nil)
					c.lives(c.a, driver.Running, small, 3)
					l.same(fmt.Sprintf("after commit %d failed", nth), before)
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}

// TestCold_ErrorAtHypervisorCalls loses calls to either hypervisor, one in a move, as a
// request and as an answer.
func TestCold_ErrorAtHypervisorCalls(t *testing.T) {
	for _, on := range []string{"a", "b"} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s answered=%v", on, answered), func(t *testing.T) {
				t.Parallel()
				for nth, reached := 1, true; reached; nth += 2 * min(stride, 4) {
					reached = false
					l, v := coldLab(t)
					c := newCold(t, l, v.UUID, &large)
					n := 0
					lose := func(call, _ string) error {
						if n++; n != nth {
							return nil
						}
						reached = true
						switch call {
						case "Node", "Domains", "Domain", "XML", "Job", "CheckCPU", "Events":
							return fault.New(fault.Unavailable, "%s was lost", call)
						}
						return fault.New(fault.InDoubt, "%s was lost", call)
					}
					if answered {
						l.hosts[on].fake.FaultReply(lose)
					} else {
						l.hosts[on].fake.Fault(lose)
					}
					c.through(c.there)
					c.through(c.confirm)
					l.hosts[on].fake.Fault(nil)
					l.hosts[on].fake.FaultReply(nil)
					c.lives(c.b, driver.Running, large, 2)
					if _, err := c.a.fake.Domain(t.Context(), v.UUID); !errors.Is(err, fault.NotFound) {
						t.Errorf("call %d: the source still has it: %v", nth, err)
					}
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}
