package task_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration/task"
)

// skipIf leaves a step out where another has given an output, or none.
func skipIf(step task.Step, of string, given bool) task.Step {
	step.Skip = func(s task.State) bool {
		one, _ := s.Step(of)
		return (string(one.Output) == `"out of `+of+`"`) == given
	}
	return step
}

// TestRun_LeavesOutWhatIsSkipped: no effect, no trace, no write more than without the step;
// the same after a crash at any moment, and when the story is undone.
func TestRun_LeavesOutWhatIsSkipped(t *testing.T) {
	steps := func(b *bench, left bool) []task.Step {
		return []task.Step{
			skipIf(b.step("never", nil, nil), "one", false), b.step("one", nil, nil), skipIf(b.step("maybe", nil, nil), "one", left),
			skipIf(b.step("perhaps", nil, nil), "one", left), b.step("two", nil, nil), skipIf(b.step("last", nil, nil), "two", left),
		}
	}
	for _, left := range []bool{true, false} {
		want := []string{"do one", "do maybe", "do perhaps", "do two", "do last"}
		if left {
			want = []string{"do one", "do two"}
		}
		b := newBench(t)
		st := b.run(steps(b, left), nil)
		b.end()
		b.want(want...)
		writes := len(slices.DeleteFunc(slices.Clone(b.log), func(s string) bool { return s != "journal" }))
		if st.Phase != task.Done || len(st.Steps) != len(want) || writes != len(want)+2 {
			t.Errorf("left out %v: phase %s, %d steps, %d writes", left, st.Phase, len(st.Steps), writes)
		}
		for crash := range b.point {
			b := newBench(t)
			b.crash = crash
			b.run(steps(b, left), nil)
			b.restart()
			b.crash = -1
			st := b.run(steps(b, left), nil)
			b.end()
			once := slices.Compact(slices.DeleteFunc(slices.Clone(b.log), func(s string) bool { return s == "journal" }))
			if diff := cmp.Diff(want, once); diff != "" || st.Phase != task.Done {
				t.Errorf("left out %v, crash at %d: phase %s (-want +got):\n%s", left, crash, st.Phase, diff)
			}
		}
	}
	b := newBench(t)
	st := b.run(append(steps(b, true), b.step("fails", fails, nil)), nil)
	b.end()
	b.want("do one", "do two", "do fails", "undo fails", "undo two", "undo one")
	if st.Phase != task.Undone {
		t.Errorf("undone: %s", st.Phase)
	}
}
