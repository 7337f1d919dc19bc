package fit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/topology"
)

// The codes of reasons about cells, devices and networks.
const (
	CellsShort     = "cells_short"      // the guest has more cells than the host
	CellsContended = "cells_contended"  // several guest cells fit only the same few host cells
	PageSizeNone   = "page_size_none"   // the host cell has no pages of the size asked for
	PageSizeUneven = "page_size_uneven" // the guest cell's memory is no whole number of pages
	PagesShort     = "pages_short"      // too few pages are free
	CellMemory     = "cell_memory_short"
	CellShared     = "cell_shared_cpus_short" // fewer shared CPUs than the guest cell has shared vCPUs
	CellVCPURatio  = "cell_cpu_ratio"
	CellRAMRatio   = "cell_ram_ratio"
	CellPinned     = "cell_dedicated_cpus_short"
	EmulatorAlone  = "emulator_without_dedicated" // isolated emulator threads, and no dedicated vCPU beside them
	ThreadsIsolate = "thread_policy_isolate"
	ThreadsRequire = "thread_policy_require"
	DevicesShort   = "devices_short"
	NetworkFar     = "network_far"
	TogetherShort  = "cells_devices_contended" // each device and network could be had, not all at once
	Undecided      = "undecided"
)

func (r *room) reason(code, want, have, change, format string, args ...any) Reason {
	id := int(r.cell.ID)
	return Reason{
		Code: code, Cell: &id, Want: want, Have: have, Change: change,
		Message: "cell " + strconv.Itoa(id) + ": " + fmt.Sprintf(format, args...),
	}
}

func mib(n int64) string { return strconv.FormatInt(n, 10) + " MiB" }

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

func (r *room) sayMemory(q *ask, say func(Reason)) {
	want := mib(q.cell.MemoryMB)
	if q.cell.PageSize != topology.PagesDefault {
		r.sayPages(q, say)
		return
	}
	bytes := q.cell.MemoryMB << 20
	if len(r.cell.Pages) > 0 && bytes%int64(r.cell.Pages[0].Size) != 0 {
		size := r.cell.Pages[0].Size
		say(r.reason(PageSizeUneven, want, size.String(), "ask for a multiple of "+size.String(), "%s is no whole number of its smallest pages, %s", want, size))
		return
	}
	have := r.ordinaryMemory(q) >> 20
	if q.cell.CPUPolicy.Pins() {
		say(r.reason(CellMemory, want, mib(have), "free "+mib(q.cell.MemoryMB-have)+" on cell "+strconv.Itoa(int(r.cell.ID)),
			"%s of ordinary memory free, a pinned guest cell needs %s", mib(have), want))
		return
	}
	say(r.reason(CellMemory, want, mib(have), "ask for at most "+mib(have)+" a cell", "it has %s of ordinary memory, the guest cell needs %s", mib(have), want))
}

// sayPages tells of each size that would do why it does not.
func (r *room) sayPages(q *ask, say func(Reason)) {
	bytes, asked := q.cell.MemoryMB<<20, pageWords(q.cell.PageSize)
	any := false
	for i, p := range r.cell.Pages {
		if !q.cell.PageSize.Takes(i, p.Size) {
			continue
		}
		any = true
		if bytes%int64(p.Size) != 0 {
			say(r.reason(PageSizeUneven, mib(q.cell.MemoryMB), p.Size.String(), "ask for a multiple of "+p.Size.String(),
				"%s is no whole number of %s pages", mib(q.cell.MemoryMB), p.Size))
			continue
		}
		need := bytes / int64(p.Size)
		say(r.reason(PagesShort, strconv.FormatInt(need, 10), strconv.FormatInt(p.Free(), 10),
			fmt.Sprintf("free or add %d pages of %s on cell %d", need-p.Free(), p.Size, r.cell.ID),
			"%d of %d pages of %s free (%d reserved), the guest cell needs %d", p.Free(), p.Total, p.Size, p.Reserved, need))
	}
	if !any {
		var have []string
		for _, p := range r.cell.Pages {
			have = append(have, p.Size.String())
		}
		all := strings.Join(have, ", ")
		if all == "" {
			all = "none that is known"
		}
		say(r.reason(PageSizeNone, asked, all, "ask for a page size that the host has", "no pages of the size asked for (%s); it has %s", asked, all))
	}
}

func pageWords(p topology.PageRequest) string {
	switch p {
	case topology.PagesSmall:
		return "small"
	case topology.PagesLarge:
		return "large"
	case topology.PagesAny:
		return "any"
	}
	return topology.PageSize(p).String()
}

