// Package lab makes real hypervisors out of one machine: hosts that are network
// namespaces with their own libvirtd, QEMU, /etc, /run and state, joined by two
// networks. The demonstration, the end-to-end tests and the benchmarks stand on
// it; nothing that is shipped does.
//
// A host is one process tree. Its pid 1 (hostinit) holds the namespaces (net,
// mount, uts, ipc, pid), so that ending that one process ends libvirtd, every
// guest and the agent in it, and nothing is left mounted or named on the
// machine. A lab ends with its owner: each pid 1 watches the owner's process
// and exits with it, also after kill -9. What remains then are files below the
// lab's folder, which the next Up or Down removes.
//
//	switch   10.77.0.254   two bridges, a /run of its own, no libvirtd; a place for Placement
//	host 1   10.77.0.1 mgmt, 10.78.0.1 mig
//	host 2   10.77.0.2 mgmt, 10.78.0.2 mig  …
//
// Labs have their own switches, so addresses repeat from lab to lab and any
// number of labs may be up at once.
//
// What it reads: the machine's apt sources, package database and /usr. What it
// alone writes: the lab's folder and the cache (CacheDir). Install is the only
// thing that changes the machine, by installing missing packages with every
// service start masked. Never touched: the machine's daemons, firewall, pool of
// huge pages, apt sources and apt state, /etc, /run. Only a lab that asks for
// huge pages (Options.HugePages) changes one kernel setting while it is up, the
// limit of pages beyond that pool.
//
// Debian 12's QEMU 7.2 corrupts guest memory in live migrations without KVM, so
// hosts see QEMU 10 from the release's backports laid over their /usr; where
// the system's QEMU is 9 or later it is used as it is.
package lab
