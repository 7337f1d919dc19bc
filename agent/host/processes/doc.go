// Package processes is the second witness of "this instance is off". libvirt is the first,
// and can be wrong: a daemon that could not read the status file of a domain says `shut off`
// while its QEMU runs and writes.
//
// It reads /proc and who has files open (disks.Files.Writers). It never asks libvirt, and it
// writes nothing.
//
//	QEMU with the uuid   a disk open for writing   unreadable   answer
//	no                   no                        no           off
//	yes                  any                       any          refused: qemu_runs, with the pid
//	no                   yes                       no           refused: disk_open_for_writing, with the pid
//	no                   no                        yes          fault.Unavailable: not known, hence not off
package processes
