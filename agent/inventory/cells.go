package inventory

import (
	"fmt"
	"slices"

	"berth/claims/fit"
	"berth/topology"
)

// CellOptions are what the operator says of the host's CPUs and pages.
type CellOptions struct {
	// Dedicated CPUs may be pinned, Shared ones are what other vCPUs float over.
	// Both empty: every online CPU is shared, none dedicated. One empty: there are
	// none of its kind (Nova since Train: cpu_dedicated_set, cpu_shared_set).
	Dedicated, Shared topology.CPUSet

	Pages []ReservedPages
}

// ReservedPages are pages of one size that no guest gets of a cell.
type ReservedPages struct {
	Cell  topology.CellID
	Size  topology.PageSize // bytes
	Count int64
}

// Reason is a remark on how the options and the host go together. None of them
// is fatal: what the host does not have is not used, and the operator is told.
type Reason struct {
	Code    string
	Message string           // in an operator's words, names the key
	Cell    *topology.CellID // nil when it is about none
	Change  string           // what would have to change
}

// The codes of reasons.
const (
	CPUOffline     = "cpu_offline"         // a CPU of a set is switched off
	CPUAbsent      = "cpu_absent"          // a CPU of a set is not there
	CPUWithoutCell = "cpu_without_cell"    // a CPU of a set belongs to no cell, so no guest with a topology gets it
	CPUInBoth      = "cpu_in_both_sets"    // counted as dedicated
	NoUsableCPU    = "no_usable_cpu"       // the sets leave guests no CPU
	CoresUnknown   = "cores_unknown"       // the kernel does not tell who shares a core, and CPUs are dedicated
	CellUnknown    = "cell_unknown"        // pages are reserved of a cell that is not there
	PageUnknown    = "page_size_unknown"   // pages are reserved of a size the kernel does not serve
	PagesOver      = "pages_over_reserved" // more pages are reserved than there are: all of them are
)

// cpus gives the online CPUs of each kind.
func (o CellOptions) cpus(h *topology.Host) (dedicated, shared topology.CPUSet) {
	online := h.CPUs()
	if o.Dedicated.IsEmpty() && o.Shared.IsEmpty() {
		return nil, online
	}
	return o.Dedicated.Intersection(online), o.Shared.Intersection(online).Difference(o.Dedicated)
}

// FitCells gives the host's cells as claims/fit has them, in the order of
// Host.Cells, nothing in use, and every remark. Every size that the kernel serves
// is a pool of every cell, also one without a page. Memory is all of the cell's:
// what is kept of it for the host is a matter of the host as a whole, or of
// reserved pages of the smallest size.
func FitCells(h *topology.Host, o CellOptions) ([]fit.Cell, []Reason) {
	dedicated, shared := o.cpus(h)
	usable := dedicated.Union(shared)
	cells := make([]fit.Cell, len(h.Cells))
	var inCells topology.CPUSet
	for i, c := range h.Cells {
		inCells = inCells.Union(c.CPUs)
		mine := usable.Intersection(c.CPUs)
		cells[i] = fit.Cell{
			ID: c.ID, Socket: socket(h, c.CPUs),
			Shared: shared.Intersection(c.CPUs), Dedicated: dedicated.Intersection(c.CPUs),
			Cores: within(h.Cores, mine), Caches: within(h.LastLevelCaches, mine),
			MemoryMB: c.MemoryBytes / mib,
		}
		for _, size := range h.PageSizes {
			cells[i].Pages = append(cells[i].Pages, fit.Pages{Size: size, Total: c.Pages[size]})
		}
	}
	reasons := o.cpuReasons(h, inCells)
	return cells, append(reasons, o.reserve(cells)...)
}

// within restricts sets to the CPUs of all, and drops the empty ones.
func within(sets []topology.CPUSet, all topology.CPUSet) []topology.CPUSet {
	var out []topology.CPUSet
	for _, s := range sets {
		if s = s.Intersection(all); !s.IsEmpty() {
			out = append(out, s)
		}
	}
	return out
}

// socket is the number of the package that holds all CPUs of a cell; nil when
// there is no such one, or the firmware gives it no number. Packages that share a
// number (cluster on die) are one socket.
func socket(h *topology.Host, cpus topology.CPUSet) *int {
	var id *int
	left := cpus
	for _, p := range h.Packages {
		if !p.CPUs.Intersects(cpus) {
			continue
		}
		if p.ID == nil || id != nil && *id != *p.ID {
			return nil
		}
		n := *p.ID
		id, left = &n, left.Difference(p.CPUs)
	}
	if !left.IsEmpty() {
		return nil
	}
	return id
}

