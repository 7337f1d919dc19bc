// Package topology is the hardware of one host as values: CPU sets, NUMA cells,
// page sizes, PCI addresses and devices, and the Host that holds them together;
// and what a guest asks of it, in Nova's words (Flavor, Resources).
//
// It is for every other package to speak of hardware with. It reads nothing,
// writes nothing, and imports nothing of this module: parsing a kernel file is
// here only where the file's syntax is also the value's own text form (CPUSet,
// PCIAddress). hwdiscovery fills a Host; claims, inventories and domain XML are
// computed from it.
//
// Invariants: a CPUSet is ascending without repeats; cells, packages, dies,
// cores and devices of a Host are in ascending order of their id or first
// member; an unknown NUMA node is -1, never 0; a count that is absent from a map
// of pages is zero.
//
// Units stand in names or types: PageSize and ...Bytes are bytes, ...MB are
// MiB as in Nova and Placement.
package topology
