package domainxml

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"berth/topology"
)

// Binding is the place on a host that an existing document is written for, and
// what stands there for things that have another name on every host.
type Binding struct {
	Place

	// Devices gives for each PCI function that the document names the one of the
	// new host (MapDevices). A function that keeps its address maps to itself.
	Devices map[topology.PCIAddress]topology.PCIAddress

	// Mdevs gives for the uuid of each mediated device that the document names the
	// uuid of the new host's, both in lower case.
	Mdevs map[string]string

	// Listen is the address on which graphics and serial ports listen (see
	// SetListen); empty leaves them.
	Listen string
}

// Rebind writes the document anew for another place: what a guest that moves
// must not take along from the host it leaves. It does for a live guest's
// migratable document and for the persistent one alike, and for both must be
// done with the same Binding. Rewritten are
//
//   - vcpu/@cpuset: the shared CPUs of the host for a guest that floats, else none;
//   - cputune: vcpupin, emulatorpin, iothreadpin; vcpusched where the realtime
//     vCPUs or their priority are others;
//   - numatune: nodeset of memory and memnode, the mode stays; all of it goes
//     where the guest floats; nodemask of memory modules;
//   - memoryBacking/hugepages that name no size: they get that of the place;
//   - source addresses of PCI functions and mediated devices;
//   - listen addresses.
//
// Everything else stays, the addresses of devices within the guest, aliases and
// others' elements included. An error lists every reason why the document does
// not fit the place (another page size, other guest cells, a device without a
// counterpart), and leaves the document as it was. To rebind to the place that a
// document was written for changes nothing.
func (d *Doc) Rebind(b Binding) error {
	c := d.Clone()
	if faults := c.bind(b); len(faults) > 0 {
		return fmt.Errorf("rebind domain document of %s: %w", d.Name(), errors.Join(faults...))
	}
	*d = *c
	return nil
}

// bind is Rebind of a document that is thrown away when there are faults.
func (d *Doc) bind(b Binding) []error {
	faults := b.Place.faults()
	p, err := d.Pinning()
	if err != nil {
		faults = append(faults, err)
	}
	if len(faults) == 0 {
		t := b.tune()
		faults = b.unfit(p, t)
		if len(faults) == 0 {
			d.rebindCPUs(p, t, b)
			d.rebindMemory(p, t)
		}
	}
	faults = append(faults, d.rebindDevices(b)...)
	if b.Listen != "" && len(faults) == 0 {
		d.SetListen(b.Listen)
	}
	return faults
}

// unfit lists why a guest with that document cannot be at the place: what a
// running guest cannot change.
func (b Binding) unfit(p Pinning, t tuning) []error {
	var out []error
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	cells := t.cells
	if b.Topology == nil {
		cells = make([]tunedCell, len(p.Cells)) // ordinary memory
	}
	if n := len(cells); n != len(p.Cells) {
		fault("the guest has %d cells, its place %d", len(p.Cells), n)
		return out
	}
	placed := topology.CPUSet{}
	for i, have := range p.Cells {
		want := cells[i]
		placed = placed.Union(want.vcpus)
		if strange := want.vcpus.Difference(have.VCPUs); !strange.IsEmpty() {
			fault("guest cell %d: vCPUs are %q, the place has vCPUs %q for it", i, have.VCPUs, want.vcpus)
		}
		switch pages := b.pages(topology.PageSize(have.Pages)); {
		case have.Pages == topology.PagesLarge && want.pages == 0:
			fault("guest cell %d: runs on huge pages, its place has ordinary memory", i)
		case have.Pages != topology.PagesLarge && pages != want.pages:
			fault("guest cell %d: runs on %s, its place has %s", i, pagesName(pages), pagesName(want.pages))
		}
	}
	if left := p.Online.Difference(placed); b.Topology != nil && !left.IsEmpty() {
		fault("vCPUs %s have no place", left)
	}
	return out
}

func pagesName(size topology.PageSize) string {
	if size == 0 {
		return "ordinary memory"
	}
	return "pages of " + size.String()
}

