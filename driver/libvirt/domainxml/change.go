package domainxml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"berth/topology"
)

// Change is what a guest that is off is to become (a resize, a rebuild), and where.
type Change struct {
	// Binding is the place that its claim was given. Devices and Mdevs are not read:
	// what the guest had and what it is given say which stand for which.
	Binding

	VCPUs    int   // how many it is to have
	MemoryMB int64 // how much it is to have
	// LockedMemory says that its memory is never swapped, WasLocked that it was so by
	// its old flavor: a lock that nobody's flavor asked for stays.
	LockedMemory, WasLocked bool

	Cores []topology.CPUSet   // the host's, see Spec.Cores
	Had   topology.Assignment // what the guest was given where the document was written
	// Files gives by target the format of files that were made anew in the place of
	// disks: nothing stands below them.
	Files map[string]string
}

// Change writes the document of the same guest with other amounts, cells, pages and
// devices, for its place. What already is as it is to be stays as it stands, and so does
// everything that none of them concerns; Rebind says what names the host. Written anew
// are, each only where it differs,
//
//   - vcpu and memory, with what goes by them: vCPUs and memory that could be plugged
//     in, what was said of single vCPUs that the guest has no more, cpu/topology;
//   - cpu/numa and memoryBacking/hugepages;
//   - hostdevs: those for which no other stands go, others change their source
//     address, new ones are the last;
//   - the format of files that were made anew, whose chains end.
//
// A document that its author gave cells of their own keeps them for as long as neither
// amounts nor claim have others. An error lists every reason, and leaves the document
// as it was.
func (d *Doc) Change(w Change) error {
	c := d.Clone()
	faults := w.Place.faults()
	p, err := c.Pinning()
	if err != nil {
		faults = append(faults, err)
	}
	if w.VCPUs < 1 || w.MemoryMB < 1 {
		faults = append(faults, fmt.Errorf("%d vCPUs and %d MiB of memory", w.VCPUs, w.MemoryMB))
	}
	if len(faults) == 0 {
		faults = c.reshape(p, w)
	}
	if len(faults) == 0 {
		w.Devices, w.Mdevs = c.dropDevices(w.Had, w.Assignment), map[string]string{}
		for _, uuid := range w.Assignment.Mdevs {
			w.Mdevs[uuid] = uuid
		}
		faults = c.bind(w.Binding)
	}
	if len(faults) == 0 {
		c.addDevices(w.Assignment)
		faults = c.replaceFiles(w.Files)
	}
	if len(faults) > 0 {
		return fmt.Errorf("change domain document of %s: %w", d.Name(), errors.Join(faults...))
	}
	*d = *c
	return nil
}

// reshape makes the guest what it is to be, as far as the guest itself sees it.
func (d *Doc) reshape(p Pinning, w Change) []error {
	t := w.Place.tune()
	more := d.vcpus != w.VCPUs || p.Online.Len() != w.VCPUs
	amounts := more || d.memoryMB != w.MemoryMB
	if more {
		d.setVCPUs(w.VCPUs)
	}
	have := slices.Clone(p.Cells)
	if more && !p.HasCells {
		have[0].VCPUs = firstCPUs(w.VCPUs)
	}
	if d.memoryMB != w.MemoryMB && !p.HasCells {
		have[0].MemoryMB = w.MemoryMB
	}
	cells := false // are other ones
	switch {
	case w.Topology == nil:
		cells = p.HasCells && (amounts || len(w.Had.Cells) > 0)
	case !p.HasCells && len(w.Had.Cells) == 0:
		cells = true
	default:
		online := firstCPUs(w.VCPUs)
		if !more {
			online = p.Online
		}
		cells = !sameCells(have, w.Topology.Cells, online)
	}
	if modules := d.root.FindElements("./devices/memory/target"); len(modules) > 0 && (cells || amounts) {
		return []error{fmt.Errorf("the guest has %d memory modules (<memory> devices), of which a flavor says nothing", len(modules))}
	}
	if d.memoryMB != w.MemoryMB {
		d.setMemory(w.MemoryMB)
	}
	if cells {
		d.setCells(p, t, w)
	} else if more {
		d.divideVCPUs(w.VCPUs)
	}
	if cells || amounts {
		d.keepSlots(w.MemoryMB)
	}
	if w.Topology == nil && (amounts || len(w.Had.Cells) > 0) {
		for _, e := range d.root.FindElements("./cputune/vcpusched") {
			if realtime(e) {
				d.drop(e)
			}
		}
	}
	backed := len(d.root.FindElements("./memoryBacking/*")) > 0
	d.setPages(p, t, cells)
	d.lockMemory(p, t, w)
	if e := d.root.SelectElement("memoryBacking"); backed && len(e.ChildElements()) == 0 {
		d.drop(e)
	}
	return nil
}

