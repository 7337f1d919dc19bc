package host

import (
	"testing"

	"berth/driver"
	"berth/migration"
)

var bools = []bool{false, true}

func everyAttempt(f func(attemptState)) (n int) {
	for _, c := range []committed{commitNone, commitThis, commitOther} {
		for _, conduct := range []migration.Conduct{migration.ConductNone, migration.ConductGoing, migration.ConductSeen, migration.ConductOver, migration.ConductDone} {
			for _, k := range []tokenAt{tokenHere, tokenGone, tokenUnknown} {
				for bits := range 32 {
					f(attemptState{
						commit: c, conduct: conduct, token: k,
						refused: bits&1 != 0, context: bits&2 != 0, inFlight: bits&4 != 0, left: bits&8 != 0, active: bits&16 != 0,
					})
					n++
				}
			}
		}
	}
	return n
}

// TestFate_EveryRow holds the laws of the table of fates over every combination, and
// that each row decides something.
func TestFate_EveryRow(t *testing.T) {
	reached := make([]bool, len(fateTable))
	n := everyAttempt(func(s attemptState) {
		reached[fatedRow(s)] = true
		fate, why := fateOf(s)
		bad := func(law string) { t.Errorf("%v: %s (%s): %s", s, fate, why, law) }
		if why == "" {
			bad("no reason")
		}
		if (fate == migration.FateCommitted) != (s.commit == commitThis) {
			bad("committed is what the ledger says, and nothing else")
		}
		if fate == migration.FateKept {
			// Kept lets a paused copy be ended: it must never be the only one.
			final := s.commit == commitOther || s.refused || s.conduct == migration.ConductOver
			switch {
			case s.commit == commitThis:
				bad("the token has left by this attempt")
			case !final && s.conduct != migration.ConductNone:
				bad("its conductor may still commit it")
			case !final && (s.left || s.inFlight || s.context || s.token != tokenHere || !s.active):
				bad("nothing has decided it, and the guest may have left")
			}
		}
		if fate == migration.FateGoing && s.conduct != migration.ConductGoing && s.conduct != migration.ConductSeen && !s.inFlight {
			bad("nobody works on it")
		}
	})
	if want := 3 * 5 * 3 * 32; n != want {
		t.Errorf("%d combinations, want %d", n, want)
	}
	for i, is := range reached {
		if !is {
			t.Errorf("row %d decides nothing: %+v", i, fateTable[i])
		}
	}
}

func everyArrival(f func(arrivalState)) (n int) {
	for _, token := range []arrivalToken{arrivalOwned, arrivalOther, arrivalMoved, arrivalUnowned} {
		for _, c := range []arrivalClaim{arrivalPending, arrivalArriving, arrivalNone} {
			for _, heard := range bools {
				for _, w := range []sourceWord{sourceUnasked, sourceSilent, sourceGoing, sourceCommitted, sourceKept, sourceUnknown, sourceHigher} {
					for _, half := range bools {
						f(arrivalState{token: token, claim: c, heard: heard, half: half, source: w})
						n++
					}
				}
			}
		}
	}
	return n
}

// TestArrival_EveryRow holds the laws of the destination's table over every
// combination, and that each row decides something.
func TestArrival_EveryRow(t *testing.T) {
	reached := make([]bool, len(arrivalTable))
	n := everyArrival(func(s arrivalState) {
		reached[arrivalRowOf(s)] = true
		then, why := decideArrival(s)
		bad := func(law string) { t.Errorf("%v: %s (%s): %s", s, then, why, law) }
		owned := s.token == arrivalOwned
		switch {
		case why == "":
			bad("no reason")
		case then == arrivalFinish && !owned && s.token != arrivalMoved:
			bad("finishes alone without the token")
		case then == arrivalAccept && (owned || s.source != sourceCommitted):
			bad("accepts what nobody has given")
		case then == arrivalRollBack && (owned || s.token == arrivalMoved):
			bad("ends the owner")
		case then == arrivalRollBack && s.source != sourceKept && s.claim != arrivalNone:
			bad("ends a copy that may be the owner")
		case then == arrivalYield && (!owned || s.source != sourceHigher):
			bad("gives way to nobody with a higher epoch")
		case then == arrivalAsk && s.source != sourceUnasked:
			bad("asks twice")
		case owned && !s.heard && s.source == sourceSilent && !s.half && then != arrivalFinish:
			bad("has the token, and waits for a source that is gone")
		case s.half && owned && !s.heard && s.source == sourceSilent && then != arrivalDoubt:
			bad("does not say that the rest of the guest's memory is with a source that is silent")
		case s.half && owned && then != arrivalWait && then != arrivalDoubt && then != arrivalYield && then != arrivalAsk:
			bad("finishes while part of the guest's memory is elsewhere")
		case s.half && then == arrivalRollBack && s.claim != arrivalNone:
			bad("ends half a guest")
		case s.token == arrivalUnowned && s.claim == arrivalArriving && s.source == sourceSilent && !s.heard && then != arrivalDoubt:
			bad("does not say that it waits")
		}
	})
	if want := 4 * 3 * 2 * 7 * 2; n != want {
		t.Errorf("%d combinations, want %d", n, want)
	}
	for i, is := range reached {
		if !is {
			t.Errorf("row %d decides nothing: %+v", i, arrivalTable[i])
		}
	}
}

