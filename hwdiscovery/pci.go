package hwdiscovery

import (
	"io"
	"slices"
	"strings"

	"berth/topology"
)

// CodeDead is the code of the reason that names a PCI function which the kernel
// still lists and which does not work any more.
const CodeDead = "pci_dead"

// pciReading is one function with what tells its SR-IOV role.
type pciReading struct {
	dev     topology.PCIDevice
	hasNode bool
	sriov   bool // shows a sign of being a physical function
	numVFs  int64
}

// readPCI reads every PCI function into host.PCI. A function stays in the list
// when one of its files cannot be read: its field is empty, and a reason names
// the file and the device.
func (t *tree) readPCI(host *topology.Host) {
	names, _ := t.names(pciDir)
	if len(names) == 0 {
		// No PCI bus, as on s390 without zPCI; or a folder that is not mounted, which
		// the kernel's other list tells.
		if data, err := t.bytes(procPCI); err == nil && len(data) > 0 {
			t.degrade("file_missing", pciDir, about{}, "names no function, but %s does", procPCI)
		}
		return
	}
	var read []*pciReading
	for _, name := range names {
		address, err := topology.ParsePCIAddress(name)
		if err != nil {
			t.degrade("file_malformed", pciDir+"/"+name, about{}, "%v", err)
			continue
		}
		read = append(read, t.readFunction(address))
	}
	slices.SortFunc(read, func(a, b *pciReading) int { return a.dev.Address.Compare(b.dev.Address) })
	t.checkPCINodes(read, host.Cells)
	t.checkVFs(read)
	t.buryVFs(read)
	for _, r := range read {
		host.PCI = append(host.PCI, r.dev)
	}
}

func (t *tree) readFunction(address topology.PCIAddress) *pciReading {
	r := &pciReading{dev: topology.PCIDevice{Address: address, NUMANode: topology.UnknownCell}}
	d, a := &r.dev, about{device: &address}
	file := func(name string) string { return pciFile(address, name) }
	id := func(name string, digits int, fact, first string) string {
		read, _ := parsed(t, mandatory, file(name), a, hexID(digits))
		return confirm(t, a, file(name), fact, first, read)
	}
	link := func(name, first string) string {
		return confirm(t, a, file(name), name, first, t.link(file(name)))
	}
	first := t.ghw.devices[address]
	d.Vendor = id("vendor", 4, "vendor", first.vendor)
	d.Product = id("device", 4, "product", first.product)
	d.Class = id("class", 6, "class", first.class)
	if n, ok := parsed(t, expected, file("numa_node"), a, parseInt); ok {
		r.hasNode = true
		d.NUMANode = topology.CellID(max(n, -1))
	}
	d.SubsystemVendor, _ = parsed(t, optional, file("subsystem_vendor"), a, hexID(4))
	d.SubsystemDevice, _ = parsed(t, optional, file("subsystem_device"), a, hexID(4))
	d.Driver = link("driver", first.driver)
	if group := link("iommu_group", first.iommuGroup); group != "" {
		if n, err := parseInt(group); err == nil {
			d.IOMMUGroup = &n
		}
	}
	if target := t.link(file("physfn")); target != "" {
		if pf, err := topology.ParsePCIAddress(target); err == nil {
			d.PhysFn = &pf
		} else {
			t.degrade("file_malformed", file("physfn"), a, "%v", err)
		}
	}
	t.readSRIOV(r, a)
	// Reading vital product data goes through slow config cycles, so it is asked
	// only where an operator tells cards apart by it: SR-IOV and network cards.
	if d.TotalVFs > 0 || strings.HasPrefix(d.Class, "0x02") {
		if serial, known := t.serials[serialKey{address, d.Vendor, d.Product}]; known {
			d.SerialNumber = serial
		} else if data, err := t.bytes(file("vpd")); err == nil {
			d.SerialNumber = vpdSerial(data)
		}
	}
	d.Mdev = t.readMdev(file("mdev_supported_types"), a)
	if d.PhysFn == nil && t.silent(address) {
		t.degrade(CodeDead, file("config"), a, "device %s does not answer: its configuration space reads as all ones", address)
	}
	return r
}

// silent reports whether a function is there for the kernel and no longer on the
// bus: what nobody answers reads as ones (PCI Express Base Specification, 2.3.2).
// The files vendor and device do not tell, since the kernel keeps what it read
// once. Virtual functions are never asked, because their vendor always reads so
// (the kernel's pci_iov_add_virtfn takes the PF's); nor is a sleeping function,
// which the question would wake.
func (t *tree) silent(address topology.PCIAddress) bool {
	if data, err := t.bytes(pciFile(address, "power/runtime_status")); err == nil {
		if s := strings.TrimSpace(string(data)); s == "suspended" || s == "suspending" {
			return false
		}
	}
	f, err := t.open(pciFile(address, "config"))
	if err != nil {
		return false
	}
	defer f.Close()
	var id [4]byte // vendor and device; the rest costs a bus cycle for each word
	if _, err := io.ReadFull(f, id[:]); err != nil {
		return false
	}
	return id == [4]byte{0xff, 0xff, 0xff, 0xff}
}

