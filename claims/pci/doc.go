// Package pci says which PCI functions of a host guests may have, and which of
// them are free.
//
// It is for whoever fills claims/fit with pools and then takes concrete functions
// out of them. It is pure: topology.Host and the operator's device_spec go in,
// Devices and Pools come out; it reads nothing, writes nothing, and imports only
// topology.
//
// # What may be given away
//
// The words are Nova's ([pci] device_spec, nova/pci/devspec.py): the first Spec
// that matches a function makes it a Device and gives it its tags. Where Nova is
// silent, the kernel and libvirt decide. A matched function stays a Device, so
// that a guest that already has it can be described, but names in Unfit why no
// guest gets it:
//
//   - a bridge: the machine hangs on it, and VFIO takes no function with a
//     bridge's header (an NVSwitch, class 0x0680, is an ordinary endpoint and is
//     passed to fabric managers, so "other bridges" are let through);
//   - no IOMMU group, where other functions of the host have one. Where none has
//     one the IOMMU is off or its tables were not copied; then only a remark is
//     made, because nothing distinguishes the functions;
//   - an IOMMU group with another function that a driver of the host holds: VFIO
//     opens a group only when all of it is in its hands or idle
//     (Documentation/driver-api/vfio.rst), and libvirt's managed='yes' unbinds the
//     functions of the document only;
//   - remote_managed on anything but a VF, or without a card serial in the vital
//     product data, by which the network backend knows the card;
//   - a function of which a mandatory file could not be read, or contradicts
//     another (a reason of topology.Host that degrades and names the function).
//
// # What is free
//
// A function is free unless it is taken itself, or
//
//	it is a PF and one of its VFs is taken
//	it is a VF and its PF is taken
//	another function of its IOMMU group is taken by another guest
//
// Nothing of that is stored: Pools computes it from what is taken, so what is
// given back is free again in whatever order that happens. A free PF and its
// free VFs exclude each other in one request; that is said by Pool.Excludes, and
// each such PF is a pool of its own, as are its VFs.
package pci
