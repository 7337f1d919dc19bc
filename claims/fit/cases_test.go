package fit

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"berth/test/shared"
	"berth/topology"
)

// sharedCase is a recorded case as far as the solver's own test needs it. Its
// topology is the recorded one, so that this test knows nothing of stage one.
type sharedCase struct {
	ID   string
	Host struct {
		Cells []struct {
			ID            topology.CellID
			Socket        *int
			SharedCPUs    string   `json:"shared_cpus"`
			DedicatedCPUs string   `json:"dedicated_cpus"`
			Siblings      []string `json:"siblings"`
			MemoryMB      int64    `json:"memory_mb"`
			MemoryUsedMB  int64    `json:"memory_used_mb"`
			SharedUsed    int      `json:"shared_vcpus_used"`
			Pinned        string   `json:"pinned_cpus"`
			Mempages      []struct{ Size_KB, Total, Used, Reserved int64 }
			Network       *sharedNetwork
		}
		Pools []struct {
			Vendor  string           `json:"vendor_id"`
			Product string           `json:"product_id"`
			Type    topology.PCIType `json:"dev_type"`
			Node    *topology.CellID `json:"numa_node"`
			Count   int
		} `json:"pci_pools"`
	}
	Request struct {
		PCI []struct {
			ID     string
			Count  int
			Spec   []map[string]string
			Policy topology.PCIAffinity `json:"numa_policy"`
		} `json:"pci_requests"`
	}
	Limits *struct {
		CPU     float64 `json:"cpu_allocation_ratio"`
		RAM     float64 `json:"ram_allocation_ratio"`
		Network *sharedNetwork
	}
	Constraints struct {
		Topology *struct {
			Emulator topology.EmulatorPolicy `json:"emulator_threads_policy"`
			Cells    []struct {
				Shared    string `json:"shared_vcpus"`
				Dedicated string `json:"dedicated_vcpus"`
				MemoryMB  int64  `json:"memory_mb"`
				Pagesize  int64
				Policy    topology.CPUPolicy    `json:"cpu_policy"`
				Thread    topology.ThreadPolicy `json:"cpu_thread_policy"`
			}
		}
	}
	ExactFits *bool    `json:"exact_fits"`
	PairFits  []string `json:"pair_fits"`
}

type sharedNetwork struct {
	Physnets []string
	Tunneled bool
}

func (n *sharedNetwork) network() *Network {
	if n == nil {
		return nil
	}
	return &Network{Physical: n.Physnets, Tunneled: n.Tunneled}
}

func cpus(t *testing.T, text string) topology.CPUSet {
	t.Helper()
	s, err := topology.ParseCPUSet(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *sharedCase) machine(t *testing.T) *Machine {
	m := &Machine{}
	for _, h := range c.Host.Cells {
		cell := Cell{
			ID: h.ID, Socket: h.Socket, Shared: cpus(t, h.SharedCPUs), Dedicated: cpus(t, h.DedicatedCPUs), Pinned: cpus(t, h.Pinned),
			MemoryMB: h.MemoryMB, MemoryUsedMB: h.MemoryUsedMB, SharedUsed: h.SharedUsed, Network: h.Network.network(),
		}
		for _, s := range h.Siblings {
			cell.Cores = append(cell.Cores, cpus(t, s))
		}
		for _, p := range h.Mempages {
			cell.Pages = append(cell.Pages, Pages{Size: topology.PageSize(p.Size_KB << 10), Total: p.Total, Used: p.Used, Reserved: p.Reserved})
		}
		m.Cells = append(m.Cells, cell)
	}
	for _, p := range c.Host.Pools {
		node := topology.UnknownCell
		if p.Node != nil {
			node = *p.Node
		}
		m.Pools = append(m.Pools, Pool{Vendor: p.Vendor, Product: p.Product, Type: p.Type, Cell: node, Count: p.Count})
	}
	if c.Limits != nil {
		m.Limits = &Limits{CPURatio: c.Limits.CPU, RAMRatio: c.Limits.RAM, Network: c.Limits.Network.network()}
	}
	return m
}

func (c *sharedCase) request(t *testing.T) Request {
	r := Request{Topology: &topology.GuestTopology{Emulator: c.Constraints.Topology.Emulator}}
	for _, g := range c.Constraints.Topology.Cells {
		page := topology.PageRequest(g.Pagesize)
		if page > 0 {
			page <<= 10
		}
		r.Topology.Cells = append(r.Topology.Cells, topology.GuestCell{
			SharedVCPUs: cpus(t, g.Shared), DedicatedVCPUs: cpus(t, g.Dedicated), MemoryMB: g.MemoryMB, PageSize: page,
			CPUPolicy: g.Policy, ThreadPolicy: g.Thread,
		})
	}
	for _, q := range c.Request.PCI {
		req := topology.PCIRequest{ID: q.ID, Count: q.Count, Affinity: q.Policy}
		for _, s := range q.Spec {
			req.Specs = append(req.Specs, topology.PCISpec{Vendor: s["vendor_id"], Product: s["product_id"], Type: topology.PCIType(s["dev_type"])})
		}
		r.PCI = append(r.PCI, req)
	}
	return r
}

// sharedCases gives the recorded cases that have a topology.
func sharedCases(t *testing.T) []sharedCase {
	t.Helper()
	f, err := os.Open(shared.Path(t, "numa-cases", "public.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []sharedCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var c sharedCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.ExactFits != nil && c.Constraints.Topology != nil {
			out = append(out, c)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPlace_AgreesWithTheExactReference(t *testing.T) {
	cases := sharedCases(t)
	if len(cases) < 300 {
		t.Errorf("%d cases were read", len(cases))
	}
	for _, c := range cases {
		r, m := c.request(t), c.machine(t)
		p := newPlacing(r, m, newDevices(r, m))
		for g, row := range c.PairFits {
			var got strings.Builder
			for h := range m.Cells {
				got.WriteByte("01"[btoi(p.search.admits[h].has(g))])
			}
			if got.String() != row {
				t.Errorf("%s: guest cell %d fits %s, want %s", c.ID, g, &got, row)
			}
		}
		if a := Place(r, m); a.Fits() != *c.ExactFits || a.Undecided {
			t.Errorf("%s: fits %t (undecided %t), want %t: %v", c.ID, a.Fits(), a.Undecided, *c.ExactFits, a.Reasons)
		}
	}
}
