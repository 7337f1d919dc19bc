package host

import (
	"fmt"
	"slices"

	"berth/driver"
	"berth/migration"
)

// decision is what the source may decide about a guest in a move.
type decision string

const (
	mayCommit  decision = "commit"   // the token may leave; reclaiming is forbidden
	mayReclaim decision = "reclaim"  // the guest stays; a commit is forbidden
	notYet     decision = "not yet"  // a job or a call is still under way
	inDoubt    decision = "in doubt" // nothing here tells
)

// sourceState is what the source knows: its domain, its own record, and what an
// operator has said. What the destination says is no part of it.
type sourceState struct {
	exists     bool
	domain     driver.Domain
	persistent bool   // the domain had a definition when the stream was asked for
	asked      bool   // a stream was asked for
	result     result // of the hypervisor's call
	under      bool   // the call is pending or a job is in flight
	postCopy   bool   // the second job was asked for, by which the guest may go by post-copy
	half       bool   // it was seen in post-copy
	word       migration.WordFact
}

// domainClass is what a source's domain comes to.
type domainClass string

const (
	domainLeft     domainClass = "left"      // shut off (migrated)
	domainHalf     domainClass = "post-copy" // half of the memory is elsewhere
	domainActive   domainClass = "active"    // it has its memory
	domainOff      domainClass = "off"       // shut off otherwise
	domainVanished domainClass = "vanished"  // gone, and it was transient
	domainRemoved  domainClass = "removed"   // gone, though it had a definition
)

func (s sourceState) class() domainClass {
	d := s.domain
	switch {
	case s.exists && d.HasLeft():
		return domainLeft
	case s.exists && d.InPostCopy():
		return domainHalf
	case s.exists && d.Active():
		return domainActive
	case s.exists:
		return domainOff
	case s.persistent:
		return domainRemoved
	}
	return domainVanished
}

// sourceRow is one row of the source's table. An empty set stands for any value.
type sourceRow struct {
	domain []domainClass
	under  []bool
	word   []migration.WordFact
	result []result
	asked  []bool
	second []bool // sourceState.postCopy
	half   []bool
	then   decision
	why    string
}

// sourceTable is law 11's table, seen from the source's own facts; the first row that
// matches counts. Either decision keeps the guest from running twice, since the tracker
// lets exactly one of them happen; the table is about not losing it.
var sourceTable = []sourceRow{
	// A guest that has left, or ended, is the source's all the same where an operator
	// says so: its other copy is no more.
	{domain: []domainClass{domainLeft, domainOff, domainVanished, domainRemoved}, under: []bool{false}, word: []migration.WordFact{migration.WordSource},
		then: mayReclaim, why: "an operator has said that the guest is here"},
	{domain: []domainClass{domainLeft},
		then: mayCommit, why: "the domain has left: shut off (migrated)"},
	// The destination runs the guest, broken or not, and the source never will again.
	{domain: []domainClass{domainHalf}, second: []bool{true},
		then: mayCommit, why: "the guest is in post-copy: it runs at the destination, and part of its memory is here"},
	{under: []bool{true},
		then: notYet, why: "the hypervisor's job is not over"},
	{domain: []domainClass{domainHalf},
		then: inDoubt, why: "part of the guest's memory is elsewhere, by a migration that is not this one's"},
	{domain: []domainClass{domainActive},
		then: mayReclaim, why: "the domain has its memory"},
	{domain: []domainClass{domainOff, domainVanished, domainRemoved}, half: []bool{true},
		then: mayCommit, why: "the guest runs at the destination since it is in post-copy, and the part of its memory that was here is lost"},
	{result: []result{resultLeft}, // libvirt has forgotten why
		then: mayCommit, why: "the domain was seen to have left"},
	{word: []migration.WordFact{migration.WordDestination},
		then: mayCommit, why: "no memory is here, and an operator has said that the guest is at the destination"},
	{domain: []domainClass{domainOff},
		then: mayReclaim, why: "the guest ended here"},
	{result: []result{resultUndone},
		then: mayReclaim, why: "the domain is gone, and the hypervisor had rolled back: it ended by itself, or somebody removed it"},
	{asked: []bool{false},
		then: mayReclaim, why: "the domain is gone, and no stream was asked for"},
	{domain: []domainClass{domainVanished},
		then: mayCommit, why: "the transient domain is gone"},
	{domain: []domainClass{domainRemoved},
		then: inDoubt, why: "the domain is gone though it had a definition, and nobody saw it leave"},
}

// decide looks the state up in the table. The second answer says why, in an
// operator's words.
func decide(s sourceState) (decision, string) {
	i := decidingRow(s)
	if i < 0 {
		return inDoubt, fmt.Sprintf("no rule for %+v", s)
	}
	row, why := sourceTable[i], sourceTable[i].why
	if s.exists {
		why += fmt.Sprintf(": %s (%s)", s.domain.State, s.domain.Reason)
	}
	return row.then, why
}

// decidingRow is the index of the row that counts, or -1.
func decidingRow(s sourceState) int {
	class := s.class()
	return slices.IndexFunc(sourceTable, func(r sourceRow) bool {
		return in(r.domain, class) && in(r.under, s.under) && in(r.word, s.word) && in(r.result, s.result) && in(r.asked, s.asked) && in(r.second, s.postCopy) && in(r.half, s.half)
	})
}

func in[T comparable](set []T, v T) bool { return len(set) == 0 || slices.Contains(set, v) }
