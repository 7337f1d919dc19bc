package conductor_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
)

// leftBehind is a move from a to d, of which b fell silent for good before.
func leftBehind(t *testing.T, r conductor.Request, conductor string) *world {
	w := newWorld(t, 1, script{request: r, hosts: four, apart: r.ShareNothing, local: conductor}, faults{})
	w.latency = 30 * time.Millisecond
	return w
}

// TestSettle_GivesUpWhatLags at a host that will never come back, of a move that has gone on
// without it: finished or over, and also where the conductor dies right after the word.
func TestSettle_GivesUpWhatLags(t *testing.T) {
	for name, tt := range map[string]struct {
		request   conductor.Request
		conductor string
		confirmed bool
		dies      bool
	}{
		"by a third host":             {to(apartCold, "d"), "c", false, false},
		"by the source, over":         {to(cold, "d"), "a", true, false},
		"over, and the conductor too": {to(apartCold, "d"), "c", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := leftBehind(t, tt.request, tt.conductor)
			w.configure = func(c *conductor.Config) { c.UndoLater = time.Hour }
			word := migration.Settlement{GuestIsAt: "d", Gone: []string{"b"}, Why: "burnt", By: "ann"}
			w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
				ctx := context.Background()
				if _, err := c.Start(ctx, asked(tt.request, "b")); err != nil {
					t.Fatal(err)
				}
				until(t, p, c, "getting ready", func(m migration.Migration) bool { return m.Step == migration.StepPrepResize })
				w.hosts["b"].cut = true
				m := until(t, p, c, "finished", isFinished)
				if tt.confirmed {
					if _, err := c.Confirm(ctx, moveUUID); err != nil {
						t.Fatal(err)
					}
					m = until(t, p, c, "over", migration.Migration.Done)
				}
				if m.DestCompute != "d" || len(m.Refusals) != 1 || !m.Refusals[0].Left || m.Refusals[0].GivenUp != nil {
					t.Fatalf("at %s after %+v", m.DestCompute, m.Refusals)
				}
				wrong := word
				wrong.GuestIsAt, wrong.Gone = "b", []string{"b", "d"}
				if _, err := c.Settle(ctx, moveUUID, wrong); !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"not_left", "not_a_party"}) {
					t.Errorf("the guest is said to be at b, and d to be gone: %v", err)
				}
				w.hosts["b"].cut = false
				if _, err := c.Settle(ctx, moveUUID, word); err == nil {
					t.Error("it is given up though it answers")
				}
				w.hosts["b"].cut = true
				_ = p.Sleep(ctx, time.Minute) // the pauses between its undos have grown
				if m = mustGet(t, c); !m.Refusals[0].Left {
					t.Fatal("it was tidied up while it answered")
				}
				m, err := c.Settle(ctx, moveUUID, word)
				if err != nil || m.Refusals[0].GivenUp == nil || m.Refusals[0].GivenUp.By != "ann" || m.Settled != nil {
					t.Errorf("settle: %+v, %v", m, err)
				}
				if tt.dies {
					return
				}
				began := w.sim.Elapsed()
				until(t, p, c, "given up", func(m migration.Migration) bool { return !m.Refusals[0].Left })
				if took := w.sim.Elapsed() - began; took > 2*time.Second {
					t.Errorf("it took %s to hear the word", took)
				}
				if m, err := c.Settle(ctx, moveUUID, word); err != nil || m.Refusals[0].GivenUp == nil {
					t.Errorf("the same word again: %+v, %v", m.Refusals, err)
				}
			})
			if !tt.dies {
				w.sim.Shutdown()
			} else {
				w.boot()
				if err := w.sim.Run(time.Hour, func() bool {
					m, err := w.conductor.Get(context.Background(), moveUUID)
					return err == nil && !m.Refusals[0].Left && len(w.store.data["tasks"])+len(w.store.data["words"]) == 0
				}); err != nil {
					t.Error(err)
				}
				w.sim.Shutdown()
			}
			if n := len(w.store.data["words"]); n > 0 {
				t.Errorf("%d words are left", n)
			}
			if w.store.data["tasks"][moveUUID+"/1"] != nil {
				t.Error("the journal of the attempt is left")
			}
		})
	}
}

func mustGet(t *testing.T, c *conductor.Conductor) migration.Migration {
	t.Helper()
	m, err := c.Get(context.Background(), moveUUID)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestApart_TheWayIsThatOfTheAttempt: the next one has none before it ships, and a conductor
// that comes back knows which it was.
func TestApart_TheWayIsThatOfTheAttempt(t *testing.T) {
	w := leftBehind(t, to(apartCold, "d"), "c")
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(to(apartCold, "d"), "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "shipping to b", func(m migration.Migration) bool { return m.Way != migration.WayNone })
		if m.Way != migration.WayRelay || m.WayReason == "" || m.DestCompute != "b" {
			t.Errorf("to %s by way %q: %s", m.DestCompute, m.Way, m.WayReason)
		}
		w.hosts["b"].cut = true
		m = until(t, p, c, "going to d", func(m migration.Migration) bool { return m.Attempt == 2 })
		if m.Way != migration.WayNone || m.WayReason != "" {
			t.Errorf("before the second attempt ships, its way is %q: %s", m.Way, m.WayReason)
		}
		until(t, p, c, "shipped to d", func(m migration.Migration) bool { return m.Step == migration.StepFinishResize })
	})
	w.boot()
	if err := w.sim.Run(time.Hour, func() bool {
		m, err := w.conductor.Get(context.Background(), moveUUID)
		return err == nil && isFinished(m)
	}); err != nil {
		t.Error(err)
	}
	m := mustGet(t, w.conductor)
	w.sim.Shutdown()
	if m.Way != migration.WayRelay || m.WayReason == "" || m.Attempt != 2 {
		t.Errorf("after a restart: attempt %d, way %q: %s", m.Attempt, m.Way, m.WayReason)
	}
}

// TestApart_AWordIsOfItsOwnAttempt: it gave up the destination of a revert that was undone;
// the next revert asks it again.
func TestApart_AWordIsOfItsOwnAttempt(t *testing.T) {
	w := apartly(t, script{request: apartCold, apart: true}, faults{})
	w.latency = 30 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(apartCold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
		if _, err := c.Revert(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "powering off", func(m migration.Migration) bool { return m.Step == migration.StepRevertPowerOff })
		w.hosts["a"].cut = true // cancel_return cannot be asked
		if err := c.Abort(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "stuck", func(m migration.Migration) bool { return m.Status == migration.StatusError })
		word := migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}, Why: "it will be back otherwise", By: "ann"}
		if _, err := c.Settle(ctx, moveUUID, word); err != nil {
			t.Errorf("settle: %v", err)
		}
		until(t, p, c, "finished again", isFinished)
		w.hosts["a"].cut = false
		if _, err := c.Confirm(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "over", migration.Migration.Done)
	})
	// The word of the attempt before gave up whatever is asked of a in it, and no more.
	if a := w.hosts["a"]; a.domain != nil || a.contexts[moveUUID] {
		t.Errorf("confirmed, and yet on a: domain %v, context %v", a.domain, a.contexts[moveUUID])
	}
}
