package task_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a store, a log of what happened in order, and processes that can die.
type bench struct {
	t     *testing.T
	sim   *simruntime.Simulation
	data  map[string][]byte
	log   []string
	fail  int // so many writes of the store fail
	crash int // the process dies at this point; -1 never
	point int // counted
	proc  *simruntime.Process
	state []task.State // as OnChange saw them
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, sim: simruntime.New(1), data: map[string][]byte{}, crash: -1}
	b.proc = b.sim.Process("p", "boot")
	return b
}

func (b *bench) note(format string, args ...any) { b.log = append(b.log, fmt.Sprintf(format, args...)) }

// here is a point where the process may die.
func (b *bench) here() {
	if b.point == b.crash {
		b.proc.Kill()
	}
	b.point++
	b.proc.Yield()
}

func (b *bench) Put(_ context.Context, bucket, key string, value []byte) error {
	b.here()
	if b.fail > 0 {
		b.fail--
		return errors.New("no space left on device")
	}
	b.data[key] = slices.Clone(value)
	b.note("journal")
	b.here()
	return nil
}

func (b *bench) Delete(_ context.Context, _, key string) error {
	delete(b.data, key)
	return nil
}

func (b *bench) List(context.Context, string) (map[string][]byte, error) {
	return maps.Clone(b.data), nil
}

func (b *bench) engine() *task.Engine {
	return task.New(task.Options{Runtime: b.proc, Store: b, OnChange: func(s task.State) { b.state = append(b.state, s) }})
}

// run drives the one task, begun or found, until it is over or the process dies.
func (b *bench) run(steps []task.Step, meanwhile func(*task.Task)) (st task.State) {
	b.t.Helper()
	over := false
	b.proc.Go("task", func() {
		e := b.engine()
		found, broken, err := e.Load(context.Background())
		if err != nil || len(broken) > 0 {
			b.t.Errorf("load: %v, %v", err, broken)
		}
		tk := found["x"]
		if tk == nil {
			if tk, err = e.Begin(context.Background(), "x"); err != nil {
				b.t.Errorf("begin: %v", err)
				return
			}
		}
		if meanwhile != nil {
			b.proc.Go("meanwhile", func() { meanwhile(tk) })
		}
		if err := e.Run(context.Background(), tk, steps); err != nil {
			b.t.Errorf("run: %v", err)
		}
		st, over = tk.State(), true
	})
	if err := b.sim.Run(time.Hour, func() bool { return over || b.proc.Dead() }); err != nil {
		b.t.Error(err)
	}
	return st
}

// restart is a new process on the old journal.
func (b *bench) restart() {
	b.proc.Kill()
	b.proc = b.sim.Process("p", "boot")
}

// end lets every actor go.
func (b *bench) end() { b.sim.Shutdown() }

// step notes what is done with it; do and undo may be nil for success.
func (b *bench) step(name string, do func(context.Context, *task.Task) error, undo func(context.Context, *task.Task) error) task.Step {
	return task.Step{
		Name: name,
		Do: func(ctx context.Context, t *task.Task) (any, error) {
			b.here()
			b.note("do %s", name)
			if do != nil {
				if err := do(ctx, t); err != nil {
					return nil, err
				}
			}
			b.here()
			return "out of " + name, nil
		},
		Undo: func(ctx context.Context, t *task.Task) error {
			b.here()
			b.note("undo %s", name)
			if undo != nil {
				return undo(ctx, t)
			}
			b.here()
			return nil
		},
	}
}

func fails(context.Context, *task.Task) error {
	return fault.Refuse(fault.DoesNotFit, "it", fault.Reason{Code: "c", Message: "does not fit"})
}

