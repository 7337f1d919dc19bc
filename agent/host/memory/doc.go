// Package memory is what makes the verbs of a host safe to repeat: what each of them
// remembers of its attempt at a migration, which of them are undone for good, and
// which instance one works on at this moment.
//
// It reads and writes through the claim tracker, which keeps records and tombstones in
// its ledger and says what each of its calls promises. Turns are of this process alone.
// The rooms of a host (its streams, changes, moves by other tools) share one Memory;
// none of them knows another's records but by what that room says of them.
//
// Invariants:
//
//   - one verb at a time works on one instance, and an undo ends the verb that it
//     undoes before it takes its turn;
//   - an undo is buried before it begins, so that the verb does not come late; an undo
//     that is refused buries nothing;
//   - a record is durable when Remember returns, and only its own step writes it.
package memory
