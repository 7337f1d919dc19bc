package conductor

import (
	"fmt"
	"slices"
	"strings"

	"berth/migration"
)

// SourceFact is what the source's hypervisor says about its own domain.
type SourceFact string

// The source facts.
const (
	SourceSilent   SourceFact = "silent"    // the host or its hypervisor does not answer
	SourceJob      SourceFact = "job"       // the migration job is in flight
	SourceMemory   SourceFact = "memory"    // no job, and the domain has its memory: running, paused, …
	SourcePostCopy SourceFact = "post-copy" // paused (post-copy), broken or not: the destination runs the guest, and half of its memory is here
	SourceHeld     SourceFact = "held"      // the second job is over, and the domain stands still with its memory: it may run at the destination
	SourceLost     SourceFact = "lost"      // it was seen in post-copy, and is no more
	SourceMigrated SourceFact = "migrated"  // shut off (migrated), or recorded to have left
	SourceEnded    SourceFact = "ended"     // shut off (shutdown) or (destroyed): somebody ended the guest here
	SourceOff      SourceFact = "off"       // shut off for another reason: crashed, failed, or unknown after a restart of libvirtd
	SourceVanished SourceFact = "vanished"  // no domain, and it was transient
	SourceRemoved  SourceFact = "undefined" // no domain, though it was persistent
)

// DestinationFact is what the destination's hypervisor says about its copy.
type DestinationFact string

// The destination facts.
const (
	DestinationUnasked  DestinationFact = "unasked"
	DestinationSilent   DestinationFact = "silent"
	DestinationNone     DestinationFact = "none"     // no domain, or one that is shut off
	DestinationArriving DestinationFact = "arriving" // paused (migrating): incomplete
	DestinationArrived  DestinationFact = "arrived"  // paused, complete
	DestinationRunning  DestinationFact = "running"
	DestinationPostCopy DestinationFact = "post-copy" // it has run, and not all of its memory has come
)

// JournalFact is how far the conductor's journal is.
type JournalFact string

// The journal facts.
const (
	JournalStreaming JournalFact = "streaming" // the stream step has begun
	JournalSeen      JournalFact = "seen"      // the source was seen shut off (migrated): the commit step has begun
	JournalUndoing   JournalFact = "undoing"   // the move is being given up
	JournalCommitted JournalFact = "committed" // the commit step has ended
)

// Facts is what is known about a guest in the middle of a move.
type Facts struct {
	Source      SourceFact
	Destination DestinationFact
	Journal     JournalFact
	Ledger      migration.Ledger // the source's
	// There is the destination's ledger: LedgerAccepted where it has the token by this
	// attempt with a higher epoch than the source's, which without the source's
	// surrender only an operator's word at the destination can have brought about;
	// LedgerUnknown where it was not asked, and LedgerElsewhere else.
	There migration.Ledger
	Word  migration.WordFact // as the source has it
}

// Action is what the facts ask for.
type Action string

// The actions.
const (
	ActionCommit  Action = "commit"   // forward: the source surrenders the token
	ActionReclaim Action = "reclaim"  // back: the guest stays at the source
	ActionWait    Action = "wait"     // look again; shown as in doubt after a while
	ActionAsk     Action = "ask"      // look at the destination, then decide
	ActionInDoubt Action = "in doubt" // no rule decides: keep looking, and tell the operator
	ActionYield   Action = "yield"    // forward: the source gives way to the destination's higher epoch
)

// handoverRow is one row of law 11's table. An empty set stands for any value.
type handoverRow struct {
	journal     []JournalFact
	ledger      []migration.Ledger
	source      []SourceFact
	destination []DestinationFact
	there       []migration.Ledger
	word        []migration.WordFact
	action      Action
	why         string
}

