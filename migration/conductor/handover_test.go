package conductor

import (
	"fmt"
	"testing"

	"berth/migration"
)

var (
	allSources = []SourceFact{SourceSilent, SourceJob, SourceMemory, SourcePostCopy, SourceHeld, SourceLost, SourceMigrated, SourceEnded, SourceOff, SourceVanished, SourceRemoved}
	allDests   = []DestinationFact{DestinationUnasked, DestinationSilent, DestinationNone, DestinationArriving, DestinationArrived, DestinationRunning, DestinationPostCopy}
	allJournal = []JournalFact{JournalStreaming, JournalSeen, JournalUndoing, JournalCommitted}
	allLedgers = []migration.Ledger{migration.LedgerUnknown, migration.LedgerHere, migration.LedgerSurrendered, migration.LedgerReclaimed, migration.LedgerElsewhere}
	allTheres  = []migration.Ledger{migration.LedgerUnknown, migration.LedgerElsewhere, migration.LedgerAccepted}
	allWords   = []migration.WordFact{migration.WordNone, migration.WordSource, migration.WordDestination}
)

func everyFact(f func(Facts)) {
	for _, s := range allSources {
		for _, d := range allDests {
			for _, j := range allJournal {
				for _, l := range allLedgers {
					for _, there := range allTheres {
						for _, w := range allWords {
							f(Facts{s, d, j, l, there, w})
						}
					}
				}
			}
		}
	}
}

