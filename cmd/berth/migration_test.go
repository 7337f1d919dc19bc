package main

import (
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

func TestPrintMigration_SaysWhoAskedForIt(t *testing.T) {
	var out strings.Builder
	m := moving()
	m.By, m.Queue = "operator:alice", "d-1"
	if err := (&app{out: &out}).printMigration(m); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, "asked for by operator:alice, of drain d-1") {
		t.Errorf("who asked is not told:\n%s", out.String())
	}
}

func TestPrintMigration_SaysWhatToDoAboutADoubt(t *testing.T) {
	show := func(m migration.Migration) string {
		var out strings.Builder
		if err := (&app{out: &out}).printMigration(m); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	m := moving()
	m.UUID = "6f1c"
	const verb = "berth migration settle 6f1c --guest-is-at HOST --reason TEXT"
	if got := show(m); strings.Contains(got, verb) {
		t.Errorf("of a move that goes on:\n%s", got)
	}
	m.Status, m.Outcome = migration.StatusError, migration.OutcomeInDoubt
	m.Error = task.Keep(fault.New(fault.InDoubt, "the source does not say why its domain is off"))
	m.Deadline = time.Now().Add(-90 * time.Second)
	if got := show(m); !strings.Contains(got, verb) || !strings.Contains(got, "host-a or host-b") || !strings.Contains(got, "passed 1m30s ago") {
		t.Errorf("of a move in doubt:\n%s", got)
	}
	followed := m
	followed.Step = migration.StepFollowPostCopy
	followed.Progress.Phase = phasePostCopy
	if got := show(followed); strings.Contains(got, verb) || !strings.Contains(got, "the guest is at host-b") {
		t.Errorf("of a post-copy in doubt:\n%s", got)
	}
	m.Error = task.Keep(fault.Refuse(fault.InDoubt, "", fault.Reason{Code: "x", Message: "y", Change: "wait"}))
	if got := show(m); strings.Contains(got, verb) || !strings.Contains(got, "to do: wait") {
		t.Errorf("of one whose reason says what to do:\n%s", got)
	}
}
