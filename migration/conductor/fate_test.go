package conductor

import (
	"context"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

func TestConducts_WhatBecameOfAnAttempt(t *testing.T) {
	c := New(Config{Runtime: &runtime.System{}})
	if got := c.Conducts("m", 1); got != migration.ConductGoing {
		t.Errorf("before the journal is read: %q", got)
	}
	c.run = context.Background()
	for _, tt := range []struct {
		attempt int
		outcome migration.Outcome
		asked   int
		want    migration.Conduct
	}{
		{1, migration.OutcomeNone, 1, migration.ConductGoing}, {1, migration.OutcomeInDoubt, 1, migration.ConductGoing}, {2, migration.OutcomeNone, 1, migration.ConductOver},
		{1, migration.OutcomeUndone, 1, migration.ConductOver}, {1, migration.OutcomeRefused, 1, migration.ConductOver}, {1, migration.OutcomeCompleted, 1, migration.ConductDone}, {2, migration.OutcomeCompleted, 1, migration.ConductOver},
	} {
		c.stories["m"] = newStory(c, stored{Migration: migration.Migration{UUID: "m", Attempt: tt.attempt, Outcome: tt.outcome}})
		if got := c.Conducts("m", tt.asked); got != tt.want {
			t.Errorf("attempt %d of one at attempt %d, %s: %q, want %q", tt.asked, tt.attempt, tt.outcome, got, tt.want)
		}
	}
	s := newStory(c, stored{Migration: migration.Migration{UUID: "m", Attempt: 1}})
	c.stories["m"] = s
	for phase, want := range map[task.Phase]migration.Conduct{task.Doing: migration.ConductSeen, task.Undoing: migration.ConductGoing} {
		s.state = task.State{Phase: phase, Steps: []task.StepState{{Name: migration.StepStream, State: task.StepEnded}, {Name: migration.StepCommit, State: task.StepBegun}}}
		if got := c.Conducts("m", 1); got != want {
			t.Errorf("%s, with its commit begun: %q, want %q", phase, got, want)
		}
	}
	if got := c.Conducts("other", 1); got != migration.ConductNone {
		t.Errorf("of a migration that is not known: %q", got)
	}
}

// stillClock is a runtime of one moment, which notes what is slept.
type stillClock struct {
	runtime.System
	boot  runtime.BootTime
	slept time.Duration
}

func (c *stillClock) Boot() runtime.BootTime { return c.boot }

func (c *stillClock) Sleep(_ context.Context, d time.Duration) error {
	c.slept = d
	return fault.New(fault.Unavailable, "the process ends")
}

func TestDeadline_IsOnTheBootClock(t *testing.T) {
	at := func(id string, since time.Duration) runtime.BootTime { return runtime.BootTime{ID: id, Since: since} }
	for name, tt := range map[string]struct {
		now, until runtime.BootTime
		want       time.Duration
	}{
		"the rest of it":             {at("x", 10*time.Second), at("x", 70*time.Second), time.Minute},
		"over while nobody was here": {at("x", 90*time.Second), at("x", 70*time.Second), 0},
		"anew in another boot":       {at("y", 10*time.Second), at("x", 70*time.Second), time.Hour},
	} {
		rt := &stillClock{boot: tt.now, slept: -1}
		s := newStory(New(Config{Runtime: rt}), stored{Limit: time.Hour, Until: tt.until})
		s.timeLimits().deadline(context.Background(), &task.Task{}, 1)
		if rt.slept != tt.want {
			t.Errorf("%s: waits %s, want %s", name, rt.slept, tt.want)
		}
	}
}

func TestAttemptLimit_IsNovasRule(t *testing.T) {
	c := New(Config{Runtime: &runtime.System{}})
	g := migration.Guest{}
	g.Resources.MemoryMB = 512
	if got := c.attemptLimit(g, migration.Options{}); got != 1600*time.Second {
		t.Errorf("a small guest: %s", got)
	}
	g.Resources.MemoryMB, g.Resources.DiskGB = 8192, 20
	if got := c.attemptLimit(g, migration.Options{}); got != 28*800*time.Second {
		t.Errorf("28 GiB: %s", got)
	}
	c = New(Config{Runtime: &runtime.System{}, AttemptTimeout: time.Minute})
	if got := c.attemptLimit(g, migration.Options{}); got != time.Minute {
		t.Errorf("as configured: %s", got)
	}
	// The transfer's own deadline, a third of it for the switch-over, and time to prepare.
	if got := c.attemptLimit(g, migration.Options{Timeout: 30 * time.Minute}); got != 50*time.Minute {
		t.Errorf("of a transfer that may take half an hour: %s", got)
	}
}