func (b *bench) want(log ...string) {
	b.t.Helper()
	got := slices.DeleteFunc(slices.Clone(b.log), func(s string) bool { return s == "journal" })
	if diff := cmp.Diff(log, got); diff != "" {
		b.t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

func TestRun_WritesIntentBeforeEffect(t *testing.T) {
	b := newBench(t)
	st := b.run([]task.Step{b.step("one", nil, nil), b.step("two", nil, nil)}, nil)
	b.end()
	want := []string{"journal", "journal", "do one", "journal", "do two", "journal"} // begin, intent, end and intent, end
	if diff := cmp.Diff(want, b.log); diff != "" || st.Phase != task.Done {
		t.Errorf("phase %s, order (-want +got):\n%s", st.Phase, diff)
	}
}

func TestRun_UndoesTheFailedStepFirstAndThenBackwards(t *testing.T) {
	b := newBench(t)
	nothing := b.step("check", nil, nil)
	nothing.Undo = nil
	st := b.run([]task.Step{b.step("one", nil, nil), nothing, b.step("two", nil, nil), b.step("three", fails, nil), b.step("four", nil, nil)}, nil)
	b.end()
	b.want("do one", "do check", "do two", "do three", "undo three", "undo two", "undo one")
	if st.Phase != task.Undone || !errors.Is(st.Cause.Err(), fault.DoesNotFit) || fault.ReasonsOf(st.Cause.Err())[0].Code != "c" {
		t.Errorf("phase %s, cause %v", st.Phase, st.Cause)
	}
}

// TestRun_BelievesThatNothingWasDoneOfAStepThatRanOnce: what a run before a restart
// sent may have an effect yet, whatever the next one finds.
func TestRun_BelievesThatNothingWasDoneOfAStepThatRanOnce(t *testing.T) {
	nothing := func(context.Context, *task.Task) error {
		return fmt.Errorf("refused: %w: %w", task.ErrNothingDone, fault.DoesNotFit)
	}
	for _, crash := range []int{-1, 8} { // before "two" does anything
		b := newBench(t)
		steps := func() []task.Step { return []task.Step{b.step("one", nil, nil), b.step("two", nothing, nil)} }
		b.crash = crash
		st := b.run(steps(), nil)
		want := []string{"do one", "do two", "undo one"}
		if crash >= 0 {
			b.restart()
			b.crash = -1
			st = b.run(steps(), nil)
			want = []string{"do one", "do two", "undo two", "undo one"}
		}
		b.end()
		b.want(want...)
		two, _ := st.Step("two")
		if st.Phase != task.Undone || two.State != task.StepUndone || !errors.Is(two.Error.Err(), fault.DoesNotFit) {
			t.Errorf("crash at %d: phase %s, step %+v", crash, st.Phase, two)
		}
	}
}

func TestOutput_IsThereForLaterStepsAndUndosAfterARestart(t *testing.T) {
	b := newBench(t)
	read := func(_ context.Context, tk *task.Task) error {
		var s string
		if err := tk.Output("one", &s); err != nil {
			return err
		}
		b.note("read %q", s)
		if err := tk.Output("two", &s); !errors.Is(err, fault.NotFound) {
			t.Errorf("output of a step that has not ended: %v", err)
		}
		return nil
	}
	steps := func() []task.Step {
		return []task.Step{b.step("one", nil, read), b.step("two", func(ctx context.Context, tk *task.Task) error {
			_ = read(ctx, tk)
			return fails(ctx, tk)
		}, nil)}
	}
	b.crash = 8 // before "two" does anything
	b.run(steps(), nil)
	b.restart()
	b.crash = -1
	b.run(steps(), nil)
	b.end()
	b.want("do one", "do two", `read "out of one"`, "undo two", "undo one", `read "out of one"`)
}

func TestRun_ForwardStepsAreTriedUntilDone(t *testing.T) {
	b := newBench(t)
	tries := 0
	last := b.step("last", func(context.Context, *task.Task) error {
		if tries++; tries < 20 {
			return fault.New(fault.Unavailable, "peer is down")
		}
		return nil
	}, nil)
	last.Forward = true
	st := b.run([]task.Step{b.step("one", nil, nil), last}, func(tk *task.Task) {
		_ = b.proc.Sleep(context.Background(), 30*time.Second)
		if err := tk.Cancel(errors.New("enough")); !errors.Is(err, fault.Forbidden) {
			t.Errorf("cancel past the point of no return: %v", err)
		}
	})
	b.end()
	if st.Phase != task.Done || tries != 20 || st.Doubt != nil {
		t.Errorf("phase %s after %d tries, doubt %v", st.Phase, tries, st.Doubt)
	}
	var doubted time.Duration
	for _, s := range b.state {
		if s.Doubt != nil {
			doubted = 1
			if !strings.Contains(s.Doubt.Message, "peer is down") || s.Doubt.Kind != fault.InDoubt {
				t.Errorf("doubt %+v", s.Doubt)
			}
		}
	}
	if doubted == 0 {
		t.Error("a minute of failing was never told")
	}
}

func TestRun_NeverForgetsAnUndo(t *testing.T) {
	b := newBench(t)
	down := true
	undo := func(context.Context, *task.Task) error {
		if down {
			return fault.New(fault.Unavailable, "peer is down")
		}
		return nil
	}
	steps := func(lag bool) []task.Step {
		two := b.step("two", nil, undo)
		two.UndoMayLag = lag
		return []task.Step{b.step("one", nil, undo), two, b.step("three", fails, nil)}
	}
	var stuck task.State
	b.run(steps(true), func(tk *task.Task) {
		_ = b.proc.Sleep(context.Background(), 2*time.Minute)
		stuck = tk.State()
		b.proc.Kill()
		b.proc.Yield()
	})
	if err := stuck.Undos(); stuck.Phase != task.Undoing || err == nil ||
		!strings.Contains(err.Error(), "undo step one: peer is down") || !strings.Contains(err.Error(), "undo step two: peer is down") {
		t.Errorf("phase %s, undos %v; want undoing and both", stuck.Phase, err)
	}
	b.restart()
	down, b.log = false, nil
	st := b.run(steps(true), nil)
	b.end()
	b.want("undo two", "undo one") // three was undone before the restart
	if st.Phase != task.Undone || st.Undos() != nil {
		t.Errorf("phase %s, undos %v", st.Phase, st.Undos())
	}
}

func TestRun_AsksAgainSoonForAnUndoThatFailedOnce(t *testing.T) {
	b := newBench(t)
	var at []time.Duration // of each pass
	steps := []task.Step{b.step("one", fails, func(context.Context, *task.Task) error {
		now := b.proc.Boot().Since
		if len(at) == 0 || now-at[len(at)-1] > 5*time.Second {
			at = append(at, now)
		}
		if len(at) < 5 {
			return errors.New("peer is down")
		}
		return nil
	})}
	b.run(steps, nil)
	b.end()
	for i, most := range []time.Duration{12 * time.Second, 22 * time.Second, 32 * time.Second, 32 * time.Second} {
		if pause := at[i+1] - at[i]; pause > most {
			t.Errorf("pass %d came after %v, want at most %v", i+2, pause, most)
		}
	}
}

func TestRun_UndoesNothingEarlierThanAnUndoThatMustNotLag(t *testing.T) {
	b := newBench(t)
	tries := 0
	b.run([]task.Step{b.step("one", nil, nil), b.step("two", fails, func(context.Context, *task.Task) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})}, nil)
	b.end()
	b.want("do one", "do two", "undo two", "undo two", "undo two", "undo one")
}

func TestRun_TurnsRoundWhenItIsTooLateToUndo(t *testing.T) {
	b := newBench(t)
	first := true
	two := b.step("two", func(ctx context.Context, _ *task.Task) error {
		if first {
			first = false
			return b.proc.Sleep(ctx, time.Hour)
		}
		return nil
	}, func(context.Context, *task.Task) error { return fmt.Errorf("%w: it has left", task.ErrTooLate) })
	st := b.run([]task.Step{b.step("one", nil, nil), two, b.step("three", nil, nil)}, func(tk *task.Task) {
		_ = b.proc.Sleep(context.Background(), time.Second)
		if err := tk.Cancel(errors.New("enough")); err != nil {
			t.Errorf("cancel: %v", err)
		}
	})
	b.end()
	b.want("do one", "do two", "undo two", "do two", "do three")
	if st.Phase != task.Done || st.Cause != nil || !st.Turned {
		t.Errorf("phase %s, cause %v, turned %v", st.Phase, st.Cause, st.Turned)
	}
}

func TestCancel_IsSeenInsideAStepAndBetweenSteps(t *testing.T) {
	enough := fault.New(fault.Undone, "enough")
	t.Run("inside", func(t *testing.T) {
		b := newBench(t)
		var seen error
		st := b.run([]task.Step{b.step("one", func(ctx context.Context, _ *task.Task) error {
			seen = b.proc.Sleep(ctx, time.Hour)
			return fmt.Errorf("waiting: %w", seen)
		}, nil)}, func(tk *task.Task) {
			_ = b.proc.Sleep(context.Background(), time.Minute)
			_ = tk.Cancel(enough)
		})
		b.end()
		b.want("do one", "undo one")
		if seen != enough || st.Cause.Message != "enough" {
			t.Errorf("the step saw %v; cause %v", seen, st.Cause)
		}
	})
	t.Run("between", func(t *testing.T) {
		b := newBench(t)
		b.run([]task.Step{b.step("one", func(_ context.Context, tk *task.Task) error { return tk.Cancel(enough) }, nil), b.step("two", nil, nil)}, nil)
		b.end()
		b.want("do one", "undo one")
	})
	t.Run("refused by a final step, which may still fail", func(t *testing.T) {
		b := newBench(t)
		final := b.step("final", func(ctx context.Context, tk *task.Task) error {
			if err := tk.Cancel(enough); !errors.Is(err, fault.Forbidden) || ctx.Err() != nil {
				t.Errorf("cancel: %v, context %v", err, ctx.Err())
			}
			return fails(ctx, tk)
		}, nil)
		final.Final = true
		st := b.run([]task.Step{b.step("one", nil, nil), final}, nil)
		b.end()
		b.want("do one", "do final", "undo final", "undo one")
		if st.Cause.Kind != fault.DoesNotFit {
			t.Errorf("cause %v", st.Cause)
		}
	})
}

func TestRun_RestartRepeatsOrUndoesAsTheStepSays(t *testing.T) {
	for _, undo := range []bool{false, true} {
		b := newBench(t)
		steps := func() []task.Step {
			two := b.step("two", nil, nil)
			two.UndoOnRestart = undo
			return []task.Step{b.step("one", nil, nil), two}
		}
		b.crash = 9 // after the effect of "two"
		b.run(steps(), nil)
		b.restart()
		b.crash = -1
		st := b.run(steps(), nil)
		b.end()
		if undo {
			b.want("do one", "do two", "undo two", "undo one")
		} else {
			b.want("do one", "do two", "do two")
		}
		if (st.Phase == task.Undone) != undo {
			t.Errorf("undo on restart %v: phase %s", undo, st.Phase)
		}
	}
}

func TestRun_WaitsForAStoreThatFails(t *testing.T) {
	b := newBench(t)
	st := b.run([]task.Step{b.step("one", func(context.Context, *task.Task) error { b.fail = 5; return nil }, nil), b.step("two", nil, nil)}, nil)
	b.end()
	b.want("do one", "do two")
	if st.Phase != task.Done || b.sim.Elapsed() < time.Second {
		t.Errorf("phase %s after %s", st.Phase, b.sim.Elapsed())
	}
	if !slices.ContainsFunc(b.state, func(s task.State) bool { return s.Doubt != nil && strings.Contains(s.Doubt.Message, "no space left") }) {
		t.Error("nobody was told that the journal cannot be written")
	}
}

func TestLoad_NamesABrokenJournal(t *testing.T) {
	b := newBench(t)
	b.data["good"] = []byte(`{"id":"good","phase":"doing"}`)
	b.data["torn"] = []byte(`{"id":"torn","pha`)
	b.data["other"] = []byte(`{"id":"good","phase":"doing"}`)
	tasks, broken, err := b.engine().Load(context.Background())
	if err != nil || len(tasks) != 1 || tasks["good"] == nil || broken["torn"] == nil || broken["other"] == nil {
		t.Errorf("tasks %v, broken %v, %v", tasks, broken, err)
	}
}

// TestRun_EveryCrashPoint dies at every write and around every effect of a story
// that succeeds, one that fails and one that goes forward, and restarts: each
// effect stands at the end, or none does.
func TestRun_EveryCrashPoint(t *testing.T) {
	points := 0
	for _, failing := range []bool{false, true} {
		for crash := 0; ; crash++ {
			b := newBench(t)
			made := map[string]bool{}
			step := func(name string) task.Step {
				return b.step(name, func(context.Context, *task.Task) error { made[name] = true; return nil },
					func(context.Context, *task.Task) error { delete(made, name); return nil })
			}
			steps := func() []task.Step {
				last := step("last")
				last.Forward = true
				all := []task.Step{step("one"), step("two"), step("three")}
				if failing {
					all = append(all, b.step("fails", fails, nil))
				}
				return append(all, last)
			}
			b.crash = crash
			st := b.run(steps(), nil)
			died := b.proc.Dead()
			if died {
				b.restart()
				b.crash = -1
				st = b.run(steps(), nil)
			}
			b.end()
			want := map[task.Phase]int{task.Done: 4, task.Undone: 0}[st.Phase]
			if len(made) != want || (st.Phase == task.Done) == failing {
				t.Errorf("failing %v, crash at %d: phase %s with %v", failing, crash, st.Phase, made)
			}
			if !died {
				break
			}
			points++
		}
	}
	t.Logf("%d crash points", points)
}
