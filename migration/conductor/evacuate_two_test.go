package conductor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/halves"
	"berth/placementclient"
)

// ownStore is the store of a second conductor.
type ownStore map[string]map[string][]byte

func (s ownStore) Put(_ context.Context, bucket, key string, value []byte) error {
	if s[bucket] == nil {
		s[bucket] = map[string][]byte{}
	}
	s[bucket][key] = slices.Clone(value)
	return nil
}

func (s ownStore) Delete(_ context.Context, bucket, key string) error {
	delete(s[bucket], key)
	return nil
}

func (s ownStore) List(_ context.Context, bucket string) (map[string][]byte, error) {
	return maps.Clone(s[bucket]), nil
}

// second is another conductor in the world, on a host of its own.
func (w *world) second(local string) (*simruntime.Process, *conductor.Conductor) {
	p := w.sim.Process("second conductor", "boot")
	c := conductor.New(conductor.Config{
		Runtime: p, Store: ownStore{}, Local: local, Placement: placementWire{w, p}, Fleet: fleetWire{w, p}, UndoLater: 5 * time.Second,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return hostWire{w, p, w.hosts[name]}, nil
		},
		Jitter: func(d time.Duration) time.Duration { return time.Duration(w.sim.Rand().Int64N(int64(max(d, 1)))) },
	})
	p.Go("run", func() { _ = c.Run(context.Background()) })
	return p, c
}

// TestEvacuation_OfTwoConductorsOneTakesTheGuest, whenever the second begins, and nothing is
// left of the other's.
func TestEvacuation_OfTwoConductorsOneTakesTheGuest(t *testing.T) {
	won := map[string]int{}
	for _, dest := range []string{"b", "e"} {
		for d := -1450 * time.Millisecond; d < 1500*time.Millisecond; d += 100 * time.Millisecond * time.Duration(min(stride, 4)) {
			how := fmt.Sprintf("to %s, %s later", dest, d)
			lostWorld(t, script{request: lost, hosts: []string{"a", "b", "c", "d", "e"}, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
				w.latency = 400 * time.Millisecond
				ctx := context.Background()
				p2, c2 := w.second("d")
				var m2 migration.Migration
				var err2 error
				over := false
				p2.Go("request", func() {
					defer func() { over = true }()
					_ = p2.Sleep(ctx, 2*time.Second+d)
					r := asked(lost, dest)
					r.Migration = otherUUID
					for m2, err2 = c2.Start(ctx, r); err2 == nil && !m2.Done(); m2, err2 = c2.Get(ctx, otherUUID) {
						_ = p2.Sleep(ctx, 100*time.Millisecond)
					}
				})
				_ = p.Sleep(ctx, 2*time.Second)
				m, err := c.Start(ctx, asked(lost, "b"))
				for ; err == nil && !m.Done(); m, err = c.Get(ctx, moveUUID) {
					_ = p.Sleep(ctx, 100*time.Millisecond)
				}
				for !over {
					_ = p.Sleep(ctx, 100*time.Millisecond)
				}
				_ = p.Sleep(ctx, 2*time.Second)

				owner, by := "", ""
				for _, one := range []migration.Migration{m, m2} {
					if one.Outcome == migration.OutcomeCompleted {
						owner, by = one.DestCompute, one.UUID
					}
				}
				won[by]++
				if (m.Outcome == migration.OutcomeCompleted) == (m2.Outcome == migration.OutcomeCompleted) {
					t.Fatalf("%s: %s %s (%v, %v), and %s %s (%v, %v)", how, m.Status, m.Outcome, m.Error, err, m2.Status, m2.Outcome, m2.Error, err2)
				}
				for name, h := range w.hosts {
					if name == "a" {
						continue
					}
					if h.owns() != (name == owner) || (h.domain != nil) != (name == owner) || len(h.made) > 0 || len(h.claims) != map[bool]int{true: 1}[name == owner] {
						t.Errorf("%s: host %s has token %+v, domain %+v, claims %v, disks of %v; owner %s", how, name, h.token, h.domain, h.claims, h.made, owner)
					}
				}
				a, b := w.hosts["a"].place(guestSize), w.hosts[owner].place(guestSize)
				got := map[string]halves.Amounts{}
				for id, held := range w.placement.consumers {
					got[id] = held.Allocations
				}
				if diff := cmp.Diff(map[string]halves.Amounts{guestUUID: b, by: halves.Split(a, b)}, got); diff != "" {
					t.Errorf("%s: Placement (-want +got):\n%s", how, diff)
				}
			})
		}
	}
	if t.Logf("won: %v", won); won[moveUUID] == 0 || won[otherUUID] == 0 {
		t.Error("one of the two never won")
	}
}

// TestEvacuation_TakesOverWhatADeadConductorLeft: the guest is counted where nothing of it is.
func TestEvacuation_TakesOverWhatADeadConductorLeft(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: four, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		a, b := w.hosts["a"].place(guestSize), w.hosts["b"].place(guestSize)
		inst := w.placement.consumers[guestUUID]
		inst.Allocations = b
		w.placement.consumers[otherUUID] = &placementclient.Allocations{
			Allocations: halves.Split(a, b), ProjectID: "project", UserID: "user", ConsumerType: placementclient.ConsumerMigration, ConsumerGeneration: placementclient.Generation(1),
		}
		if _, err := c.Start(context.Background(), asked(lost, "d")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		got := map[string]halves.Amounts{}
		for id, held := range w.placement.consumers {
			got[id] = held.Allocations
		}
		want := map[string]halves.Amounts{guestUUID: w.hosts["d"].place(guestSize), otherUUID: halves.Split(a, b)}
		if diff := cmp.Diff(want, got); diff != "" || m.Status != migration.StatusDone {
			t.Errorf("%s, Placement (-want +got):\n%s", m.Status, diff)
		}
	})
}

