// Package placementclient is OpenStack Placement's vocabulary (resource
// provider, inventory, trait, allocation, consumer, generation, microversion)
// and the HTTP client that speaks it.
//
// It reads and writes one Placement service, embedded or OpenStack's own, over
// HTTP; it keeps nothing but the negotiated microversion and counters. It
// decides nothing: who owns a guest, what a host has and what a swap means is
// known by its callers.
//
// # What a caller can rely on
//
// Every call ends by itself (Config.Timeout), whatever the network does. What is
// safe to repeat is repeated, bounded and with jitter: refused connections,
// resets, 429 and 5xx (Retry-After is obeyed), and the 409 that Placement gives
// when it lost a race inside itself. That is safe for writes because each
// carries a generation, so that a repeat of a write that had landed is answered
// 409; the client then reads and compares, and reports success when the first
// one had landed.
//
// # Errors
//
// An answer that says no is an *APIError in the chain; its Conflict tells the
// meanings of a 409 apart. Kinds (fault.KindOf):
//
//	fault.NotFound            404
//	fault.Exists              409, the name, uuid or class is taken
//	fault.DoesNotFit          409, capacity, unit constraints, no inventory; reasons say which
//	fault.GenerationConflict  409, ConflictProviderGeneration: read again, recompute
//	                               ConflictConsumerGeneration: stop and look
//	fault.Busy                409, in use; or the server lost its race on every try
//	fault.Invalid             400, 405, 406, 415
//	fault.Forbidden           401, 403
//	fault.Unavailable         no answer, and nothing was done: the request never left, was
//	                          only a read, or was turned away by 429
//	fault.InDoubt             no answer to a write that did leave
//
// # Unknown outcomes
//
// A write of which at least one copy left this process without an answer, and
// whose repeats did not settle it, fails with fault.InDoubt: it may have
// happened, and it may still happen later, when the lost copy reaches the
// server. Reading does not settle that. For allocations, settle it by writing
// with the generation just read: a write that raises the consumer's generation
// makes every lost copy a 409.
package placementclient
