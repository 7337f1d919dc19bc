package domainxml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"berth/topology"
)

// Pinning is what a document asks of a host's CPUs, memory nodes, pages and
// devices, as it stands there. What it asks without naming it is not in it: the
// virtual function that libvirt takes from the pool of a network
// (<interface type='network'>) is known only while the guest runs, when libvirt
// shows it as <interface type='hostdev'>.
type Pinning struct {
	Online   topology.CPUSet // vCPUs that the guest has now
	MaxVCPUs int             // vCPUs that it may have

	CPUSet    topology.CPUSet         // vcpu/@cpuset: of every thread without a pin of its own; empty for all, and where numad is asked (placement auto)
	VCPUs     map[int]topology.CPUSet // cputune/vcpupin by vCPU
	Emulator  topology.CPUSet         // cputune/emulatorpin
	IOThreads map[int]topology.CPUSet // cputune/iothreadpin by I/O thread
	Realtime  topology.CPUSet         // vCPUs of cputune/vcpusched with fifo or rr

	MemoryMode  string          // numatune/memory/@mode: strict, preferred, interleave, restrictive; empty when absent
	MemoryNodes topology.CPUSet // numatune/memory/@nodeset, host cells; empty also where numad is asked (placement auto)

	// Cells are the guest's NUMA cells. A guest without any (HasCells false) has one
	// entry here, with all its vCPUs and memory.
	Cells    []PinnedCell
	HasCells bool
	ApartMB  int64 // memory devices with files of their own, which no cell counts

	// OwnPages are memory devices with a page size of their own; their cells count them.
	OwnPages []MemoryModule

	Devices []HostDevice // PCI functions of the host
	Mdevs   []string     // uuids of mediated devices, lower case
}

// PinnedCell is a guest's NUMA cell.
type PinnedCell struct {
	VCPUs    topology.CPUSet // those that are not online included
	MemoryMB int64           // rounded up, memory devices included

	// Pages is the size of the huge pages behind the cell, PagesLarge where the
	// document leaves the size to the host (<hugepages/> alone), PagesDefault for
	// ordinary memory.
	Pages topology.PageRequest

	Mode  string          // numatune/memnode/@mode; empty when the cell has none of its own
	Nodes topology.CPUSet // numatune/memnode/@nodeset, host cells
}

// MemoryModule is a memory device (a DIMM) whose page size the document names.
type MemoryModule struct {
	Cell     int   // guest cell
	MemoryMB int64 // rounded up
	Pages    topology.PageSize
}

// HostDevice is a PCI function of the host that the guest is given.
type HostDevice struct {
	Address topology.PCIAddress
	Element string // hostdev, interface, or disk (of type nvme)
	Alias   string // libvirt's name of the device, hostdev0; empty while the guest is off
	Managed bool
}

// Pinning reads what the document asks of a host. The error names each element
// that makes no sense; everything else is read all the same.
func (d *Doc) Pinning() (Pinning, error) {
	p := Pinning{VCPUs: map[int]topology.CPUSet{}, IOThreads: map[int]topology.CPUSet{}}
	r := &reading{}
	p.MaxVCPUs, p.Online = d.onlineVCPUs(r)
	if e := d.root.SelectElement("vcpu"); e != nil && e.SelectAttrValue("placement", "") != "auto" {
		p.CPUSet = r.set(e, "cpuset")
	}
	for _, e := range d.root.FindElements("./cputune/vcpupin") {
		if v, ok := r.number(e, "vcpu"); ok {
			p.VCPUs[v] = r.set(e, "cpuset")
		}
	}
	for _, e := range d.root.FindElements("./cputune/emulatorpin") {
		p.Emulator = r.set(e, "cpuset")
	}
	for _, e := range d.root.FindElements("./cputune/iothreadpin") {
		if i, ok := r.number(e, "iothread"); ok {
			p.IOThreads[i] = r.set(e, "cpuset")
		}
	}
	var realtimes []topology.CPUSet
	for _, e := range d.root.FindElements("./cputune/vcpusched") {
		if realtime(e) {
			realtimes = append(realtimes, r.set(e, "vcpus"))
		}
	}
	p.Realtime = union(realtimes)
	if e := d.root.FindElement("./numatune/memory"); e != nil {
		p.MemoryMode, p.MemoryNodes = e.SelectAttrValue("mode", "strict"), r.set(e, "nodeset")
	}
	d.guestCells(&p, r)
	d.pages(&p, r)
	for _, e := range d.root.FindElements("./numatune/memnode") {
		i, ok := r.number(e, "cellid")
		if ok && (!p.HasCells || i >= len(p.Cells)) {
			r.fault("<memnode>: there is no guest cell %d", i)
		} else if ok {
			p.Cells[i].Mode, p.Cells[i].Nodes = e.SelectAttrValue("mode", "strict"), r.set(e, "nodeset")
		}
	}
	for _, s := range d.pciSources() {
		a, err := pciAddress(s.address)
		if err != nil {
			r.fault("%w", err)
			continue
		}
		p.Devices = append(p.Devices, HostDevice{
			Address: a, Element: s.element.Tag, Alias: attribute(s.element, "alias", "name"),
			Managed: s.element.SelectAttrValue("managed", "no") == "yes",
		})
	}
	for _, e := range d.mdevSources() {
		uuid := strings.ToLower(e.SelectAttrValue("uuid", ""))
		if uuid == "" {
			r.fault("mediated device: uuid is missing")
			continue
		}
		p.Mdevs = append(p.Mdevs, uuid)
	}
	if len(r.faults) > 0 {
		return p, fmt.Errorf("domain document: %w", errors.Join(r.faults...))
	}
	return p, nil
}

