package agent

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/agent/metrics"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/placementclient"
	"berth/topology"
)

// host is what there is, and what of it is claimed. What it asks the tracker one after the
// other may differ by what happens meanwhile.
func (m *metering) host() *metrics.Host {
	a := m.a
	usage, list := a.tracker.Usage(), a.tracker.List()
	out := &metrics.Host{
		Resources: resourcesOf(usage), Cells: cellsOf(a.tracker.CellUsage(), a.tracker.Machine()),
		Devices:   append(functionsOf(usage.Capacity.Devices, list), m.mdevs(list)...),
		Claims:    map[metrics.ClaimKind]int{{Kind: string(claims.KindInstance), State: string(claims.Bound)}: 0},
		Instances: len(a.tracker.Instances()), Unclaimed: len(a.host.Strangers()),
		Forced: len(usage.Forced), Doubled: len(usage.Doubled),
	}
	for _, c := range list {
		out.Claims[metrics.ClaimKind{Kind: string(c.Owner.Kind), State: string(c.State)}]++
	}
	return out
}

// resourcesOf are the sums by Placement's classes. A class that the host has nothing of and
// nobody holds is left out.
func resourcesOf(u claims.Usage) []metrics.Resource {
	c := u.Capacity
	var out []metrics.Resource
	for _, r := range []metrics.Resource{
		{Class: placementclient.ClassVCPU, Capacity: int64(c.Total.VCPUs), Reserved: int64(c.Reserved.VCPUs), Used: int64(u.Used.VCPUs), Free: int64(u.Free.VCPUs), Ratio: c.CPURatio},
		{Class: placementclient.ClassPCPU, Capacity: int64(c.Total.PCPUs), Reserved: int64(c.Reserved.PCPUs), Used: int64(u.Used.PCPUs), Free: int64(u.Free.PCPUs), Ratio: 1},
		{Class: placementclient.ClassMemoryMB, Capacity: c.Total.MemoryMB, Reserved: c.Reserved.MemoryMB, Used: u.Used.MemoryMB, Free: u.Free.MemoryMB, Ratio: c.RAMRatio},
		{Class: placementclient.ClassDiskGB, Capacity: c.Total.DiskGB, Reserved: c.Reserved.DiskGB, Used: u.Used.DiskGB, Free: u.Free.DiskGB, Ratio: c.DiskRatio},
	} {
		if r.Capacity > 0 || r.Used > 0 {
			out = append(out, r)
		}
	}
	return out
}

// cellsOf are the cells that both answers of the tracker have.
func cellsOf(usage []claims.CellUsage, machine fit.Machine) []metrics.Cell {
	var out []metrics.Cell
	for _, u := range usage {
		i := slices.IndexFunc(machine.Cells, func(c fit.Cell) bool { return c.ID == u.ID })
		if i < 0 {
			continue // it went between the two questions
		}
		c := machine.Cells[i]
		one := metrics.Cell{
			ID: strconv.Itoa(int(u.ID)), MemoryBytes: c.MemoryMB << 20, MemoryUsed: u.MemoryMB << 20,
			Dedicated: u.DedicatedCPUs.Len(), DedicatedFree: u.DedicatedCPUs.Difference(c.Pinned).Len(),
			Shared: u.SharedCPUs.Len(), SharedVCPUs: u.SharedVCPUs, Instances: len(u.Instances),
		}
		for _, p := range u.Pages {
			one.Pages = append(one.Pages, metrics.Pages{Size: p.Size.String(), Total: p.Total, Reserved: p.Reserved, Used: p.Used, Free: p.Free()})
		}
		out = append(out, one)
	}
	return out
}

