package domainxml

import (
	"fmt"
	"strings"

	"github.com/beevik/etree"
)

// Disk is one disk of a guest.
type Disk struct {
	Target    string   // vda: its name within the guest, unique in the document
	Bus       string   // virtio, scsi, sata; may be empty
	Device    string   // disk, cdrom, floppy, lun
	Type      string   // what the source is: file, block, network, volume, dir, nvme, vhostuser
	Source    string   // path, device, network name (pool/image) or pool/volume; empty for an empty drive
	Format    string   // raw, qcow2; empty when left to libvirt
	Cache     string   // none, writeback, …; empty for the hypervisor's default
	Serial    string   // Nova puts a volume's id here
	ReadOnly  bool     // also every cdrom
	Shareable bool     // several guests may write it
	Backing   []string // sources of the backing chain, nearest first, as far as the document tells
}

// Interface is one network interface of a guest.
type Interface struct {
	MAC    string // lower case; empty when left to libvirt
	Type   string // network, bridge, direct, ethernet, hostdev, vhostuser, user
	Source string // network, bridge, device, PCI address (hostdev) or socket (vhostuser); empty where the type has none
	Target string // the host's device, vnet0; only while running
	Model  string
}

// Console is one character device of a guest that people read.
type Console struct {
	Kind string // serial or console
	Type string // file, pty, tcp, unix
	Path string // file, pty's device while running, or unix socket
	Host string // of tcp
	Port string // target port
}

// Firmware is what a guest boots from besides its disks; all are files of the host
// and empty where the document leaves them to libvirt or has none.
type Firmware struct {
	Auto      string // os/@firmware, efi or bios: libvirt finds loader and variables by it
	Loader    string
	Variables string // the guest's own copy of the template (nvram)
	OnDevice  bool   `json:",omitempty"` // Variables is a block device, which libvirt does not make
	Template  string
	Secure    bool // secure boot is asked for
	Kernel    string
	Initrd    string
	Others    []string // device tree, ACPI tables, blobs of fw_cfg
}

// Firmware reads what the guest boots from.
func (d *Doc) Firmware() Firmware {
	os := d.root.SelectElement("os")
	if os == nil {
		return Firmware{}
	}
	f := Firmware{
		Auto: os.SelectAttrValue("firmware", ""), Loader: child(os, "loader"), Variables: child(os, "nvram"),
		Template: attribute(os, "nvram", "template"), Secure: attribute(os, "loader", "secure") == "yes",
		Kernel: child(os, "kernel"), Initrd: child(os, "initrd"),
	}
	// Newer documents name the variables as a disk's source.
	if file := attribute(os, "nvram/source", "file"); file != "" {
		f.Variables = file
	}
	if dev := attribute(os, "nvram/source", "dev"); dev != "" {
		f.Variables, f.OnDevice = dev, true
	}
	others := append(os.FindElements("./dtb"), os.FindElements("./acpi/table")...)
	for _, e := range others {
		f.Others = append(f.Others, strings.TrimSpace(e.Text()))
	}
	for _, e := range d.root.FindElements("./sysinfo/entry") {
		if file := e.SelectAttrValue("file", ""); file != "" {
			f.Others = append(f.Others, file)
		}
	}
	for _, e := range os.FindElements("./firmware/feature") {
		if e.SelectAttrValue("name", "") == "secure-boot" && e.SelectAttrValue("enabled", "") == "yes" {
			f.Secure = true
		}
	}
	return f
}

// Disks lists the guest's disks in the document's order.
func (d *Doc) Disks() []Disk { return append([]Disk(nil), d.disks...) }

func disks(root *etree.Element) ([]Disk, error) {
	var out []Disk
	seen := map[string]bool{}
	for i, e := range root.FindElements("./devices/disk") {
		k := Disk{
			Target: attribute(e, "target", "dev"), Bus: attribute(e, "target", "bus"),
			Device: e.SelectAttrValue("device", "disk"), Type: e.SelectAttrValue("type", "file"),
			Source: source(e), Format: attribute(e, "driver", "type"), Cache: attribute(e, "driver", "cache"),
			Serial: child(e, "serial"), Shareable: e.SelectElement("shareable") != nil,
		}
		k.ReadOnly = e.SelectElement("readonly") != nil || k.Device == "cdrom"
		if k.Target == "" {
			return nil, fmt.Errorf("domain document: <disk> %d has no <target dev=…>", i+1)
		}
		if seen[k.Target] {
			return nil, fmt.Errorf("domain document: <disk> target %s is there twice", k.Target)
		}
		seen[k.Target] = true
		for b := e.SelectElement("backingStore"); b != nil; b = b.SelectElement("backingStore") {
			if s := source(b); s != "" {
				k.Backing = append(k.Backing, s)
			}
		}
		out = append(out, k)
	}
	return out, nil
}

