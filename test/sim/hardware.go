package sim

import (
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"berth/agent/host/demand"
	"berth/agent/inventory"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/internal/fault"
	"berth/migration/options"
	"berth/placementclient"
	"berth/topology"
)

// hardware is what a host of the simulation is made of: two cells, and of everything that is
// unique so little that instances meet at it. No two hosts number their CPUs and functions
// alike, so that a document which still names the source's is found out.
type hardware struct {
	host    *topology.Host
	options inventory.CellOptions
	cells   []fit.Cell
	devices []pci.Device
	pools   map[pool]int64 // pages by cell and size
}

type pool struct {
	cell topology.CellID
	size topology.PageSize
}

// The functions of a host, as an alias asks for them: a card with virtual functions, which is
// taken whole or by them, and one that stays where it is.
const (
	vendor       = "8086"
	productCard  = "1572"
	productNIC   = "154c"
	productGPU   = "0bd5"
	sharedPer    = 4 // CPUs of a cell
	dedicatedPer = 3
)

var (
	aliases = []flavor.Alias{
		{Name: "nic", VendorID: vendor, ProductID: productNIC, DeviceType: "type-VF"},
		{Name: "card", VendorID: vendor, ProductID: productCard, DeviceType: "type-PF"},
		{Name: "gpu", VendorID: vendor, ProductID: productGPU, DeviceType: "type-PCI"},
	}
	specs = []pci.Spec{
		{VendorID: vendor, ProductID: productNIC, LiveMigratable: "yes"},
		{VendorID: vendor, ProductID: productCard},
		{VendorID: vendor, ProductID: productGPU},
	}
)

// machines are those of all runs: nobody changes them.
var machines = func() []*hardware {
	var out []*hardware
	for n := range 8 {
		out = append(out, makeHardware(n))
	}
	return out
}()

func makeHardware(n int) *hardware {
	const per = sharedPer + dedicatedPer
	h := &hardware{
		pools: map[pool]int64{},
		host:  &topology.Host{Health: topology.HealthOK, BasePageSize: topology.PageSize4K, PageSizes: []topology.PageSize{topology.PageSize4K, topology.PageSize2M, topology.PageSize1G}},
	}
	huge := []topology.Pages{{topology.PageSize2M: 512}, {topology.PageSize1G: 1}} // a GiB in each cell
	for cell := range 2 {
		first := 32*n + 8*cell
		cpus := make([]int, per)
		for i := range cpus {
			cpus[i] = first + i
			h.host.Cores = append(h.host.Cores, topology.NewCPUSet(first+i))
		}
		pages := topology.Pages{topology.PageSize4K: 1 << 19}
		for size, count := range huge[cell] {
			pages[size] = count
			h.pools[pool{topology.CellID(cell), size}] = count
		}
		h.host.Cells = append(h.host.Cells, topology.Cell{ID: topology.CellID(cell), CPUs: topology.NewCPUSet(cpus...), MemoryBytes: 3 << 30, Pages: pages, Distances: []int{10 + 10*cell, 20 - 10*cell}})
		h.options.Shared = h.options.Shared.Union(topology.NewCPUSet(cpus[:sharedPer]...))
		h.options.Dedicated = h.options.Dedicated.Union(topology.NewCPUSet(cpus[sharedPer:]...))
	}
	bus, group := uint8(0x10+n), 0
	function := func(product string, cell topology.CellID, device, number uint8) *topology.PCIDevice {
		group++
		of := group
		h.host.PCI = append(h.host.PCI, topology.PCIDevice{
			Address: topology.PCIAddress{Bus: bus, Device: device, Function: number}, Vendor: "0x" + vendor, Product: "0x" + product, Class: "0x020000", NUMANode: cell, IOMMUGroup: &of,
		})
		return &h.host.PCI[len(h.host.PCI)-1]
	}
	pf := function(productCard, 0, 0, 0)
	card := pf.Address
	pf.TotalVFs, pf.VFs = 2, []topology.PCIAddress{{Bus: bus, Device: 2}, {Bus: bus, Device: 2, Function: 1}}
	for _, vf := range pf.VFs {
		function(productNIC, 0, vf.Device, vf.Function).PhysFn = &card
	}
	function(productGPU, 1, 4, 0)
	h.cells, _ = inventory.FitCells(h.host, h.options)
	h.devices, _ = pci.Devices(h.host, specs)
	return h
}

// capacity is what the claim lock of a host has to give, of these amounts.
func (h *hardware) capacity(amounts topology.Resources) claims.Capacity {
	amounts.PCPUs = h.options.Dedicated.Len()
	return claims.Capacity{Total: amounts, Cells: h.cells, Devices: h.devices}
}

// shared are the CPUs of each cell that instances share.
func (h *hardware) shared() map[topology.CellID]topology.CPUSet {
	out := map[topology.CellID]topology.CPUSet{}
	for _, c := range h.cells {
		out[c.ID] = c.Shared
	}
	return out
}

