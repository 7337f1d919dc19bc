package conductor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
	"berth/placementclient"
)

// change alters one step of a story.
func change(name string, f func(*task.Step)) conductor.Mutation {
	return func(steps []task.Step) []task.Step {
		for i := range steps {
			if steps[i].Name == name {
				f(&steps[i])
			}
		}
		return steps
	}
}

// readAlone undoes a swap without a write where it did not land (yet).
func readAlone(w *world) conductor.Mutation {
	p := placementWire{w, w.process}
	return change(migration.StepSwapAllocations, func(s *task.Step) {
		undo := s.Undo
		s.Undo = func(ctx context.Context, t *task.Task) error {
			if mig, err := p.Allocations(ctx, moveUUID); err == nil && !mig.Exists() {
				return nil
			}
			return undo(ctx, t)
		}
	})
}

// mutants are deliberate breakages. Each must be caught, or the suite proves
// nothing.
var mutants = []struct {
	name   string
	mutate func(*world) conductor.Mutation
}{
	{"an undo skipped: the claim", func(*world) conductor.Mutation {
		return change(migration.StepClaim, func(s *task.Step) { s.Undo = nil })
	}},
	{"an undo skipped: the context", func(*world) conductor.Mutation {
		return change(migration.StepRecordContext, func(s *task.Step) { s.Undo = nil })
	}},
	{"the failed step itself not undone", func(*world) conductor.Mutation {
		return change(migration.StepPreLiveMigration, func(s *task.Step) {
			undo := s.Undo
			s.Undo = func(ctx context.Context, t *task.Task) error {
				st := t.State()
				if step, _ := st.Step(migration.StepPreLiveMigration); step.State == task.StepFailed {
					return nil
				}
				return undo(ctx, t)
			}
		})
	}},
	{"the swap as two calls", func(w *world) conductor.Mutation {
		p := placementWire{w, w.process}
		return change(migration.StepSwapAllocations, func(s *task.Step) {
			undo := s.Undo
			s.Do = func(ctx context.Context, t *task.Task) (any, error) {
				var to struct{ Name string }
				if err := t.Output(migration.StepChooseDestination, &to); err != nil {
					return nil, err
				}
				inst, _ := p.Allocations(ctx, guestUUID)
				mig, _ := p.Allocations(ctx, moveUUID)
				if !mig.Exists() {
					mig = inst.Clone()
					mig.ConsumerGeneration, mig.ConsumerType = nil, placementclient.ConsumerMigration
					if err := p.PutAllocations(ctx, moveUUID, mig); err != nil {
						return nil, err
					}
				}
				inst.Allocations = w.hosts[to.Name].place(guestSize)
				return nil, p.PutAllocations(ctx, guestUUID, inst)
			}
			s.Undo = func(ctx context.Context, t *task.Task) error {
				if mig, _ := p.Allocations(ctx, moveUUID); mig.Exists() {
					return undo(ctx, t)
				}
				return nil
			}
		})
	}},
	{"resume without commit", func(*world) conductor.Mutation {
		return change(migration.StepCommit, func(s *task.Step) {
			s.Do = func(context.Context, *task.Task) (any, error) {
				return migration.Commit{Instance: guestUUID, Migration: moveUUID, Attempt: 1, Epoch: 2, From: "a", To: "b", Power: migration.PowerRunning}, nil
			}
		})
	}},
	{"a refused reclaim taken for one", func(w *world) conductor.Mutation {
		return change(migration.StepStream, func(s *task.Step) {
			undo := s.Undo
			s.Undo = func(ctx context.Context, t *task.Task) error {
				if err := undo(ctx, t); err != nil && !errors.Is(err, task.ErrTooLate) {
					return err
				}
				return nil
			}
		})
	}},
	{"the destination undone before the source has decided", func(*world) conductor.Mutation {
		return change(migration.StepStream, func(s *task.Step) { s.UndoMayLag = true })
	}},
	{"the commit given up when its answer is lost", func(*world) conductor.Mutation {
		return change(migration.StepCommit, func(s *task.Step) {
			s.Undo = func(context.Context, *task.Task) error { return nil }
			do := s.Do
			s.Do = func(ctx context.Context, t *task.Task) (any, error) {
				if _, err := do(ctx, t); err != nil {
					return nil, err
				}
				return nil, fault.New(fault.Unavailable, "lost")
			}
		})
	}},
	{"the source not cleaned up", func(*world) conductor.Mutation {
		return change(migration.StepCleanUpSource, func(s *task.Step) {
			s.Do = func(context.Context, *task.Task) (any, error) { return nil, nil }
		})
	}},
	{"post-copy not followed", func(*world) conductor.Mutation {
		return change(migration.StepFollowPostCopy, func(s *task.Step) {
			s.Do = func(context.Context, *task.Task) (any, error) { return nil, nil }
		})
	}},
	{"post-copy left out of the journal once it has begun", func(*world) conductor.Mutation {
		return change(migration.StepFollowPostCopy, func(s *task.Step) { s.Skip = func(task.State) bool { return true } })
	}},
	{"a second job that did not begin taken for post-copy", func(*world) conductor.Mutation {
		return change(migration.StepPostCopy, func(s *task.Step) {
			s.Do = func(context.Context, *task.Task) (any, error) { return nil, nil }
		})
	}},
	{"post-copy begun wherever it is permitted", func(*world) conductor.Mutation {
		return change(migration.StepPostCopy, func(s *task.Step) { s.Skip = nil })
	}},
	{"a recovery that is tried once", func(*world) conductor.Mutation {
		return change(migration.StepFollowPostCopy, func(s *task.Step) {
			s.Do = func(ctx context.Context, t *task.Task) (any, error) {
				return nil, fmt.Errorf("%w: the connection broke", task.ErrTurnBack)
			}
		})
	}},
	{"the migration's allocation left", func(*world) conductor.Mutation {
		return change(migration.StepDeleteAllocation, func(s *task.Step) {
			s.Do = func(context.Context, *task.Task) (any, error) { return nil, nil }
		})
	}},
}

