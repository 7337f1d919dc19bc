// Package streams is how guests come to this host and leave it while they run: the
// transport of a move, and the hypervisor's job that carries memory and disks.
//
// It reads the hypervisor's jobs and domains, and what it has on record. It alone asks
// the hypervisor for a migration, opens and ends the processes that forward one
// (Processes), and writes the two records of a job: that it was asked for, and what
// came of it. An attempt has one job, or two where its guest goes by post-copy: that
// one counts as soon as it was asked for. Who owns the guest is not decided here: the source's and the
// destination's tables (package host) read Asked and Ended, and this package never
// writes a token, a claim or a context.
//
// Invariants:
//
//   - a job is asked for once, whatever dies: it is on record before the hypervisor
//     is asked, and one that is on record is adopted or over;
//   - a stream is an actor, not a verb: it holds no instance's turn while it runs, and
//     how it ended is durable before anybody decides by it;
//   - what is known of a stream's end only ever grows: lost may become left or undone,
//     neither of which changes any more, and nothing is written of a stream that was
//     forgotten;
//   - who does not answer has not ended.
package streams