// sameCells compares cells of a document with those that a claim has; vCPUs that
// are not online are no claim's.
func sameCells(have []PinnedCell, want []topology.GuestCell, online topology.CPUSet) bool {
	return slices.EqualFunc(have, want, func(h PinnedCell, w topology.GuestCell) bool {
		return h.MemoryMB == w.MemoryMB && h.VCPUs.Intersection(online).SameAs(w.VCPUs())
	})
}

// setVCPUs gives the guest so many vCPUs, all of them there from the start.
func (d *Doc) setVCPUs(n int) {
	e := d.root.SelectElement("vcpu")
	if e == nil {
		e = etree.NewElement("vcpu")
		d.insert(d.root, e, rootOrder)
	}
	e.SetText(strconv.Itoa(n))
	e.RemoveAttr("current")
	if each := d.root.SelectElement("vcpus"); each != nil {
		d.drop(each)
	}
	d.vcpus, d.changed = n, true
	all := firstCPUs(n)
	for _, tag := range []string{"vcpusched", "cachetune", "memorytune"} {
		for _, e := range d.root.FindElements("./cputune/" + tag) {
			r := &reading{}
			if left := r.set(e, "vcpus").Intersection(all); left.IsEmpty() {
				d.drop(e)
			} else {
				d.setList(e, "vcpus", left)
			}
		}
	}
	for _, e := range d.root.FindElements("./cputune/vcpupin") {
		if v, err := strconv.Atoi(e.SelectAttrValue("vcpu", "")); err == nil && v >= n {
			d.drop(e)
		}
	}
}

// setMemory gives the guest so much memory; its balloon leaves it all of it.
func (d *Doc) setMemory(mb int64) {
	for _, tag := range []string{"memory", "currentMemory"} {
		if e := d.root.SelectElement(tag); e != nil {
			e.SetText(strconv.FormatInt(mb, 10))
			d.set(e, "unit", "MiB")
		}
	}
	d.memoryMB, d.changed = mb, true
}

// keepSlots takes slots for memory modules away where none could be plugged in: a
// guest without cells has none, nor one that has all of the memory already.
func (d *Doc) keepSlots(mb int64) {
	e := d.root.SelectElement("maxMemory")
	if e == nil {
		return
	}
	most, err := scaled(strings.TrimSpace(e.Text()), e.SelectAttrValue("unit", ""))
	if err != nil || most>>20 <= mb || d.root.FindElement("./cpu/numa/cell") == nil {
		d.drop(e)
	}
}

