// Package systemd boots a real systemd, in a container over this machine's own files, with
// Berth's units in it, and holds them to what they promise: that the agent comes back from
// whatever ends it, that no request is lost over a restart, that what runs for a guest lives
// on, and that hooks run outside of the agent's sandbox and are found again. Two such machines
// with libvirt and QEMU move a real guest from one to the other, while their agents are reloaded,
// restarted, killed, stopped by the watchdog and upgraded.
package systemd
