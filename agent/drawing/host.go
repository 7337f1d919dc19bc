package drawing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"berth/topology"
)

// Input is what a picture is made of.
type Input struct {
	Name     string         // the host's
	Hardware *topology.Host // as it is believed; nil while nobody has read it
	Rooms    []Room         // what guests may have of each cell; empty while that is not known
	Devices  []Device       // functions that guests may have; holders are taken from Claims
	Claims   []Claim
	// Whole is what guests may have of the host as a whole, whatever the cell; nil while that is
	// not known.
	Whole *Whole
	// Unclaimed are names of guests that run here without a claim.
	Unclaimed []string
}

// Whole are amounts of a host: all of it, of which Reserved is no guest's; the rest is given out
// Ratio times.
type Whole struct {
	Total, Reserved                  topology.Resources
	CPURatio, MemoryRatio, DiskRatio float64
}

// Room is what guests may have of one cell.
type Room struct {
	Cell      topology.CellID
	Dedicated topology.CPUSet // that may be a guest's alone
	Shared    topology.CPUSet // that vCPUs without a CPU of their own share
	Pools     []Pool          // ascending by size, the first ordinary memory; shares are taken from Claims
}

// Claim is what one claim holds of the host.
type Claim struct {
	Instance   string // uuid
	Name       string // empty where the ledger has none
	Stands     string // what the claim is, in a few words: "lives here", "arrives, migration 3f2c…"
	Resources  topology.Resources
	Assignment topology.Assignment
	Forced     bool // the guest was found so, and does not fit
}

// Host is a picture of one host.
type Host struct {
	Name    string          `json:"name"`
	Summary string          `json:"summary"` // "2 cells, 16 CPUs in 8 cores, 31.3 GiB of memory"
	Guests  []Guest         `json:"guests"`
	Sums    []Pool          `json:"sums"` // of all cells: memory, vCPUs that share CPUs, disk; empty while not known
	Cells   []Cell          `json:"cells"`
	Loose   []Group         `json:"devices_of_no_cell,omitempty"` // functions for guests whose cell nobody knows
	Offline topology.CPUSet `json:"offline_cpus"`
	Other   int             `json:"other_pci_functions"` // PCI functions that no guest may have
	// Unclaimed are names of guests that run here and hold nothing by the ledger.
	Unclaimed []string `json:"running_without_a_claim,omitempty"`
	// Known is false while the hardware has not been read: then there are only guests.
	Known bool `json:"hardware_known"`
	// Fitted is false while it is not known what guests may have; then no CPU has a role.
	Fitted bool `json:"room_known"`
}

// Guest is who holds something. Others name it by its index in Host.Guests.
type Guest struct {
	Mark      string             `json:"mark"` // "A", "B", … "Z", "AA": short, and one guest's alone
	Instance  string             `json:"instance"`
	Name      string             `json:"instance_name"`
	Resources topology.Resources `json:"resources"`
	Claims    []Held             `json:"claims"`
	Floats    bool               `json:"floats"` // it is bound to no cell
	Forced    bool               `json:"forced,omitempty"`
}

// Held is what one claim of a guest is and has, in words.
type Held struct {
	Stands string   `json:"stands"`          // "lives here"
	Holds  []string `json:"holds,omitempty"` // "cell 0: cpus 2,10, 512 pages of 2MiB", "0000:3b:00.2"
}

// Cell is one NUMA cell. A cell with the id topology.UnknownCell has the CPUs that the kernel
// puts in none.
type Cell struct {
	ID          topology.CellID `json:"cell"`
	Packages    []int           `json:"packages,omitempty"` // whose CPUs it has; empty where the firmware tells none
	MemoryBytes int64           `json:"memory_bytes"`
	Far         []Distance      `json:"distances,omitempty"` // to the other cells; empty where there are none or nobody knows
	Cores       []Core          `json:"cores"`
	Pools       []Pool          `json:"pages"`
	Groups      []Group         `json:"devices,omitempty"`
}

// Distance is the firmware's cost of another cell's memory; 10 is that of one's own.
type Distance struct {
	Cell topology.CellID `json:"cell"`
	Cost int             `json:"distance"`
}

// Core is the CPUs of one core; one CPU where the kernel does not tell who shares.
type Core struct {
	CPUs []CPU `json:"cpus"`
}

// Role is what a CPU is for.
type Role string

// The roles.
const (
	RoleUnknown   Role = ""          // nobody knows yet
	RoleOwn       Role = "own"       // the host's own: no guest runs there
	RoleShared    Role = "shared"    // vCPUs without a CPU of their own run there
	RoleDedicated Role = "dedicated" // for one guest alone
)

