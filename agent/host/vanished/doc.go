// Package vanished decides what it means that the hypervisor lists no domain of an instance:
// somebody undefined it, or its definition was not loaded. Only an undefined instance may lose
// its claim, allocation, token and fleet record.
//
// The list of domains and the look-up of one domain come from the same daemon: they are one
// witness. The second is an event of libvirt that tells of the undefine, or the folder of the
// persistent definitions, read past the daemon. A living QEMU process overrules both.
//
// It alone writes the record of the folder's identity and of the instances that vanished
// together. It releases nothing itself.
package vanished