// TestEvacuation_ReadsAnewWhatHasChangedSinceItWasRead: the host was declared dead once more.
func TestEvacuation_ReadsAnewWhatHasChangedSinceItWasRead(t *testing.T) {
	lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "claimed", func(m migration.Migration) bool { return m.Step == migration.StepSwapAllocations })
		w.fleet.deaths["a"] = w.fleet.next()
		if m := until(t, p, c, "done", migration.Migration.Done); m.Status != migration.StatusDone || m.Attempt != 2 {
			t.Errorf("%s in attempt %d: %v", m.Status, m.Attempt, m.Error)
		}
	})
}

// TestEvacuation_SettlesOnlyWhatIsLeftOfIt: where the guest is the records say, and no operator.
func TestEvacuation_SettlesOnlyWhatIsLeftOfIt(t *testing.T) {
	word := func(at string, gone ...string) migration.Settlement {
		return migration.Settlement{GuestIsAt: at, Gone: gone, Why: "looked", By: "user:root"}
	}
	refuses := func(t *testing.T, c *conductor.Conductor, w migration.Settlement, code string) {
		t.Helper()
		if _, err := c.Settle(context.Background(), moveUUID, w); !errors.Is(err, fault.Forbidden) || !slices.Contains(codes(err), code) {
			t.Errorf("guest at %s: %v, want %s", w.GuestIsAt, err, code)
		}
	}
	t.Run("taken over", func(t *testing.T) {
		lostWorld(t, script{request: lost, hosts: three, local: "c"}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
			if _, err := c.Start(context.Background(), asked(lost, "b")); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "deciding", func(m migration.Migration) bool { return m.Step == migration.StepTakeOver })
			refuses(t, c, word("b"), "decides_itself")
			until(t, p, c, "taken over", func(m migration.Migration) bool { return m.Step == migration.StepAcceptEvacuated })
			w.hosts["b"].cut = true
			refuses(t, c, word("a", "b"), "destination_has_guest")
			refuses(t, c, word("b", "a"), "not_a_party")
			w.hosts["b"].cut = false
			until(t, p, c, "done", migration.Migration.Done)
		})
	})
	t.Run("a destination that never comes back", func(t *testing.T) {
		lostWorld(t, script{request: lost, hosts: three, local: "c", unready: []string{"b"}}, func(w *world, p *simruntime.Process, c *conductor.Conductor) {
			ctx := context.Background()
			if _, err := c.Start(ctx, asked(lost, "b")); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "preparing", func(m migration.Migration) bool { return m.Step == migration.StepPrepEvacuation })
			_ = p.Sleep(ctx, 60*time.Millisecond)
			w.hosts["b"].cut = true
			_ = p.Sleep(ctx, time.Minute)
			if m, _ := c.Get(ctx, moveUUID); m.Done() {
				t.Fatalf("%s while its undo cannot be done", m.Status)
			}
			if _, err := c.Settle(ctx, moveUUID, word("a", "b")); err != nil {
				t.Fatal(err)
			}
			m := until(t, p, c, "done", migration.Migration.Done)
			if m.Settled == nil || m.Outcome != migration.OutcomeUndone {
				t.Errorf("%s %s, settled %+v", m.Status, m.Outcome, m.Settled)
			}
			if held := w.placement.consumers[guestUUID].Allocations; !halves.Same(held, w.hosts["a"].place(guestSize)) || len(w.placement.consumers) != 1 {
				t.Errorf("the instance holds %v, of %d consumers", held, len(w.placement.consumers))
			}
		})
	})
}

// TestEvacuation_OfADoneOneIsLookedAfterARestart, and is one request whoever repeats it.
func TestEvacuation_OfADoneOneIsLookedAfterARestart(t *testing.T) {
	w := newWorld(t, 1, script{request: lost, hosts: three, local: "c"}, faults{})
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(lost, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "done", migration.Migration.Done)
		_ = p.Sleep(ctx, 2*time.Second)
		again := asked(lost, "b")
		if m, known, err := c.Begun(again); !known || err != nil || m.Status != migration.StatusDone {
			t.Errorf("asked again: %s, %v, %v", m.Status, known, err)
		}
		again.Source, again.Stopped, again.AcceptLoss = "b", true, true
		if _, _, err := c.Begun(again); !errors.Is(err, fault.Exists) || len(codes(err)) != 3 {
			t.Errorf("asked for another by its uuid: %v, want source, stopped and loss", err)
		}
	})
	w.comesBack()
	w.boot()
	if err := w.sim.Run(time.Hour, func() bool {
		m, err := w.conductor.Get(context.Background(), moveUUID)
		return err == nil && m.Status == migration.StatusCompleted
	}); err != nil {
		t.Error(err)
	}
	w.sim.Shutdown()
	w.report("restarted")
}