// CPU is one thread of a core.
type CPU struct {
	ID   int  `json:"cpu"`
	Role Role `json:"role"`
	// Holders are the guests that have it to themselves; more than one only by force.
	Holders []Holder `json:"held_by,omitempty"`
}

// Use is what a guest has a CPU for.
type Use string

// The uses.
const (
	UsePinned   Use = "pinned"   // a vCPU of its own runs there
	UseEmulator Use = "emulator" // its emulator threads run there
	UseIdle     Use = "idle"     // it is kept empty beside one that is pinned
)

// Holder is a guest that has a CPU.
type Holder struct {
	Guest int `json:"guest"`
	Use   Use `json:"use"`
	VCPU  int `json:"vcpu"` // of UsePinned
}

// Pool is memory of one page size in one cell, in pages. A sum of the host has a name; its
// pages are MiB of memory, GiB of disk, and vCPUs without a size.
type Pool struct {
	Name     string            `json:"name,omitempty"` // of a sum of the whole host
	Size     topology.PageSize `json:"page_size"`
	Ordinary bool              `json:"ordinary"` // the smallest size of the host: memory that is no pool of huge pages
	Total    int64             `json:"total"`
	Reserved int64             `json:"reserved"` // kept from guests
	Used     int64             `json:"used"`     // of guests, what is on its way included
	Shares   []Share           `json:"shares,omitempty"`
	// Ratio is how often a sum of the host is given out; Total counts it so. 0 stands for 1.
	Ratio float64 `json:"allocation_ratio,omitempty"`
}

// Share is what a guest has of a pool.
type Share struct {
	Guest int   `json:"guest"`
	Pages int64 `json:"pages"`
}

// Group is functions of one PCI card that guests may have: a physical function, or its
// virtual ones.
type Group struct {
	Of      topology.PCIAddress `json:"of"` // the physical function, or the function itself
	Product string              `json:"id"` // "8086:1572", of the first
	Devices []Device            `json:"functions"`
}

// Device is one PCI function that guests may have.
type Device struct {
	Address topology.PCIAddress `json:"address"`
	Product string              `json:"id"` // "8086:154c"
	Type    topology.PCIType    `json:"dev_type"`
	Unfit   string              `json:"unfit,omitempty"`  // why no guest gets it; empty where one may
	Guests  []int               `json:"guests,omitempty"` // who has it; more than one only by force
}

// Holds is what the guest has by all its claims, each thing once.
func (g Guest) Holds() []string {
	var out []string
	for _, c := range g.Claims {
		for _, held := range c.Holds {
			if !slices.Contains(out, held) {
				out = append(out, held)
			}
		}
	}
	return out
}

// Of makes the picture.
func Of(in Input) Host {
	h := Host{Name: in.Name, Known: in.Hardware != nil, Fitted: len(in.Rooms) > 0}
	for _, name := range in.Unclaimed {
		h.Unclaimed = append(h.Unclaimed, printable(name))
	}
	slices.Sort(h.Unclaimed)
	hardware := in.Hardware
	if hardware == nil {
		hardware = &topology.Host{}
	}
	index := h.guests(in.Claims, hardware.BasePageSize)
	h.Summary, h.Offline = summary(in.Hardware, len(h.Guests)), hardware.OfflineCPUs
	for _, c := range hardware.Cells {
		h.Cells = append(h.Cells, cellOf(hardware, c))
	}
	if stray := strays(hardware); len(stray) > 0 {
		h.Cells = append(h.Cells, Cell{ID: topology.UnknownCell, Cores: coresOf(hardware, stray)})
	}
	for i := range h.Cells {
		h.Cells[i].furnish(in.Rooms, hardware.BasePageSize)
	}
	for _, c := range in.Claims {
		h.hold(c, index[c.Instance], hardware.BasePageSize)
	}
	h.devices(in, hardware, index)
	h.sums(in.Whole)
	return h
}

// guests gives each instance a mark, in the order of names, and says which is whose.
func (h *Host) guests(list []Claim, base topology.PageSize) map[string]int {
	index := map[string]int{}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Claim) int {
		return cmp.Or(strings.Compare(cmp.Or(a.Name, a.Instance), cmp.Or(b.Name, b.Instance)), strings.Compare(a.Instance, b.Instance))
	})
	for _, c := range list {
		i, known := index[c.Instance]
		if !known {
			i = len(h.Guests)
			index[c.Instance] = i
			h.Guests = append(h.Guests, Guest{Mark: mark(i), Instance: c.Instance, Name: printable(cmp.Or(c.Name, c.Instance)), Floats: true})
		}
		g := &h.Guests[i]
		g.Claims = append(g.Claims, Held{Stands: c.Stands, Holds: words(c.Assignment, base)})
		g.Resources = g.Resources.Max(c.Resources) // of two claims it uses one
		g.Floats = g.Floats && len(c.Assignment.Cells) == 0
		g.Forced = g.Forced || c.Forced
	}
	return index
}

