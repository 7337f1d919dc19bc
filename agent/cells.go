package agent

import (
	"berth/agent/host"
	"berth/agent/inventory"
	"berth/claims"
	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/topology"
)

// cellOptions are what the operator says of CPUs and pages.
func cellOptions(c config.Config) inventory.CellOptions {
	o := inventory.CellOptions{Dedicated: c.Host.DedicatedCPUs, Shared: c.Host.SharedCPUs}
	for _, p := range c.Host.ReservedPages {
		o.Pages = append(o.Pages, inventory.ReservedPages{Cell: p.Node, Size: p.Size.Bytes(), Count: p.Count})
	}
	return o
}

// machineOf is what claims are fitted in beyond amounts, with every remark on how
// the configuration and the machine go together. believed is what is counted;
// what now, the last reading, could not read soundly is touched by no new claim.
func machineOf(c config.Config, options inventory.CellOptions, believed, now *topology.Host) (claims.Capacity, []fault.Reason) {
	var out claims.Capacity
	var remarks []fault.Reason
	cells, reasons := inventory.FitCells(believed, options)
	for _, r := range reasons {
		one := fault.Reason{Code: r.Code, Message: r.Message, Change: r.Change}
		if r.Cell != nil {
			id := int(*r.Cell)
			one.Cell = &id
		}
		remarks = append(remarks, one)
	}
	out.Cells = cells
	devices, doubts := pci.Devices(believed, c.PCI.DeviceSpec)
	for _, r := range doubts {
		remarks = append(remarks, fault.Reason{Code: r.Code, Message: r.Message, Change: r.Change})
	}
	out.Devices = devices
	if now != nil {
		for _, u := range inventory.UnusableOf(now) {
			out.Unusable = append(out.Unusable, claims.Unusable(u))
		}
	}
	return out, remarks
}

// sharedCPUs are where guests that float may run: empty where the operator keeps
// no CPU from them.
func (a *Agent) sharedCPUs() topology.CPUSet {
	c := a.config()
	believed, _, _ := a.hardware.view()
	if believed == nil || c.Host.DedicatedCPUs.IsEmpty() && c.Host.SharedCPUs.IsEmpty() {
		return nil
	}
	cells, _ := inventory.FitCells(believed, cellOptions(c))
	var shared topology.CPUSet
	for _, cell := range cells {
		shared = shared.Union(cell.Shared)
	}
	return shared
}

// allowed is what instances of other hosts may name here, by the configuration.
func (a *Agent) allowed() host.Allowed {
	m := a.config().Migration
	return host.Allowed{Paths: m.AllowedPaths, Emulators: m.AllowedEmulators, Labels: m.AllowedLabels, Arguments: m.AllowQEMUArguments}
}

func (a *Agent) aliases() []flavor.Alias { return a.config().PCI.Alias }

func (a *Agent) believed() *topology.Host {
	believed, _, _ := a.hardware.view()
	return believed
}
