package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"berth/agent/api"
	"berth/claims"
	"berth/internal/screen"
	"berth/topology"
)

// placeWidth is how wide a table may be, in columns; onePlace is what that leaves to
// a place on a line of its own, pinColumns to pins beside what was asked.
const (
	placeWidth = 120
	onePlace   = placeWidth - 24
	pinColumns = 48
)

// place says in a few words where a guest is: "cell 0: cpus 2-3; cell 1: shared".
// A place wider than width is counted, and `claim explain` says it in full.
func place(a topology.Assignment, width int) string {
	if a.IsZero() {
		return "floats"
	}
	var parts []string
	cpus := 0
	for _, c := range a.Cells {
		var has []string
		if len(c.Pins) > 0 {
			has = append(has, cpuWords(c.Pinned()))
		}
		if !c.Emulator.IsEmpty() {
			has = append(has, "emulator "+c.Emulator.String())
		}
		if c.Shared > 0 {
			has = append(has, "shared")
		}
		cpus += len(c.Pins) + c.Emulator.Len()
		parts = append(parts, fmt.Sprintf("cell %d: %s", c.HostCell, cmp.Or(strings.Join(has, " + "), "memory")))
	}
	if len(a.Cells) == 0 {
		parts = append(parts, "floats")
	}
	for _, d := range a.Devices {
		parts = append(parts, d.Address.String())
	}
	for _, uuid := range a.Mdevs {
		parts = append(parts, "mdev "+uuid)
	}
	if text := strings.Join(parts, "; "); len(text) <= width {
		return text
	}
	parts = nil
	for _, n := range []struct {
		n    int
		what string
	}{{len(a.Cells), "cell"}, {cpus, "cpu"}, {len(a.Devices) + len(a.Mdevs), "device"}} {
		if n.n > 0 {
			parts = append(parts, count(n.n, n.what))
		}
	}
	return strings.Join(parts, ", ")
}

// cpuWords is "cpu 2" or "cpus 2-3".
func cpuWords(s topology.CPUSet) string {
	if s.Len() == 1 {
		return "cpu " + s.String()
	}
	return "cpus " + s.String()
}

func vcpuWords(s topology.CPUSet) string { return "v" + cpuWords(s) }

// explainTable says what a claim holds, and what of it was asked.
func explainTable(w io.Writer, e api.Explanation) {
	name := e.Name
	if name == "" {
		name = e.Owner.Instance
	}
	fmt.Fprintf(w, "%s: claim %s, %s, holds %s of %s\n", name, e.Claim, e.State, resources(e.Resources), e.Host)
	if e.Owner.Migration != "" {
		fmt.Fprintf(w, "It is for migration %s, attempt %d.\n", e.Owner.Migration, e.Owner.Attempt)
	}
	if e.Forced {
		fmt.Fprintln(w, "It was adopted, or changed by hand, though it does not fit: `berth status` names what it shares with others.")
	}
	fmt.Fprintln(w)
	if len(e.Cells) == 0 {
		fmt.Fprintln(w, floats(e))
	} else {
		screen.Row(w, "GUEST CELL", "HOST CELL", "WHAT", "ASKED", "GIVEN")
		for _, c := range e.Cells {
			explainCell(w, c, e.SharedCPUs[c.HostCell])
		}
		fmt.Fprintln(w)
		fmt.Fprintln(w, emulatorWords(e))
		if !e.Realtime.IsEmpty() {
			fmt.Fprintf(w, "In real time run its %s.\n", vcpuWords(e.Realtime))
		}
	}
	if len(e.Devices) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "DEVICE", "ID", "TYPE", "CELL", "REQUEST", "ASKED", "REMARK")
	for _, d := range e.Devices {
		screen.Row(w, d.Address, d.Vendor+":"+d.Product, d.Type, cellWord(d.Cell), d.Request, askedDevice(d.Asked), deviceRemark(d))
	}
}

// emulatorWords say where the hypervisor's own threads of a guest with cells run.
func emulatorWords(e api.Explanation) string {
	own := slices.ContainsFunc(e.Cells, func(c claims.ExplainedCell) bool { return !c.Emulator.IsEmpty() })
	switch {
	case own:
		return "The hypervisor's own threads have a CPU to themselves (emulator)."
	case e.EmulatorPolicy == topology.EmulatorShare:
		return "The hypervisor's own threads run on the host's shared CPUs, as was asked (share)."
	case !e.Realtime.IsEmpty():
		return "The hypervisor's own threads run where the guest's vCPUs do that are not in real time."
	}
	return "The hypervisor's own threads run where the guest's vCPUs do."
}

// floats is the sentence about a guest that is in no cell.
func floats(e api.Explanation) string {
	var cells []string
	for _, id := range slices.Sorted(maps.Keys(e.SharedCPUs)) {
		cells = append(cells, fmt.Sprintf("%s of cell %d", e.SharedCPUs[id], id))
	}
	on := "the host's shared CPUs"
	if len(cells) > 0 {
		on += " (" + strings.Join(cells, ", ") + ")"
	}
	return fmt.Sprintf("It floats: its %s may run on any of %s,\nand its %d MiB are ordinary memory of any cell. No CPU, page or cell is its own.", count(e.Resources.VCPUs, "vcpu"), on, e.Resources.MemoryMB)
}

