package guard_test

import (
	"fmt"
	"testing"

	"berth/agent/guard"
	"berth/internal/fault"
)

var operations = []guard.Operation{guard.Migrate, guard.Restore, guard.Prepare, guard.Start}

const ours, theirs = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"

// everyFact calls f with every combination of what the agent decides by.
func everyFact(f func(guard.Facts)) int {
	n := 0
	bools := []bool{false, true}
	arrivals := []*guard.Arrival{nil}
	for _, foreign := range bools {
		for _, undone := range bools {
			for _, begun := range bools {
				for _, pending := range bools {
					arrivals = append(arrivals, &guard.Arrival{Migration: ours, Foreign: foreign, Undone: undone, Begun: begun, Pending: pending})
				}
			}
		}
	}
	for _, op := range operations {
		for _, observing := range bools {
			for _, stranger := range bools {
				for _, document := range []struct {
					marked    bool
					migration string
					defined   bool
				}{{}, {marked: true}, {marked: true, migration: ours}, {marked: true, migration: ours, defined: true}, {marked: true, migration: theirs}} {
					for _, ledger := range []struct{ known, here, claimed, left, waits, alive bool }{
						{}, {known: true}, {known: true, here: true}, {known: true, here: true, claimed: true},
						{known: true, here: true, claimed: true, left: true}, {known: true, here: true, claimed: true, waits: true},
						{known: true, here: true, claimed: true, alive: true},
					} {
						why := ""
						if ledger.waits {
							why = "nobody was asked"
						}
						var alive []fault.Reason
						if ledger.alive {
							alive = []fault.Reason{{Code: "qemu_runs", Message: "its QEMU runs", Change: "end it"}}
						}
						for _, leaving := range []string{"", theirs} {
							for _, a := range arrivals {
								n++
								f(guard.Facts{
									Operation: op, Observing: observing, Stranger: stranger,
									Marked: document.marked, DocMigration: document.migration, Defined: document.defined,
									Known: ledger.known, TokenHere: ledger.here, Claimed: ledger.claimed, Leaving: leaving, Left: ledger.left, Unconfirmed: why, Alive: alive, Arrival: a,
								})
							}
						}
					}
				}
			}
		}
	}
	return n
}

// allowed says in its own words when a call may be let through; it is written
// apart from the table.
func allowed(f guard.Facts) bool {
	if f.Observing {
		return true
	}
	managed := f.Known || f.Marked
	if f.Operation == guard.Migrate {
		if f.Stranger || f.TokenHere {
			return false
		}
		return f.Arrival == nil || !f.Arrival.Undone && (f.Arrival.Foreign || !f.Arrival.Pending && f.DocMigration == f.Arrival.Migration)
	}
	if f.Arrival != nil {
		return f.Arrival.Begun && !f.Defined && !f.Arrival.Undone && !f.Arrival.Pending
	}
	if !managed {
		return true
	}
	return !f.Stranger && f.TokenHere && f.Claimed && f.Leaving == "" && !f.Left && f.Unconfirmed == "" && len(f.Alive) == 0
}

func TestDecide_EveryCombination(t *testing.T) {
	n := everyFact(func(f guard.Facts) {
		got, reasons := guard.Decide(f)
		what := fmt.Sprintf("%+v arrival %+v", f, f.Arrival)
		if (got != guard.Refuse) != allowed(f) {
			t.Errorf("%s: decision %d", what, got)
		}
		if (got == guard.Refuse) != (len(reasons) > 0) {
			t.Errorf("%s: decision %d with reasons %v", what, got, reasons)
		}
		for _, r := range reasons {
			if r.Code == "" || r.Message == "" || r.Change == "" {
				t.Errorf("%s: reason %+v does not say what, or what to change", what, r)
			}
		}
		switch got {
		case guard.ClaimArrival, guard.AllowArrival:
			if f.Operation != guard.Migrate {
				t.Errorf("%s: a start is taken for an arrival", what)
			}
		case guard.AllowAndAdopt:
			if f.Known || f.Marked || f.Operation == guard.Migrate {
				t.Errorf("%s: a guest that is managed somewhere is adopted", what)
			}
		}
		if got == guard.AllowArrival && f.Arrival.Foreign {
			t.Errorf("%s: a foreign arrival keeps the document that it came with", what)
		}
	})
	if n < 1000 {
		t.Errorf("only %d combinations", n)
	}
}

// everyFileFact is everyFact for the table without an agent.
func everyFileFact(f func(guard.FileFacts)) {
	bools := []bool{false, true}
	owners := []guard.Owner{{}}
	for _, state := range []guard.OwnerState{guard.OwnerHere, guard.OwnerMoving, guard.OwnerLeft, guard.OwnerGone, guard.OwnerAwaits} {
		owners = append(owners, guard.Owner{State: state})
	}
	for _, foreign := range bools {
		owners = append(owners, guard.Owner{State: guard.OwnerArriving, Migration: ours, Foreign: foreign})
	}
	for _, op := range operations {
		for _, observing := range bools {
			for _, arrivals := range []guard.Arrivals{guard.ArrivalsRefuse, guard.ArrivalsAllow, ""} {
				for _, readable := range bools {
					for _, marked := range bools {
						for _, migration := range []string{"", ours, theirs} {
							for _, owner := range owners {
								for _, begun := range bools {
									f(guard.FileFacts{
										Operation: op, Observing: observing, Arrivals: arrivals, Readable: readable, Marked: marked,
										DocMigration: migration, Owner: owner, Owned: owner.State != "", Why: "there is no owner file", IsBegun: begun,
									})
								}
							}
						}
					}
				}
			}
		}
	}
}

func allowedAlone(f guard.FileFacts) bool {
	state := guard.OwnerState("")
	if f.Owned {
		state = f.Owner.State
	}
	if f.Observing {
		return true
	}
	if f.Operation == guard.Migrate {
		if !f.Readable {
			return false
		}
		if state == guard.OwnerArriving {
			return f.Owner.Foreign || f.Owner.Migration == f.DocMigration
		}
		return state != guard.OwnerHere && state != guard.OwnerMoving && state != guard.OwnerAwaits && f.Arrivals == guard.ArrivalsAllow
	}
	return f.IsBegun || state == guard.OwnerHere || state == "" && !f.Marked
}

func TestAlone_EveryCombination(t *testing.T) {
	everyFileFact(func(f guard.FileFacts) {
		got, reasons := guard.Alone(f)
		if (got != guard.Refuse) != allowedAlone(f) {
			t.Errorf("%+v: decision %d", f, got)
		}
		if (got == guard.Refuse) != (len(reasons) > 0) {
			t.Errorf("%+v: decision %d with reasons %v", f, got, reasons)
		}
		if got == guard.AllowAndAdopt && (f.Marked || f.Owned) {
			t.Errorf("%+v: a managed guest is spooled for adoption", f)
		}
	})
}

func TestCall_OnlyStartsAndArrivalsAreWatched(t *testing.T) {
	for _, op := range []guard.Operation{"prepare", "start", "started", "stopped", "release", "migrate", "restore", "reconnect", "attach", ""} {
		for _, sub := range []string{"begin", "end", "-", ""} {
			want := sub == "begin" && (op == "prepare" || op == "start" || op == "migrate" || op == "restore")
			if got := (guard.Call{Operation: op, SubOperation: sub}).Watched(); got != want {
				t.Errorf("%s %s: watched %t", op, sub, got)
			}
		}
	}
}
