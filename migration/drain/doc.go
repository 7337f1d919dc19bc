// Package drain empties a host: a queue of moves of all its guests, within bounds, with an end
// that says what was left behind and why.
//
// It is for package agent, which asks it to empty its own host (KindDrain) or a dead one
// (KindEvacuate). It knows guests and moves by the interface Host alone, and runs on an injected
// runtime. It reads and alone writes the bucket "drains" of its store:
//
//	<uuid>                   Drain: what was asked, by whom, how far it is
//	<uuid>/<instance uuid>   Guest: how far one guest is
//
// # One guest
//
//	state     becomes                          when
//	waiting   moving                           it is its turn; the record names the migration first
//	          stays                            something keeps it that the drain cannot change
//	          gone                             it is not on the host any more, without the drain
//	moving    moved                            the move has completed
//	          waiting                          it failed, or its destination was busy
//	          failed                           its attempts are used up, or somebody aborted its move
//	stays     waiting                          what kept it is over
//	          gone                             as above
//	failed    gone                             as above
//	gone      waiting                          it is there again
//
// # Invariants
//
//   - One drain is active for a host at a time.
//   - The migration's uuid is in the guest's record before the move is begun with it. Whoever
//     begins again after a crash begins the same move, so none is begun twice.
//   - Not more moves are under way than the limit, but for those in doubt for a minute: a move
//     that nobody can decide at present holds up nobody else for long. One that waits for its turn
//     among all moves of the host is under way, too: moves that somebody has asked for by themselves
//     have turns of the same limit.
//   - That a destination is busy is no attempt. A guest that failed goes behind all that have
//     not, whatever its priority, and stays there. Attempts are bounded, so a drain ends, save
//     where it waits for a move that somebody else has begun.
//   - The host is closed to new guests before the first move. An abort gives back what was before.
package drain