// functionsOf are the PCI functions that guests may have, by the cell that they are in and
// the class that Placement counts them by; those that somebody has and the host no longer
// gives are counted as used alone.
func functionsOf(devices []pci.Device, list []claims.Claim) []metrics.Devices {
	type place struct{ cell, class string }
	sums := map[place]metrics.Devices{}
	add := func(cell topology.CellID, class string, total, used, unfit int64) {
		at := place{class: class}
		if cell != topology.UnknownCell {
			at.cell = strconv.Itoa(int(cell))
		}
		n := sums[at]
		sums[at] = metrics.Devices{Cell: at.cell, Class: class, Total: n.Total + total, Used: n.Used + used, Unfit: n.Unfit + unfit}
	}
	held := map[topology.PCIAddress]topology.AssignedDevice{}
	for _, c := range list {
		for _, d := range c.Assignment.Devices {
			held[d.Address] = d
		}
	}
	for _, d := range devices {
		var used, unfit int64
		if _, is := held[d.Address]; is {
			used = 1
			delete(held, d.Address)
		}
		if len(d.Unfit) > 0 {
			unfit = 1
		}
		add(d.Cell, d.Tags[pci.TagResourceClass], 1, used, unfit)
	}
	for _, d := range held {
		add(d.Cell, pci.ClassOf(d.Vendor, d.Product), 0, 1, 0)
	}
	return sorted(sums, func(x, y place) int { return cmp.Or(cmp.Compare(x.cell, y.cell), cmp.Compare(x.class, y.class)) })
}

// mdevs are the mediated devices that Placement was told of, by class.
func (m *metering) mdevs(list []claims.Claim) []metrics.Devices {
	tree, known := m.a.tree()
	if !known {
		return nil
	}
	sums := map[string]metrics.Devices{}
	for _, t := range m.a.config().Devices.MdevTypes {
		class := cmp.Or(t.Class, placementclient.ClassVGPU)
		n := metrics.Devices{Class: class}
		for _, p := range tree.Providers {
			n.Total += p.Inventories[class].Total
		}
		sums[class] = n
	}
	held := map[string]bool{}
	for _, c := range list {
		for _, uuid := range c.Assignment.Mdevs {
			held[uuid] = true
		}
	}
	for uuid := range held {
		class := cmp.Or(tree.Mdevs[uuid].Class, placementclient.ClassVGPU)
		n := sums[class]
		n.Class, n.Used = class, n.Used+1
		sums[class] = n
	}
	return sorted(sums, cmp.Compare[string])
}

// sorted gives a map's values in the order of its keys.
func sorted[K comparable, V any](m map[K]V, order func(x, y K) int) []V {
	var out []V
	for _, k := range slices.SortedFunc(maps.Keys(m), order) {
		out = append(out, m[k])
	}
	return out
}

// conflicts are those by which a graph of Placement is read; they are shown before the first
// of them too.
var conflicts = []placementclient.Conflict{
	placementclient.ConflictProviderGeneration, placementclient.ConflictConsumerGeneration, placementclient.ConflictServerRace,
	placementclient.ConflictCapacity, placementclient.ConflictInventoryInUse,
}

// placement is what was asked of Placement so far.
func (m *metering) placement() metrics.Placement {
	n, status := m.a.placement.Counters(), m.a.reporter.Status()
	out := metrics.Placement{
		Conflicts: map[string]int64{}, Requests: n.Requests, Retries: n.Retries, Races: n.Races, InDoubt: n.InDoubt,
		Generation: status.Generation, SyncedAt: status.SyncedAt, Waiting: status.Waiting != nil,
	}
	for _, words := range slices.Sorted(maps.Keys(n.Calls)) {
		part := strings.SplitN(words, " ", 3) // METHOD /route status
		out.Calls = append(out.Calls, metrics.Calls{Method: part[0], Route: part[1], Status: part[2], Count: n.Calls[words], Took: n.Took[words]})
	}
	for _, c := range conflicts {
		out.Conflicts[string(c)] = 0
	}
	for c, count := range n.Conflicts {
		out.Conflicts[string(c)] = count
	}
	return out
}

// audit is the last comparison of ledger, libvirt and Placement; nil before the first.
func (m *metering) audit() *metrics.Audit {
	last := m.a.auditor.Last()
	if last == nil {
		return nil
	}
	out := &metrics.Audit{At: last.At, Healed: last.Healed, Silent: len(last.Silent), Verdicts: map[string]int{}}
	for verdict, n := range last.Verdicts {
		out.Verdicts[string(verdict)] = n
	}
	return out
}

// certificates are this host's and those of the authorities that it was signed by, as they were
// read when the agent began.
func (m *metering) certificates() []metrics.Certificate {
	id := m.a.identity
	if id == nil {
		return nil
	}
	out := []metrics.Certificate{{Use: "host", Name: m.a.name, NotAfter: id.Leaf.NotAfter}}
	for _, c := range id.Authorities {
		out = append(out, metrics.Certificate{Use: "authority", Name: c.Subject.CommonName, NotAfter: c.NotAfter})
	}
	return out
}
