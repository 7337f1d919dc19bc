// Package stream is the forwarding process of one migration: `berth stream`. It
// carries libvirt's control connection and QEMU's memory and disk connections
// between two hosts, so that neither libvirtd nor QEMU listens on the network.
//
//	source host                                          destination host
//	libvirtd ─► control.sock ┐                         ┌► libvirtd's socket
//	libvirtd,                ├ process ══ TLS ══ process ┤
//	QEMU ─────► memory.sock  │   one TLS connection    ├► memory.sock of the incoming QEMU
//	QEMU ─────► disks.sock   ┘   for each local one    └► disks.sock of its NBD server
//
// There is one process for each attempt and side. It is nobody's child that
// matters: it outlives kill, restart and upgrade of the agent that started it,
// which finds it again by the migration's uuid (Manager.Find).
//
// # What it lets in
//
// The destination's process accepts a connection only when all of this holds, and
// otherwise closes it without a byte, and logs why on its own side:
//
//   - TLS 1.3, with a certificate that the host's CA signed and whose SAN is the
//     name of the source that the claim names (the source asks the same of the
//     destination's).
//   - A first frame that names this migration, this attempt and a channel, with a
//     proof of the ticket for this very TLS session (see hello). The ticket itself
//     never crosses the wire.
//   - The ticket has not expired. While a connection of the session is open it does
//     not expire: an open stream renews its claim by itself.
//   - On the control channel, only what a migration needs of libvirt passes: see
//     permitted. A ticket lets one guest in, and does not give the host away.
//   - No domain XML of the source's passes: libvirt here gets the two that its own host
//     prepared for this attempt, which the order holds.
//
// # Folders
//
// Manager's folder, /run/berth/streams, holds one folder for each attempt:
//
//	<migration>-<attempt>/   0711 root
//	  order        0600  what the process is told, with the ticket; gone once it is read
//	  process      0600  who it is (pid, start time, boot); locked while it lives
//	  failure      0600  why it did not begin
//	  log          0600  what it says, where no journal takes it
//	  agent.sock   0600  the agent's questions and orders
//	  control.sock 0600  on the source: for libvirtd
//	  qemu/        0700  QEMU's user
//	    memory.sock, disks.sock
//
// The path of qemu/ is the same on both hosts, since libvirt has one URI for both
// ends. The lock on process, which the kernel drops however the process ends, says
// whether it lives; pid and start time say whom a signal may be sent to. Removing
// the folder revokes the ticket: a process whose folder is gone ends at once.
//
// # Its end
//
// A process ends when it is told to (Manager.Close, SIGTERM), when its lease is
// over and no connection is open, or with its folder; never because an agent died.
//
// # Post-copy
//
// A guest that comes by post-copy runs here while half of its memory is still there. The
// destination's process lets such an arrival through only where its order says PostCopy,
// which its own host's preparation has put there. From the call that prepares it on
//
//   - no lease ends the process: what is behind it is the other half of a guest, and a
//     connection that broke is made anew by the same ticket;
//   - a dead connection is given up after postCopyDeadAfter, at both ends: QEMU notices
//     none by itself, and goes to "postcopy-paused" only when its socket ends;
//   - one more connection of control ends all that are open: it is a recovery.
//
// The source's agent ends its side's connections at once by ending the process and
// starting another (Manager.Close, Manager.Open with PostCopy).
package stream
