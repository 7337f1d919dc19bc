package web

import (
	"context"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

// stopped is a clock that a test moves.
type stopped struct {
	runtime.System
	boot time.Duration
}

func (s *stopped) Boot() runtime.BootTime { return runtime.BootTime{ID: "b", Since: s.boot} }

// TestScene_LooksOnceASecondForAll however many look on.
func TestScene_LooksOnceASecondForAll(t *testing.T) {
	rt, looks := &stopped{boot: time.Hour}, 0
	s := scene{rt: rt, look: func(context.Context) Snapshot { looks++; return Snapshot{} }}
	for range 100 {
		if _, err := s.now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if looks != 1 {
		t.Errorf("looked %d times", looks)
	}
	rt.boot += freshFor
	if _, err := s.now(t.Context()); err != nil || looks != 2 {
		t.Errorf("a second later: looked %d times, %v", looks, err)
	}
}

// TestView_OfAHostThatHasJustBegun: nothing is known, and that is said.
func TestView_OfAHostThatHasJustBegun(t *testing.T) {
	s := scene{rt: &stopped{boot: 1}, look: func(context.Context) Snapshot { return Snapshot{MovesError: "not known yet"} }}
	p, err := s.now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.whole()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"The agent is starting", "The hardware has not been read yet", "It is being asked which guests are here", "not known yet", "Nothing was moved"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	for _, never := range []string{"Nothing moves", "no guests here"} {
		if strings.Contains(string(text), never) {
			t.Errorf("it says %q, which nobody knows", never)
		}
	}
}

// TestView_SaysAThingOnce: a part whose only reason is its detail is told by its reason.
func TestView_SaysAThingOnce(t *testing.T) {
	part := func(detail string) api.Condition {
		return api.Condition{Name: "libvirt", Health: api.HealthDegraded, Detail: detail, Reasons: []fault.Reason{{Message: "no answer since noon", Change: "start it"}}}
	}
	v := viewOf(Snapshot{Status: api.Status{Ready: true, Conditions: []api.Condition{part("no answer since noon"), part("2 guests of 3")}}})
	if len(v.Wrong) != 2 || v.Wrong[0].Detail != "" || v.Wrong[1].Detail != "2 guests of 3" || v.Headline != "2 things are not well" {
		t.Errorf("%s: %+v", v.Headline, v.Wrong)
	}
}

// TestMove_ShowsWhereItStands goes through what a step and a transfer can be.
func TestMove_ShowsWhereItStands(t *testing.T) {
	m := migration.Migration{
		Phase: task.Undoing, Step: "claim", Outcome: migration.OutcomeInDoubt, SourceCompute: "a", MigrationType: migration.TypeRebuild,
		Steps: []migration.StepRecord{
			{Name: "check", State: task.StepEnded, Duration: 1500 * time.Millisecond}, {Name: "claim", State: task.StepEnded},
			{Name: "prepare", State: task.StepUndone}, {Name: "stream", State: task.StepFailed, Error: "cut off"}, {Name: "commit"},
		},
		Progress: migration.Progress{MemoryTotal: 100, MemoryRemaining: 500},
	}
	got := moveOf(m)
	want := []step{{"check", "done", "done in 1.5 s"}, {"claim", "undone", "is being put back"}, {"prepare", "undone", "was put back"}, {"stream", "failed", "cut off"}, {"commit", "ahead", "still to come"}}
	for i, s := range got.Steps {
		if s != want[i] {
			t.Errorf("step %d: %+v, want %+v", i, s, want[i])
		}
	}
	// More is left than there was: a guest writes faster than it is sent.
	if got.Tone != "bad" || got.To != "a" || got.Transfer == nil || got.Transfer.Percent != 0 || got.Transfer.Done != 0 {
		t.Errorf("%+v, %+v", got, got.Transfer)
	}
}

func TestWords(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1 KiB", 1536 << 20: "1.5 GiB", 118 << 20: "118 MiB", 1 << 60: "1024 PiB"} {
		if got := amount(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0 s", 180 * time.Millisecond: "180 ms", 1500 * time.Millisecond: "1.5 s", 32 * time.Second: "32 s", 12 * time.Minute: "12 min", 50 * time.Hour: "50 h"} {
		if got := rough(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