// setCells writes <topology> and <numa> of the processor anew; without cells the
// guest has neither.
func (d *Doc) setCells(p Pinning, t tuning, w Change) {
	for _, e := range d.root.FindElements("./numatune/memnode") {
		d.drop(e)
	}
	cpu := d.root.SelectElement("cpu")
	discard := ""
	if cpu != nil {
		for _, tag := range []string{"topology", "numa"} {
			if e := cpu.SelectElement(tag); e != nil {
				if first := e.SelectElement("cell"); first != nil {
					discard = first.SelectAttrValue("discard", "")
				}
				d.drop(e)
			}
		}
	}
	if w.Topology == nil {
		switch {
		case cpu == nil || len(cpu.ChildElements()) > 0:
		case len(cpu.Attr) == 0:
			d.drop(cpu)
		default:
			cpu.Child = nil // what was between
		}
		return
	}
	if cpu == nil {
		cpu = d.section("cpu")
	}
	sockets, cores, threads := t.sockets(w.Topology, w.VCPUs, w.Cores)
	e := etree.NewElement("topology")
	e.CreateAttr("sockets", strconv.Itoa(sockets))
	e.CreateAttr("cores", strconv.Itoa(cores))
	e.CreateAttr("threads", strconv.Itoa(threads))
	d.insert(cpu, e, cpuOrder)
	numa := etree.NewElement("numa")
	d.insert(cpu, numa, cpuOrder)
	for i, c := range t.cells {
		cell := etree.NewElement("cell")
		cell.CreateAttr("id", strconv.Itoa(i))
		if !c.vcpus.IsEmpty() {
			cell.CreateAttr("cpus", c.vcpus.String())
		}
		cell.CreateAttr("memory", strconv.FormatInt(w.Topology.Cells[i].MemoryMB, 10))
		cell.CreateAttr("unit", "MiB")
		if c.pages > 0 || d.sharesMemory() {
			cell.CreateAttr("memAccess", "shared")
		}
		if discard != "" {
			cell.CreateAttr("discard", discard)
		}
		d.insert(numa, cell, nil)
	}
}

// divideVCPUs makes <topology> come to n vCPUs again: a guest of several cores in a
// socket keeps its sockets, another its threads, where they divide them.
func (d *Doc) divideVCPUs(n int) {
	e := d.root.FindElement("./cpu/topology")
	if e == nil {
		return
	}
	number := func(name string) int {
		i, err := strconv.Atoi(e.SelectAttrValue(name, "1"))
		return max(i, 1) * map[bool]int{true: 1, false: n + 1}[err == nil] // divides nothing
	}
	sockets, cores, threads, dies := number("sockets"), number("cores"), number("threads"), number("dies")*number("clusters")
	if n%threads != 0 {
		threads = 1
	}
	if n%(threads*dies) != 0 {
		d.setOrRemove(e, "dies", "")
		d.setOrRemove(e, "clusters", "")
		dies = 1
	}
	if within := threads * dies; cores > 1 && n%(sockets*within) == 0 {
		cores = n / (sockets * within)
	} else {
		sockets, cores = n/within, 1
	}
	d.set(e, "sockets", strconv.Itoa(sockets))
	d.set(e, "cores", strconv.Itoa(cores))
	d.set(e, "threads", strconv.Itoa(threads))
}

// setPages writes <hugepages> anew where the cells of the place have other pages.
func (d *Doc) setPages(p Pinning, t tuning, anew bool) {
	same := func(have PinnedCell, want topology.PageSize) bool {
		return have.Pages == topology.PagesLarge && want > 0 || have.Pages == topology.PageRequest(want) ||
			have.Pages == topology.PagesDefault && want == 0
	}
	backed := d.root.FindElement("./memoryBacking/hugepages")
	if t.cells == nil {
		if backed != nil && slices.ContainsFunc(p.Cells, func(c PinnedCell) bool { return !same(c, 0) }) {
			d.drop(backed)
		}
		return
	}
	if !anew && slices.EqualFunc(p.Cells, t.cells, func(h PinnedCell, w tunedCell) bool { return same(h, w.pages) }) {
		return
	}
	if backed != nil {
		d.drop(backed)
	}
	sizes, cells := t.pageSizes()
	if len(sizes) > 0 {
		huge := etree.NewElement("hugepages")
		d.insert(d.section("memoryBacking"), huge, backingOrder)
		for _, size := range sizes {
			page := pageElement(size, cells[size])
			if d.root.FindElement("./cpu/numa/cell") == nil {
				page.RemoveAttr("nodeset") // it needs a guest cell
			}
			d.insert(huge, page, nil)
		}
	}
	for i, cell := range d.root.FindElements("./cpu/numa/cell") {
		switch {
		case anew || i >= len(t.cells):
		case t.cells[i].pages > 0:
			d.set(cell, "memAccess", "shared")
		case !d.sharesMemory():
			d.setOrRemove(cell, "memAccess", "")
		}
	}
}

