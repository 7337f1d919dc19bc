package answers

import (
	"testing"
	"time"
)

func TestTimes_Late_OnlyBeyondItsTime(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	before := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, c := range []struct {
		what  string
		times Times
		since time.Time
		late  bool
	}{
		{"never asked", Times{}, time.Time{}, false},
		{"it has answered", Times{Answered: before(time.Hour)}, time.Time{}, false},
		{"asked a moment ago", Times{Asked: before(time.Second), Answered: before(time.Hour)}, time.Time{}, false},
		{"asked for long", Times{Asked: before(time.Minute), Answered: before(time.Hour)}, before(time.Hour), true},
		{"asked for long, and never answered", Times{Asked: before(time.Minute)}, before(time.Minute), true},
	} {
		if since, late := c.times.Late(now, 10*time.Second); late != c.late || !since.Equal(c.since) {
			t.Errorf("%s: late %v since %v, want %v %v", c.what, late, since, c.late, c.since)
		}
	}
}

func TestTable_KeepsTheOldestQuestionUntilAnAnswer(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	var a Table
	a.Answer("host-b", now)
	a.Miss("host-b", now.Add(time.Minute))
	a.Miss("host-b", now.Add(2*time.Minute))
	if got, want := a.Of("host-b"), (Times{now.Add(time.Minute), now, now.Add(2 * time.Minute)}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	a.Answer("host-b", now.Add(3*time.Minute))
	if got, want := a.Of("host-b"), (Times{Answered: now.Add(3 * time.Minute)}); got != want {
		t.Errorf("after an answer: %+v, want %+v", got, want)
	}
}

func TestTable_Late_NamesLoopsThatStand(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	var a Table
	a.Begin("audit", now, time.Minute)
	a.Begin("fleet", now, time.Minute)
	a.Begin("over", now, time.Minute)
	a.End("over")
	a.Miss("host-b", now) // no loop: whoever asks it says so
	a.Round("fleet", now.Add(time.Minute))
	late := a.Late(now.Add(90 * time.Second))
	if len(late) != 1 || late[0] != (Silent{"audit", now, time.Minute}) {
		t.Errorf("%+v, want the audit alone, since %v", late, now)
	}
	if late := a.Late(now.Add(3 * time.Minute)); len(late) != 2 || !late[1].Since.Equal(now.Add(time.Minute)) {
		t.Errorf("later: %+v, want both, the second since its last round", late)
	}
}
