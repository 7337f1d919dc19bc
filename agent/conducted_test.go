package agent

import (
	"errors"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/migration"
)

// TestMoveOf_TakesANameForOneGuest on another host that is on a move now, and for no other.
func TestMoveOf_TakesANameForOneGuest(t *testing.T) {
	move := func(uuid, instance, name, conductor string, s migration.Status, o migration.Outcome) migration.Migration {
		return migration.Migration{UUID: uuid, InstanceUUID: instance, InstanceName: name, Conductor: conductor, Status: s, Outcome: o}
	}
	open := move("m1", "i1", "web", "c", migration.StatusFinished, "")
	over := move("m2", "i2", "web", "c", migration.StatusCompleted, migration.OutcomeCompleted)
	if open.Done() || !over.Done() {
		t.Fatalf("the one is done: %v, the other: %v", open.Done(), over.Done())
	}
	for _, tt := range []struct {
		name string
		list []migration.Migration
		want string // uuid; empty for none
		both bool   // refused
	}{
		{"none", nil, "", false},
		{"one, among others", []migration.Migration{move("m3", "i3", "db", "c", migration.StatusFinished, ""), open}, "m1", false},
		{"of an earlier guest called so", []migration.Migration{over}, "", false},
		{"of an earlier guest called so, and of one", []migration.Migration{over, open}, "m1", false},
		{"of a guest of this host, which is found by its own record", []migration.Migration{move("m4", "i4", "web", "", migration.StatusFinished, "")}, "", false},
		{"two of one guest", []migration.Migration{open, move("m5", "i1", "web", "c", migration.StatusFinished, "")}, "m5", false},
		{"of two guests", []migration.Migration{open, move("m6", "i6", "web", "c", migration.StatusFinished, "")}, "", true},
	} {
		m, known, err := moveOf(tt.list, "confirm the move of web", "web")
		if m.UUID != tt.want || known != (tt.want != "") || (err != nil) != tt.both {
			t.Errorf("%s: %q, %v, %v; want %q", tt.name, m.UUID, known, err, tt.want)
		}
		if tt.both && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "i1 and i6")) {
			t.Errorf("%s: %v, want both named", tt.name, err)
		}
	}
}
