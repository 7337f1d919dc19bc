package claims

import (
	"maps"
	"slices"

	"berth/migration"
	"berth/topology"
)

// MigrationContext is what a move changes about a guest, kept by both hosts
// until the move has ended (Nova's object of the same name). Each pair is what
// the guest holds where it was and where it goes; on one host, both are held
// until the move is confirmed or reverted.
type MigrationContext struct {
	Migration     string               `json:"migration"`
	Instance      string               `json:"instance"`
	Source        string               `json:"source_compute"`
	Destination   string               `json:"dest_compute"`
	Conductor     string               `json:"conductor,omitempty"` // host whose agent conducts it; empty for the source
	OldResources  topology.Resources   `json:"old_resources"`
	NewResources  topology.Resources   `json:"new_resources"`
	OldFlavor     topology.Flavor      `json:"old_flavor"`
	NewFlavor     topology.Flavor      `json:"new_flavor"`
	OldPowerState migration.PowerState `json:"old_power_state"` // what the user had chosen before the migration

	// Nil for a guest that floats over the host.
	OldNUMATopology *NUMATopology `json:"old_numa_topology,omitempty"`
	NewNUMATopology *NUMATopology `json:"new_numa_topology,omitempty"`

	OldPCIDevices  []topology.AssignedDevice `json:"old_pci_devices,omitempty"`
	NewPCIDevices  []topology.AssignedDevice `json:"new_pci_devices,omitempty"`
	OldPCIRequests []topology.PCIRequest     `json:"old_pci_requests,omitempty"`
	NewPCIRequests []topology.PCIRequest     `json:"new_pci_requests,omitempty"`
}

// apart is the host that conducts the move where that is not its source;
// empty where it is.
func (c MigrationContext) apart() string {
	if c.Conductor == c.Source {
		return ""
	}
	return c.Conductor
}

// NUMATopology is a guest's cells and the host cells that they were given: the
// two halves of Nova's InstanceNUMATopology.
type NUMATopology struct {
	Guest *topology.GuestTopology `json:"guest"` // what was asked
	Cells []topology.AssignedCell `json:"cells"` // what was given; guest cell i is entry i
}

// Holding is one side of a move: all that a guest holds of a host.
type Holding struct {
	Resources    topology.Resources        `json:"resources"`
	Flavor       topology.Flavor           `json:"flavor"`
	NUMATopology *NUMATopology             `json:"numa_topology,omitempty"`
	PCIDevices   []topology.AssignedDevice `json:"pci_devices,omitempty"`
	PCIRequests  []topology.PCIRequest     `json:"pci_requests,omitempty"`
}

// Holding is what the claim holds for a guest of this flavor.
func (c Claim) Holding(f topology.Flavor) Holding {
	c = c.clone()
	h := Holding{Resources: c.Resources, Flavor: f, PCIDevices: c.Assignment.Devices, PCIRequests: c.PCI}
	h.Flavor.ExtraSpecs = maps.Clone(f.ExtraSpecs)
	if c.Topology != nil {
		h.NUMATopology = &NUMATopology{Guest: c.Topology, Cells: c.Assignment.Cells}
	}
	return h
}

// WithOld gives the context with this side as what the guest held before.
func (c MigrationContext) WithOld(h Holding) MigrationContext {
	c.OldResources, c.OldFlavor, c.OldNUMATopology, c.OldPCIDevices, c.OldPCIRequests =
		h.Resources, h.Flavor, h.NUMATopology, h.PCIDevices, h.PCIRequests
	return c.clone()
}

// WithNew gives the context with this side as what the guest is to hold.
func (c MigrationContext) WithNew(h Holding) MigrationContext {
	c.NewResources, c.NewFlavor, c.NewNUMATopology, c.NewPCIDevices, c.NewPCIRequests =
		h.Resources, h.Flavor, h.NUMATopology, h.PCIDevices, h.PCIRequests
	return c.clone()
}

// Apply is what the guest holds when the move goes ahead: the new side (Nova's
// apply_migration_context). Apply and Revert may follow each other in any order
// for as long as the context stands.
func (c MigrationContext) Apply() Holding {
	c = c.clone()
	return Holding{c.NewResources, c.NewFlavor, c.NewNUMATopology, c.NewPCIDevices, c.NewPCIRequests}
}

// Revert is what the guest holds when the move is taken back: the old side
// (Nova's revert_migration_context).
func (c MigrationContext) Revert() Holding {
	c = c.clone()
	return Holding{c.OldResources, c.OldFlavor, c.OldNUMATopology, c.OldPCIDevices, c.OldPCIRequests}
}

// Freed is what the end of a same-host move gives back of a host.
type Freed struct {
	Resources topology.Resources        `json:"resources"` // max(0, let go − kept) of each
	CPUs      topology.CPUSet           `json:"cpus"`      // that were the guest's alone
	Devices   []topology.AssignedDevice `json:"devices"`
}

// Drop ends the context of a move within one host: what the guest holds from
// then on, the new side when the move was applied and else the old one, and
// what of the other side is thereby free.
func (c MigrationContext) Drop(applied bool) (Holding, Freed) {
	keeps, gone := c.Apply(), c.Revert()
	if !applied {
		keeps, gone = gone, keeps
	}
	f := Freed{
		Resources: gone.Resources.Max(keeps.Resources).Sub(keeps.Resources),
		CPUs:      gone.exclusive().Difference(keeps.exclusive()),
	}
	for _, d := range gone.PCIDevices {
		if !slices.ContainsFunc(keeps.PCIDevices, func(k topology.AssignedDevice) bool { return k.Address == d.Address }) {
			f.Devices = append(f.Devices, d)
		}
	}
	return keeps, f
}

func (h Holding) exclusive() topology.CPUSet {
	if h.NUMATopology == nil {
		return nil
	}
	return exclusive(h.NUMATopology.Cells)
}

// exclusive are all CPUs that the cells' guest has to itself.
func exclusive(cells []topology.AssignedCell) topology.CPUSet {
	var all topology.CPUSet
	for _, c := range cells {
		all = all.Union(c.Exclusive())
	}
	return all
}

func (n *NUMATopology) clone() *NUMATopology {
	if n == nil {
		return nil
	}
	return &NUMATopology{Guest: n.Guest.Clone(), Cells: topology.Assignment{Cells: n.Cells}.Clone().Cells}
}

// cloneRequests shares no memory with what it is given that anyone changes.
func cloneRequests(requests []topology.PCIRequest) []topology.PCIRequest {
	out := slices.Clone(requests)
	for i := range out {
		out[i].Specs = slices.Clone(out[i].Specs)
		for j := range out[i].Specs {
			out[i].Specs[j].Tags = maps.Clone(out[i].Specs[j].Tags)
		}
	}
	return out
}

func (c MigrationContext) clone() MigrationContext {
	c.OldFlavor.ExtraSpecs = maps.Clone(c.OldFlavor.ExtraSpecs)
	c.NewFlavor.ExtraSpecs = maps.Clone(c.NewFlavor.ExtraSpecs)
	c.OldNUMATopology, c.NewNUMATopology = c.OldNUMATopology.clone(), c.NewNUMATopology.clone()
	c.OldPCIDevices, c.NewPCIDevices = slices.Clone(c.OldPCIDevices), slices.Clone(c.NewPCIDevices)
	c.OldPCIRequests, c.NewPCIRequests = cloneRequests(c.OldPCIRequests), cloneRequests(c.NewPCIRequests)
	return c
}
