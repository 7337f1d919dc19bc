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

// TestApart_AWordGivesUpWhoIsGone: a conductor that is at neither host keeps it, over a
// restart, until the move is over.
func TestApart_AWordGivesUpWhoIsGone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gone   string // falls silent for good at this step
		step   string
		finish bool // after it was finished and confirmed
		word   migration.Settlement
		want   migration.Outcome
	}{
		{"the destination, while it ships", "b", migration.StepPrepResize, false,
			migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "burnt", By: "ann"}, migration.OutcomeUndone},
		{"the source, once confirmed", "a", "", true,
			migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}, Why: "burnt", By: "ann"}, migration.OutcomeCompleted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := apartly(t, script{request: apartCold, apart: true}, faults{})
			w.latency = 30 * time.Millisecond
			w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
				ctx := context.Background()
				if _, err := c.Start(ctx, asked(apartCold, "b")); err != nil {
					t.Fatal(err)
				}
				if tt.finish {
					until(t, p, c, "finished", isFinished)
					w.hosts[tt.gone].cut = true
					if _, err := c.Confirm(ctx, moveUUID); err != nil {
						t.Fatal(err)
					}
				} else {
					until(t, p, c, "at "+tt.step, func(m migration.Migration) bool { return m.Step == tt.step })
					w.hosts[tt.gone].cut = true
				}
				until(t, p, c, "stuck", func(m migration.Migration) bool { return m.Status == migration.StatusError })
				mine := tt.word
				mine.Gone = []string{"c"}
				if _, err := c.Settle(ctx, moveUUID, mine); !errors.Is(err, fault.Forbidden) || !slices.Contains(codes(err), "not_a_party") {
					t.Errorf("the conductor is gone: %v", err)
				}
				m, err := c.Settle(ctx, moveUUID, tt.word)
				if err != nil || m.Settled == nil || m.Settled.By != "ann" {
					t.Errorf("settle: %+v, %v", m.Settled, err)
				}
			})
			w.boot()
			if err := w.sim.Run(10*time.Minute, func() bool {
				m, err := w.conductor.Get(context.Background(), moveUUID)
				return err == nil && m.Done() && len(w.store.data["words"]) == 0
			}); err != nil {
				t.Error(err)
			}
			m, err := w.conductor.Get(context.Background(), moveUUID)
			w.sim.Shutdown()
			if err != nil || m.Outcome != tt.want || m.Settled == nil {
				t.Errorf("%s, settled %+v, %v", m.Outcome, m.Settled, err)
			}
		})
	}
}

// TestApart_AGuestTakenBackAtItsSourceIsNotBroughtForward: an operator has said so there,
// while the conductor waited for a destination that is gone.
func TestApart_AGuestTakenBackAtItsSourceIsNotBroughtForward(t *testing.T) {
	w := apartly(t, script{request: apartCold, apart: true}, faults{})
	w.latency = 30 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(apartCold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "handed over", func(m migration.Migration) bool { return m.Step == migration.StepAcceptHanded })
		a := w.hosts["a"]
		w.hosts["b"].cut = true
		word := migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "burnt", By: "ann"}
		if _, err := c.Settle(ctx, moveUUID, word); !slices.Contains(codes(err), "say_it_there") {
			t.Errorf("settle at the conductor: %v", err)
		}
		// A ledger that was restored says that the token never left.
		was := a.token
		a.token = &simToken{epoch: was.epoch, here: true}
		_ = p.Sleep(ctx, time.Minute)
		if m := mustGet(t, c); m.Phase != "doing" {
			t.Errorf("it goes back by an old ledger: %v", m.Error)
		}
		a.token = was
		// What the source does by the word there.
		a.token = &simToken{epoch: a.token.epoch + 1, here: true}
		delete(a.commits, moveUUID+"/1")
		a.reclaimed[moveUUID+"/1"] = true
		m := until(t, p, c, "going back", func(m migration.Migration) bool { return m.Phase == "undoing" })
		if !slices.Contains(codes(m.Error.Err()), "settled") {
			t.Errorf("goes back for %v", m.Error)
		}
		until(t, p, c, "at its source", func(migration.Migration) bool { return a.domain.state == "running" })
	})
}

// TestFate_IsWhatTheConductorsJournalSays to a side whose other side is silent.
func TestFate_IsWhatTheConductorsJournalSays(t *testing.T) {
	w := apartly(t, script{request: apartCold}, faults{})
	w.latency = 30 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		says := func(attempt int, want migration.Fate, commit bool) {
			t.Helper()
			f, ok := c.Fate(moveUUID, attempt)
			if !ok || f.Fate != want || (f.Commit != nil) != commit || f.Why == "" {
				t.Errorf("attempt %d: %+v, %v; want %s", attempt, f, ok, want)
			}
		}
		if _, ok := c.Fate(moveUUID, 1); ok {
			t.Error("it knows of a move before there is one")
		}
		if _, err := c.Start(ctx, asked(apartCold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "off", func(m migration.Migration) bool { return m.Step == migration.StepPowerOff })
		says(1, migration.FateGoing, false)
		until(t, p, c, "handed over", func(m migration.Migration) bool { return m.Step == migration.StepAcceptHanded })
		says(1, migration.FateCommitted, true)
		until(t, p, c, "finished", isFinished)
		if _, err := c.Revert(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "going back", func(m migration.Migration) bool { return m.Step == migration.StepAwaitReturn })
		says(2, migration.FateGoing, false)
		until(t, p, c, "handed back", func(m migration.Migration) bool { return m.Step == migration.StepFinishRevert })
		says(2, migration.FateCommitted, true)
		says(1, migration.FateGoing, false)
		until(t, p, c, "over", migration.Migration.Done)
		says(2, migration.FateCommitted, false)
		says(1, migration.FateKept, false)
	})
	own := newWorld(t, 1, script{}, faults{})
	own.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.Fate(moveUUID, 1); ok {
			t.Error("of a guest of its own host the ledger says it")
		}
		until(t, p, c, "finished", isFinished)
	})
}
