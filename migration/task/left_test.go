package task_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/migration/task"
)

// TestRun_AnOlderJournalIsNotTakenBackToANewStep: a release adds a step to a story of
// which journals exist. Who has not begun what follows it does it; who has goes on.
func TestRun_AnOlderJournalIsNotTakenBackToANewStep(t *testing.T) {
	names := func(b *bench) (older, newer []task.Step) {
		one, two, three := b.step("one", nil, nil), b.step("two", nil, nil), b.step("three", nil, nil)
		return []task.Step{one, three}, []task.Step{one, two, three}
	}
	reference := newBench(t)
	older, _ := names(reference)
	reference.run(older, nil)
	reference.end()
	seen := map[bool]int{} // with the new step, without
	for crash := range reference.point {
		b := newBench(t)
		older, newer := names(b)
		b.crash = crash
		b.run(older, nil)
		begun := string(b.data["x"])
		b.restart()
		b.crash, b.log = -1, nil
		st := b.run(newer, nil)
		b.end()
		// The end of one step and the begin of the next are one write.
		past := slices.Contains(b.log, "do two")
		seen[past]++
		var steps []string
		for _, s := range st.Steps {
			steps = append(steps, s.Name)
		}
		want := []string{"one", "three"}
		if past {
			want = []string{"one", "two", "three"}
		}
		if st.Phase != task.Done || !slices.Equal(steps, want) {
			t.Errorf("crash at %d, journal %s: %s with %v, want %v", crash, begun, st.Phase, steps, want)
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("with the new step and without: %v, want some of each", seen)
	}
}

// TestRun_LeavesATaskWhoseUndosLag, and goes on with it when it is run again.
func TestRun_LeavesATaskWhoseUndosLag(t *testing.T) {
	b := newBench(t)
	down := true
	away := func(context.Context, *task.Task) error {
		if down {
			return task.By("far", fault.New(fault.Unavailable, "no answer"))
		}
		return nil
	}
	one, two := b.step("one", nil, nil), b.step("two", nil, away)
	two.UndoMayLag = true
	steps := []task.Step{one, two, b.step("three", fails, nil)}
	var left task.State
	over := false
	b.proc.Go("task", func() {
		tk, err := b.engine().Begin(context.Background(), "x")
		if err != nil {
			t.Error(err)
		}
		tk.LeaveWhen(func(s task.State) bool {
			left = s
			return true
		})
		if err := b.engine().Run(context.Background(), tk, steps); !errors.Is(err, task.ErrLeft) {
			t.Errorf("run: %v", err)
		}
		down, b.log = false, nil
		if err := b.engine().Run(context.Background(), tk, steps); err != nil {
			t.Errorf("run again: %v", err)
		}
		if st := tk.State(); st.Phase != task.Undone {
			t.Errorf("at the end %s", st.Phase)
		}
		over = true
	})
	if err := b.sim.Run(time.Hour, func() bool { return over }); err != nil {
		t.Error(err)
	}
	b.end()
	b.want("undo two")
	one2, _ := left.Step("one")
	two2, _ := left.Step("two")
	if left.Phase != task.Undoing || one2.State != task.StepUndone || two2.State == task.StepUndone || two2.Undo == nil || two2.Undo.By != "far" {
		t.Errorf("left with %+v and %+v", one2, two2)
	}
}

// TestBy_IsKeptInJournals, also of an error that comes from one.
func TestBy_IsKeptInJournals(t *testing.T) {
	err := task.By("far", fault.New(fault.Busy, "not now"))
	kept := task.Keep(errors.Join(errors.New("step"), err))
	again := task.Keep(kept.Err())
	if kept.By != "far" || again.By != "far" || again.Kind != fault.Busy || task.By("far", nil) != nil || task.Whose(errors.New("x")) != "" {
		t.Errorf("kept %+v, and again %+v", kept, again)
	}
}
