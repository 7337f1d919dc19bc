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
//   - nobody is told of a claim, a token or a release before it is durable;
//     what is freed can be reused only once its release is durable;
//   - a token is here on at most one host of a fleet that keeps the hand-over's
//     order: the giver's Surrender durable before the receiver's AcceptToken.
//
// Under the lock there is arithmetic and enqueueing; the durable commit is
// shared by many callers outside it. A change that is on its way counts on both
// sides: what it takes is held already, what it gives back is held still. A
// second change of the same instance or migration waits until the first is
// durable or has failed, so nothing is built on what may yet be taken back.
//
// tracker.go has the lock and the way of a change; reserve.go admits claims;
// lifecycle.go takes them through their states, lease.go ends those that nobody
// renews; instance.go and token.go keep who owns a guest; half.go keeps what
// this host must remember of a migration. Which cells, cores, pages and devices
// a claim holds will stand in Resources beside the amounts, and be chosen by
// package fit where it is asked today.
package claims