func TestMutants_AreAllCaught(t *testing.T) {
	for i, mutant := range mutants {
		if i%stride != 0 {
			continue
		}
		t.Run(mutant.name, func(t *testing.T) {
			broken := func(w *world) { w.mutate = mutant.mutate }
			for runs, seed := 0, uint64(0); runs < 4*len(scenarios)*10; seed++ {
				for i, sc := range scenarios {
					runs++
					f := faults{}
					if seed > 0 {
						f = faults{chance: 0.1, budget: 4}
					}
					w, _ := play(t, i, seed, f, broken)
					if len(w.violations) > 0 {
						t.Logf("caught in run %d (%s, seed %d): %s", runs, sc.name, seed, w.violations[0])
						return
					}
				}
			}
			t.Error("no run noticed it")
		})
	}
}

// TestSwapBack_TurnsAwayASwapThatLandsLate aborts while the swap is on its way:
// it must find a raised generation.
func TestSwapBack_TurnsAwayASwapThatLandsLate(t *testing.T) {
	reference := newWorld(t, 1, script{}, faults{})
	reference.run()
	swap := -1
	for i, what := range reference.trace {
		if what == "before post allocations" {
			swap = i
		}
	}
	run := func(seed uint64, mutate func(*world) conductor.Mutation) *world {
		w := newWorld(t, seed, script{abortAfter: 300 * time.Millisecond}, faults{requests: map[int]bool{swap: true}})
		w.mutate = mutate
		if m := w.run(); m.Status != migration.StatusCancelled {
			t.Fatalf("status %s, want cancelled: the abort did not meet the swap", m.Status)
		}
		return w
	}
	for seed := range uint64(10) {
		run(seed, nil).report(fmt.Sprintf("seed %d", seed))
	}
	if w := run(1, readAlone); len(w.violations) == 0 {
		t.Error("an undo by a read alone is not noticed")
	}
}
