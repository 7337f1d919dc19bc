package claims

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth/internal/fault"
	"berth/topology"
)

// The codes of amounts that no guest can have, or that contradict each other.
const (
	ResourcesOutOfRange  = "resources_out_of_range"
	LeaseOutOfRange      = "lease_out_of_range"
	CellsOutOfRange      = "guest_cells_out_of_range"
	CellMemoryOutOfRange = "cell_memory_out_of_range"
	CellsDiffer          = "cells_differ_from_resources"
	PCIOutOfRange        = "pci_request_out_of_range"
	AssignmentOutOfRange = "assignment_out_of_range"
)

// MaxLease is the longest lease that a claim may ask for. Arbitrary: the agent
// that holds a claim renews it every third of its lease.
const MaxLease = 24 * time.Hour

// demandReasons gives every reason for which no host could give what is asked,
// whoever asks; none where the amounts are possible. No sum of possible amounts
// overflows.
func (r Request) demandReasons() []fault.Reason {
	out := resourcesReasons(r.Resources)
	out = append(out, topologyReasons(r.Resources, r.Topology)...)
	out = append(out, pciReasons(r.PCI)...)
	if r.Found != nil {
		out = append(out, assignmentReasons(*r.Found)...)
	}
	if r.Lease < 0 || r.Lease > MaxLease {
		out = append(out, fault.Reason{
			Code: LeaseOutOfRange, Message: fmt.Sprintf("lease of %s: want at most %s", r.Lease, MaxLease), Want: r.Lease.String(), Have: MaxLease.String(),
			Change: fmt.Sprintf("set claim_lease of [migration] on the host that asks to %s or less", MaxLease),
		})
	}
	return out
}

// invalidDemand is fault.Invalid with every reason of demandReasons; nil for none.
func (r Request) invalidDemand(doing string) error { return invalid(doing, r.demandReasons()) }

// invalid is invalidDemand for what a guest has already.
func (f Found) invalid(doing string) error {
	return invalid(doing, append(resourcesReasons(f.Resources), assignmentReasons(f.Assignment)...))
}

func invalid(doing string, reasons []fault.Reason) error {
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Invalid, doing, reasons...)
}

func outOfRange(code, change, format string, args ...any) fault.Reason {
	return fault.Reason{Code: code, Message: fmt.Sprintf(format, args...), Change: change}
}

func resourcesReasons(r topology.Resources) []fault.Reason {
	const host = topology.MaxVCPUs + 1 // one more for isolated emulator threads
	if r.VCPUs < 0 || r.PCPUs < 0 || r.VCPUs > host || r.PCPUs > host || r.VCPUs+r.PCPUs < 1 || r.VCPUs+r.PCPUs > host ||
		r.MemoryMB < 1 || r.DiskGB < 0 || r.MemoryMB > topology.MaxMemoryMB || r.DiskGB > topology.MaxDiskGB {
		return []fault.Reason{outOfRange(ResourcesOutOfRange, "ask for amounts that one instance can have",
			"resources %s: want 1 to %d vcpus, 1 to %d MiB, 0 to %d GiB", r, topology.MaxVCPUs, topology.MaxMemoryMB, topology.MaxDiskGB)}
	}
	return nil
}

// topologyReasons refuses a topology that is not of these amounts: what is held
// host-wide and what is held in cells would differ for ever. A host that tells
// Placement of no PCPU counts dedicated CPUs as VCPU, so only their sum is
// looked at.
func topologyReasons(r topology.Resources, t *topology.GuestTopology) []fault.Reason {
	if t == nil {
		return nil
	}
	if n := len(t.Cells); n < 1 || n > topology.MaxCells {
		return []fault.Reason{outOfRange(CellsOutOfRange, fmt.Sprintf("ask for hw:numa_nodes %d or fewer", topology.MaxCells),
			"%d guest cells: want 1 to %d", n, topology.MaxCells)}
	}
	var out []fault.Reason
	var memory, cpus int64
	for i, c := range t.Cells {
		if c.MemoryMB < 0 || c.MemoryMB > topology.MaxMemoryMB {
			out = append(out, outOfRange(CellMemoryOutOfRange, "give the cell its part of the instance's memory",
				"guest cell %d has %d MiB: want 0 to %d MiB", i, c.MemoryMB, topology.MaxMemoryMB))
		}
		memory = topology.AddCapped(memory, c.MemoryMB)
		cpus += int64(c.SharedVCPUs.Len()) + int64(c.DedicatedVCPUs.Len())
	}
	if t.Emulator == topology.EmulatorIsolate {
		cpus++
	}
	if len(out) == 0 && (cpus != int64(r.VCPUs)+int64(r.PCPUs) || memory != r.MemoryMB) {
		shared, dedicated := t.CPUs()
		out = append(out, outOfRange(CellsDiffer, "name the cells' vCPUs and memory so that they add up to the instance's",
			"resources %s: its %d cells have %d shared and %d dedicated CPUs and %d MiB", r, len(t.Cells), shared, dedicated, memory))
	}
	return out
}

