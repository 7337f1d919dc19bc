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
// shared by many callers outside it.
package claims