// realtime reports whether a <vcpusched> is of a realtime class.
func realtime(e *etree.Element) bool {
	s := e.SelectAttrValue("scheduler", "")
	return s == "fifo" || s == "rr"
}

// onlineVCPUs are how many vCPUs the guest may have and which it has: those that
// <vcpus> says, else the first ones.
func (d *Doc) onlineVCPUs(r *reading) (int, topology.CPUSet) {
	most := d.vcpus
	if n, err := strconv.Atoi(child(d.root, "vcpu")); err == nil && n > most && n <= 1<<16 {
		most = n
	}
	var online []int
	for _, e := range d.root.FindElements("./vcpus/vcpu") {
		if v, ok := r.number(e, "id"); ok && v < most && e.SelectAttrValue("enabled", "yes") == "yes" {
			online = append(online, v)
		}
	}
	if online == nil {
		return most, firstCPUs(d.vcpus)
	}
	return most, topology.NewCPUSet(online...)
}

func firstCPUs(n int) topology.CPUSet {
	out := make(topology.CPUSet, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// maxCells is beyond QEMU's MAX_NODES, 128.
const maxCells = 1024

// guestCells reads cpu/numa. Cells have the numbers 0, 1, … in any order; one
// without a number has that of its place.
func (d *Doc) guestCells(p *Pinning, r *reading) {
	cells := d.root.FindElements("./cpu/numa/cell")
	if len(cells) == 0 {
		p.Cells = []PinnedCell{{VCPUs: firstCPUs(p.MaxVCPUs), MemoryMB: d.memoryMB}}
		return
	}
	if len(cells) > maxCells {
		r.fault("%d guest cells, more than QEMU has; the first %d are read", len(cells), maxCells)
		cells = cells[:maxCells]
	}
	p.HasCells, p.Cells = true, make([]PinnedCell, len(cells))
	seen := map[int]bool{}
	var listed topology.CPUSet
	for at, e := range cells {
		i := at
		if e.SelectAttr("id") != nil {
			var ok bool
			if i, ok = r.number(e, "id"); !ok {
				continue
			}
		}
		if i >= len(cells) || seen[i] {
			r.fault("<cell id='%d'> of %d cells", i, len(cells))
			continue
		}
		seen[i] = true
		bytes, err := scaled(e.SelectAttrValue("memory", ""), e.SelectAttrValue("unit", ""))
		if err != nil {
			r.fault("memory of <cell id='%d'> %w", i, err)
		}
		p.Cells[i] = PinnedCell{VCPUs: r.set(e, "cpus"), MemoryMB: mebibytes(bytes)}
		listed = listed.Union(p.Cells[i].VCPUs)
	}
	// libvirt puts vCPUs of no cell into the first.
	p.Cells[0].VCPUs = p.Cells[0].VCPUs.Union(firstCPUs(p.MaxVCPUs).Difference(listed))
	d.modules(p, r)
}

// modules adds the memory devices (DIMMs and the like) to the cells that they are
// in. Those with a file of their own are kept apart: they are no memory of a cell.
func (d *Doc) modules(p *Pinning, r *reading) {
	for _, e := range d.root.FindElements("./devices/memory/target") {
		cell := 0
		if node := e.SelectElement("node"); node != nil {
			var err error
			if cell, err = strconv.Atoi(strings.TrimSpace(node.Text())); err != nil || cell < 0 || cell >= len(p.Cells) {
				r.fault("<memory> device in cell %q of %d cells", node.Text(), len(p.Cells))
				continue
			}
		}
		bytes, err := scaled(child(e, "size"), attribute(e, "size", "unit"))
		if err != nil {
			r.fault("<size> of a <memory> device %w", err)
			continue
		}
		own := e.Parent().SelectElement("source")
		if own != nil && own.SelectElement("path") != nil {
			p.ApartMB = topology.AddCapped(p.ApartMB, mebibytes(bytes))
			continue
		}
		p.Cells[cell].MemoryMB = topology.AddCapped(p.Cells[cell].MemoryMB, mebibytes(bytes))
		if own == nil || own.SelectElement("pagesize") == nil {
			continue
		}
		size, err := scaled(child(own, "pagesize"), attribute(own, "pagesize", "unit"))
		if err != nil {
			r.fault("<pagesize> of a <memory> device %w", err)
			continue
		}
		p.OwnPages = append(p.OwnPages, MemoryModule{Cell: cell, MemoryMB: mebibytes(bytes), Pages: topology.PageSize(size)})
	}
}

// pages reads memoryBacking/hugepages. A page without a nodeset is that of all
// cells that no other names.
func (d *Doc) pages(p *Pinning, r *reading) {
	huge := d.root.FindElement("./memoryBacking/hugepages")
	if huge == nil {
		return
	}
	pages := huge.SelectElements("page")
	rest := topology.PageRequest(topology.PagesDefault)
	if len(pages) == 0 {
		rest = topology.PagesLarge
	}
	for _, e := range pages {
		bytes, err := scaled(e.SelectAttrValue("size", ""), e.SelectAttrValue("unit", ""))
		if err != nil {
			r.fault("size of <page> %w", err)
			continue
		}
		if e.SelectAttr("nodeset") == nil {
			rest = topology.PageRequest(bytes)
			continue
		}
		for _, i := range r.set(e, "nodeset") {
			if i >= len(p.Cells) {
				r.fault("<page>: there is no guest cell %d", i)
				break
			}
			p.Cells[i].Pages = topology.PageRequest(bytes)
		}
	}
	for i := range p.Cells {
		if p.Cells[i].Pages == topology.PagesDefault {
			p.Cells[i].Pages = rest
		}
	}
}

// reading gathers what makes no sense in a document.
type reading struct {
	faults  []error
	numbers int // that its lists have come to
}

// maxNumbers is how many numbers all lists of a document may come to: 1024 vCPUs,
// each with a choice of 4096 CPUs. A few hundred bytes could else stand for more
// than a machine's memory.
const maxNumbers = 1 << 22

func (r *reading) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

// number reads an attribute that counts from 0.
func (r *reading) number(e *etree.Element, name string) (int, bool) {
	text := e.SelectAttrValue(name, "")
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		r.fault("<%s>: %s is %q, want a number", e.Tag, name, text)
	}
	return int(n), err == nil
}

// set reads an attribute in libvirt's list form, which is the kernel's with
// "^3" to take a number out again; absent is empty.
func (r *reading) set(e *etree.Element, name string) topology.CPUSet {
	var out topology.CPUSet
	text := e.SelectAttrValue(name, "")
	if strings.Count(text, "^") > 256 { // arbitrary; far more than people write, and an end to the work
		r.fault("<%s>: %s has too many ^", e.Tag, name)
		return nil
	}
	if r.numbers > maxNumbers {
		return nil
	}
	for i, part := range strings.Split(text, "^") {
		// What follows the first number after a ^ is added again.
		part = strings.Trim(strings.TrimSpace(part), ",")
		not, more := "", part
		if i > 0 {
			not, more, _ = strings.Cut(part, ",")
		}
		without, err := topology.ParseCPUSet(not)
		with, err2 := topology.ParseCPUSet(more)
		if err = errors.Join(err, err2); err != nil {
			r.fault("<%s>: %s is %q: %w", e.Tag, name, text, err)
			return nil
		}
		out = out.Difference(without).Union(with)
		r.numbers += len(without) + len(with)
	}
	if r.numbers > maxNumbers {
		r.fault("<%s>: %s and the lists before it have more than %d numbers", e.Tag, name, maxNumbers)
		return nil
	}
	return out
}
