// Package fileusers answers who uses a file on this host, before the file is removed or
// replaced.
//
// Witnesses, none of which is believed alone:
//
//	libvirt's definitions   of every domain, live and persistent, managed or not: each
//	                        absolute path in them, and volumes by their pool
//	images                  what stands below each disk, from the headers, read by qemu-img
//	processes               who has the file open now, from /proc
//
// Files are compared by what they are (disks.Which), not by name. What cannot be resolved
// is Unresolved: it keeps a file only where it could be that file or stand on it. It never
// makes a survey fail, so that one broken image does not block the clean-up of others. Only
// a hypervisor that does not answer does: then nothing is known, and the caller waits.
//
// It removes and changes nothing.
package fileusers
