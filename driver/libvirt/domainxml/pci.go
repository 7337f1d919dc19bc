package domainxml

import (
	"fmt"
	"strconv"

	"github.com/beevik/etree"

	"berth/topology"
)

// pciSource is an element that gives the guest a PCI function of the host.
type pciSource struct {
	element *etree.Element // <hostdev>, <interface> or <disk>
	address *etree.Element // its source's address
}

// pciSources are the elements of the document that name a PCI function of the
// host, in the order <hostdev>, <interface type='hostdev'>, <disk type='nvme'>.
// The <address> that is a child of such an element itself is where the guest
// sees the device, and is no concern of the host.
func (d *Doc) pciSources() []pciSource {
	var out []pciSource
	add := func(e, address *etree.Element) {
		if address != nil {
			out = append(out, pciSource{e, address})
		}
	}
	for _, e := range d.root.FindElements("./devices/hostdev") {
		// A hostdev without a mode is one of a subsystem.
		if e.SelectAttrValue("mode", "subsystem") == "subsystem" && e.SelectAttrValue("type", "") == "pci" {
			add(e, e.FindElement("./source/address"))
		}
	}
	for _, e := range d.root.FindElements("./devices/interface") {
		if e.SelectAttrValue("type", "") != "hostdev" {
			continue
		}
		if a := e.FindElement("./source/address"); a != nil && a.SelectAttrValue("type", "") == "pci" {
			add(e, a)
		}
	}
	for _, e := range d.root.FindElements("./devices/disk") {
		if e.SelectAttrValue("type", "") == "nvme" {
			add(e, e.FindElement("./source/address"))
		}
	}
	return out
}

// mdevSources are the addresses of the mediated devices that the document names.
func (d *Doc) mdevSources() []*etree.Element {
	var out []*etree.Element
	for _, e := range d.root.FindElements("./devices/hostdev") {
		if a := e.FindElement("./source/address"); a != nil && e.SelectAttrValue("type", "") == "mdev" {
			out = append(out, a)
		}
	}
	return out
}

// pciAddress reads an address; an attribute that is absent is 0, as for libvirt.
func pciAddress(e *etree.Element) (topology.PCIAddress, error) {
	var a topology.PCIAddress
	var err error
	part := func(name string, bits int) uint64 {
		text := e.SelectAttrValue(name, "0")
		n, bad := strconv.ParseUint(text, 0, bits)
		if bad != nil && err == nil {
			err = fmt.Errorf("PCI address of a %s: %s is %q", e.Parent().Parent().Tag, name, text)
		}
		return n
	}
	a.Domain, a.Bus = uint32(part("domain", 32)), uint8(part("bus", 8))
	a.Device, a.Function = uint8(part("slot", 5)), uint8(part("function", 3))
	return a, err
}

// setPCIAddress writes an address as libvirt does; other attributes stay.
func setPCIAddress(e *etree.Element, a topology.PCIAddress) {
	e.CreateAttr("domain", fmt.Sprintf("0x%04x", a.Domain))
	e.CreateAttr("bus", fmt.Sprintf("0x%02x", a.Bus))
	e.CreateAttr("slot", fmt.Sprintf("0x%02x", a.Device))
	e.CreateAttr("function", fmt.Sprintf("0x%x", a.Function))
}
