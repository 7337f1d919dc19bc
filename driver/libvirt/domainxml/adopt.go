package domainxml

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/topology"
)

// Assignment reads what a guest that others made has of a host, in the words of
// a claim. It never refuses: what it had to guess, what contradicts itself and
// what cannot be known is in the remarks, each a sentence for an operator.
//
// The topology is nil, and the assignment without cells, where the guest binds
// nothing: no vCPU with a CPU of its own, no huge pages, no memory nodes in mode
// strict or restrictive. Guest cells alone bind nothing.
//
//   - A vCPU is dedicated if its vcpupin, else vcpu/@cpuset, names exactly one CPU
//     and that is none of the shared ones; a wider pin is affinity, and the vCPU is
//     a shared one. No claim holds CPUs that are neither shared nor one vCPU's, with
//     a remark where threads of the guest may run on such.
//   - A guest cell's host cell is the one that its memnode, else numatune/memory,
//     names in mode strict or restrictive; else the one that all its pins lie in; else the host's
//     only cell; else UnknownCell, with a remark.
//   - Emulator threads are of policy isolate on one CPU that is not shared and no
//     vCPU's, of policy share on shared CPUs beside those of the vCPUs, else of
//     none.
//   - A page size that the document leaves to the host is the host's only huge
//     one, else 2 MiB with a remark.
//   - Thread policy and emulator policy of a guest that Berth manages are those
//     of its flavor, since a document shows only what came of them; with thread
//     policy isolate the siblings of its CPUs are idle ones.
//   - PCI requests have no name in a document: devices are hostdev0, hostdev1, …
//     in order.
//   - Mediated devices are those that the document names; what they are made of is
//     the host's matter.
//
// What of a guest is no part of an assignment, Kept tells.
//
// Of the host it reads cells, cores, page sizes and PCI functions; nil where that
// is unknown. shared are the CPUs that no guest has to itself.
func (d *Doc) Assignment(host *topology.Host, shared topology.CPUSet) (*topology.GuestTopology, topology.Assignment, []string) {
	a := &adoption{host: host, shared: shared}
	var err error
	if a.pinning, err = d.Pinning(); err != nil {
		a.remark("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if m, there, err := d.Metadata(); there && err == nil {
		a.specs = m.Flavor.ExtraSpecs
	}
	var out topology.Assignment
	out.Devices = a.devices()
	out.Mdevs = a.mdevs()
	if mb := a.pinning.ApartMB; mb > 0 {
		a.remark("%d MiB of memory devices with files of their own are not part of an assignment", mb)
	}
	for _, m := range a.pinning.OwnPages {
		if cell := a.pinning.Cells[m.Cell].Pages; cell != topology.PageRequest(m.Pages) {
			a.remark("guest cell %d: a memory device of %d MiB has pages of %s, other ones than its cell; counted as the cell's", m.Cell, m.MemoryMB, m.Pages)
		}
	}
	t := &topology.GuestTopology{}
	for i, cell := range a.pinning.Cells {
		want, given := a.cell(i, cell)
		t.Cells, out.Cells = append(t.Cells, want), append(out.Cells, given)
	}
	a.wandering(out)
	if !a.binds {
		return nil, topology.Assignment{Devices: out.Devices, Mdevs: out.Mdevs}, a.remarks
	}
	a.policies(t, out)
	a.emulator(t, &out)
	a.doubles(out)
	return t, out, a.remarks
}

type adoption struct {
	host    *topology.Host
	shared  topology.CPUSet
	pinning Pinning
	specs   map[string]string // of the flavor of a managed guest
	binds   bool              // whether the guest holds anything by cell
	wide    []topology.CPUSet // where its shared vCPUs may run, of those that do not run anywhere
	remarks []string
}

func (a *adoption) remark(format string, args ...any) {
	a.remarks = append(a.remarks, fmt.Sprintf(format, args...))
}

// cell reads one guest cell.
func (a *adoption) cell(i int, cell PinnedCell) (topology.GuestCell, topology.AssignedCell) {
	want := topology.GuestCell{MemoryMB: cell.MemoryMB, PageSize: cell.Pages}
	given := topology.AssignedCell{MemoryMB: cell.MemoryMB, PageSize: a.pageSize(i, cell.Pages)}
	var affinity []topology.CPUSet
	var dedicated, floating []int
	for _, v := range cell.VCPUs.Intersection(a.pinning.Online) {
		cpus := a.affinity(v)
		affinity = append(affinity, cpus)
		if cpus.Len() == 1 && !a.shared.Contains(cpus[0]) {
			dedicated = append(dedicated, v)
			given.Pins = append(given.Pins, topology.Pin{VCPU: v, CPU: cpus[0]})
		} else {
			floating, a.wide = append(floating, v), append(a.wide, cpus)
		}
	}
	want.DedicatedVCPUs, want.SharedVCPUs = topology.NewCPUSet(dedicated...), topology.NewCPUSet(floating...)
	given.Shared = len(floating)
	mode, nodes := cell.Mode, cell.Nodes
	if mode == "" {
		mode, nodes = a.pinning.MemoryMode, a.pinning.MemoryNodes
	}
	// Restrictive is for the kernel what strict is for QEMU: the guest's control
	// group has no other memory.
	strict := (mode == "strict" || mode == "restrictive") && !nodes.IsEmpty()
	if !strict && !nodes.IsEmpty() {
		a.remark("guest cell %d: memory of mode %s on host cells %s is a wish and holds nothing", i, mode, nodes)
	}
	if strict || len(dedicated) > 0 || cell.Pages != topology.PagesDefault {
		a.binds = true
	}
	given.HostCell = a.hostCell(i, strict, nodes, given.Pinned(), union(affinity))
	return want, given
}

// affinity is where a vCPU may run; empty for anywhere.
func (a *adoption) affinity(vcpu int) topology.CPUSet {
	if cpus, own := a.pinning.VCPUs[vcpu]; own {
		return cpus
	}
	return a.pinning.CPUSet
}

// union of many sets costs little more than all that is in them.
func union(sets []topology.CPUSet) topology.CPUSet {
	switch n := len(sets); n {
	case 0:
		return nil
	case 1:
		return sets[0]
	default:
		return union(sets[:n/2]).Union(union(sets[n/2:]))
	}
}

// wandering remarks on threads that may run where no shared vCPU should: nothing
// keeps those CPUs from being given to another guest alone.
func (a *adoption) wandering(given topology.Assignment) {
	if a.shared.IsEmpty() {
		return // the host keeps no CPUs apart
	}
	own := a.shared
	for _, c := range given.Cells {
		own = own.Union(c.Pinned())
	}
	if cpus := union(a.wide).Difference(own); !cpus.IsEmpty() {
		a.remark("vCPUs may run on CPUs %s, which are neither shared nor theirs alone; they hold none of them", cpus)
	}
	threads := union(slices.Collect(maps.Values(a.pinning.IOThreads)))
	if cpus := threads.Difference(own).Difference(a.pinning.Emulator); !cpus.IsEmpty() {
		a.remark("I/O threads may run on CPUs %s, which are neither shared nor the guest's; they hold none", cpus)
	}
}

// hostCell finds the host's cell of a guest cell.
func (a *adoption) hostCell(i int, strict bool, nodes, pinned, affinity topology.CPUSet) topology.CellID {
	byPins := topology.UnknownCell
	if a.host != nil {
		for _, cpus := range []topology.CPUSet{pinned, affinity} {
			for _, c := range a.host.Cells {
				if byPins == topology.UnknownCell && !cpus.IsEmpty() && c.CPUs.ContainsAll(cpus) {
					byPins = c.ID
				}
			}
		}
	}
	if strict && nodes.Len() == 1 {
		cell := topology.CellID(nodes[0])
		if a.host != nil {
			if c, ok := a.host.Cell(cell); !ok {
				a.remark("guest cell %d: its memory is bound to host cell %d, which this host does not have", i, cell)
			} else if away := pinned.Difference(c.CPUs); !away.IsEmpty() {
				a.remark("guest cell %d: its memory is on host cell %d, its CPUs %s are not", i, cell, away)
			}
		}
		return cell
	}
	only := topology.UnknownCell
	if a.host != nil && len(a.host.Cells) == 1 {
		only = a.host.Cells[0].ID
	}
	switch {
	case strict && byPins >= 0 && nodes.Contains(int(byPins)):
		a.remark("guest cell %d: its memory may be on host cells %s; counted on %d, where its CPUs are", i, nodes, byPins)
	case strict:
		byPins = topology.CellID(nodes[0])
		a.remark("guest cell %d: its memory may be on host cells %s; counted on %d", i, nodes, byPins)
	case byPins >= 0:
	case only >= 0:
		return only
	case !pinned.IsEmpty():
		a.remark("guest cell %d: its CPUs %s are in no single cell of the host", i, pinned)
	}
	return byPins
}

// pageSize is the size in bytes that a request came to.
func (a *adoption) pageSize(i int, asked topology.PageRequest) topology.PageSize {
	if asked != topology.PagesLarge {
		return topology.PageSize(asked)
	}
	var huge []topology.PageSize
	if a.host != nil {
		for _, size := range a.host.PageSizes {
			if size > a.host.BasePageSize {
				huge = append(huge, size)
			}
		}
	}
	if len(huge) == 1 {
		return huge[0]
	}
	a.remark("guest cell %d: runs on the host's default huge pages, whose size the document does not name; counted as %s", i, topology.PageSize2M)
	return topology.PageSize2M
}

// policies says what the guest asked for: what is seen, and what its flavor
// says where Berth wrote that down.
func (a *adoption) policies(t *topology.GuestTopology, given topology.Assignment) {
	var shared, dedicated topology.CPUSet
	for i, c := range t.Cells {
		shared, dedicated = shared.Union(c.SharedVCPUs), dedicated.Union(c.DedicatedVCPUs)
		if given.Cells[i].HostCell == topology.UnknownCell {
			a.remark("guest cell %d: which host cell it uses cannot be known from the document", i)
		}
	}
	policy := topology.CPUPolicyMixed
	switch {
	case dedicated.IsEmpty():
		policy = topology.CPUPolicyShared
	case shared.IsEmpty():
		policy = topology.CPUPolicyDedicated
	}
	threads := topology.ThreadPolicyNone
	if asked := topology.ThreadPolicy(a.specs["hw:cpu_thread_policy"]); policy.Pins() {
		switch asked {
		case topology.ThreadPolicyPrefer, topology.ThreadPolicyIsolate, topology.ThreadPolicyRequire:
			threads = asked
		}
	}
	t.Realtime = a.pinning.Realtime.Intersection(dedicated)
	if wrong := a.pinning.Realtime.Difference(dedicated); !wrong.IsEmpty() {
		a.remark("vCPUs %s run with realtime priority on CPUs that are not theirs alone", wrong)
	}
	for i := range t.Cells {
		t.Cells[i].CPUPolicy, t.Cells[i].ThreadPolicy = policy, threads
		if threads == topology.ThreadPolicyIsolate && a.host != nil {
			pinned := given.Cells[i].Pinned()
			for _, core := range a.host.Cores {
				if core.Intersects(pinned) {
					given.Cells[i].Idle = given.Cells[i].Idle.Union(core.Difference(pinned))
				}
			}
		}
	}
}

// emulator finds what the emulator's threads have to themselves.
func (a *adoption) emulator(t *topology.GuestTopology, given *topology.Assignment) {
	cpus := a.pinning.Emulator
	if cpus.IsEmpty() {
		return
	}
	var pins []topology.CPUSet
	for _, v := range a.pinning.Online {
		pins = append(pins, a.affinity(v))
	}
	guests := union(pins)
	asked := topology.EmulatorPolicy(a.specs["hw:emulator_threads_policy"])
	outside := cpus.Difference(a.shared)
	switch {
	case asked == topology.EmulatorShare, asked != topology.EmulatorIsolate && outside.IsEmpty() && !guests.ContainsAll(cpus):
		t.Emulator = topology.EmulatorShare
	case !outside.IsEmpty() && !guests.Intersects(outside) && (asked == topology.EmulatorIsolate || cpus.Len() == 1):
		t.Emulator = topology.EmulatorIsolate
		given.Cells[0].Emulator = outside
	case !guests.ContainsAll(cpus):
		a.remark("emulator threads may run on CPUs %s, which are neither shared nor the guest's; they hold none", outside.Difference(guests))
	}
	// An idle sibling may well be where the emulator runs.
	for i := range given.Cells {
		given.Cells[i].Idle = given.Cells[i].Idle.Difference(given.Cells[0].Emulator)
	}
}

// doubles remarks on what a claim would not give.
func (a *adoption) doubles(given topology.Assignment) {
	cpus := map[int][]int{}
	cells := map[topology.CellID][]int{}
	for i, c := range given.Cells {
		for _, p := range c.Pins {
			cpus[p.CPU] = append(cpus[p.CPU], p.VCPU)
		}
		if c.HostCell >= 0 {
			cells[c.HostCell] = append(cells[c.HostCell], i)
		}
	}
	for _, cpu := range slices.Sorted(maps.Keys(cpus)) {
		if v := cpus[cpu]; len(v) > 1 {
			a.remark("CPU %d has the vCPUs %v of this guest", cpu, v)
		}
	}
	for _, cell := range slices.Sorted(maps.Keys(cells)) {
		if g := cells[cell]; len(g) > 1 {
			a.remark("host cell %d has the guest cells %v of this guest", cell, g)
		}
	}
}

// devices are the PCI functions that the guest has.
func (a *adoption) devices() []topology.AssignedDevice {
	var out []topology.AssignedDevice
	seen := map[topology.PCIAddress]bool{}
	for _, h := range a.pinning.Devices {
		if seen[h.Address] {
			a.remark("PCI device %s is in the document twice", h.Address)
			continue
		}
		seen[h.Address] = true
		d := topology.AssignedDevice{
			Request: fmt.Sprintf("hostdev%d", len(out)), Address: h.Address, Type: topology.PCITypeFunction,
			Cell: topology.UnknownCell, Managed: h.Managed,
		}
		if a.host != nil {
			if dev, ok := a.host.Device(h.Address); !ok {
				a.remark("PCI device %s is not one of this host", h.Address)
			} else {
				d.Vendor, d.Product = strings.TrimPrefix(dev.Vendor, "0x"), strings.TrimPrefix(dev.Product, "0x")
				d.Cell = dev.NUMANode
				switch {
				case dev.PhysFn != nil:
					d.Type = topology.PCITypeVF
				case dev.TotalVFs > 0:
					d.Type = topology.PCITypePF
				}
			}
		}
		out = append(out, d)
	}
	return out
}

// mdevs are the mediated devices that the guest has, ascending.
func (a *adoption) mdevs() []string {
	out := slices.Sorted(slices.Values(a.pinning.Mdevs))
	for i := 1; i < len(out); i++ {
		if out[i] == out[i-1] {
			a.remark("mediated device %s is in the document twice", out[i])
		}
	}
	return slices.Compact(out)
}
