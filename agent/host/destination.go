package host

import (
	"fmt"
	"slices"

	"berth/migration"
)

// arrivalState is what a destination knows of an arrival whose conductor it has not
// heard of for a while.
type arrivalState struct {
	token  arrivalToken
	claim  arrivalClaim
	heard  bool // the conductor was heard of a short while ago
	half   bool // the copy runs by post-copy: part of its memory is still at the source
	source sourceWord
}

type arrivalToken string

const (
	arrivalOwned   arrivalToken = "owned"   // the token is here by this attempt
	arrivalOther   arrivalToken = "other"   // it is here by another hand-over
	arrivalMoved   arrivalToken = "moved"   // it was here by this attempt, and the guest has gone on since
	arrivalUnowned arrivalToken = "unowned" // it is not here
)

type arrivalClaim string

const (
	arrivalPending  arrivalClaim = "pending"
	arrivalArriving arrivalClaim = "arriving"
	arrivalNone     arrivalClaim = "none" // its lease is over, and what was made for it is left
)

// sourceWord is what the source has answered.
type sourceWord string

const (
	sourceUnasked   sourceWord = "unasked"
	sourceSilent    sourceWord = "silent"
	sourceGoing     sourceWord = "going"
	sourceCommitted sourceWord = "committed"
	sourceKept      sourceWord = "kept"
	sourceUnknown   sourceWord = "unknown"
	sourceHigher    sourceWord = "higher" // it knows of a higher epoch than the one here
)

// arrivalAction is what a destination does about an arrival by itself.
type arrivalAction string

const (
	arrivalAsk      arrivalAction = "ask"       // the source, what became of the attempt
	arrivalFinish   arrivalAction = "finish"    // resume, define, bind, hooks
	arrivalAccept   arrivalAction = "accept"    // the token by the commit that the source has handed over, then finish
	arrivalRollBack arrivalAction = "roll back" // the copy is provably not the owner: it ends, and all that was made for it
	arrivalYield    arrivalAction = "yield"     // the same, and the token with it
	arrivalWait     arrivalAction = "wait"      // keep everything
	arrivalDoubt    arrivalAction = "in doubt"  // keep everything, and tell the operator
)

// arrivalRow is one row of the destination's table. An empty set stands for any value.
type arrivalRow struct {
	token  []arrivalToken
	claim  []arrivalClaim
	heard  []bool
	half   []bool
	source []sourceWord
	then   arrivalAction
	why    string
}

// arrivalTable is what a destination does alone; the first row that matches counts. It
// finishes alone if and only if the token is here, and ends a copy only where the one
// who alone gives the token away says that it never will. What the copy looks like
// decides nothing: a whole one may have been given away or not.
var arrivalTable = []arrivalRow{
	{token: []arrivalToken{arrivalOwned}, source: []sourceWord{sourceHigher},
		then: arrivalYield, why: "an operator has given the guest back to the source: there is a higher epoch"},
	{token: []arrivalToken{arrivalOwned}, heard: []bool{true},
		then: arrivalWait, why: "the conductor finishes it"},
	{token: []arrivalToken{arrivalOwned}, source: []sourceWord{sourceUnasked},
		then: arrivalAsk, why: "the token is here, unless the source has a higher epoch"},
	{token: []arrivalToken{arrivalOwned}, half: []bool{true}, source: []sourceWord{sourceSilent},
		then: arrivalDoubt, why: "the guest runs here in post-copy, and the source, where the rest of its memory is, does not answer; if that is gone for good, end what is here (virsh destroy DOMAIN) and start the guest anew"},
	{token: []arrivalToken{arrivalOwned}, half: []bool{true},
		then: arrivalWait, why: "the guest runs here in post-copy, and part of its memory is still at the source"},
	{token: []arrivalToken{arrivalOwned},
		then: arrivalFinish, why: "the token is here: the guest is this host's"},
	// What was made for it is the guest's, wherever that is now: only the records go.
	{token: []arrivalToken{arrivalMoved},
		then: arrivalFinish, why: "the guest had come, and has gone on since"},
	{token: []arrivalToken{arrivalOther},
		then: arrivalDoubt, why: "the guest is this host's by another hand-over, and a claim waits for it"},
	{heard: []bool{true},
		then: arrivalWait, why: "the conductor works on it"},
	{claim: []arrivalClaim{arrivalNone},
		then: arrivalRollBack, why: "the claim has ended before anything could arrive, and what was made for it is left"},
	{source: []sourceWord{sourceUnasked},
		then: arrivalAsk, why: "the conductor is silent"},
	{half: []bool{true}, source: []sourceWord{sourceKept},
		then: arrivalDoubt, why: "the source keeps the guest, and yet a copy runs here in post-copy: a person ends one of the two"},
	{source: []sourceWord{sourceKept},
		then: arrivalRollBack, why: "the source keeps the guest: this attempt never gives the token away"},
	{source: []sourceWord{sourceCommitted},
		then: arrivalAccept, why: "the source has given the token to this host"},
	{source: []sourceWord{sourceGoing},
		then: arrivalWait, why: "the source works on it"},
	{claim: []arrivalClaim{arrivalPending}, source: []sourceWord{sourceSilent, sourceUnknown},
		then: arrivalWait, why: "nothing can have come yet, and the claim goes with its lease"},
	{source: []sourceWord{sourceSilent},
		then: arrivalDoubt, why: "the source does not answer, and it alone knows whether the guest is this host's"},
	{then: arrivalDoubt, why: "the source cannot say what became of it"},
}

func decideArrival(s arrivalState) (arrivalAction, string) {
	row := arrivalTable[arrivalRowOf(s)]
	return row.then, row.why
}

// arrivalRowOf is the index of the row that counts; the last matches everything.
func arrivalRowOf(s arrivalState) int {
	return slices.IndexFunc(arrivalTable, func(r arrivalRow) bool {
		return in(r.token, s.token) && in(r.claim, s.claim) && in(r.heard, s.heard) && in(r.half, s.half) && in(r.source, s.source)
	})
}

// wordOfSource reads a source's answer; nil is one that did not come. epoch is that of
// the token here, 0 where it is not.
func wordOfSource(f *migration.AttemptFate, epoch uint64) sourceWord {
	switch {
	case f == nil:
		return sourceSilent
	case epoch > 0 && f.Epoch > epoch:
		return sourceHigher
	}
	switch f.Fate {
	case migration.FateGoing:
		return sourceGoing
	case migration.FateCommitted:
		return sourceCommitted
	case migration.FateKept:
		return sourceKept
	}
	return sourceUnknown
}

func (s arrivalState) String() string {
	return fmt.Sprintf("token %s, claim %s, heard %v, half %v, source %s", s.token, s.claim, s.heard, s.half, s.source)
}
