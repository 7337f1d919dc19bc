package evacuation

import (
	"fmt"
	"slices"
)

// State is what a destination knows of a guest that comes from a dead host.
type State struct {
	Token     Token
	Claim     Claim
	Conductor Conductor
	Records   Records
}

// Token is where the guest's token is, by this host's ledger.
type Token string

// The tokens.
const (
	Owned   Token = "owned"   // here, by this attempt
	Other   Token = "other"   // here, by another hand-over
	Moved   Token = "moved"   // it was here by this attempt, and the guest has gone on since
	Unowned Token = "unowned" // not here
)

// Claim is what holds the guest's room here.
type Claim string

// The claims.
const (
	Pending  Claim = "pending"  // it goes with its lease
	Arriving Claim = "arriving" // it stays until it is bound or given up
	None     Claim = "none"     // bound, or gone with its lease: what verbs remember is left
)

// Conductor is how long nothing was heard of who conducts the evacuation.
type Conductor string

// The conductors.
const (
	Heard  Conductor = "heard"  // a short while
	Quiet  Conductor = "quiet"  // a while
	Silent Conductor = "silent" // so long that nobody counts on it any more
)

// Records is what the fleet's records say of the guest.
type Records string

// The words of the records.
const (
	Unasked    Records = "unasked"
	Unanswered Records = "unanswered"
	Given      Records = "given" // to this host, by this very attempt
	Open       Records = "open"  // it is the dead host's, and may be given to this one still
	Never      Records = "never" // it never will be: its host is back, or another has it, or nobody
)

// Action is what a destination does by itself.
type Action string

// The actions.
const (
	Ask      Action = "ask"       // the fleet's records
	Finish   Action = "finish"    // all that FinishEvacuation does
	Accept   Action = "accept"    // the token, by the records, then finish
	RollBack Action = "roll back" // all that was prepared, and the claim
	GiveUp   Action = "give up"   // the records first, so that nobody gives it to this host later; then roll back
	Wait     Action = "wait"
	Doubt    Action = "in doubt" // keep everything, and tell the operator
)

type row struct {
	token     []Token
	claim     []Claim
	conductor []Conductor
	records   []Records
	then      Action
	why       string
}

// table is looked through from the top; the first row that matches counts, and the last matches
// everything. An empty set stands for any value. No row goes by what the dead host may do: who
// has the guest stands in the records alone, and a host that comes back asks them first.
var table = []row{
	{token: []Token{Owned}, conductor: []Conductor{Heard},
		then: Wait, why: "the conductor finishes it"},
	{token: []Token{Owned},
		then: Finish, why: "the token is here: the guest is this host's"},
	{token: []Token{Moved},
		then: Finish, why: "the guest had come, and has gone on since"},
	{token: []Token{Other},
		then: Doubt, why: "the guest is this host's by another hand-over, and a claim waits for it"},
	{conductor: []Conductor{Heard},
		then: Wait, why: "the conductor works on it"},
	{records: []Records{Unasked},
		then: Ask, why: "the conductor is silent"},
	{claim: []Claim{None}, records: []Records{Given},
		then: Doubt, why: "the guest was given to this host, and its claim is gone"},
	{records: []Records{Given},
		then: Accept, why: "the fleet's records have given the guest to this host"},
	{records: []Records{Never},
		then: RollBack, why: "the fleet's records never give the guest to this host by this attempt"},
	{claim: []Claim{Pending}, records: []Records{Open, Unanswered},
		then: Wait, why: "nothing is given to a host that is not ready, and the claim goes with its lease"},
	{claim: []Claim{None}, records: []Records{Open},
		then: GiveUp, why: "the claim has ended before the guest was given to this host, and what was made for it is left"},
	{conductor: []Conductor{Silent}, records: []Records{Open},
		then: GiveUp, why: "the conductor is silent for too long"},
	{records: []Records{Open},
		then: Wait, why: "the conductor is silent, and may have the guest given to this host still"},
	{then: Doubt, why: "the fleet's records do not answer, and they alone say whether the guest is this host's"},
}

// Decide says what a destination does, and why.
func Decide(s State) (Action, string) {
	r := table[rowOf(s)]
	return r.then, r.why
}

func rowOf(s State) int {
	return slices.IndexFunc(table, func(r row) bool {
		return in(r.token, s.Token) && in(r.claim, s.Claim) && in(r.conductor, s.Conductor) && in(r.records, s.Records)
	})
}

func in[T comparable](set []T, v T) bool { return len(set) == 0 || slices.Contains(set, v) }

func (s State) String() string {
	return fmt.Sprintf("token %s, claim %s, conductor %s, records %s", s.Token, s.Claim, s.Conductor, s.Records)
}
