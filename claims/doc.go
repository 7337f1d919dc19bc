// Package claims is the heart of the host: the process-wide claim lock, the
// ledger of claims, instances and ownership tokens, and the tombstones that
// keep late verbs out.
//
// It reads and alone writes the ledger buckets of the store. Invariants, at
// every moment and across any crash:
//
//   - usage is the sum of live claims; free capacity is derived, never stored;
//   - a claim that Berth makes fits within (total − reserved) × ratio; an
//     adopted one may be forced over it, and is named;
//   - pinned CPUs, the CPUs of isolated emulator threads, siblings kept idle,
//     pages of pools and PCI functions are exclusive: no two live claims that
//     Berth made have one in common, no pool is promised over its total, and of
//     a PF and its VFs, or of an IOMMU group, one guest has all that is given;
//   - what a claim was given (its Assignment) is chosen by claims/fit under the
//     lock, is durable in the claim's own commit, and never changes but by Adopt and Follow;
//   - nobody is told of a claim, a token or a release before it is durable;
//     what is freed can be reused only once its release is durable;
//   - a token is here on at most one host of a fleet that keeps the hand-over's
//     order: the giver's ReleaseOwnership durable before the receiver's AcceptToken.
//
// Under the lock there is arithmetic and enqueueing; the durable commit is
// shared by many callers outside it. A change that is on its way counts on both
// sides: what it takes is held already, what it gives back is held still. A
// second change of the same instance or migration waits until the first is
// durable or has failed, so nothing is built on what may yet be taken back.
//
// An instance is resized or rebuilt on its own host under two claims and uses
// one of them: the claim of kind instance is always what it uses, and Exchange has
// the two change places. The second sees what the first holds as free for itself; until
// one of them ends the host keeps the union: of amounts and pages the larger, of
// CPUs and devices all. Of a guest that was resized to another host the source keeps
// the half that it came with, held for the migration, until the move is confirmed or
// the guest comes back.
//
// # Memory
//
// A guest bound to cells uses their pages: of a pool where it asked for a size,
// else ordinary ones (a cell's smallest). A guest without NUMA topology floats:
// its memory comes from ordinary pages of any cell, and is held against all of
// them together, (total − pools − reserved) × ratio. Within a cell ordinary
// memory keeps to the same limit, so pools of huge pages are never promised as
// ordinary memory; guests with pinned CPUs get only pages that are free.
//
// # Where to find what
//
// tracker.go has the lock and the way of a change; request.go says what a
// request must be, reserve.go admits claims, inbound.go counts guests on their way, place.go asks claims/fit for room,
// adopt.go takes guests as they are found, follow.go keeps claims behind what people
// do to them, stranger.go counts guests without a claim; lifecycle.go takes claims through
// their states, exchange.go and held.go those of a guest that is changed on its host or
// may come back to it, lease.go ends those that nobody renews; instance.go and token.go
// keep who owns a guest; half.go keeps what this host must remember of a
// migration, context.go what a move changes; copy.go keeps the hidden records of guests that are to come. hold.go says what a claim is
// counted for; machine.go and devices.go keep the host with what is in use of
// it, so that a claim need not add up all others; audit.go adds up all the same,
// and compares; usage.go and explain.go tell. rebuild.go judges guests whose records
// were lost, restore.go puts them back.
package claims
