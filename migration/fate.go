package migration

import (
	"context"
)

// Side is what one host of a move asks of the other, without a conductor between
// them. Only the two hosts of the move may ask. Both calls are safe to repeat.
type Side interface {
	// AttemptFate is asked of the source: what became of one attempt. It changes
	// nothing, and what it answers as final stays so.
	AttemptFate(ctx context.Context, ref Ref) (AttemptFate, error)

	// YieldToken tells a host that another one, to, has the guest's token with this
	// epoch. A host with a lower epoch surrenders what it has and ends its copy:
	// law 6's one exception. fault.Forbidden when its own epoch is not lower and the
	// token is here.
	YieldToken(ctx context.Context, ref Ref, epoch uint64, to string) error
}

// Settler is a host that takes an operator's word on an attempt; agent/host is one.
type Settler interface {
	// TakeWord makes the word durable and goes by it from then on: the source by its
	// Commit and Reclaim. fault.Forbidden where its own domain contradicts the word.
	TakeWord(ctx context.Context, ref Ref, s Settlement) error
	// WordOn gives the word that was taken; false for none. From memory.
	WordOn(ref Ref) (Settlement, bool)
}

// Fate is what became of one attempt of a migration.
type Fate string

// The fates. Committed and kept are final.
const (
	FateGoing     Fate = "going"     // its conductor works on it, forward or back
	FateCommitted Fate = "committed" // the token has left by it: Commit is the record
	FateKept      Fate = "kept"      // the source keeps the guest: this attempt never commits
	FateUnknown   Fate = "unknown"   // nothing that the source knows decides it
)

// AttemptFate is a source's word on one attempt.
type AttemptFate struct {
	Fate   Fate    `json:"fate"`
	Why    string  `json:"why"` // in an operator's words
	Commit *Commit `json:"commit,omitempty"`
	// Epoch is the highest of the guest's token that the source knows of, and Holder the
	// host that has it then; 0 where it knows none.
	Epoch  uint64 `json:"epoch,omitempty"`
	Holder string `json:"holder,omitempty"`
	// Of FateUnknown: Domain is the state of the source's domain and why, in an operator's
	// words, empty where it could not be read; Active says that it has its memory.
	Domain string `json:"domain,omitempty"`
	Active bool   `json:"active,omitempty"`
}

// Conduct is what a conductor has of one attempt.
type Conduct string

// What a conductor can have.
const (
	ConductNone  Conduct = ""      // no record of the migration
	ConductGoing Conduct = "going" // that attempt is not over, or cannot be read
	ConductSeen  Conduct = "seen"  // the same, and by its journal the guest was seen to have left
	ConductOver  Conduct = "over"  // it was undone, or refused: nothing of it goes on
	ConductDone  Conduct = "done"  // it has completed
)

// WordFact is whether an operator has said where the guest of an attempt is.
type WordFact string

// The word facts.
const (
	WordNone        WordFact = ""
	WordSource      WordFact = "source"
	WordDestination WordFact = "destination"
)
