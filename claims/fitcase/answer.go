package fitcase

import (
	"strconv"

	"berth/claims/fit"
	"berth/topology"
)

// Answer is what is printed for a case.
type Answer struct {
	ID   string `json:"id"`
	Fits bool   `json:"fits"`

	// Refused says why stage one makes nothing of the flavor and image, with
	// Nova's class of the error. The host was then not asked.
	Refused string `json:"refused,omitempty"`

	// Undecided says that the search's budget ended first; Fits is then false
	// and proves nothing.
	Undecided bool `json:"undecided,omitempty"`

	Cells    []Cell    `json:"cells"`          // by guest cell; empty where it does not fit and for a guest without topology
	PCI      []PCIUse  `json:"pci"`            // empty where it does not fit
	Topology *Topology `json:"topology"`       // null for a guest without NUMA topology
	Realtime string    `json:"realtime_vcpus"` // cpulist; "" for none
	Reasons  []Reason  `json:"reasons"`        // why it does not fit: every reason, per host cell
	Changes  []Change  `json:"changes"`        // each by itself makes it fit; smallest first
	NS       int64     `json:"ns"`             // what the fit took, nanoseconds; stage one, reading and changes not counted
	Error    string    `json:"error,omitempty"`
}

// Cell is where a guest cell goes.
type Cell struct {
	GuestCell int            `json:"guest_cell"`
	HostCell  int            `json:"host_cell"`
	PageSize  *int64         `json:"pagesize"` // KiB; null where the guest asks for none
	Pinning   map[string]int `json:"pinning"`  // vCPU to CPU; null where none is pinned
	Reserved  string         `json:"reserved"` // cpulist: the emulator threads' CPUs
}

// PCIUse is what a request takes of a pool.
type PCIUse struct {
	Request string `json:"request"`
	Vendor  string `json:"vendor_id"`
	Product string `json:"product_id"`
	Type    string `json:"dev_type"`
	Node    *int   `json:"numa_node"`
	Count   int    `json:"count"`
}

// Topology is a guest's NUMA topology in the words of the case format.
type Topology struct {
	Emulator *string        `json:"emulator_threads_policy"`
	Cells    []TopologyCell `json:"cells"`
}

// TopologyCell is one cell of it.
type TopologyCell struct {
	ID           int     `json:"id"`
	Shared       string  `json:"shared_vcpus"`    // cpulist
	Dedicated    string  `json:"dedicated_vcpus"` // cpulist
	MemoryMB     int64   `json:"memory_mb"`
	PageSize     *int64  `json:"pagesize"` // null none, -1 small, -2 large, -3 any, else KiB
	CPUPolicy    *string `json:"cpu_policy"`
	ThreadPolicy *string `json:"cpu_thread_policy"`
}

// Reason is fit.Reason in JSON.
type Reason struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Cell    *int   `json:"cell,omitempty"`
	Want    string `json:"want,omitempty"`
	Have    string `json:"have,omitempty"`
	Change  string `json:"change,omitempty"`
}

// Failed is the answer to a case that could not be read.
func Failed(id string, err error) Answer {
	a := blank(id)
	a.Error = err.Error()
	return a
}

func blank(id string) Answer {
	return Answer{ID: id, Cells: []Cell{}, PCI: []PCIUse{}, Reasons: []Reason{}, Changes: []Change{}}
}

func topologyOf(t *topology.GuestTopology) *Topology {
	if t == nil {
		return nil
	}
	out := &Topology{Emulator: word(t.Emulator), Cells: make([]TopologyCell, len(t.Cells))}
	for i, c := range t.Cells {
		out.Cells[i] = TopologyCell{
			ID: i, Shared: c.SharedVCPUs.String(), Dedicated: c.DedicatedVCPUs.String(), MemoryMB: c.MemoryMB,
			CPUPolicy: word(c.CPUPolicy), ThreadPolicy: word(c.ThreadPolicy), PageSize: pageRequest(c.PageSize),
		}
	}
	return out
}

func word[T ~string](w T) *string {
	if w == "" {
		return nil
	}
	s := string(w)
	return &s
}

func pageRequest(p topology.PageRequest) *int64 {
	n := int64(p)
	switch {
	case p == topology.PagesDefault:
		return nil
	case n > 0:
		n >>= 10
	}
	return &n
}

func (c *Case) place(a *Answer, p fit.Placement) {
	for i, cell := range p.Cells {
		out := Cell{GuestCell: i, HostCell: int(cell.HostCell), Reserved: cell.Emulator.String()}
		if cell.PageSize > 0 {
			kb := int64(cell.PageSize) >> 10
			out.PageSize = &kb
		}
		if len(cell.Pins) > 0 {
			out.Pinning = make(map[string]int, len(cell.Pins))
			for _, pin := range cell.Pins {
				out.Pinning[strconv.Itoa(pin.VCPU)] = pin.CPU
			}
		}
		a.Cells = append(a.Cells, out)
	}
	for _, u := range p.PCI {
		key := c.pools[u.Pool]
		a.PCI = append(a.PCI, PCIUse{c.PCI[u.Request].ID, key.vendor, key.product, key.kind, key.node, u.Count})
	}
}

func reasons(from []fit.Reason) []Reason {
	out := make([]Reason, len(from))
	for i, r := range from {
		out[i] = Reason(r)
	}
	return out
}
