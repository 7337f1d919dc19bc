package migration

import "time"

// Operation is one thing that a host does for a migration, as a value. The host's dispatcher, the
// routes, the client, the OpenAPI document and the simulator's wire are made from these values;
// package operation has them all, each with the types of its input and its answer.
type Operation struct {
	Name     string        // on the wire and in messages: prep-evacuation
	Summary  string        // one sentence for the API's document
	Access   Access        // which other host may ask for it
	Limit    time.Duration // how long a request may take, where its caller says no less
	ReadOnly bool          // it changes nothing on the host
	// LimitOf is the limit of one input, Limit at most; nil for Limit.
	LimitOf func(in any) time.Duration
	// Joins is for how long the operation is asked again, where it goes on after a request that ended
	// as fault.Busy; 0 for an operation that ends with its request.
	Joins time.Duration

	// Before is what the host that is asked sees to before it does the operation.
	Before Before

	// Names gives the hosts that an input names; nil where inputs name none.
	Names func(in any) Named
	// NewRequest makes the empty body of a request, to be decoded into; Pack fills one, and
	// Unpack takes one apart.
	NewRequest func() any
	Pack       func(ref Ref, in any) any
	Unpack     func(body any) (ref Ref, in any)
	// NewAnswer makes the empty answer, to be decoded into; Answer is what was decoded.
	NewAnswer func() any
	Answer    func(decoded any) any
}

// Before is what a host sees to before it does an operation, in the order of the fields. No handler
// does it by itself.
type Before struct {
	// Lock: the operations on one instance come one after another.
	Lock bool
	// Stops: the undo ends an operation that is at work, as one that makes disks or runs hooks. The
	// operation can be ended before it is seen whether the undo has come.
	Stops bool
	// Step is under what the undo writes a tombstone; the operation is refused after that. Empty for
	// an operation that looks by itself, or has no undo.
	Step string
	// Manage: refused on a host that only observes, unless this attempt has had it done. Undos and
	// what follows a commit do not ask: a migration that has begun ends, whatever the mode is by then.
	Manage bool

	// Undoes is the step that this operation undoes: the host writes the tombstone, ends what is at
	// work, and takes the lock. The other fields are empty then.
	Undoes string
}

// Access says what an operation is to the host that is asked, and so which other host may ask for it.
type Access uint8

const (
	// AccessConductor acts on what a migration has here, as its source or its destination.
	AccessConductor Access = iota
	// AccessDestination is of the destination, and safe to answer where nothing is recorded:
	// the answer says so, or the host writes a tombstone.
	AccessDestination
	// AccessShipment is the same, of disks that the source may send by itself.
	AccessShipment
	// AccessLook reads at the source, and changes nothing.
	AccessLook
	// AccessBegin makes the record at the source, and names who conducts.
	AccessBegin
	// AccessForget is the undo of that, which may have to come first.
	AccessForget
	Accesses // their number
)

// Named are the hosts that the input of an operation names.
type Named struct {
	Source    string
	Conductor string // empty for the source, or where the input has no place for it
	// Conducts: the input has that place.
	Conducts bool
	// Gives: Source is who gives the token away, which at a revert is the destination.
	Gives bool
	// Evacuates: Source is dead, and asks nothing itself.
	Evacuates bool
}
