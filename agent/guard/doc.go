// Package guard is what stands between libvirt and a start or an arrival that
// Berth has not allowed (design section 8).
//
// libvirt calls the hook packaging/hooks/qemu.d/50-berth, which runs the hidden
// verb `berth guard`. That process is Hook: it asks the agent over its socket.
// The agent answers by Decide, a table over its ledger and nothing else: never
// libvirt, which waits for the answer. While no agent answers, the process
// decides by Alone, a table over small files that the agent has left.
//
// Those files are the package's own (Files); it alone reads and writes them:
//
//	DIRECTORY/owners/UUID    what the ledger says of a guest: here, awaits, moving, arriving, left, gone
//	DIRECTORY/begun/UUID     an arrival that was let in while no agent answered
//	DIRECTORY/started/UUID   a guest that was let in without a claim: the agent looks at it
//	DIRECTORY/daemon         the libvirt daemon that called last: its line of proc/PID/stat
//
// and beside the ledger, durable over reboots, STATE_DIR/managed: an agent has
// run in mode manage here. Without it the hook lets everything through. On a host that
// keeps records for its fleet, STATE_DIR/guests/UUID says that a guest is managed.
//
// Invariants:
//
//   - an owner file says "here" only while the ledger durably holds the token and
//     no move has it: it says so after the ledger does, and not any more
//     before a move or a hand-over is recorded (Owners.Withdraw);
//   - a file of another boot, a damaged one and one that cannot be read say no, and
//     so does an absent one of a guest with Berth's metadata;
//   - what is no start and no arrival is never refused.
package guard
