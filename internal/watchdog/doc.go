// Package watchdog arms what resets this host unless it is fed, and says when it may be fed by
// a lease.
//
// It is for package agent, whose lease in the fleet's records ends when the host is cut off or
// dead. A host that is reset before its lease ends runs no guest when another host sees the
// lease gone: so an expired lease is a proof.
//
// Two kinds of device are taken, by what lies at the path:
//
//   - a character device of the kernel's watchdog API (Documentation/watchdog/watchdog-api.rst),
//     such as /dev/watchdog0;
//   - a unix socket on which a process of this host listens that resets it: one that shares the
//     only watchdog of a machine among several users, or the stand-in of tests. Its protocol is
//     in daemon.go.
//
// A device stays armed when its holder dies, so that a killed agent is no way out; one that
// cannot promise that is refused. Disarm is the orderly way. Another holder, such as the next
// agent, takes it over by Open, which feeds it: whoever opens must be allowed to feed.
//
// It reads /sys/class/watchdog and writes the device.
package watchdog