func (r *room) saySharedFit(q *ask, say func(Reason)) {
	n := len(r.cell.Shared)
	say(r.reason(CellShared, strconv.Itoa(q.shared), strconv.Itoa(n), "spread the guest over more cells, or share more CPUs of the host",
		"%s, the guest cell has %s", count(n, "shared CPU"), count(q.shared, "shared vCPU")))
}

func (r *room) sayVCPURatio(q *ask, say func(Reason)) {
	most := int(float64(len(r.cell.Shared)) * orOne(q.limits.CPURatio))
	say(r.reason(CellVCPURatio, strconv.Itoa(q.shared), strconv.Itoa(max(0, most-r.cell.SharedUsed)),
		fmt.Sprintf("free %s, or raise cpu_allocation_ratio", count(r.cell.SharedUsed+q.shared-most, "shared vCPU")),
		"%d of %s placed, the guest cell brings %d (%s × %g)", r.cell.SharedUsed, count(most, "shared vCPU"), q.shared, count(len(r.cell.Shared), "shared CPU"), orOne(q.limits.CPURatio)))
}

func (r *room) sayMemoryRatio(q *ask, say func(Reason)) {
	most := int64(float64(r.cell.MemoryMB) * orOne(q.limits.RAMRatio))
	say(r.reason(CellRAMRatio, mib(q.cell.MemoryMB), mib(max(0, most-r.cell.MemoryUsedMB)),
		"free "+mib(r.cell.MemoryUsedMB+q.cell.MemoryMB-most)+", or raise ram_allocation_ratio",
		"%s of %s in use, the guest cell brings %s", mib(r.cell.MemoryUsedMB), mib(most), mib(q.cell.MemoryMB)))
}

func (r *room) sayDedicatedFit(q *ask, say func(Reason)) {
	if q.emulator > 0 && q.dedicated == 0 {
		say(r.reason(EmulatorAlone, "1", "0", "give guest cell 0 a dedicated vCPU, or share the emulator threads",
			"isolated emulator threads need a dedicated vCPU beside them, guest cell 0 has none"))
		return
	}
	need := count(q.dedicated, "dedicated vCPU")
	if q.emulator > 0 {
		need += " and " + count(q.emulator, "emulator CPU")
	}
	all := len(r.cell.Dedicated)
	change := fmt.Sprintf("free %s on cell %d", count(q.dedicated+q.emulator-r.free, "dedicated CPU"), r.cell.ID)
	if q.dedicated+q.emulator > all {
		change = fmt.Sprintf("dedicate %s more on cell %d, or spread the guest over more cells", count(q.dedicated+q.emulator-all, "CPU"), r.cell.ID)
	}
	say(r.reason(CellPinned, strconv.Itoa(q.dedicated+q.emulator), strconv.Itoa(r.free), change,
		"%d of %s free, the guest cell needs %s", r.free, count(all, "dedicated CPU"), need))
}

func (r *room) sayThreads(q *ask, say func(Reason)) {
	want := strconv.Itoa(q.dedicated)
	if q.cell.ThreadPolicy == topology.ThreadPolicyRequire {
		if r.threads < 2 {
			say(r.reason(ThreadsRequire, "2 threads a core", "1", "ask for prefer, or switch SMT on", "`require` needs SMT, its cores have one thread"))
			return
		}
		most := 0
		for k := 2; k <= r.threads; k++ {
			most = max(most, k*r.having[k])
		}
		say(r.reason(ThreadsRequire, want, strconv.Itoa(most), "free siblings of busy cores, or ask for prefer",
			"%d of %s free stand beside a free sibling, `require` needs %s", most, count(r.free, "CPU"), want))
		return
	}
	if q.dedicated == 0 {
		say(r.reason(ThreadsIsolate, "1", "0", "give the guest cell a dedicated vCPU, or ask for prefer",
			"`isolate` isolates dedicated vCPUs, the guest cell has none"))
		return
	}
	if !r.oneSet {
		say(r.reason(ThreadsIsolate, "no SMT", "SMT", "ask for prefer, or switch SMT off",
			"`isolate` cannot be had on a host with SMT whose shared and dedicated CPUs are apart"))
		return
	}
	if q.dedicated > r.whole {
		busy := "busy"
		if slices.ContainsFunc(r.cell.Cores, func(s topology.CPUSet) bool { return len(s) < r.threads }) {
			busy = "busy or offline"
		}
		say(r.reason(ThreadsIsolate, want, strconv.Itoa(r.whole), "free the siblings, or ask for prefer",
			"%d of %s with free CPUs have a %s sibling; `isolate` needs %s whole, %d are", len(r.cores)-r.whole, count(len(r.cores), "core"), busy, count(q.dedicated, "core"), r.whole))
		return
	}
	say(r.reason(ThreadsIsolate, count(q.emulator, "CPU"), "0", "free a CPU, or share the emulator threads",
		"no CPU is left for the emulator threads beside %s", count(q.dedicated, "isolated core")))
}

