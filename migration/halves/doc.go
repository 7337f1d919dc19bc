// Package halves is the arithmetic and the writes of the two consumers that a move
// has in Placement: the instance, which holds what the guest is going to use, and
// the migration's uuid, which keeps what is needed to go back. It knows no host and
// no hypervisor: where it must know what became of a guest it is handed a question.
//
// Amounts are by provider and resource class. One rule covers every move:
//
//	the migration keeps  max(0, old − new)   of each provider and class
//	the instance holds   new
//	back again           kept + min(old, new), which is old
//
// so during the move exactly max(old, new) is used. Where the hosts share no
// provider that is all of old for the migration. A disk on a sharing provider that
// both hosts use is not counted twice (Nova doubles it). A resize on one host fits on
// a full one if it grows into what is free, both consumers each within max_unit; one
// that only grows keeps nothing, and then the migration is left out of the body: written
// as nothing with a null generation it would leave an orphan consumer.
//
// Every write is guarded by the generation of the instance's consumer, and all that
// changes both consumers is one POST. A swap sends what was read when the instance was
// settled, without another read: a generation that has moved on turns it away. A 409
// has three meanings and three answers:
//
//	a consumer changed          stop and look; go on only where what is there is the
//	                            swap itself, or what it was made from
//	a provider changed          look, and write again
//	a race lost in the server   send the same body again
//
// each a bounded number of times, with growing pauses.
//
// The undo is done by a write whose answer came, never by a read: a swap whose
// answer was lost may still land, and only a raised generation turns it away for good.
// What it writes is computed from what the migration holds now. What it does with the
// instance depends on the guest first (its source is asked, ledger and hypervisor), on
// Placement second:
//
//	guest       instance in Placement   the undo
//	here        anything                back to the source; a deleted consumer is made again,
//	                                    since a guest that runs uses what it uses
//	gone        a consumer              what it holds of both hosts is removed
//	gone        none                    none is made: nobody who was deleted comes back
//	elsewhere   a consumer              left as it is, its generation raised: it is its new
//	                                    host's to write
//	elsewhere   none                    none is made
//	unknown     anything                nothing yet: asked again later
//
// and the migration's consumer is emptied in the same write. What the instance holds of
// providers that are neither host's is never touched. A source may have changed its shape
// in Placement between the move's first look and its swap, which that turns away: back is
// then to where its claim is counted now.
//
// Doubled allocations. OpenStack up to Pike, and tools made after it, have the
// instance hold source and destination together while it moves, and the migration
// nothing; what crashed then leaves both. Such an allocation is taken for one only where
// it is proven that nothing of the guest is on the other host (Leftover). The swap that
// follows makes it two consumers; the undo, and the end of a move of which the
// migration holds nothing, remove exactly the other half.
package halves
