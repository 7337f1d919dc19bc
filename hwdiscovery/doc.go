// Package hwdiscovery finds a host's hardware: a root folder in, a
// topology.Host out.
//
// It reads /sys and /proc below the root. It writes nothing and is the only user of
// ghw. The sysfs pass goes through an os.Root, so that no link of a copied tree
// leads out of it; ghw follows such links, and what it finds there is not confirmed.
//
// # Who decides
//
// ghw reads first: the CPUs, cores, memory and huge pages of each cell, and the ids,
// driver and IOMMU group of each PCI function. The sysfs pass confirms each of these
// facts and adds all others:
//
//	both tell the same            it is so
//	ghw does not tell it          sysfs is used; no remark (see readGHW), a line in the log at debug level
//	they differ                   sysfs is used; the remark "ghw_differs" names the file and both values
//	sysfs cannot read its file    the fact is unknown; the reason that names the file degrades the host
//	ghw panics, or lists nothing  sysfs is used; the remark "ghw_failed" says of what
//
// So ghw alone makes no host larger, smaller or degraded, and a host reads the same
// without it. The live machine is read twice before a remark is made of a difference,
// since its values may change between the two readings.
//
// # Ok, degraded, error
//
//	error     the host cannot be described at all: the root is not there, or
//	          neither sysfs nor /proc names one CPU.
//	degraded  a mandatory file or folder is missing, truncated or garbled, or tables
//	          contradict each other (sysfs itself, or sysfs against /proc). The
//	          Host holds the best reading, hwloc's where hwloc has one, and a
//	          reason with Degrades names each file and, where it is about one
//	          cell or device, that cell or device.
//	ok        everything mandatory was read and agrees. Reasons may hold remarks.
//
// A file is truncated when its last newline is gone: the kernel ends every text
// attribute with one (Documentation/filesystems/sysfs.rst). Which files are
// mandatory, and what stands in for an absent one, is listed in files.go.
//
// # What hwloc reads
//
// hwloc has seen more broken machines than anybody, so its rules are followed: a
// CPU without cpu*/topology, where others have it, is not used; a core, die or
// package is made by its lowest CPU, so a CPU whose mask names a lower one that
// does not answer belongs to none; of cells that share CPUs the lower-numbered
// one stands; the two halves of an AMD compute unit (families 15h and 16h) are
// two cores; memory of an NVIDIA GPU is not a cell. Unlike hwloc, a
// cell of memory only has no CPUs here (hwloc lends it those of its
// neighbours): a CPU is counted in one cell only. Limits of the caller's own
// cgroup are not the host's and are not looked at.
//
// # Changes
//
// Discover tells what there is when it is asked, and the kernel sends an event for
// most of what changes that. Watch notices the rest, the sizes of the pools of
// huge pages, at a cost of microseconds. A PCI function that is listed and no
// longer answers degrades the host with the reason "pci_dead"; see silent.
//
// # Memory
//
// Cell.MemoryBytes is the kernel's own number per node. /proc/meminfo counts
// otherwise: old kernels show reserved memory in nodes only, and memory lent
// back or added by a balloon moves one and not the other. So sums that differ by
// up to an eighth say nothing; a smaller sum in sysfs is a remark (using it
// promises nothing that is not there); a larger one degrades.
package hwdiscovery