// cpuReasons holds the sets against the host.
func (o CellOptions) cpuReasons(h *topology.Host, inCells topology.CPUSet) []Reason {
	var out []Reason
	add := func(code, change, format string, args ...any) {
		out = append(out, Reason{Code: code, Message: fmt.Sprintf(format, args...), Change: change})
	}
	online := h.CPUs()
	for _, s := range []struct {
		key string
		set topology.CPUSet
	}{{"[host] dedicated_cpus", o.Dedicated}, {"[host] shared_cpus", o.Shared}} {
		if off := s.set.Intersection(h.OfflineCPUs); !off.IsEmpty() {
			add(CPUOffline, "switch them on, or take them out", "%s: CPUs %s are offline", s.key, off)
		}
		if no := s.set.Difference(online).Difference(h.OfflineCPUs); !no.IsEmpty() {
			add(CPUAbsent, "take them out", "%s: this host has no CPUs %s", s.key, no)
		}
		if lost := s.set.Intersection(online).Difference(inCells); !lost.IsEmpty() {
			add(CPUWithoutCell, "take them out", "%s: CPUs %s are in no NUMA cell, so no guest with a topology gets them", s.key, lost)
		}
	}
	if both := o.Dedicated.Intersection(o.Shared); !both.IsEmpty() {
		add(CPUInBoth, "take them out of one of the two", "[host] dedicated_cpus and shared_cpus: CPUs %s are in both, and count as dedicated", both)
	}
	dedicated, shared := o.cpus(h)
	if dedicated.IsEmpty() && shared.IsEmpty() {
		add(NoUsableCPU, "name CPUs that this host has", "[host] dedicated_cpus and shared_cpus leave guests no CPU of this host")
	}
	if !dedicated.IsEmpty() && len(h.Cores) == 0 {
		add(CoresUnknown, "ask for no thread policy on this host", "the kernel does not tell which CPUs share a core: each counts as a core of its own")
	}
	return out
}

// reserve sets what is reserved of the cells' pages.
func (o CellOptions) reserve(cells []fit.Cell) []Reason {
	var out []Reason
	for i, r := range o.Pages {
		add := func(code, change, format string, args ...any) {
			cell := r.Cell
			message := fmt.Sprintf("[host] reserved_hugepages[%d]: ", i) + fmt.Sprintf(format, args...)
			out = append(out, Reason{Code: code, Message: message, Cell: &cell, Change: change})
		}
		at := slices.IndexFunc(cells, func(c fit.Cell) bool { return c.ID == r.Cell })
		if at < 0 {
			add(CellUnknown, "name a cell that this host has", "this host has no cell %d", r.Cell)
			continue
		}
		pages := cells[at].Pages
		pool := slices.IndexFunc(pages, func(p fit.Pages) bool { return p.Size == r.Size })
		if pool < 0 {
			add(PageUnknown, "name a size that the kernel serves", "cell %d has no pages of %s", r.Cell, r.Size)
			continue
		}
		p := &pages[pool]
		if p.Reserved+r.Count > p.Total {
			add(PagesOver, "make more pages, or reserve fewer", "cell %d: %d pages of %s are reserved and %d are there", r.Cell, p.Reserved+r.Count, r.Size, p.Total)
		}
		p.Reserved = min(p.Reserved+r.Count, p.Total)
	}
	return out
}

// Unusable is a cell or a device that no new claim may touch; one of the two is
// named. It is claims.Unusable under another name, field by field.
type Unusable struct {
	Cell   *topology.CellID
	Device *topology.PCIAddress
	Reason string // in an operator's words
}

// UnusableOf gives the cells and devices of which a mandatory fact could not be
// read or contradicts another: every reason of the reading that degrades and
// names one. Ask it of the last reading, also where an earlier one is believed.
func UnusableOf(h *topology.Host) []Unusable {
	var out []Unusable
	for _, r := range h.Reasons {
		if r.Degrades && (r.Cell != nil || r.Device != nil) {
			u := Unusable{Device: r.Device, Reason: r.Message}
			if r.Device == nil {
				u.Cell = r.Cell
			}
			out = append(out, u)
		}
	}
	return out
}