// rebindCPUs rewrites everything that names CPUs of the host.
func (d *Doc) rebindCPUs(p Pinning, t tuning, b Binding) {
	if vcpu := d.root.SelectElement("vcpu"); vcpu != nil {
		d.setOrRemove(vcpu, "cpuset", t.cpuset.String())
		if vcpu.SelectAttrValue("placement", "") == "auto" && (b.Topology != nil || !t.cpuset.IsEmpty()) {
			d.set(vcpu, "placement", "static") // numad's advice would stand against the set
		}
	} else if !t.cpuset.IsEmpty() {
		vcpu = etree.NewElement("vcpu")
		vcpu.SetText(strconv.Itoa(d.vcpus))
		d.set(vcpu, "cpuset", t.cpuset.String())
		d.insert(d.root, vcpu, rootOrder)
	}
	tuned := len(d.root.FindElements("./cputune/*")) > 0
	if b.Topology != nil {
		// vCPUs that may be switched on later have nothing to themselves.
		for v := range p.MaxVCPUs {
			if !p.Online.Contains(v) && t.pins[v].IsEmpty() && !b.SharedCPUs.IsEmpty() {
				t.pins[v] = b.SharedCPUs
			}
		}
	}
	pins := map[string]topology.CPUSet{}
	for _, v := range t.vcpus() {
		pins[strconv.Itoa(v)] = t.pins[v]
	}
	d.repin("vcpupin", "vcpu", pins)
	d.repin("emulatorpin", "", map[string]topology.CPUSet{"": t.emulator})
	threads := map[string]topology.CPUSet{}
	for _, id := range d.ioThreads() {
		threads[strconv.Itoa(id)] = t.emulator
	}
	d.repin("iothreadpin", "iothread", threads)
	if b.Topology != nil {
		d.reschedule(p, t, b.RealtimePriority)
	}
	if tune := d.root.SelectElement("cputune"); tune != nil && tuned && len(tune.ChildElements()) == 0 {
		d.drop(tune)
	}
}

// repin makes the pins of one kind those wanted, by the attribute that tells
// them apart; an empty set is none. Elements that stay keep their place.
func (d *Doc) repin(tag, key string, want map[string]topology.CPUSet) {
	for _, e := range d.root.FindElements("./cputune/" + tag) {
		id := ""
		if key != "" {
			n, _ := strconv.Atoi(e.SelectAttrValue(key, "")) // read without fault before
			id = strconv.Itoa(n)
		}
		cpus := want[id]
		if delete(want, id); cpus.IsEmpty() {
			d.drop(e)
			continue
		}
		d.setList(e, "cpuset", cpus)
	}
	ids := make([]int, 0, len(want))
	for id, cpus := range want {
		if n, _ := strconv.Atoi(id); !cpus.IsEmpty() {
			ids = append(ids, n)
		}
	}
	slices.Sort(ids)
	for _, n := range ids {
		e, id := etree.NewElement(tag), ""
		if key != "" {
			id = strconv.Itoa(n)
			e.CreateAttr(key, id)
		}
		e.CreateAttr("cpuset", want[id].String())
		d.insert(d.section("cputune"), e, tuneOrder)
	}
}

// reschedule makes the realtime vCPUs those wanted. They are the guest's, not
// the host's, so that a move finds them as they are; a priority of 0 leaves
// theirs.
func (d *Doc) reschedule(p Pinning, t tuning, priority int) {
	same := p.Realtime.SameAs(t.realtime)
	for _, e := range d.root.FindElements("./cputune/vcpusched") {
		switch {
		case !realtime(e):
		case !same:
			d.drop(e)
		case priority > 0:
			d.set(e, "priority", strconv.Itoa(priority))
		}
	}
	if same || t.realtime.IsEmpty() {
		return
	}
	e := etree.NewElement("vcpusched")
	e.CreateAttr("vcpus", t.realtime.String())
	e.CreateAttr("scheduler", "fifo")
	e.CreateAttr("priority", strconv.Itoa(max(priority, 1)))
	d.insert(d.section("cputune"), e, tuneOrder)
}

// ioThreads are the numbers of the guest's I/O threads: those of <iothreadids>,
// and the lowest free ones up to the count of <iothreads>.
func (d *Doc) ioThreads() []int {
	var out []int
	seen := map[int]bool{}
	for _, e := range d.root.FindElements("./iothreadids/iothread") {
		if n, err := strconv.ParseUint(e.SelectAttrValue("id", ""), 10, 16); err == nil && n > 0 && !seen[int(n)] {
			out, seen[int(n)] = append(out, int(n)), true
		}
	}
	// The end is arbitrary, beyond what one QEMU serves.
	count, err := strconv.ParseUint(child(d.root, "iothreads"), 10, 12)
	for n := 1; err == nil && len(out) < int(count); n++ {
		if !seen[n] {
			out = append(out, n)
		}
	}
	return out
}

