package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
	"berth/topology"
)

// sinceThen is how long ago something was, which grows while a test runs.
var sinceThen = regexp.MustCompile(`[0-9]+m[0-9]+s ago`)

// resized is a resize to another host that waits for its confirmation.
func resized() migration.Migration {
	began := time.Now().Add(-90 * time.Second)
	step := func(name string, took time.Duration) migration.StepRecord {
		return migration.StepRecord{Name: name, State: task.StepEnded, Begun: began, Ended: began.Add(took), Duration: took, Tries: 1}
	}
	return migration.Migration{
		UUID: "6f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", InstanceUUID: "11111111-1111-4111-8111-111111111111", InstanceName: "web-1",
		SourceCompute: "host-a", DestCompute: "host-b", MigrationType: migration.TypeResize, Status: migration.StatusFinished,
		Stage: migration.StageFinished, Attempt: 1, Moved: 1, OldFlavor: "small", NewFlavor: "large", CreatedAt: began, UpdatedAt: began.Add(14 * time.Second),
		Phase: task.Done, Steps: []migration.StepRecord{
			step(migration.StepInspectSource, 12*time.Millisecond), step(migration.StepClaim, 8*time.Millisecond), step(migration.StepPowerOff, 9*time.Second),
			step(migration.StepHandOver, 4*time.Millisecond), step(migration.StepFinishResize, 3*time.Second),
		},
	}
}