// readSRIOV reads how many virtual functions there may be and are
// (sriov_totalvfs, sriov_numvfs) and which (links virtfn*).
func (t *tree) readSRIOV(r *pciReading, a about) {
	dir := pciDir + "/" + r.dev.Address.String()
	names, ok := t.names(dir)
	if !ok {
		t.degrade("file_missing", dir, a, "cannot be listed")
		return
	}
	r.numVFs = -1
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "sriov_"):
			r.sriov = true
		case strings.HasPrefix(name, "virtfn"):
			r.sriov = true
			vf, err := topology.ParsePCIAddress(t.link(dir + "/" + name))
			if err != nil {
				t.degrade("file_malformed", dir+"/"+name, a, "%v", err)
				continue
			}
			r.dev.VFs = append(r.dev.VFs, vf)
		}
	}
	slices.SortFunc(r.dev.VFs, topology.PCIAddress.Compare)
	if !r.sriov {
		return
	}
	total, _ := parsed(t, mandatory, dir+"/sriov_totalvfs", a, parseCount)
	r.dev.TotalVFs = int(min(total, 1<<16))
	if n, ok := parsed(t, expected, dir+"/sriov_numvfs", a, parseCount); ok {
		r.numVFs = n
	}
}

// checkPCINodes sees that either every function has a numa_node or none, and
// that the nodes exist.
func (t *tree) checkPCINodes(read []*pciReading, cells []topology.Cell) {
	any := slices.ContainsFunc(read, func(r *pciReading) bool { return r.hasNode })
	for _, r := range read {
		d := &r.dev
		file, a := pciFile(d.Address, "numa_node"), about{device: &d.Address}
		known := slices.ContainsFunc(cells, func(c topology.Cell) bool { return c.ID == d.NUMANode })
		switch {
		case any && !r.hasNode && !t.exists(file):
			t.degrade("file_missing", file, a, "missing")
		case d.NUMANode != topology.UnknownCell && !known:
			t.degrade("pci_contradicts", file, a, "%s: %d, which is no cell of this host", file, d.NUMANode)
		}
	}
}

// checkVFs sees that physical and virtual functions name each other.
func (t *tree) checkVFs(read []*pciReading) {
	byAddress := map[topology.PCIAddress]*pciReading{}
	for _, r := range read {
		byAddress[r.dev.Address] = r
	}
	for _, r := range read {
		d := &r.dev
		a := about{device: &d.Address}
		for _, vf := range d.VFs {
			v, ok := byAddress[vf]
			switch {
			case !ok:
				t.degrade("pci_contradicts", pciFile(vf, "vendor"), a, "%s: virtual function of %s, and not there", pciFile(vf, "vendor"), d.Address)
			case v.dev.PhysFn == nil:
				t.degrade("file_missing", pciFile(vf, "physfn"), about{device: &v.dev.Address}, "missing, but %s names it as its virtual function", d.Address)
			}
		}
		if d.PhysFn != nil {
			pf, ok := byAddress[*d.PhysFn]
			if !ok || !slices.Contains(pf.dev.VFs, d.Address) {
				t.degrade("pci_contradicts", pciFile(d.Address, "physfn"), a, "%s: %s, which does not name %s", pciFile(d.Address, "physfn"), d.PhysFn, d.Address)
			}
		}
		if r.numVFs >= 0 && r.numVFs != int64(len(d.VFs)) {
			file := pciFile(d.Address, "sriov_numvfs")
			t.degrade("pci_contradicts", file, a, "%s: %d, but there are %d links", file, r.numVFs, len(d.VFs))
		}
	}
}

// buryVFs says of the virtual functions of a dead physical one that they are dead
// with it.
func (t *tree) buryVFs(read []*pciReading) {
	dead := map[topology.PCIAddress]bool{}
	for _, r := range t.reasons {
		if r.Code == CodeDead {
			dead[*r.Device] = true
		}
	}
	for _, r := range read {
		if d := &r.dev; d.PhysFn != nil && dead[*d.PhysFn] {
			t.degrade(CodeDead, pciFile(d.Address, "physfn"), about{device: &d.Address}, "device %s is a virtual function of %s, which does not answer", d.Address, d.PhysFn)
		}
	}
}

// readMdev reads the kinds of mediated device of one parent. How many can still be
// made is a fact of the inventory: none is not what an unreadable file says.
func (t *tree) readMdev(dir string, parent about) []topology.MdevType {
	names, ok := t.names(dir)
	if !ok {
		return nil
	}
	slices.Sort(names)
	var types []topology.MdevType
	for _, name := range names {
		m := topology.MdevType{Name: name}
		m.DeviceAPI, _ = t.text(optional, dir+"/"+name+"/device_api", about{})
		m.Label, _ = t.text(optional, dir+"/"+name+"/name", about{})
		n, _ := parsed(t, mandatory, dir+"/"+name+"/available_instances", parent, parseCount)
		m.Available = int(min(n, 1<<20))
		types = append(types, m)
	}
	return types
}
