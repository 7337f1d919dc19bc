package stories_test

import (
	"runtime/debug"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"berth/test/stories"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1600) // runs are short and their memory is small
	goleak.VerifyTestMain(m)
}

func TestRows_NothingIsLeft(t *testing.T) {
	rows := stories.Play(stories.Expected())
	if len(rows) < 200 {
		t.Errorf("%d rows: want every step of every story in every way", len(rows))
	}
	told := 0
	for _, r := range rows {
		if r.Good() {
			continue
		}
		if told++; told <= 10 {
			t.Errorf("%s: missing %v, outcome %q, left %v\n  %s", r, r.Missing, r.Outcome, r.Left, strings.Join(r.Violations, "\n  "))
		}
	}
	t.Logf("%d rows, %d of them bad", len(rows), told)
}