// rebindMemory rewrites everything that names memory nodes of the host, and the
// size of huge pages where the old host's default served.
func (d *Doc) rebindMemory(p Pinning, t tuning) {
	d.rebindModules(t)
	if len(t.cells) == 0 {
		d.floatMemory()
		return
	}
	mode := p.MemoryMode
	if mode == "" {
		mode = "strict"
	}
	tune := d.section("numatune")
	memory := tune.SelectElement("memory")
	if memory == nil {
		memory = etree.NewElement("memory")
		d.set(memory, "mode", mode)
		d.set(memory, "nodeset", t.nodes.String())
		d.insert(tune, memory, numaOrder)
	}
	if memory.SelectAttrValue("placement", "") == "auto" { // numad's advice would stand against the nodes
		d.setOrRemove(memory, "placement", "")
	}
	d.setList(memory, "nodeset", t.nodes)
	have := map[int]bool{}
	for _, e := range tune.SelectElements("memnode") {
		n, _ := strconv.Atoi(e.SelectAttrValue("cellid", "")) // read without fault before
		have[n] = true
		d.setList(e, "nodeset", topology.NewCPUSet(int(t.cells[n].node)))
	}
	for i, c := range t.cells {
		if have[i] || !p.HasCells {
			continue // <memnode> needs a guest cell
		}
		e := etree.NewElement("memnode")
		e.CreateAttr("cellid", strconv.Itoa(i))
		e.CreateAttr("mode", mode)
		e.CreateAttr("nodeset", strconv.Itoa(int(c.node)))
		d.insert(tune, e, numaOrder)
	}
	huge := d.root.FindElement("./memoryBacking/hugepages")
	for i, c := range t.cells {
		if p.Cells[i].Pages != topology.PagesLarge {
			continue
		}
		e := etree.NewElement("page")
		e.CreateAttr("size", strconv.FormatInt(int64(c.pages>>10), 10))
		e.CreateAttr("unit", "KiB")
		if p.HasCells {
			e.CreateAttr("nodeset", strconv.Itoa(i))
		}
		d.insert(huge, e, nil)
	}
}

// floatMemory takes the memory nodes of the old host away. What numad is asked
// for (placement auto) names no node and stays.
func (d *Doc) floatMemory() {
	tune := d.root.SelectElement("numatune")
	if tune == nil {
		return
	}
	for _, e := range tune.ChildElements() {
		if e.Tag == "memnode" || e.Tag == "memory" && e.SelectAttr("nodeset") != nil {
			d.drop(e)
		}
	}
	if len(tune.ChildElements()) == 0 {
		d.drop(tune)
	}
}

// rebindModules rewrites the host nodes of memory modules (<memory model='dimm'>
// and its like), which belong to a guest cell.
func (d *Doc) rebindModules(t tuning) {
	for _, e := range d.root.FindElements("./devices/memory") {
		mask := e.FindElement("./source/nodemask")
		if mask == nil {
			continue
		}
		cell := 0
		if node := e.FindElement("./target/node"); node != nil {
			cell, _ = strconv.Atoi(strings.TrimSpace(node.Text()))
		}
		if cell < 0 || cell >= len(t.cells) {
			d.drop(mask)
		} else if to := strconv.Itoa(int(t.cells[cell].node)); strings.TrimSpace(mask.Text()) != to {
			mask.SetText(to)
			d.changed = true
		}
	}
}

// rebindDevices rewrites the sources of PCI functions and mediated devices, and
// lists those that nothing stands for.
func (d *Doc) rebindDevices(b Binding) []error {
	var out []error
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	assigned, used := map[topology.PCIAddress]bool{}, map[topology.PCIAddress]bool{}
	for _, a := range b.Assignment.Devices {
		assigned[a.Address] = true
	}
	for _, s := range d.pciSources() {
		from, err := pciAddress(s.address)
		if err != nil {
			continue // Pinning has told
		}
		to, ok := b.Devices[from]
		switch {
		case !ok:
			fault("<%s>: nothing stands for PCI device %s", s.element.Tag, from)
		case !assigned[to]:
			fault("<%s>: PCI device %s stands for %s and is not assigned", s.element.Tag, to, from)
		case used[to]:
			fault("<%s>: PCI device %s is given twice", s.element.Tag, to)
		case to != from:
			setPCIAddress(s.address, to)
			d.changed = true
		}
		used[to] = used[to] || ok
	}
	uuids := map[string]bool{}
	for _, e := range d.mdevSources() {
		from := strings.ToLower(e.SelectAttrValue("uuid", ""))
		to, ok := b.Mdevs[from]
		switch {
		case !ok:
			fault("<hostdev>: nothing stands for mediated device %s", from)
		case uuids[to]:
			fault("<hostdev>: mediated device %s is given twice", to)
		case to != from:
			d.set(e, "uuid", to)
		}
		uuids[to] = uuids[to] || ok
	}
	return out
}