// TestTables_NoTwoHostsTakeTheGuest joins what the source decides, what it answers, and
// what the destination makes of the answer, over every state of the source: whatever
// order they come in, one host at most has the guest, and a copy is ended by Berth only
// where the other host has, or keeps, the guest.
func TestTables_NoTwoHostsTakeTheGuest(t *testing.T) {
	domains := []driver.Domain{
		{}, {State: driver.ShutOff, Reason: driver.ReasonMigrated}, {State: driver.ShutOff, Reason: driver.ReasonUnknown},
		{State: driver.Running, Reason: driver.ReasonBooted}, {State: driver.Paused, Reason: driver.ReasonMigrating},
		{State: driver.Paused, Reason: driver.ReasonPostCopy}, {State: driver.Paused, Reason: driver.ReasonPostCopyFailed},
	}
	everyAttempt(func(a attemptState) {
		if a.commit == commitThis && (a.refused || a.token == tokenHere) {
			return // of ReleaseOwnership and RefuseCommit exactly one ever succeeds: claims' tests
		}
		fate, _ := fateOf(a)
		f := migration.AttemptFate{Fate: fate}
		for _, d := range domains {
			half := d.InPostCopy()
			if a.left != (d.HasLeft() || half) || a.active != (d.Active() && !half) {
				continue
			}
			then, _ := decideArrival(arrivalState{token: arrivalUnowned, claim: arrivalArriving, half: half, source: wordOfSource(&f, 0)})
			for _, r := range []result{resultNone, resultUndone, resultLost} {
				for _, under := range bools {
					if under != a.inFlight {
						continue
					}
					what, _ := decide(sourceState{exists: d.State != "", domain: d, persistent: true, asked: true, postCopy: half, result: r, under: under})
					// The source can surrender only what it has, and what it has not refused.
					maySurrender := what == mayCommit && a.token == tokenHere && !a.refused && a.commit == commitNone && (a.conduct == migration.ConductGoing || a.conduct == migration.ConductSeen)
					mayResume := what == mayReclaim && a.token == tokenHere && a.commit == commitNone
					switch {
					case then == arrivalAccept && (maySurrender || mayResume):
						t.Errorf("%v, domain %v: the destination takes the guest, and the source may %s", a, d, what)
					case then == arrivalRollBack && maySurrender:
						t.Errorf("%v, domain %v: the destination ends its copy, and the source may give it the guest", a, d)
					}
				}
			}
		}
	})
}

func everyOutgoing(f func(outgoingState)) (n int) {
	for _, token := range []tokenAt{tokenHere, tokenGone, tokenUnknown} {
		for _, c := range []conductorWord{conductorHeard, conductorQuiet, conductorSilent} {
			for _, placed := range []placedWord{placedUnasked, placedUnknown, placedHere, placedElsewhere} {
				for bits := range 16 {
					f(outgoingState{
						token: token, conductor: c, placed: placed,
						alone: bits&1 != 0, refused: bits&2 != 0, undone: bits&4 != 0, fit: bits&8 != 0,
					})
					n++
				}
			}
		}
	}
	return n
}

// TestOutgoing_EveryRow holds the laws of the table of a host whose conductor is silent
// over every combination, and that each row decides something.
func TestOutgoing_EveryRow(t *testing.T) {
	reached := make([]bool, len(outgoingTable))
	n := everyOutgoing(func(s outgoingState) {
		reached[outgoingRowOf(s)] = true
		then, why := decideOutgoing(s)
		bad := func(law string) { t.Errorf("%v: %s (%s): %s", s, then, why, law) }
		acts := then == outgoingDecide || then == outgoingRestore
		switch {
		case why == "":
			bad("no reason")
		case acts && s.token != tokenHere:
			bad("acts without the token")
		case then == outgoingDecide && !s.alone && s.conductor != conductorSilent:
			bad("decides while its conductor may be at work")
		case then == outgoingDecide && !s.alone && !s.fit:
			bad("keeps a guest that cannot live here")
		case then == outgoingRestore && !(s.alone && s.refused):
			bad("starts a guest that may be handed over")
		case then == outgoingRestore && s.placed != placedHere:
			bad("starts a guest that may have been settled elsewhere")
		case then == outgoingRestore && s.undone:
			bad("there is nothing to restore")
		case then == outgoingAsk && s.placed != placedUnasked:
			bad("asks twice")
		case s.token == tokenHere && s.conductor == conductorSilent && then == outgoingRest:
			bad("neither acts nor says that it waits")
		case s.token == tokenHere && s.alone && s.refused && !s.undone && s.placed == placedHere && then != outgoingRestore:
			bad("has decided, and leaves the guest off")
		}
	})
	if want := 3 * 3 * 4 * 16; n != want {
		t.Errorf("%d combinations, want %d", n, want)
	}
	for i, is := range reached {
		if !is {
			t.Errorf("row %d decides nothing: %+v", i, outgoingTable[i])
		}
	}
}

// TestTables_ASilentConductorMakesNoSecondOwner joins what a source does alone with what it
// answers, and that with what its destination makes of the answer: no destination accepts a
// guest whose source starts it.
func TestTables_ASilentConductorMakesNoSecondOwner(t *testing.T) {
	everyOutgoing(func(s outgoingState) {
		then, _ := decideOutgoing(s)
		if then != outgoingRestore {
			return
		}
		for _, conduct := range []migration.Conduct{migration.ConductNone, migration.ConductGoing} {
			fate, _ := fateOf(attemptState{commit: commitNone, refused: s.refused, token: s.token, context: true, conduct: conduct})
			everyArrival(func(a arrivalState) {
				if a.source != wordOfSource(&migration.AttemptFate{Fate: fate}, 0) {
					return
				}
				if does, _ := decideArrival(a); does == arrivalAccept {
					t.Errorf("%v: the source starts the guest, answers %s, and %v accepts it", s, fate, a)
				}
			})
		}
	})
}
