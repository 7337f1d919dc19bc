package conductor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/options"
	"berth/topology"
)

func TestConvergePlan_IsWhatTheOptionsAskFor(t *testing.T) {
	guest := migration.Guest{
		Resources: topology.Resources{MemoryMB: 3 * 1024}, XML: "<domain><devices><hostdev mode='subsystem'/></devices></domain>",
		Disks: []migration.Disk{{VirtualSize: 10 << 30}, {VirtualSize: 1}, {VirtualSize: 1 << 40, Network: true}, {VirtualSize: 1 << 40, ReadOnly: true}},
	}
	got, err := convergePlan(migration.Options{
		MaxDowntime: time.Second, DowntimeSteps: 5, DowntimeDelay: 3 * time.Second, Timeout: time.Minute, TimeoutPerGiB: 10 * time.Second,
		TimeoutAction: options.ActionForce, PostCopy: options.On, Schedule: "2:max-downtime=2s", Observe: options.On,
	}, guest)
	want := converge.Plan{
		Schedule: converge.Schedule{{After: 2, Do: converge.ActDowntime, Downtime: 2 * time.Second}}, Observe: true,
		MaxDowntime: time.Second, Steps: 5, StepDelay: 3 * time.Second, DataGiB: 15,
		Deadline: 150 * time.Second, DeadlineAction: converge.DeadlineForce, PostCopyAllowed: true, UnderReported: true,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// The longer time counts, and nothing set asks for nothing.
	if p, _ := convergePlan(migration.Options{Timeout: time.Hour, TimeoutPerGiB: time.Second}, guest); p.Deadline != time.Hour {
		t.Errorf("deadline %s", p.Deadline)
	}
	if p, err := convergePlan(migration.Options{}, migration.Guest{}); err != nil || cmp.Diff(converge.Plan{DataGiB: 2}, p) != "" {
		t.Errorf("nothing set is %+v, %v", p, err)
	}
	if _, err := convergePlan(migration.Options{Schedule: "abort"}, migration.Guest{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a wrong schedule: %v", err)
	}
}

func TestJobOptions_BeginWithLadderAndThrottle(t *testing.T) {
	in := migration.Options{Bandwidth: 1 << 20, MaxDowntime: time.Second, DowntimeSteps: 10, DowntimeDelay: time.Second, Schedule: "start:throttle=30+20, 3:abort"}
	got, err := jobOptions(in)
	want := in
	want.MaxDowntime, want.AutoConverge, want.AutoConvergeInitial, want.AutoConvergeIncrement = 100*time.Millisecond, options.On, 30, 20
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	in.Observe, in.DowntimeSteps = options.On, 0
	if got, err := jobOptions(in); err != nil || cmp.Diff(in, got) != "" {
		t.Errorf("observed and without a ladder they are %+v, %v", got, err)
	}
}

// looking is a stream whose guest changes all of its 64 MiB while they are sent once, at 20
// MiB/s: 3.2 s a pass.
func looking(at time.Duration) *migration.StreamStatus {
	const mib = 1 << 20
	sent := uint64(at.Seconds() * 20 * mib)
	pass, in := sent/(64*mib), sent%(64*mib)
	return &migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "running"}, Progress: migration.Progress{
		Phase: "memory", Elapsed: at, MemoryTotal: 128 * mib, MemoryProcessed: sent, MemoryRemaining: 64*mib - in, Iteration: 1 + pass, Rate: 20 * mib,
	}}
}

// watched looks at it for a while.
func watched(c controller, from, to time.Duration) (controller, []converge.Action) {
	var all []converge.Action
	for at := from; at < to; at += 250 * time.Millisecond {
		var due []converge.Action
		c, due, _ = c.see(time.Hour+at, looking(at))
		all = append(all, due...)
	}
	return c, all
}

