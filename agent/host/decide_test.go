package host

import (
	"fmt"
	"slices"
	"testing"

	"berth/driver"
	"berth/migration"
)

// TestDecide_EveryRow enumerates domain × record × definition × call.
func TestDecide_EveryRow(t *testing.T) {
	type dom struct {
		exists bool
		state  driver.State
		reason driver.Reason
	}
	gone := dom{}
	left := dom{true, driver.ShutOff, driver.ReasonMigrated}
	off := []dom{
		{true, driver.ShutOff, driver.ReasonUnknown}, {true, driver.ShutOff, driver.ReasonCrashed},
		{true, driver.ShutOff, driver.ReasonDestroyed}, {true, driver.ShutOff, driver.ReasonShutdown},
	}
	active := []dom{
		{true, driver.Running, driver.ReasonBooted}, {true, driver.Running, driver.ReasonMigrationCanceled}, {true, driver.Blocked, driver.ReasonUnknown},
		{true, driver.Paused, driver.ReasonMigrating}, {true, driver.Paused, driver.ReasonUser}, {true, driver.Paused, driver.ReasonIOError},
		{true, driver.PMSuspended, driver.ReasonUnknown}, {true, driver.ShuttingDown, driver.ReasonUser},
		{true, driver.Crashed, driver.ReasonGuestPanicked}, // and kept as it is, with its process
	}
	postCopy := []dom{
		{true, driver.Paused, driver.ReasonPostCopy}, {true, driver.Running, driver.ReasonPostCopy}, {true, driver.Paused, driver.ReasonPostCopyFailed},
		{true, driver.Running, driver.ReasonPostCopyFailed},
	}
	all := append(append(append([]dom{gone, left}, off...), active...), postCopy...)

	reached := make([]bool, len(sourceTable))
	// want is the table again, asked by its meaning and not by its order.
	is := func(set []dom, d dom) bool { return slices.Contains(set, d) }
	want := func(d dom, s sourceState) decision {
		is := func(set []dom) bool { return is(set, d) }
		switch {
		case s.word == migration.WordSource && !s.under && !is(active) && !is(postCopy):
			return mayReclaim
		case d == left:
			return mayCommit // at once: the guest stands still
		case is(postCopy) && s.postCopy:
			return mayCommit // its job goes on, or broke: either way the guest is there
		case s.under:
			return notYet
		case is(postCopy):
			return inDoubt
		case is(active):
			return mayReclaim
		case s.half:
			return mayCommit
		case s.result == resultLeft:
			return mayCommit
		case s.word == migration.WordDestination:
			return mayCommit
		case is(off), s.result == resultUndone, !s.asked:
			return mayReclaim
		case s.persistent:
			return inDoubt
		}
		return mayCommit
	}
	rows := 0
	for _, d := range all {
		for _, r := range []result{resultNone, resultLeft, resultUndone, resultLost} {
			for bits := range 32 * 3 {
				s := sourceState{
					exists: d.exists, domain: driver.Domain{State: d.state, Reason: d.reason},
					persistent: bits&1 != 0, asked: bits&2 != 0, under: bits&4 != 0, postCopy: bits&8 != 0, half: bits&16 != 0, result: r,
					word: []migration.WordFact{migration.WordNone, migration.WordSource, migration.WordDestination}[bits/32],
				}
				rows++
				if i := decidingRow(s); i >= 0 {
					reached[i] = true
				} else {
					t.Errorf("%+v: no row", s)
				}
				got, why := decide(s)
				if got != want(d, s) || why == "" {
					t.Errorf("%s: %s (%s), want %s", fmt.Sprintf("%+v", s), got, why, want(d, s))
				}
				// Whatever else: a guest that has its memory here is never committed, one
				// that has left is never reclaimed.
				if got == mayCommit && s.domain.Active() && d.exists && !(is(postCopy, d) && s.postCopy) {
					t.Errorf("%+v: a commit beside a guest with its memory", s)
				}
				if got == mayReclaim && is(postCopy, d) {
					t.Errorf("%+v: a reclaim of half a guest", s)
				}
				if got == mayReclaim && d == left && s.word != migration.WordSource {
					t.Errorf("%+v: a reclaim of a guest that has left", s)
				}
			}
		}
	}
	if rows != len(all)*4*32*3 {
		t.Errorf("%d rows", rows)
	}
	for i, is := range reached {
		if !is {
			t.Errorf("row %d decides nothing: %+v", i, sourceTable[i])
		}
	}
}
