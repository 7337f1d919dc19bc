package audit

// The facts of one consumer, as bits, so that a rule can name several. In a rule
// zero stands for any; in Facts exactly one bit is set of each.
type (
	// Token is where the instance's ownership token is, seen from this ledger.
	Token uint8
	// ClaimState is how far this host's claim for the instance is.
	ClaimState uint8
	// Domain is what libvirt says of the guest here.
	Domain uint8
	// Allocation is what Placement counts for the consumer, against what is claimed
	// here. Of a consumer without a claim here all that it holds of this host is too
	// much.
	Allocation uint8
	// Story is whether the consumer moves, or was a move.
	Story uint8
	// Type is the consumer's type in Placement.
	Type uint8
	// Fleet is what other hosts answered.
	Fleet uint8
)

// The facts.
const (
	TokenNone      Token = 1 << iota // the ledger has no record of it
	TokenHere                        // this host owns the guest
	TokenTransit                     // given away, and the move is not over
	TokenElsewhere                   // given away, for good
)

// The claims' states, as package claims has them.
const (
	ClaimNone ClaimState = 1 << iota
	ClaimPending
	ClaimArriving
	ClaimBound
	ClaimHeld
)

// What libvirt says.
const (
	DomainRunning Domain = 1 << iota
	DomainOff
	DomainGone
	DomainUnknown // libvirt does not answer
)

// What Placement counts.
const (
	AllocationNone      Allocation = 1 << iota // nothing at all
	AllocationEqual                            // what is claimed, where it is claimed
	AllocationAmounts                          // on the right providers of this host, other amounts or classes
	AllocationMisplaced                        // on another provider of this host's tree
	AllocationDoubled                          // of this host and of another
	AllocationElsewhere                        // of other hosts alone
	AllocationUnknown                          // Placement does not answer

	allocatedHere = AllocationEqual | AllocationAmounts | AllocationMisplaced
	notHere       = AllocationNone | AllocationElsewhere
)

// Moves.
const (
	StoryNone  Story = 1 << iota
	StoryRuns        // unfinished, here or elsewhere: its conductor writes
	StoryKept        // unfinished and conducted here; Placement has lost both consumers, and the journal knows both halves
	StoryOver        // conducted here, and over
	StoryWaits       // unfinished: the guest is where it goes, and waits to have it confirmed
	StoryLost        // unfinished, by what is held of the guest here; and this host, which should conduct it, has no record of it

	moving = StoryRuns | StoryKept | StoryWaits | StoryLost
)

// Consumer types. Below microversion 1.38 nobody is told.
const (
	TypeInstance Type = 1 << iota
	TypeMigration
	TypeUnknown
)

// Answers of other hosts. Those are asked whose providers the consumer holds, the
// one that a token was given to, or all.
const (
	FleetUnasked Fleet = 1 << iota
	FleetSilent        // at least one did not answer, and none has said that it is its own
	FleetNobody        // all of them know nothing of it
	FleetOwner         // one has its token, durably
	FleetBusy          // one has a claim or a domain of it: it is about to change
	FleetMoving        // one knows an unfinished move of it, whose conductor writes what it holds
)

// Facts are all of one consumer.
type Facts struct {
	Token      Token
	Claim      ClaimState
	Domain     Domain
	Allocation Allocation
	Story      Story
	Type       Type
	Fleet      Fleet
}

// Verdict is who knows a subject.
type Verdict string

// The verdicts.
const (
	Agree         Verdict = "agree"
	LedgerOnly    Verdict = "ledger only"
	LibvirtOnly   Verdict = "libvirt only"
	PlacementOnly Verdict = "Placement only"
	Differs       Verdict = "differs"
	Unknown       Verdict = "unknown" // somebody did not answer
)

// Heal is a write to Placement that makes a row agree.
type Heal string

// The heals: a closed set.
const (
	HealNone Heal = ""
	// HealPut makes what the instance holds of this host equal to its claim.
	HealPut Heal = "put"
	// HealTake makes all that the instance holds equal to its claim here, in place of
	// what it holds of a host that has answered that it does not know it.
	HealTake Heal = "take"
	// HealDrop removes what the consumer holds of this host; the rest stays.
	HealDrop Heal = "drop"
	// HealDelete removes the consumer of a move that is over.
	HealDelete Heal = "delete"
	// HealHalves puts both consumers of a move back that Placement has lost.
	HealHalves Heal = "halves"
)

// Judgement is what a rule says of facts.
type Judgement struct {
	Verdict Verdict
	Code    string
	Heal    Heal
}
