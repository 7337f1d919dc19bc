package agent

import (
	"slices"

	"berth/agent/api"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/topology"
)

// What the ledger holds, as the API shows it.

func usage(u claims.Usage) api.Usage {
	c := u.Capacity
	return api.Usage{
		Total: c.Total, Reserved: c.Reserved, Used: u.Used, Free: u.Free, Forced: u.Forced, Doubled: u.Doubled,
		CPURatio: c.CPURatio, RAMRatio: c.RAMRatio, DskRatio: c.DiskRatio,
	}
}

// explain says what a claim holds and where its other vCPUs run.
func (a *Agent) explain(c claims.Claim) api.Explanation {
	e := api.Explanation{Explanation: c.Explain(), Host: a.name, SharedCPUs: map[topology.CellID]topology.CPUSet{}}
	if inst, ok := a.tracker.Instance(c.Owner.Instance); ok {
		e.Name = inst.Name
	}
	if t := c.Topology; t != nil {
		e.EmulatorPolicy, e.Realtime = t.Emulator, t.Realtime
	}
	for _, cell := range a.tracker.CellUsage() {
		has := func(x claims.ExplainedCell) bool { return x.HostCell == cell.ID }
		if !cell.SharedCPUs.IsEmpty() && (len(e.Cells) == 0 || slices.ContainsFunc(e.Cells, has)) {
			e.SharedCPUs[cell.ID] = cell.SharedCPUs
		}
	}
	return e
}

// cellViews are the host's cells with what is in use of each, and the devices
// that are in none of them.
func (a *Agent) cellViews() (cells []api.HostCell, loose []api.HostDevice) {
	machine, capacity, holders := a.tracker.Machine(), a.tracker.Usage().Capacity, map[topology.PCIAddress][]string{}
	for _, c := range a.tracker.List() {
		for _, d := range c.Assignment.Devices {
			if !slices.Contains(holders[d.Address], c.Owner.Instance) {
				holders[d.Address] = append(holders[d.Address], c.Owner.Instance)
			}
		}
	}
	cells = []api.HostCell{}
	for _, u := range a.tracker.CellUsage() {
		i := slices.IndexFunc(machine.Cells, func(c fit.Cell) bool { return c.ID == u.ID })
		if i < 0 {
			continue // it went between the two questions
		}
		cells = append(cells, cellView(u, machine.Cells[i]))
	}
	for _, d := range capacity.Devices {
		view := deviceView(d, holders[d.Address])
		if i := slices.IndexFunc(cells, func(c api.HostCell) bool { return c.ID == d.Cell }); i >= 0 {
			cells[i].Devices = append(cells[i].Devices, view)
			continue
		}
		loose = append(loose, view)
	}
	return cells, loose
}

func cellView(u claims.CellUsage, c fit.Cell) api.HostCell {
	v := api.HostCell{
		ID: u.ID, Dedicated: u.DedicatedCPUs, DedicatedFree: u.DedicatedCPUs.Difference(c.Pinned),
		Pinned: u.Pinned, Emulator: u.Emulator, Idle: u.Idle, Shared: u.SharedCPUs, SharedVCPUs: u.SharedVCPUs,
		MemoryMB: c.MemoryMB, MemoryUsedMB: u.MemoryMB,
		Pages: []api.HostPages{}, Devices: []api.HostDevice{}, Instances: append([]string{}, u.Instances...),
	}
	for _, p := range u.Pages {
		v.Pages = append(v.Pages, api.HostPages{Size: p.Size, Total: p.Total, Reserved: p.Reserved, Used: p.Used, Free: p.Free()})
	}
	return v
}

func deviceView(d pci.Device, holders []string) api.HostDevice {
	slices.Sort(holders)
	v := api.HostDevice{Address: d.Address, Vendor: d.Vendor, Product: d.Product, Type: d.Type, Instances: append([]string{}, holders...)}
	for _, r := range d.Unfit {
		v.Unfit = append(v.Unfit, r.Message)
	}
	return v
}