// printable leaves out what is no letter for people: a name goes to terminals and pages.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, name)
}

// mark is the i-th of A … Z, AA, AB, … .
func mark(i int) string {
	out := ""
	for i++; i > 0; i = (i - 1) / 26 {
		out = string(rune('A'+(i-1)%26)) + out
	}
	return out
}

// words say what an assignment is, a phrase for each cell and device; base is the size of pages
// that are ordinary memory.
func words(a topology.Assignment, base topology.PageSize) []string {
	var out []string
	for _, c := range a.Cells {
		var has []string
		if pinned := c.Pinned(); !pinned.IsEmpty() {
			has = append(has, plural(pinned.Len(), "cpu")+" "+pinned.String())
		}
		if !c.Emulator.IsEmpty() {
			has = append(has, "emulator "+c.Emulator.String())
		}
		if !c.Idle.IsEmpty() {
			has = append(has, "kept empty "+c.Idle.String())
		}
		if c.Shared > 0 {
			has = append(has, fmt.Sprintf("%d shared %s", c.Shared, plural(c.Shared, "vcpu")))
		}
		switch {
		case c.PageSize > base && c.MemoryMB > 0:
			pages := c.MemoryMB << 20 / int64(c.PageSize)
			has = append(has, fmt.Sprintf("%d %s of %s", pages, plural(int(pages), "page"), c.PageSize))
		case c.MemoryMB > 0:
			has = append(has, fmt.Sprintf("%d MiB", c.MemoryMB))
		}
		out = append(out, fmt.Sprintf("cell %d: %s", c.HostCell, cmp.Or(strings.Join(has, ", "), "nothing of its own")))
	}
	for _, d := range a.Devices {
		out = append(out, d.Address.String())
	}
	for _, uuid := range a.Mdevs {
		out = append(out, "mdev "+uuid)
	}
	return out
}

// hold enters what a claim holds.
func (h *Host) hold(c Claim, guest int, base topology.PageSize) {
	for _, a := range c.Assignment.Cells {
		i := slices.IndexFunc(h.Cells, func(c Cell) bool { return c.ID == a.HostCell })
		for _, p := range a.Pins {
			h.holdCPU(p.CPU, Holder{Guest: guest, Use: UsePinned, VCPU: p.VCPU})
		}
		for _, cpu := range a.Emulator {
			h.holdCPU(cpu, Holder{Guest: guest, Use: UseEmulator})
		}
		for _, cpu := range a.Idle {
			h.holdCPU(cpu, Holder{Guest: guest, Use: UseIdle})
		}
		if i >= 0 && a.MemoryMB > 0 {
			h.Cells[i].holdPages(guest, cmp.Or(a.PageSize, base), a.MemoryMB)
		}
	}
}

func (h *Host) holdCPU(id int, by Holder) {
	for i := range h.Cells {
		for j := range h.Cells[i].Cores {
			for k := range h.Cells[i].Cores[j].CPUs {
				cpu := &h.Cells[i].Cores[j].CPUs[k]
				if cpu.ID == id && !slices.ContainsFunc(cpu.Holders, func(o Holder) bool { return o.Guest == by.Guest }) {
					cpu.Holders = append(cpu.Holders, by)
					slices.SortFunc(cpu.Holders, func(a, b Holder) int { return a.Guest - b.Guest })
				}
			}
		}
	}
}

// holdPages enters memory of a guest. Two claims of one guest are its two shapes, of which it
// uses one: the larger counts.
func (c *Cell) holdPages(guest int, size topology.PageSize, mb int64) {
	i := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Size == size })
	if i < 0 || size <= 0 {
		return
	}
	p, pages := &c.Pools[i], mb<<20/int64(size)
	for j := range p.Shares {
		if p.Shares[j].Guest == guest {
			p.Shares[j].Pages = max(p.Shares[j].Pages, pages)
			return
		}
	}
	p.Shares = append(p.Shares, Share{Guest: guest, Pages: pages})
	slices.SortFunc(p.Shares, func(a, b Share) int { return a.Guest - b.Guest })
}