func TestOutcomeWords_SayWhatToTypeNext(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		change func(*migration.Migration)
		want   string
	}{
		{"resized, and never by itself", func(*migration.Migration) {},
			"web-1 has flavor large now, on host-b\nconfirm with `berth resize confirm web-1`, or give back with `berth resize revert web-1`; it does not confirm itself"},
		{"moved cold, and by itself", func(m *migration.Migration) {
			m.MigrationType, m.ConfirmBy = migration.TypeMigration, now.Add(24*time.Hour)
		}, "web-1 is on host-b now\nconfirm with `berth resize confirm web-1`, or give back with `berth resize revert web-1`; it confirms itself in 24h00m"},
		{"a revert that was given up", func(m *migration.Migration) {
			m.Error = task.Keep(fault.New(fault.Unavailable, "host-a does not answer"))
		}, "the revert of web-1 was given up: host-a does not answer\nconfirm with `berth resize confirm web-1`, or give back with `berth resize revert web-1`; it does not confirm itself"},
		{"confirmed", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusConfirmed, migration.OutcomeCompleted
		}, "confirmed: web-1 stays on host-b, and what it had on host-a is given up"},
		{"confirmed in place", func(m *migration.Migration) {
			m.Status, m.Outcome, m.InPlace, m.DestCompute = migration.StatusConfirmed, migration.OutcomeCompleted, true, "host-a"
		}, "confirmed: what web-1 had before is given up"},
		{"reverted", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusReverted, migration.OutcomeReverted
		}, "web-1 is on host-a again, as it was before"},
		{"taken back by itself", func(m *migration.Migration) {
			m.Status, m.Outcome, m.Unfit = migration.StatusFailed, migration.OutcomeUndone, task.Keep(fault.New(fault.Forbidden, "no such machine type"))
		}, "web-1 is on host-a again, as it was before: it could not run on host-b"},
		{"rebuilt", func(m *migration.Migration) {
			m.MigrationType, m.Status, m.Outcome = migration.TypeRebuild, migration.StatusDone, migration.OutcomeCompleted
		}, "web-1 is rebuilt on host-a"},
		{"going on", func(m *migration.Migration) { m.Status = migration.StatusMigrating }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := resized()
			tt.change(&m)
			if diff := cmp.Diff(tt.want, outcomeWords(m, now)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrintMigration_OfAResize(t *testing.T) {
	show := func(m migration.Migration) string {
		var out strings.Builder
		if err := (&app{out: &out}).printMigration(m); err != nil {
			t.Fatal(err)
		}
		return sinceThen.ReplaceAllString(out.String(), "1m30s ago")
	}
	waiting := resized()
	confirmed := resized()
	confirmed.Stage, confirmed.Status, confirmed.Outcome, confirmed.Attempt = migration.StageConfirm, migration.StatusConfirmed, migration.OutcomeCompleted, 2
	confirmed.MoveSteps, confirmed.Steps = confirmed.Steps, []migration.StepRecord{{Name: migration.StepConfirmSource, State: task.StepEnded, Duration: 40 * time.Millisecond, Tries: 1}}
	here := resized()
	here.MigrationType, here.Status, here.Stage, here.Outcome, here.DestCompute = migration.TypeRebuild, migration.StatusMigrating, migration.StageMove, "", "host-a"
	here.Moved, here.NewImage, here.Step, here.Phase = 0, "/srv/debian-13.qcow2", migration.StepApplyChange, task.Doing
	golden(t, "testdata/migration-resize.txt", "# waits for its confirmation\n"+show(waiting)+"\n# confirmed\n"+show(confirmed)+"\n# a rebuild that goes on\n"+show(here))
}

func TestPrintMigration_OfOneThatAThirdHostConducts(t *testing.T) {
	var out strings.Builder
	for i, change := range []func(*migration.Migration){
		func(m *migration.Migration) {
			m.Way, m.WayReason = migration.WayRelay, "host-a does not reach host-b: the connection is refused"
			m.Refusals = []migration.Refusal{
				{Attempt: 1, DestCompute: "host-x", Message: "host host-x: no room for 4 vcpus", Step: migration.StepClaim},
				{Attempt: 2, DestCompute: "host-y", Message: "host host-y does not answer", Step: migration.StepShipDisks, Left: true},
			}
			m.Attempt, m.Moved = 3, 3
		},
		func(m *migration.Migration) { m.Way = migration.WayStraight },
		func(m *migration.Migration) { m.Conductor = "" }, // the source itself; nothing to ship
	} {
		m := resized()
		m.Conductor, m.ShareNothing, m.Steps = "host-m", true, m.Steps[:1]
		change(&m)
		fmt.Fprintf(&out, "# %d\n", i)
		if err := (&app{out: &out}).printMigration(m); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "testdata/migration-apart.txt", sinceThen.ReplaceAllString(out.String(), "1m30s ago"))
}

func TestInstanceTable_OfAGuestThatWaits(t *testing.T) {
	show := func(half host.ResizeHalf) string {
		i := api.Instance{Instance: claims.Instance{UUID: "11111111-1111-4111-8111-111111111111", Name: "web-1", Flavor: topology.Flavor{Name: "large", VCPUs: 2, MemoryMB: 512}},
			Managed: true, State: "running", Status: "VERIFY_RESIZE", Host: "host-b", Resize: &host.ResizeView{
				Migration: "6f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", Source: "host-a", Destination: "host-b", Half: half, OldFlavor: "small",
				Next: []string{"berth resize confirm web-1", "berth resize revert web-1"},
			}}
		i.Token.State, i.Token.Epoch = claims.TokenHere, 3
		if half == host.HalfKept {
			i.Host, i.State, i.Token.State, i.Token.Holder = "host-a", "shut off", claims.TokenSurrendered, "host-b"
		}
		var out strings.Builder
		if err := (&app{out: &out}).printInstance(i); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	golden(t, "testdata/instance-resize.txt", "# at its destination\n"+show(host.HalfGuest)+"\n# at its source\n"+show(host.HalfKept))
}

// coldStory is what a watcher is told of a cold move, a second apart.
func coldStory() []migration.Migration {
	at := func(change func(*migration.Migration)) migration.Migration {
		m := resized()
		m.Status, m.Stage, m.Moved, m.Steps, m.Phase = migration.StatusMigrating, migration.StageMove, 0, nil, task.Doing
		change(&m)
		return m
	}
	step := func(name string) migration.Migration {
		return at(func(m *migration.Migration) { m.Step = name })
	}
	shipped := func(left uint64) migration.Migration {
		return at(func(m *migration.Migration) {
			m.Step, m.Progress = migration.StepShipDisks, migration.Progress{Phase: "disk", DiskTotal: 10 << 30, DiskRemaining: left << 30, Rate: 1 << 30}
		})
	}
	return []migration.Migration{
		at(func(m *migration.Migration) { m.Status, m.DestCompute = migration.StatusAccepted, "" }),
		step(migration.StepCheckDestination), step(migration.StepClaim), step(migration.StepPrepResize), step(migration.StepPowerOff), step(migration.StepPowerOff), step(migration.StepPowerOff),
		step(migration.StepShipDisks), shipped(9), shipped(6), shipped(3), step(migration.StepHandOver), step(migration.StepFinishResize), resized(),
	}
}

func TestProgress_OfAColdMove(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := &progress{w: &out, to: "host-b", now: func() time.Time { return now }}
	for _, m := range coldStory() {
		p.show(m)
		now = now.Add(time.Second)
	}
	p.end()
	back := resized()
	back.Status, back.Stage, back.Phase, back.Step = migration.StatusReverting, migration.StageRevert, task.Doing, migration.StepHandBack
	p.show(back)
	back.Unfit, back.Step = task.Keep(fault.New(fault.DoesNotFit, "no kvm")), migration.StepFinishRevert
	p.show(back)
	here := resized()
	here.InPlace, here.Status, here.Stage, here.Step, here.Phase = true, migration.StatusMigrating, migration.StageMove, migration.StepApplyChange, task.Doing
	p.show(here)
	here.Phase = task.Undoing
	p.show(here)
	golden(t, "testdata/progress-cold.txt", out.String())
}