// unplaced gives every reason why the guest's cells have no places, devices and
// networks aside; none when they have.
func (p *placing) unplaced() []Reason {
	m := p.search.m
	m.empty()
	for h := range p.rooms {
		m.add(h)
	}
	if m.full() {
		return nil
	}
	var reasons []Reason
	if guests, hosts := len(p.asks), len(p.rooms); guests > hosts {
		reasons = append(reasons, Reason{
			Code: CellsShort, Want: strconv.Itoa(guests), Have: strconv.Itoa(hosts),
			Message: fmt.Sprintf("the guest has %s, the host %s, and each needs one to itself", count(guests, "cell"), count(hosts, "cell")),
			Change:  fmt.Sprintf("ask for hw:numa_nodes %d or fewer", hosts),
		})
	}
	guests, hosts := p.contended()
	homeless := false
	for g := range p.asks {
		if p.kind[g] == g && p.places(g) == 0 {
			homeless = true
			reasons = append(reasons, p.sayCells(g, hosts)...)
		}
	}
	if !homeless && len(p.asks) <= len(p.rooms) {
		reasons = append(reasons, p.sayContended(guests, hosts))
		for g := range p.asks {
			if p.kind[g] == g && guests.has(g) {
				reasons = append(reasons, p.sayCells(g, hosts)...)
			}
		}
	}
	// What else is short, however the cells were placed.
	all := newBitset(len(p.rooms))
	for h := range p.rooms {
		all.set(h)
	}
	for i := range p.search.demands {
		if x := &p.search.demands[i]; len(x.kinds) < 2 {
			if have := x.met(all, p.devices.socket); have < x.need {
				reasons = append(reasons, p.sayDemand(x, have))
			}
		}
	}
	return reasons
}

// places is how many host cells hold a guest cell.
func (p *placing) places(guest int) int {
	n := 0
	for h := range p.rooms {
		if p.search.admits[h].has(guest) {
			n++
		}
	}
	return n
}

// contended gives guest cells that together fit fewer host cells than they are,
// and those host cells: what an alternating search from an unmatched guest cell
// reaches (the theorem of Hall).
func (p *placing) contended() (guests, hosts bitset) {
	m := p.search.m
	guests, hosts = newBitset(len(p.asks)), newBitset(len(p.rooms))
	guestOf := make([]int, len(p.rooms))
	for h := range guestOf {
		guestOf[h] = slices.Index(m.host, h)
	}
	queue := []int{slices.Index(m.host, -1)}
	guests.set(queue[0])
	for len(queue) > 0 {
		g := queue[0]
		queue = queue[1:]
		for h := range p.rooms {
			if !p.search.admits[h].has(g) || hosts.has(h) {
				continue
			}
			hosts.set(h)
			if next := guestOf[h]; next >= 0 && !guests.has(next) {
				guests.set(next)
				queue = append(queue, next)
			}
		}
	}
	return guests, hosts
}