// handoverTable decides what became of a guest; the first row that matches
// counts. The hosts check again by themselves: Commit and Reclaim refuse what
// their own domain contradicts.
var handoverTable = []handoverRow{
	// An operator's explicit word is above all that is written here, and of two words
	// the one with the higher epoch is right.
	{there: []migration.Ledger{migration.LedgerAccepted}, ledger: []migration.Ledger{migration.LedgerHere, migration.LedgerReclaimed, migration.LedgerElsewhere},
		action: ActionYield, why: "the destination has the token with a higher epoch: an operator has said that the guest is there"},
	{word: []migration.WordFact{migration.WordSource},
		action: ActionReclaim, why: "an operator has said that the guest is at the source"},

	// What is durable decides before what is seen.
	{journal: []JournalFact{JournalCommitted},
		action: ActionCommit, why: "the commit is journaled: the token has left the source"},
	{ledger: []migration.Ledger{migration.LedgerSurrendered},
		action: ActionCommit, why: "the source's ledger has surrendered the token to this attempt"},
	{ledger: []migration.Ledger{migration.LedgerElsewhere},
		action: ActionInDoubt, why: "the source does not hold the token, and did not give it to this attempt"},
	{ledger: []migration.Ledger{migration.LedgerReclaimed}, source: []SourceFact{SourcePostCopy, SourceLost, SourceMigrated, SourceVanished, SourceRemoved},
		action: ActionInDoubt, why: "the source refused any commit, yet its domain has left"},
	{ledger: []migration.Ledger{migration.LedgerReclaimed},
		action: ActionReclaim, why: "the source has already decided to keep the guest"},

	// Nothing is decided about what cannot be seen.
	{source: []SourceFact{SourceSilent},
		action: ActionWait, why: "the source or its hypervisor does not answer"},

	// The source's domain settles it alone, whatever the destination has.
	{source: []SourceFact{SourceJob}, journal: []JournalFact{JournalUndoing},
		action: ActionReclaim, why: "the job is to be aborted"},
	{source: []SourceFact{SourceJob},
		action: ActionWait, why: "the stream goes on"},
	{source: []SourceFact{SourceMemory},
		action: ActionReclaim, why: "the stream is over and the source's domain has its memory"},
	{source: []SourceFact{SourceMigrated},
		action: ActionCommit, why: "the source's domain has left: the destination's paused copy is the only one"},
	{source: []SourceFact{SourcePostCopy},
		action: ActionCommit, why: "post-copy has begun: the guest runs at the destination, and the rest of its memory can only follow it"},
	{source: []SourceFact{SourceLost},
		action: ActionCommit, why: "post-copy had begun: the guest is the destination's, and the part of its memory that was at the source is lost"},
	{source: []SourceFact{SourceEnded},
		action: ActionReclaim, why: "the guest was ended at the source during the move, and stays there"},
	{source: []SourceFact{SourceHeld, SourceOff, SourceVanished, SourceRemoved}, word: []migration.WordFact{migration.WordDestination},
		action: ActionCommit, why: "the source's domain has no memory, and an operator has said that the guest is at the destination"},
	{source: []SourceFact{SourceRemoved},
		action: ActionInDoubt, why: "the guest's definition at the source was removed during the move"},

	// A second job that ends before it is post-copy hands the guest over by libvirt's own means,
	// which let it run there; a source whose daemon died in the middle of that does not know.
	{source: []SourceFact{SourceHeld}, destination: []DestinationFact{DestinationUnasked},
		action: ActionAsk, why: "the guest stands still at the source since its second job, which may have let it run at the destination"},
	{source: []SourceFact{SourceHeld}, destination: []DestinationFact{DestinationSilent},
		action: ActionWait, why: "the guest stands still at the source since its second job, and the destination, where it may run, does not answer"},
	{source: []SourceFact{SourceHeld}, destination: []DestinationFact{DestinationNone, DestinationArriving, DestinationArrived},
		action: ActionReclaim, why: "the second job is over, the source's domain has its memory, and no copy runs at the destination"},
	{source: []SourceFact{SourceHeld},
		action: ActionInDoubt, why: "the guest runs at the destination, and stands still at the source with the memory that it had when it was sent: end that copy there (virsh destroy DOMAIN), and say where the guest is"},

	// libvirt forgets the reason of a stopped domain when its daemon restarts;
	// the journal may have seen it before.
	{source: []SourceFact{SourceOff}, journal: []JournalFact{JournalSeen},
		action: ActionCommit, why: "the source's domain was seen to have left before it forgot why it is off"},

	// The source has no memory and does not say why: the destination is asked.
	{source: []SourceFact{SourceOff, SourceVanished}, destination: []DestinationFact{DestinationUnasked},
		action: ActionAsk, why: "the source's domain has ended for a reason that settles nothing"},
	{source: []SourceFact{SourceOff, SourceVanished}, destination: []DestinationFact{DestinationSilent},
		action: ActionWait, why: "the source's domain has ended, and the destination does not answer"},
	{source: []SourceFact{SourceOff}, destination: []DestinationFact{DestinationNone, DestinationArriving},
		action: ActionReclaim, why: "the guest crashed at the source and no whole copy arrived"},
	{source: []SourceFact{SourceOff}, destination: []DestinationFact{DestinationArrived, DestinationRunning},
		action: ActionInDoubt, why: "the source's domain is off and does not say that it migrated, yet a whole copy is at the destination"},
	{source: []SourceFact{SourceOff, SourceVanished}, destination: []DestinationFact{DestinationPostCopy},
		action: ActionInDoubt, why: "the source's domain has ended in the middle of post-copy: the part of the guest's memory that had not come is lost"},
	{source: []SourceFact{SourceVanished}, destination: []DestinationFact{DestinationNone},
		action: ActionReclaim, why: "the transient domain has ended and no copy is anywhere: nothing is left to move"},
	{source: []SourceFact{SourceVanished}, destination: []DestinationFact{DestinationArrived, DestinationRunning},
		action: ActionCommit, why: "the transient domain has left the source and a whole copy is at the destination"},
	{source: []SourceFact{SourceVanished},
		action: ActionInDoubt, why: "the transient domain is gone from the source and no whole copy is at the destination"},
}