func TestController_DefaultOptionsAskForNothing(t *testing.T) {
	c, err := newController(migration.Migration{Options: migration.Options{MaxDowntime: 500 * time.Millisecond, StallTimeout: time.Second}}, migration.Guest{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, due := watched(c, 250*time.Millisecond, 10*time.Minute)
	if due != nil {
		t.Errorf("due: %+v", due)
	}
	p := estimated(looking(10*time.Minute).Progress, c.last)
	if !p.Never || p.Stalls < 100 || p.ExpectedDowntime < 3*time.Second || p.ExpectedDowntime > 3500*time.Millisecond || p.DirtyRate>>20 < 18 || p.DirtyRate>>20 > 21 {
		t.Errorf("progress %+v", p)
	}
}

func TestController_SilenceAndAnEndedJobChangeNothing(t *testing.T) {
	c, err := newController(migration.Migration{Options: migration.Options{Schedule: "1:abort", Timeout: time.Second}}, migration.Guest{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []*migration.StreamStatus{nil, {Progress: migration.Progress{Elapsed: time.Hour}}} {
		if after, due, _ := c.see(time.Hour, st); due != nil || after.state != c.state {
			t.Errorf("%+v: due %+v", st, due)
		}
	}
}

func TestController_AbortIsAnOperatorsReason(t *testing.T) {
	c, err := newController(migration.Migration{Options: migration.Options{Schedule: "3:abort"}}, migration.Guest{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, due := watched(c, 250*time.Millisecond, time.Minute)
	if len(due) != 1 || due[0].Do != converge.ActAbort {
		t.Fatalf("due: %+v", due)
	}
	err = abortOf(due[0])
	r := fault.ReasonsOf(err)
	if !errors.Is(err, fault.Undone) || len(r) != 1 || r[0].Code != converge.WhyStalled || r[0].Want == "" || r[0].Have == "" {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, part := range []string{"MiB/s are sent", "65 MiB remain", "would stand still for 3.3s and may for 300ms"} {
		if !strings.Contains(r[0].Message, part) {
			t.Errorf("%q does not say %q", r[0].Message, part)
		}
	}
	if !strings.Contains(r[0].Change, "--max-downtime") {
		t.Errorf("change: %q", r[0].Change)
	}
}

// An agent that adopts the job knows from the record what the guest may stand still for, counts
// stalls anew, and goes on with the time that the job has taken.
func TestController_BeginsAnewAfterARestart(t *testing.T) {
	begun := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	rec := migration.Migration{
		Options: migration.Options{Schedule: "2:max-downtime=4s, 2:abort", Timeout: 40 * time.Second},
		Steps:   []migration.StepRecord{{Name: migration.StepStream, Begun: begun}},
		Control: []migration.Control{
			{At: begun.Add(-time.Hour), Done: true, Action: converge.Action{Do: converge.ActDowntime, Downtime: time.Hour}}, // of the attempt before
			{At: begun.Add(9 * time.Second), Done: true, Action: converge.Action{Do: converge.ActDowntime, Downtime: 4 * time.Second}},
			{At: begun.Add(10 * time.Second), Action: converge.Action{Do: converge.ActDowntime, Downtime: time.Minute}}, // failed
		},
	}
	c, err := newController(rec, migration.Guest{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, due := watched(c, 20*time.Second, 30*time.Second)
	if len(due) != 1 || due[0].Do != converge.ActAbort {
		t.Errorf("not the abort alone: %+v", due) // 4 s are allowed already
	}
	rec.Options.Schedule = ""
	if c, err = newController(rec, migration.Guest{}, Config{}); err != nil {
		t.Fatal(err)
	}
	if _, due = watched(c, 39*time.Second, 40*time.Second); due != nil {
		t.Errorf("before the deadline: %+v", due)
	}
	if _, due = watched(c, 40*time.Second, 41*time.Second); len(due) == 0 || due[0].Why != converge.WhyDeadline {
		t.Errorf("at the deadline: %+v", due)
	}
}

func TestController_GoesOnWhenPostCopyIsRefused(t *testing.T) {
	c, err := newController(migration.Migration{Options: migration.Options{PostCopy: options.On, Schedule: "2:post-copy, 3:abort"}}, migration.Guest{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	var acts []converge.Act
	for at := 250 * time.Millisecond; at < time.Minute; at += 250 * time.Millisecond {
		before := c
		var due []converge.Action
		if c, due, _ = c.see(at, looking(at)); len(due) == 0 {
			continue
		}
		if acts = append(acts, due[0].Do); due[0].Do == converge.ActPostCopy {
			c = c.refused(before, due[0])
		}
	}
	if diff := cmp.Diff([]converge.Act{converge.ActPostCopy, converge.ActAbort}, acts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