// input is the host as it is reported; held is what its claims hold.
func (m *machine) input(held []inventory.Held) inventory.Input {
	in := inventory.Input{
		UUID: m.provider, Name: m.name, Host: m.hw.host, DiskGB: m.capacity.DiskGB, Cells: m.hw.options, Fixed: inventory.Ratios{CPU: 1, RAM: 1, Disk: 1},
		Devices: m.hw.devices, Held: held,
	}
	if m.w.story.Sharing {
		in.Sharing = sharing
	}
	return in
}

// place is where a host counts what a claim holds.
func (m *machine) place(r topology.Resources, a topology.Assignment) map[string]placementclient.Resources {
	return m.tree.Place(inventory.Held{Resources: r, Assignment: a}, nil)
}

// special is a way in which an instance is more than amounts.
type special struct {
	name  string
	extra map[string]string
	vcpus int   // that it needs at least
	mb    int64 // that its memory is a multiple of
	stays bool  // it does not move while it runs
	whole bool  // its memory moves before it runs elsewhere
}

// specials are all of them; the first is an instance that floats.
var specials = []special{
	{name: "plain"},
	{name: "pinned", extra: map[string]string{"hw:cpu_policy": "dedicated"}},
	{name: "paged", extra: map[string]string{"hw:mem_page_size": "2048"}, mb: 2},
	{name: "nic", extra: map[string]string{"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1"}, whole: true},
	{name: "mixed", extra: map[string]string{"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"}, vcpus: 2},
	{name: "giant", extra: map[string]string{"hw:mem_page_size": "1048576", "hw:cpu_policy": "dedicated"}, mb: 1024},
	{name: "gpu", extra: map[string]string{"pci_passthrough:alias": "gpu:1"}, stays: true},
	{name: "card", extra: map[string]string{"pci_passthrough:alias": "card:1"}, stays: true},
}

// fits says whether a flavor can be of that kind.
func (s special) fits(f topology.Flavor, live, postCopy bool) bool {
	return f.VCPUs >= s.vcpus && (s.mb == 0 || f.MemoryMB%s.mb == 0) && !(live && s.stays) && !(postCopy && s.whole)
}

// of is the flavor that asks for it.
func (s special) of(f topology.Flavor) topology.Flavor {
	if s.extra != nil {
		f.Name, f.ExtraSpecs = f.Name+" "+s.name, s.extra
	}
	return f
}

// plain is a flavor of the same amounts that asks for nothing else.
func plain(f topology.Flavor) topology.Flavor {
	f.Name, _, _ = strings.Cut(f.Name, " ")
	f.ExtraSpecs = nil
	return f
}

// dress gives a story's instances, and the flavors that they are resized to, the kinds that pick
// draws. Hosts that have less than they should, or say so, are for instances that float: what
// they refuse is what their stories are about.
func (s *Story) dress(pick func(n int) int) *Story {
	if slices.ContainsFunc(s.Hosts, func(h HostPlan) bool { return h.Capacity != roomy || h.Told.VCPUs > 0 }) {
		return s
	}
	out := *s
	out.Guests, out.Moves = slices.Clone(s.Guests), slices.Clone(s.Moves)
	postCopy := slices.ContainsFunc(s.Moves, func(m MovePlan) bool { return m.Options.PostCopy == options.On })
	draw := func(f topology.Flavor, live bool) topology.Flavor {
		var can []special
		for _, one := range specials {
			if one.fits(f, live, postCopy) {
				can = append(can, one)
			}
		}
		return can[pick(len(can))].of(f)
	}
	for i := range out.Guests {
		live := len(s.Drains) > 0 || slices.ContainsFunc(s.Moves, func(m MovePlan) bool { return m.Guest == i && m.Kind == "" })
		out.Guests[i].Flavor = draw(out.Guests[i].Flavor, live)
		for j := range out.Moves {
			if m := &out.Moves[j]; m.Guest == i && m.Flavor != nil {
				f := draw(*m.Flavor, live)
				m.Flavor = &f
			}
		}
	}
	return &out
}

// rotation picks kinds by name: the same for the same story, another for another.
func rotation(name string) func(n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never an error
	at := int(h.Sum32() >> 8)
	return func(n int) int { at++; return at % n }
}

// asked are the demands of flavors, by name: flavors of one name are the same.
var asked sync.Map

// demandOf is what a flavor asks of a host.
func demandOf(f topology.Flavor) demand.Demand {
	if d, known := asked.Load(f.Name); known {
		return d.(demand.Demand)
	}
	var no fault.Refusal
	d := demand.Of(f, nil, aliases, &no)
	if len(no.Reasons) > 0 {
		panic("a flavor of the simulation is at fault: " + no.Reasons[0].Message)
	}
	asked.Store(f.Name, d)
	return d
}