// Decide looks the facts up in the table. The second answer says why, in an
// operator's words. It is a pure function.
func Decide(f Facts) (Action, string) {
	if i := decidingRow(f); i >= 0 {
		return handoverTable[i].action, handoverTable[i].why
	}
	return ActionInDoubt, fmt.Sprintf("no rule for source %s, destination %s, journal %s, ledger %s, destination's ledger %s, word %s",
		f.Source, f.Destination, f.Journal, f.Ledger, f.There, f.Word)
}

// decidingRow is the index of the row that counts, or -1.
func decidingRow(f Facts) int {
	return slices.IndexFunc(handoverTable, func(r handoverRow) bool {
		return in(r.journal, f.Journal) && in(r.ledger, f.Ledger) && in(r.source, f.Source) && in(r.destination, f.Destination) &&
			in(r.there, f.There) && in(r.word, f.Word)
	})
}

func in[T comparable](set []T, v T) bool { return len(set) == 0 || slices.Contains(set, v) }

// thereFact reads a destination's word on its ledger; nil is a status that did not come.
func thereFact(source *migration.StreamStatus, st *migration.DestinationStatus) migration.Ledger {
	switch {
	case st == nil:
		return migration.LedgerUnknown
	case st.Ledger == migration.LedgerAccepted && source != nil && st.Epoch > source.Epoch:
		return migration.LedgerAccepted
	}
	return migration.LedgerElsewhere
}

// wordFact reads where an operator said that the guest is.
func wordFact(st *migration.StreamStatus, source string) migration.WordFact {
	switch {
	case st == nil || st.Settled == "":
		return migration.WordNone
	case st.Settled == source:
		return migration.WordSource
	}
	return migration.WordDestination
}

// sourceFact reads a source's status; nil is one that did not come.
func sourceFact(st *migration.StreamStatus, persistent bool) SourceFact {
	switch {
	case st == nil:
		return SourceSilent
	// Before the job: libvirt's call may still be cleaning up when the domain has
	// already left, and each moment counts now.
	case st.Domain.Exists && st.Domain.State == "shut off" && st.Domain.Reason == "migrated":
		return SourceMigrated
	// The host has seen it before; a domain that has its memory again, because
	// somebody started it, is another matter.
	case st.Left && (!st.Domain.Exists || st.Domain.State == "shut off"):
		return SourceMigrated
	case st.Half && (!st.Domain.Exists || st.Domain.State == "shut off"):
		return SourceLost
	// Before the job, which goes on in it.
	case inPostCopy(st.Domain):
		return SourcePostCopy
	case st.InFlight:
		return SourceJob
	case !st.Domain.Exists && persistent:
		return SourceRemoved
	case !st.Domain.Exists:
		return SourceVanished
	case st.Domain.State == "":
		return SourceSilent
	// Its user's pause would end the job, and is none of it.
	case st.PostCopy && st.Domain.State == "paused" && st.Domain.Reason == "migrating":
		return SourceHeld
	case st.Domain.State != "shut off":
		return SourceMemory
	// Where it may have been in post-copy, what was ended here need not be the guest.
	case (st.Domain.Reason == "shutdown" || st.Domain.Reason == "destroyed") && !st.PostCopy:
		return SourceEnded
	}
	return SourceOff
}

// The reasons of a source's domain that has left by post-copy, virsh's words.
const (
	reasonPostCopy       = "post-copy"
	reasonPostCopyFailed = "post-copy failed" // its connection is broken
	reasonBooted         = "booted"           // a new process of it was started
)

// inPostCopy reports whether a source's domain has left by post-copy and still has what has
// not followed.
func inPostCopy(d migration.DomainView) bool {
	return d.State == "paused" && (d.Reason == reasonPostCopy || d.Reason == reasonPostCopyFailed)
}

// destinationFact reads a destination's status; nil is one that did not come.
func destinationFact(st *migration.DestinationStatus) DestinationFact {
	switch {
	case st == nil || st.Domain.Exists && st.Domain.State == "":
		return DestinationSilent
	case !st.Domain.Exists || st.Domain.State == "shut off":
		return DestinationNone
	case strings.HasPrefix(st.Domain.Reason, "post-copy"):
		return DestinationPostCopy
	case st.Domain.State == "paused" && st.Domain.Reason == "migrating":
		return DestinationArriving
	case st.Domain.State == "paused":
		return DestinationArrived
	}
	return DestinationRunning
}
