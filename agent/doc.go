// Package agent is the daemon: it joins the parts, starts them in order, says
// when it is ready and how it is, takes a new configuration, and stops.
//
// It reads the configuration, /proc (whether nova-compute runs here), and
// everything its parts read; it alone writes the last good reading of the
// hardware (bucket "agent" of the store).
//
// # Order
//
//	state directory, its lock and database   a second agent on it is refused
//	what forbids mode manage                 refused, naming each thing found
//	claim tracker                            gives no new claim yet
//	driver                                   connects by itself; its absence degrades
//	hardware                                 read, or the last good reading stands
//	tasks, the conductor first of all        the journal is read, moves go on
//	settle                                   ledger and hypervisor joined
//	Placement                                equal to the host; its absence degrades
//	listeners, READY=1
//
// Going down: no new claims, listeners, tasks, driver, database. A guest is
// never touched; a move that is on its way goes on in the hypervisor and is
// found again by the next start.
//
// # Hardware
//
// Kernel events, libvirt's events of the host's devices and a look at the pools of
// huge pages each second say that the machine changed; hardware settles them for
// half a second at most, reads everything once, and what is believed of it is in
// ledger and Placement within two seconds. What cannot be had of these sources is
// said once, and the others and a slow re-read stand.
//
// # Invariants
//
//   - in mode observe nothing is written to libvirt, Placement or hooks;
//   - a reading of the hardware that failed never makes the host smaller;
//   - every long-lived task runs in one group, and the agent ends only when all
//     of them have.
package agent