// explainCell prints a guest cell, a line for each kind of thing that it holds.
func explainCell(w io.Writer, c claims.ExplainedCell, shared topology.CPUSet) {
	guest, cell := any(c.GuestCell), any(c.HostCell)
	line := func(what, asked, given string) {
		screen.Row(w, guest, cell, what, asked, given)
		guest, cell = " ", " "
	}
	vcpus := func(of func(*topology.GuestCell) topology.CPUSet) string {
		if c.Asked == nil {
			return ""
		}
		return vcpuWords(of(c.Asked))
	}
	if len(c.Pins) > 0 {
		asked := vcpus(func(g *topology.GuestCell) topology.CPUSet { return g.DedicatedVCPUs })
		if c.Asked != nil && c.Asked.ThreadPolicy != topology.ThreadPolicyNone {
			asked += ", threads " + string(c.Asked.ThreadPolicy)
		}
		what := "dedicated"
		for _, pins := range screen.Wrap(pinWords(c.Pins), pinColumns) {
			line(what, asked, "vcpu→cpu "+pins)
			what, asked = " ", " "
		}
	}
	if !c.Idle.IsEmpty() {
		line("idle", "their siblings kept empty", cpuWords(c.Idle))
	}
	if !c.Emulator.IsEmpty() {
		line("emulator", "threads isolate", cpuWords(c.Emulator))
	}
	if c.SharedVCPUs > 0 {
		on := "the cell's shared CPUs"
		if !shared.IsEmpty() {
			on = cpuWords(shared)
		}
		line("shared", vcpus(func(g *topology.GuestCell) topology.CPUSet { return g.SharedVCPUs }), count(c.SharedVCPUs, "vcpu")+" on "+on)
	}
	if c.MemoryMB > 0 {
		asked := ""
		if c.Asked != nil {
			asked = fmt.Sprintf("%d MiB, %s", c.Asked.MemoryMB, pageWords(c.Asked.PageSize))
		}
		given := fmt.Sprintf("%d MiB of ordinary memory", c.MemoryMB)
		if c.PageSize > 0 {
			given = fmt.Sprintf("%d pages of %s", c.Pages, c.PageSize)
		}
		line("memory", asked, given)
	}
}

func pinWords(pins []topology.Pin) []string {
	out := make([]string, len(pins))
	for i, p := range pins {
		out[i] = fmt.Sprintf("%d→%d", p.VCPU, p.CPU)
	}
	return out
}

// pageWords says which pages were asked for (hw:mem_page_size).
func pageWords(p topology.PageRequest) string {
	switch p {
	case topology.PagesDefault:
		return "no page size"
	case topology.PagesSmall:
		return "small pages"
	case topology.PagesLarge:
		return "large pages"
	case topology.PagesAny:
		return "any pages"
	}
	return "pages of " + topology.PageSize(p).String()
}

func cellWord(id topology.CellID) string {
	if id == topology.UnknownCell {
		return "?"
	}
	return fmt.Sprint(id)
}

// askedDevice says what a request wants: "1 of 10de:2330, affinity required".
func askedDevice(r *topology.PCIRequest) string {
	if r == nil {
		return "nothing: it was found so"
	}
	var specs []string
	for _, s := range r.Specs {
		text := cmp.Or(s.Vendor, "*") + ":" + cmp.Or(s.Product, "*")
		if s.Type != "" {
			text += " " + string(s.Type)
		}
		for _, k := range slices.Sorted(maps.Keys(s.Tags)) {
			text += " " + k + "=" + s.Tags[k]
		}
		specs = append(specs, text)
	}
	out := fmt.Sprintf("%d of %s", r.Count, strings.Join(specs, " or "))
	if r.Affinity != "" {
		out += ", affinity " + string(r.Affinity)
	}
	return out
}

func deviceRemark(d claims.ExplainedDevice) string {
	remark := "stays bound to its driver"
	if d.Managed {
		remark = "libvirt unbinds its driver"
	}
	if d.LiveMigratable {
		remark += ", can move live"
	}
	return remark
}

// cellTable prints what guests are fitted in, cell by cell.
func cellTable(w io.Writer, cells []api.HostCell, loose []api.HostDevice) {
	screen.Row(w, "CELL", "DEDICATED CPUS", "FREE CPUS", "SHARED CPUS", "SHARED BY", "MEMORY_MB", "USED", "PAGES USED", "DEVICES USED", "GUESTS")
	var devices []api.HostDevice
	of := map[topology.PCIAddress]topology.CellID{}
	for _, c := range cells {
		used := 0
		for _, d := range c.Devices {
			of[d.Address] = c.ID
			if len(d.Instances) > 0 {
				used++
			}
		}
		devices = append(devices, c.Devices...)
		there := ""
		if len(c.Devices) > 0 {
			there = fmt.Sprintf("%d/%d", used, len(c.Devices))
		}
		screen.Row(w, c.ID, c.Dedicated, c.DedicatedFree, c.Shared, count(c.SharedVCPUs, "vcpu"), c.MemoryMB, c.MemoryUsedMB, poolWords(c.Pages), there, len(c.Instances))
	}
	devices = append(devices, loose...)
	if len(devices) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "DEVICE FOR GUESTS", "ID", "TYPE", "CELL", "HELD BY")
	for _, d := range devices {
		cell := "?"
		if id, ok := of[d.Address]; ok {
			cell = fmt.Sprint(id)
		}
		held := strings.Join(d.Instances, " and ")
		if len(d.Unfit) > 0 {
			held = strings.TrimSpace(held + " (unfit: " + strings.Join(d.Unfit, "; ") + ")")
		}
		screen.Row(w, d.Address, d.Vendor+":"+d.Product, d.Type, cell, held)
	}
}

// poolWords says how much of the pools of huge pages is in use; the first size
// is ordinary memory.
func poolWords(pages []api.HostPages) string {
	var out []string
	for i, p := range pages {
		if i == 0 || p.Total == 0 {
			continue
		}
		text := fmt.Sprintf("%s %d/%d", p.Size, p.Used, p.Total)
		if p.Reserved > 0 {
			text += fmt.Sprintf(" (%d reserved)", p.Reserved)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