// TestHandover_EveryRow has one witness for each row of the table, in order, and
// what it must answer. A row without a witness, or one that decides nothing, fails.
func TestHandover_EveryRow(t *testing.T) {
	witnesses := []struct {
		facts Facts
		want  Action
	}{
		{Facts{Source: SourceMemory, Destination: DestinationRunning, Journal: JournalUndoing, Ledger: migration.LedgerReclaimed, There: migration.LedgerAccepted, Word: migration.WordSource}, ActionYield},
		{Facts{Source: SourceMigrated, Destination: DestinationSilent, Journal: JournalCommitted, Ledger: migration.LedgerSurrendered, Word: migration.WordSource}, ActionReclaim},
		{Facts{Source: SourceSilent, Destination: DestinationSilent, Journal: JournalCommitted, Ledger: migration.LedgerUnknown}, ActionCommit},
		{Facts{Source: SourceMigrated, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerSurrendered}, ActionCommit},
		{Facts{Source: SourceMemory, Destination: DestinationUnasked, Journal: JournalStreaming, Ledger: migration.LedgerElsewhere}, ActionInDoubt},
		{Facts{Source: SourceMigrated, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerReclaimed}, ActionInDoubt},
		{Facts{Source: SourceMemory, Destination: DestinationArrived, Journal: JournalUndoing, Ledger: migration.LedgerReclaimed}, ActionReclaim},
		{Facts{Source: SourceSilent, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionWait},
		{Facts{Source: SourceJob, Destination: DestinationArriving, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceJob, Destination: DestinationArriving, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionWait},
		{Facts{Source: SourceMemory, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceMigrated, Destination: DestinationSilent, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionCommit},
		{Facts{Source: SourcePostCopy, Destination: DestinationPostCopy, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionCommit},
		{Facts{Source: SourceLost, Destination: DestinationNone, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionCommit},
		{Facts{Source: SourceEnded, Destination: DestinationUnasked, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceRemoved, Destination: DestinationArrived, Journal: JournalUndoing, Ledger: migration.LedgerHere, Word: migration.WordDestination}, ActionCommit},
		{Facts{Source: SourceRemoved, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionInDoubt},
		{Facts{Source: SourceHeld, Destination: DestinationUnasked, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionAsk},
		{Facts{Source: SourceHeld, Destination: DestinationSilent, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionWait},
		{Facts{Source: SourceHeld, Destination: DestinationNone, Journal: JournalUndoing, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceHeld, Destination: DestinationRunning, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionInDoubt},
		{Facts{Source: SourceOff, Destination: DestinationUnasked, Journal: JournalSeen, Ledger: migration.LedgerHere}, ActionCommit},
		{Facts{Source: SourceOff, Destination: DestinationUnasked, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionAsk},
		{Facts{Source: SourceVanished, Destination: DestinationSilent, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionWait},
		{Facts{Source: SourceOff, Destination: DestinationNone, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceOff, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionInDoubt},
		{Facts{Source: SourceVanished, Destination: DestinationPostCopy, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionInDoubt},
		{Facts{Source: SourceVanished, Destination: DestinationNone, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionReclaim},
		{Facts{Source: SourceVanished, Destination: DestinationArrived, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionCommit},
		{Facts{Source: SourceVanished, Destination: DestinationArriving, Journal: JournalStreaming, Ledger: migration.LedgerHere}, ActionInDoubt},
	}
	if len(witnesses) != len(handoverTable) {
		t.Fatalf("%d witnesses for %d rows", len(witnesses), len(handoverTable))
	}
	for i, w := range witnesses {
		if row := decidingRow(w.facts); row != i {
			t.Errorf("row %d: %v is decided by row %d", i, w.facts, row)
		}
		if got, why := Decide(w.facts); got != w.want {
			t.Errorf("row %d: %v: %s (%s), want %s", i, w.facts, got, why, w.want)
		}
	}
}

// TestHandover_LawsHoldForAllFacts holds what no row may break, over every
// combination of facts.
func TestHandover_LawsHoldForAllFacts(t *testing.T) {
	n := 0
	everyFact(func(f Facts) {
		n++
		action, why := Decide(f)
		if decidingRow(f) < 0 {
			t.Errorf("%v: no row", f)
		}
		if why == "" {
			t.Errorf("%v: no reason", f)
		}
		left := f.Journal == JournalCommitted || f.Ledger == migration.LedgerSurrendered
		overruled := f.There == migration.LedgerAccepted && f.Ledger != migration.LedgerSurrendered && f.Ledger != migration.LedgerUnknown
		memory := f.Source == SourceMemory || f.Source == SourceJob
		bad := func(law string) { t.Errorf("%v: %s (%s): %s", f, action, why, law) }
		if action == ActionYield && f.There != migration.LedgerAccepted {
			bad("gives way to nobody with a higher epoch")
		}
		switch {
		case overruled && action != ActionYield:
			bad("the destination is the owner by an operator's word: the source must give way")
		case overruled:
		case f.Word == migration.WordSource && action != ActionReclaim:
			bad("an operator has said that the guest is at the source")
		case f.Word == migration.WordSource:
		case left && action != ActionCommit:
			bad("the token has left: only forward")
		case left:
		case action == ActionCommit && (memory || f.Source == SourceEnded):
			bad("commit while the source has the guest")
		case action == ActionCommit && (f.Ledger == migration.LedgerReclaimed || f.Ledger == migration.LedgerElsewhere):
			bad("commit of a token that the source will not or cannot give")
		case action == ActionReclaim && (f.Source == SourcePostCopy || f.Source == SourceLost || f.Source == SourceMigrated || f.Source == SourceRemoved || f.Source == SourceVanished && f.Destination != DestinationNone):
			bad("reclaim of a guest that has left")
		case f.Source == SourceSilent && f.Ledger != migration.LedgerReclaimed && f.Ledger != migration.LedgerElsewhere && action != ActionWait:
			bad("a decision about what cannot be seen")
		case f.Source == SourceHeld && f.Ledger == migration.LedgerHere && action == ActionReclaim && (f.Destination == DestinationUnasked || f.Destination == DestinationSilent || f.Destination == DestinationRunning):
			bad("a guest that stands still goes on though it may run at the destination")
		case action == ActionAsk && f.Destination != DestinationUnasked:
			bad("the destination was asked already")
		case f.Destination == DestinationPostCopy && f.Ledger == migration.LedgerHere && f.Word == migration.WordNone && action == ActionReclaim && !memory && f.Source != SourceEnded:
			bad("reclaim of a guest of which half is there")
		case (f.Source == SourceMigrated || f.Source == SourcePostCopy || f.Source == SourceLost) && f.Ledger == migration.LedgerHere && action != ActionCommit:
			bad("the destination's copy is the only one")
		case f.Word == migration.WordDestination && f.Ledger == migration.LedgerHere && (action == ActionInDoubt || action == ActionAsk):
			bad("in doubt, though an operator has said where the guest is")
		}
	})
	if want := len(allSources) * len(allDests) * len(allJournal) * len(allLedgers) * len(allTheres) * len(allWords); n != want {
		t.Errorf("%d facts, want %d", n, want)
	}
}

// TestFacts_ReadLibvirtsWords holds how states and reasons are read.
func TestFacts_ReadLibvirtsWords(t *testing.T) {
	source := func(inFlight bool, state, reason string) *migration.StreamStatus {
		return &migration.StreamStatus{InFlight: inFlight, Domain: migration.DomainView{Exists: state != "", State: state, Reason: reason}}
	}
	for _, tt := range []struct {
		st        *migration.StreamStatus
		transient bool
		want      SourceFact
	}{
		{nil, false, SourceSilent},
		{&migration.StreamStatus{Domain: migration.DomainView{Exists: true}}, false, SourceSilent},
		{source(true, "running", "booted"), false, SourceJob},
		{source(true, "paused", "migrating"), false, SourceJob},
		{source(true, "shut off", "migrated"), false, SourceMigrated},
		{source(false, "shut off", "migrated"), false, SourceMigrated},
		{source(false, "running", "migration canceled"), false, SourceMemory},
		{source(true, "paused", "post-copy"), false, SourcePostCopy},
		{source(false, "paused", "post-copy"), true, SourcePostCopy},
		{source(false, "paused", "post-copy failed"), false, SourcePostCopy},
		{&migration.StreamStatus{PostCopy: true, InFlight: true, Domain: migration.DomainView{Exists: true, State: "running", Reason: "booted"}}, false, SourceJob},
		{&migration.StreamStatus{PostCopy: true, Domain: migration.DomainView{Exists: true, State: "running", Reason: "migration canceled"}}, false, SourceMemory},
		{&migration.StreamStatus{PostCopy: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "migrating"}}, false, SourceHeld},
		{&migration.StreamStatus{PostCopy: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "user"}}, false, SourceMemory},
		{&migration.StreamStatus{PostCopy: true, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}}, false, SourceMigrated},
		{&migration.StreamStatus{PostCopy: true, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "destroyed"}}, false, SourceOff}, // half a guest
		{source(false, "paused", "migrating"), false, SourceMemory},                                                                                     // libvirtd killed in Finish: not incoming
		{&migration.StreamStatus{PostCopy: true, Half: true, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "crashed"}}, false, SourceLost},
		{&migration.StreamStatus{PostCopy: true, Half: true}, true, SourceLost},
		{&migration.StreamStatus{PostCopy: true, Half: true, Left: true, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "unknown"}}, false, SourceMigrated},
		{&migration.StreamStatus{PostCopy: true, Half: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "post-copy failed"}}, false, SourcePostCopy},
		{source(false, "crashed", "panicked"), false, SourceMemory},
		{source(false, "shut off", "crashed"), false, SourceOff},
		{source(false, "shut off", "unknown"), false, SourceOff},
		{source(false, "shut off", "destroyed"), false, SourceEnded},
		{source(false, "shut off", "shutdown"), false, SourceEnded},
		{source(false, "", ""), true, SourceVanished},
		{&migration.StreamStatus{Left: true, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "unknown"}}, false, SourceMigrated},
		{&migration.StreamStatus{Left: true, InFlight: true}, true, SourceMigrated},
		{&migration.StreamStatus{Left: true, Domain: migration.DomainView{Exists: true, State: "running", Reason: "booted"}}, false, SourceMemory},
		{source(false, "", ""), false, SourceRemoved},
	} {
		if got := sourceFact(tt.st, !tt.transient); got != tt.want {
			t.Errorf("%+v, transient %v: %s, want %s", tt.st, tt.transient, got, tt.want)
		}
	}
	for _, tt := range []struct {
		state, reason string
		want          DestinationFact
	}{
		{"", "", DestinationNone},
		{"shut off", "destroyed", DestinationNone},
		{"paused", "migrating", DestinationArriving},
		{"paused", "user", DestinationArrived},
		{"paused", "starting up", DestinationArrived},
		{"running", "unpaused", DestinationRunning},
		{"running", "post-copy", DestinationPostCopy},
		{"running", "post-copy failed", DestinationPostCopy},
		{"paused", "post-copy failed", DestinationPostCopy},
		{"running", "migrated", DestinationRunning},
	} {
		st := &migration.DestinationStatus{Domain: migration.DomainView{Exists: tt.state != "", State: tt.state, Reason: tt.reason}}
		if got := destinationFact(st); got != tt.want {
			t.Errorf("%s (%s): %s, want %s", tt.state, tt.reason, got, tt.want)
		}
	}
	if got := destinationFact(nil); got != DestinationSilent {
		t.Errorf("no answer: %s", got)
	}
}

func (f Facts) String() string {
	return fmt.Sprintf("source %s, destination %s, journal %s, ledger %q, there %q, word %q", f.Source, f.Destination, f.Journal, f.Ledger, f.There, f.Word)
}
