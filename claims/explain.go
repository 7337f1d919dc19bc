package claims

import (
	"berth/topology"
)

// Explanation is what a claim holds and why, for `claim explain`: each cell of
// the guest beside what it was given.
type Explanation struct {
	Claim     string             `json:"claim"`
	Owner     Owner              `json:"owner"`
	State     State              `json:"state"`
	Forced    bool               `json:"forced,omitempty"`
	Resources topology.Resources `json:"resources"`

	// Cells are the guest's, in their order; empty for one that floats over the
	// host's shared CPUs and ordinary memory.
	Cells   []ExplainedCell   `json:"cells,omitempty"`
	Devices []ExplainedDevice `json:"devices,omitempty"`
}

// ExplainedCell is a guest cell and the host cell that it was given.
type ExplainedCell struct {
	GuestCell int             `json:"guest_cell"`
	HostCell  topology.CellID `json:"host_cell"`

	// Asked is nil where only what the guest has is known: it was found here.
	Asked *topology.GuestCell `json:"asked,omitempty"`

	SharedVCPUs int             `json:"shared_vcpus"`
	Pins        []topology.Pin  `json:"pins,omitempty"`
	Emulator    topology.CPUSet `json:"emulator_cpus,omitempty"`
	Idle        topology.CPUSet `json:"idle_cpus,omitempty"`

	MemoryMB int64             `json:"memory_mb"`
	PageSize topology.PageSize `json:"page_size,omitempty"` // 0 for ordinary memory
	Pages    int64             `json:"pages,omitempty"`     // of PageSize
}

// ExplainedDevice is a PCI function and the request that it answers.
type ExplainedDevice struct {
	topology.AssignedDevice
	Asked *topology.PCIRequest `json:"asked,omitempty"` // nil where it was found so
}

// Explain says what the claim holds.
func (c Claim) Explain() Explanation {
	c = c.clone()
	e := Explanation{Claim: c.ID, Owner: c.Owner, State: c.State, Forced: c.Forced, Resources: c.Resources}
	for i, a := range c.Assignment.Cells {
		x := ExplainedCell{
			GuestCell: i, HostCell: a.HostCell, SharedVCPUs: a.Shared, Pins: a.Pins, Emulator: a.Emulator, Idle: a.Idle,
			MemoryMB: a.MemoryMB, PageSize: a.PageSize,
		}
		if a.PageSize > 0 {
			x.Pages = pagesFor(a.MemoryMB, a.PageSize)
		}
		if c.Topology != nil && i < len(c.Topology.Cells) {
			x.Asked = &c.Topology.Cells[i]
		}
		e.Cells = append(e.Cells, x)
	}
	for _, d := range c.Assignment.Devices {
		x := ExplainedDevice{AssignedDevice: d}
		for i := range c.PCI {
			if c.PCI[i].ID == d.Request {
				x.Asked = &c.PCI[i]
			}
		}
		e.Devices = append(e.Devices, x)
	}
	return e
}

// Explain says what an owner's claim holds.
func (t *Tracker) Explain(o Owner) (Explanation, bool) {
	c, ok := t.ByOwner(o)
	return c.Explain(), ok
}