// source is where a disk or a layer of its chain is, in one string.
func source(e *etree.Element) string {
	s := e.SelectElement("source")
	if s == nil {
		return ""
	}
	if v := s.SelectAttrValue("volume", ""); v != "" {
		return s.SelectAttrValue("pool", "") + "/" + v
	}
	for _, name := range []string{"file", "dev", "name", "dir", "path"} {
		if v := s.SelectAttrValue(name, ""); v != "" {
			return v
		}
	}
	return ""
}

// SetDiskSource gives the disk with that target another file, block device or
// network name; the kind of source stays. What the document says of the backing
// chain is dropped, since it describes the old file, and libvirt reads the new
// one's by itself.
func (d *Doc) SetDiskSource(target, to string) error {
	for i, e := range d.root.FindElements("./devices/disk") {
		if attribute(e, "target", "dev") != target {
			continue
		}
		if d.disks[i].Source == to {
			return nil
		}
		name, known := map[string]string{"file": "file", "block": "dev", "network": "name", "dir": "dir"}[d.disks[i].Type]
		if !known {
			return fmt.Errorf("domain document: disk %s has a source of type %s, which cannot be rewritten", target, d.disks[i].Type)
		}
		s := e.SelectElement("source")
		if s == nil {
			s = etree.NewElement("source")
			e.InsertChildAt(e.SelectElement("target").Index(), s)
		}
		s.CreateAttr(name, to)
		if b := e.SelectElement("backingStore"); b != nil {
			remove(b)
		}
		d.disks[i].Source, d.disks[i].Backing, d.changed = to, nil, true
		return nil
	}
	return fmt.Errorf("domain document: there is no disk %s", target)
}

// remove takes an element away with the white space before it.
func remove(e *etree.Element) {
	p, i := e.Parent(), e.Index()
	p.RemoveChildAt(i)
	if i > 0 {
		if c, ok := p.Child[i-1].(*etree.CharData); ok && blank(c) {
			p.RemoveChildAt(i - 1)
		}
	}
}

// blank reports whether a text is white space; etree knows that of what it has parsed
// only.
func blank(c *etree.CharData) bool { return !c.IsCData() && strings.TrimSpace(c.Data) == "" }

// Interfaces lists the guest's network interfaces in the document's order.
func (d *Doc) Interfaces() []Interface {
	var out []Interface
	for _, e := range d.root.FindElements("./devices/interface") {
		n := Interface{
			MAC: strings.ToLower(attribute(e, "mac", "address")), Type: e.SelectAttrValue("type", ""),
			Target: attribute(e, "target", "dev"), Model: attribute(e, "model", "type"),
		}
		for _, name := range []string{"network", "bridge", "dev"} {
			if n.Source == "" {
				n.Source = attribute(e, "source", name)
			}
		}
		if a := e.FindElement("./source/address"); a != nil && n.Type == "hostdev" {
			if at, err := pciAddress(a); err == nil {
				n.Source = at.String()
			}
		}
		if n.Type == "vhostuser" {
			n.Source = attribute(e, "source", "path")
		}
		out = append(out, n)
	}
	return out
}

// Consoles lists serial ports and consoles in the document's order, serial ports
// first. libvirt shows the first serial port a second time as a console.
func (d *Doc) Consoles() []Console {
	var out []Console
	for _, kind := range []string{"serial", "console"} {
		for _, e := range d.root.FindElements("./devices/" + kind) {
			out = append(out, Console{
				Kind: kind, Type: e.SelectAttrValue("type", ""), Path: attribute(e, "source", "path"),
				Host: attribute(e, "source", "host"), Port: attribute(e, "target", "port"),
			})
		}
	}
	return out
}

// SetListen makes graphics and listening serial ports of the guest listen on
// another host's address, as a guest that moves must. Sockets, networks and
// `none` have no address and stay.
func (d *Doc) SetListen(address string) {
	set := func(e *etree.Element, name string) {
		if a := e.SelectAttr(name); a != nil && a.Value != address {
			a.Value, d.changed = address, true
		}
	}
	for _, g := range d.root.FindElements("./devices/graphics") {
		listens := g.SelectElements("listen")
		for _, l := range listens {
			if l.SelectAttrValue("type", "") == "address" {
				set(l, "address")
			}
		}
		set(g, "listen")
	}
	for _, kind := range []string{"serial", "console"} {
		for _, e := range d.root.FindElements("./devices/" + kind) {
			if t := e.SelectAttrValue("type", ""); t != "tcp" && t != "udp" {
				continue
			}
			for _, s := range e.SelectElements("source") {
				if s.SelectAttrValue("mode", "") == "bind" {
					set(s, "host")
				}
			}
		}
	}
}