// pciReasons names each request of devices that no guest could have, and all of
// them together.
func pciReasons(requests []topology.PCIRequest) []fault.Reason {
	if len(requests) > topology.MaxPCIRequests {
		return []fault.Reason{outOfRange(PCIOutOfRange, "ask for fewer kinds of device",
			"%d PCI requests: want at most %d", len(requests), topology.MaxPCIRequests)}
	}
	var out []fault.Reason
	seen := map[string]bool{}
	specs, functions := 0, int64(0)
	for _, r := range requests {
		bad := func(format string, args ...any) {
			out = append(out, outOfRange(PCIOutOfRange, "correct the request, or the alias of [pci] that it comes from",
				"PCI request %s: "+format, append([]any{strconv.Quote(r.ID)}, args...)...))
		}
		switch {
		case r.Count < 1:
			bad("%d devices: want at least one", r.Count)
		case r.Count > topology.MaxPCIFunctions:
			bad("%d devices: want at most %d", r.Count, topology.MaxPCIFunctions)
		}
		if len(r.Specs) == 0 {
			bad("want at least one spec")
		}
		if seen[r.ID] {
			bad("each request once")
		}
		for _, s := range r.Specs {
			if len(s.Tags) > topology.MaxPCITags {
				bad("a spec of %d tags: want at most %d", len(s.Tags), topology.MaxPCITags)
			}
		}
		seen[r.ID] = true
		specs += len(r.Specs)
		functions = topology.AddCapped(functions, int64(r.Count))
	}
	if specs > topology.MaxPCISpecs {
		out = append(out, outOfRange(PCIOutOfRange, "ask for fewer kinds of device",
			"PCI requests with %d specs together: want at most %d", specs, topology.MaxPCISpecs))
	}
	if len(out) == 0 && functions > topology.MaxPCIFunctions {
		out = append(out, outOfRange(PCIOutOfRange, "ask for fewer devices",
			"PCI requests for %d devices together: want at most %d", functions, topology.MaxPCIFunctions))
	}
	return out
}

// assignmentReasons refuses a place that no guest can have on any host. Cells and
// CPUs that this host does not have are not looked for.
func assignmentReasons(a topology.Assignment) []fault.Reason {
	bad := func(format string, args ...any) []fault.Reason {
		return []fault.Reason{outOfRange(AssignmentOutOfRange, "correct the domain XML of the instance: `virsh edit`", format, args...)}
	}
	if len(a.Cells) > topology.MaxCells || len(a.Devices) > topology.MaxPCIFunctions || len(a.Mdevs) > topology.MaxPCIFunctions {
		return bad("%d guest cells, %d PCI devices, %d mediated devices: more than an instance can have", len(a.Cells), len(a.Devices), len(a.Mdevs))
	}
	for i, c := range a.Cells {
		if c.MemoryMB < 0 || c.MemoryMB > topology.MaxMemoryMB || c.PageSize < 0 || c.Shared < 0 || c.Shared > topology.MaxVCPUs || len(c.Pins) > topology.MaxVCPUs {
			return bad("guest cell %d has %d MiB in pages of %d bytes, %d shared vCPUs and %d pins: more than a cell can have", i, c.MemoryMB, c.PageSize, c.Shared, len(c.Pins))
		}
		cpus := slices.Concat(c.Emulator, c.Idle)
		for _, p := range c.Pins {
			cpus = append(cpus, p.CPU)
		}
		for _, cpu := range cpus {
			if cpu < 0 || cpu > topology.MaxCPU {
				return bad("guest cell %d is pinned to CPU %d: want 0 to %d", i, cpu, topology.MaxCPU)
			}
		}
	}
	return nil
}
