// Package conductor drives migrations: their steps in order, what undoes each, and what
// follows a failure or a restart.
//
// A conductor is a role of any agent, and one stays it to the end: that of the host which
// has the guest when a migration begins, or, of a move between hosts that share nothing, of
// any host that reaches both. It asks hosts for host verbs (Host: the local one in process,
// a peer over HTTP) and Placement for swaps, and journals before and after each step
// (package task). It reads the journal, hosts and Placement; it alone writes the buckets
// "migrations", "aborts" and "words" of its store and, through package task, "tasks". In
// Placement it writes the two consumers of an unfinished migration, the instance and the
// migration's uuid, and nothing else.
//
// Invariants, whatever process dies at whatever moment:
//
//   - the guest runs on one host at most; the source alone decides until its
//     Commit, and the destination resumes only on that commit; by post-copy, which is
//     begun only where it is permitted, the source's domain can run no more from the moment
//     at which the destination's does, and whatever the source decides then is forward;
//   - in post-copy neither half of the guest is given up by anybody but an operator;
//   - before the commit every step can be undone, and after a failure is; after
//     it nothing is undone and every step is retried until done;
//   - a guest that was moved or resized while it was off can go back to what and where it
//     was until somebody, or its time, confirms it;
//   - one unfinished migration for each instance, and a finished one is unfinished;
//   - a destination that refuses before anything is decided is followed by the next, and
//     the guest runs where it was until then;
//   - a status follows another only as transitions say;
//   - at the end Placement has one consumer, the instance, where the guest is;
//   - what cannot be decided is in doubt, with its reason, and is asked again.
//
// live.go lists the steps of a live migration and reads top to bottom, resize.go those of
// a cold move, apart_stage.go of one between hosts that share nothing (apart_ways.go: how
// its disks go; apart_words.go: what is said of a guest that is another host's),
// inplace.go of a change on one host, confirm.go and revert.go of what ends them; lag.go
// is what is undone beside the next attempt; stages.go says how they follow one another,
// status.go what is shown of them. swap.go is the two consumers in Placement; watch.go
// judges a stream by its samples, control.go whether it converges (package converge), and steer.go
// does what is due about it; postcopy.go is the second job and what follows it, abort.go until
// when a move can be given up; handover.go is the table that decides what became of a
// guest that moved live. Of one that is off the ledgers alone decide.
package conductor