func (p *placing) sayContended(guests, hosts bitset) Reason {
	var g, h topology.CPUSet // any small numbers in the kernel's list form
	for i := range p.asks {
		if guests.has(i) {
			g = append(g, i)
		}
	}
	var ids []int
	for i := range p.rooms {
		if hosts.has(i) {
			ids = append(ids, int(p.machine.Cells[i].ID))
		}
	}
	h = topology.NewCPUSet(ids...)
	return Reason{
		Code: CellsContended, Want: strconv.Itoa(len(g)), Have: strconv.Itoa(len(h)),
		Message: fmt.Sprintf("guest cells %s fit only on %s %s: %s for %s", g, plural(len(h), "cell"), h, count(len(g), "guest cell"), count(len(h), "host cell")),
		Change:  fmt.Sprintf("make room for %s on the cells below", count(len(g)-len(h), "guest cell")),
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// sayCells tells why a guest cell does not fit on the host cells that do not
// hold it. Where the guest's cells differ it says which one it speaks of.
func (p *placing) sayCells(guest int, fits bitset) []Reason {
	var reasons []Reason
	var like topology.CPUSet
	for g, k := range p.kind {
		if k == guest {
			like = append(like, g)
		}
	}
	prefix := ""
	if len(like) < len(p.asks) {
		prefix = fmt.Sprintf("guest %s %s on ", plural(len(like), "cell"), like)
	}
	for h := range p.rooms {
		if p.search.admits[h].has(guest) {
			continue
		}
		p.rooms[h].holds(&p.asks[guest], func(r Reason) {
			r.Message = prefix + r.Message
			reasons = append(reasons, r)
		})
	}
	return reasons
}

// explainDemands gives every reason why no set of host cells that holds the
// guest also brings its devices and networks.
func (p *placing) explainDemands() []Reason {
	var reasons []Reason
	nothing := newBitset(len(p.rooms))
	for i := range p.search.demands {
		x := &p.search.demands[i]
		_, bound, _ := p.search.most(nothing, nothing, x)
		if bound < x.need && (len(x.kinds) < 2 || len(reasons) == 0) {
			reasons = append(reasons, p.sayDemand(x, bound))
		}
	}
	if len(reasons) > 0 {
		return reasons
	}
	var wants []string
	for i := range p.search.demands {
		if x := &p.search.demands[i]; len(x.kinds) < 2 {
			wants = append(wants, p.nameDemand(x))
		}
	}
	return []Reason{{
		Code:    TogetherShort,
		Message: "no host cells that hold the guest bring all of these together: " + strings.Join(wants, "; "),
		Change:  "ask for affinity preferred, or free devices on one cell",
	}}
}

// nameDemand names what a demand is for: "2 of 8086:1563 (req0, required)".
func (p *placing) nameDemand(x *demand) string {
	if x.kinds == nil {
		return x.what
	}
	var names []string
	for _, k := range x.kinds {
		names = append(names, p.devices.nameKind(k))
	}
	return strings.Join(names, " and ")
}

func (d *devices) nameKind(k int) string {
	q := d.kinds[k]
	ids := make([]string, len(q.requests))
	for i, r := range q.requests {
		ids[i] = d.requests[r].ID
	}
	var specs []string
	for _, s := range d.requests[q.requests[0]].Specs {
		name := s.Vendor + ":" + s.Product
		if s.Type != "" {
			name += " " + string(s.Type)
		}
		specs = append(specs, name)
	}
	return fmt.Sprintf("%d of %s (request %s, affinity %s)", q.count, strings.Join(specs, " or "), strings.Join(ids, ", "), q.affinity)
}

func (p *placing) sayDemand(x *demand, have int64) Reason {
	want, has := strconv.FormatInt(x.need, 10), strconv.FormatInt(have, 10)
	if x.kinds == nil {
		return Reason{
			Code: NetworkFar, Want: want, Have: has,
			Message: x.what + ": none of the cells that are near to it holds the guest",
			Change:  "make room on a cell that is near to the network",
		}
	}
	return Reason{
		Code: DevicesShort, Want: want, Have: has,
		Message: fmt.Sprintf("want %s, at most %s can be had where the guest fits%s", p.nameDemand(x), has, p.perCell(x)),
		Change:  "free devices of this kind there, or ask for affinity preferred",
	}
}

// perCell tells how many functions there are on which cell.
func (p *placing) perCell(x *demand) string {
	var cells []string
	for h, n := range x.cell {
		if x.socket != nil {
			n += x.socket[p.devices.socket[h]]
		}
		if n > 0 {
			cells = append(cells, fmt.Sprintf("cell %d: %d", p.machine.Cells[h].ID, n))
		}
	}
	if len(cells) == 0 {
		return ""
	}
	return " (" + strings.Join(cells, ", ") + ")"
}

// explainFloating tells what a guest without cells lacks.
func (d *devices) explainFloating() []Reason {
	var reasons []Reason
	for k := range d.kinds {
		x := d.demandOf([]int{k})
		if x.base >= x.need {
			continue
		}
		reasons = append(reasons, Reason{
			Code: DevicesShort, Want: strconv.FormatInt(x.need, 10), Have: strconv.FormatInt(x.base, 10),
			Message: fmt.Sprintf("want %s, %d are free", d.nameKind(k), x.base),
			Change:  fmt.Sprintf("free %d of them", x.need-x.base),
		})
	}
	if len(reasons) == 0 {
		var names []string
		for k := range d.kinds {
			names = append(names, d.nameKind(k))
		}
		reasons = []Reason{{Code: DevicesShort, Message: "these cannot be had together: " + strings.Join(names, "; "), Change: "free more devices"}}
	}
	return reasons
}