// sharesMemory reports whether others reach the guest's memory though it has no huge
// pages: a back end outside of QEMU needs it.
func (d *Doc) sharesMemory() bool {
	kind := attribute(d.root, "memoryBacking/source", "type")
	return kind == "memfd" || kind == "file" || attribute(d.root, "memoryBacking/access", "mode") == "shared"
}

// lockMemory makes memory locked and unmerged as flavor and realtime vCPUs ask, see
// Spec.memoryBacking.
func (d *Doc) lockMemory(p Pinning, t tuning, w Change) {
	has := func(tag string) *etree.Element { return d.root.FindElement("./memoryBacking/" + tag) }
	want := func(tag string, wanted, before bool) {
		e := has(tag)
		switch {
		case wanted && e == nil:
			d.insert(d.section("memoryBacking"), etree.NewElement(tag), backingOrder)
		case !wanted && before && e != nil:
			d.drop(e)
		}
	}
	now, was := !t.realtime.IsEmpty(), !p.Realtime.IsEmpty()
	want("nosharepages", now, was)
	want("locked", now || w.LockedMemory, was || w.WasLocked)
}

// dropDevices takes the devices away that the guest had and for which none stands,
// and says which stand for the others.
func (d *Doc) dropDevices(had, has topology.Assignment) map[topology.PCIAddress]topology.PCIAddress {
	stands := MapDevices(had, has)
	for _, dev := range has.Devices {
		if _, mapped := stands[dev.Address]; !mapped {
			stands[dev.Address] = dev.Address
		}
	}
	for _, s := range d.pciSources() {
		at, err := pciAddress(s.address)
		_, kept := stands[at]
		if err == nil && !kept && slices.ContainsFunc(had.Devices, func(h topology.AssignedDevice) bool { return h.Address == at }) {
			d.drop(s.element)
		}
	}
	return stands
}

// addDevices adds what the guest is given and the document does not name yet.
func (d *Doc) addDevices(has topology.Assignment) {
	named := map[topology.PCIAddress]bool{}
	for _, s := range d.pciSources() {
		if at, err := pciAddress(s.address); err == nil {
			named[at] = true
		}
	}
	for _, dev := range has.Devices {
		if named[dev.Address] {
			continue
		}
		devices := d.section("devices")
		var order []string // the last of all where there is none like it
		if devices.SelectElement("hostdev") != nil {
			order = []string{"hostdev"}
		}
		e, source, address := hostdevElement(dev), etree.NewElement("source"), etree.NewElement("address")
		d.insert(devices, e, order)
		d.insert(e, source, nil)
		setPCIAddress(address, dev.Address)
		d.insert(source, address, nil)
	}
}

// replaceFiles gives disks the format of the files that were made in their places.
func (d *Doc) replaceFiles(formats map[string]string) []error {
	var out []error
	left := len(formats)
	for i, e := range d.root.FindElements("./devices/disk") {
		format, made := formats[d.disks[i].Target]
		if !made {
			continue
		}
		left--
		if d.disks[i].Type != "file" {
			out = append(out, fmt.Errorf("disk %s is of type %s: no file was made for it", d.disks[i].Target, d.disks[i].Type))
			continue
		}
		driver := e.SelectElement("driver")
		if driver == nil {
			driver = etree.NewElement("driver")
			driver.CreateAttr("name", "qemu")
			d.insert(e, driver, nil)
		}
		d.set(driver, "type", format)
		d.disks[i].Format = format
		// A chain that the document names is the old file's.
		for _, tag := range []string{"backingStore", "mirror"} {
			if chain := e.SelectElement(tag); chain != nil {
				d.drop(chain)
				d.disks[i].Backing = nil
			}
		}
	}
	if left > 0 {
		out = append(out, fmt.Errorf("files were made for disks %v, and the guest does not have all of them", slices.Sorted(maps.Keys(formats))))
	}
	return out
}
