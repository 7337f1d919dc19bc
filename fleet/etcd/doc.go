// Package etcd keeps the records of package fleet in etcd 3.4 or later, whose leases tell which
// hosts are alive. It is for agents with [fleet] etcd; it reads and alone writes keys below
// Prefix.
//
// A Store has one connection for each member, and asks the one that answered last. A member
// that is silent, has no leader or is gone is left for the next, within the time of the call.
// A read is asked again wherever it failed; a commit only where it cannot have been done: the
// member was not reached, or said that it has no leader or no room. Else its outcome is
// unknown, and the caller, who can, asks again.
//
// # Leases
//
// A renewal is kept by the leader alone, in memory, and a leader that has been replaced without
// knowing it would answer too. So each is followed by a linearizable read at the same member: if
// that is answered in the same term, the leader that kept the renewal was leader after it.
// Nothing runs between calls: a lease that nobody renews ends.
//
// A new leader gives each lease its whole length again, so what was promised still holds when
// members die. While there is no quorum none ends, since that is a commit too.
//
// One thing etcd does not promise: a leader that stood still for longer than a lease, and goes
// on, may have the lease ended although a leader after it has renewed it (etcd-io/etcd issue
// 15247, mended in 3.5.10 and 3.4.29). The next renewal writes the key anew.
package etcd

// Prefix is what all keys begin with.
const Prefix = "/berth/fleet/v1/"
