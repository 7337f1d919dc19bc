package host

import (
	"encoding/xml"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// document is what this package reads of a domain document. It is never written
// back: editing is domainxml's.
type document struct {
	doc     *domainxml.Doc // the same, as domainxml reads it; nil with unread, which says why
	unread  error
	XMLName xml.Name `xml:"domain"`
	Type    string   `xml:"type,attr"` // kvm, or qemu under TCG
	Name    string   `xml:"name"`
	UUID    string   `xml:"uuid"`
	VCPU    struct {
		Max int `xml:",chardata"`
	} `xml:"vcpu"`
	CPU struct {
		Mode string `xml:"mode,attr"` // custom, host-passthrough, maximum
	} `xml:"cpu"`
	MemoryBacking struct {
		Source struct {
			Type string `xml:"type,attr"`
		} `xml:"source"`
		Locked *struct{} `xml:"locked"`
	} `xml:"memoryBacking"`
	MemTune struct {
		HardLimit string `xml:"hard_limit"`
	} `xml:"memtune"`
	OS struct {
		Type struct {
			Arch    string `xml:"arch,attr"`
			Machine string `xml:"machine,attr"`
		} `xml:"type"`
	} `xml:"os"`
	LaunchSecurity *struct {
		Type   string `xml:"type,attr"`
		Policy string `xml:"policy"` // of SEV, hexadecimal
	} `xml:"launchSecurity"`
	SecLabels []secLabel `xml:"seclabel"`
	Devices   struct {
		Emulator string `xml:"emulator"`
		Video    []struct {
			Model struct {
				Type string `xml:"type,attr"`
			} `xml:"model"`
		} `xml:"video"`
		Graphics []struct {
			Type    string `xml:"type,attr"`
			Listen  string `xml:"listen,attr"`
			Listens []struct {
				Address string `xml:"address,attr"`
			} `xml:"listen"`
		} `xml:"graphics"`
		Serials   []charDevice  `xml:"serial"`
		Consoles  []charDevice  `xml:"console"`
		Disks     []diskElement `xml:"disk"`
		Hostdevs  []hostdev     `xml:"hostdev"`
		Interface []struct {
			Type   string  `xml:"type,attr"`
			Source hostdev `xml:"source"`
		} `xml:"interface"`
		TPMs []struct {
			Model   string `xml:"model,attr"`
			Backend struct {
				Type    string `xml:"type,attr"`
				Version string `xml:"version,attr"`
			} `xml:"backend"`
		} `xml:"tpm"`
	} `xml:"devices"`
}

type charDevice struct {
	Source []struct {
		Mode string `xml:"mode,attr"`
		Host string `xml:"host,attr"`
	} `xml:"source"`
}

type hostdev struct {
	Type    string `xml:"type,attr"`
	Address struct {
		Domain   string `xml:"domain,attr"`
		Bus      string `xml:"bus,attr"`
		Slot     string `xml:"slot,attr"`
		Function string `xml:"function,attr"`
		UUID     string `xml:"uuid,attr"`
	} `xml:"address"`
	Source *hostdev `xml:"source"`
}

type diskElement struct {
	Type   string `xml:"type,attr"`   // file, block, network, volume, nvme, vhostuser, dir
	Device string `xml:"device,attr"` // disk, cdrom, floppy, lun
	Driver struct {
		Type string `xml:"type,attr"`
	} `xml:"driver"`
	Source struct {
		File   string `xml:"file,attr"`
		Dev    string `xml:"dev,attr"`
		Pool   string `xml:"pool,attr"`
		Volume string `xml:"volume,attr"`

		Encryption *struct{} `xml:"encryption"`
	} `xml:"source"`
	Encryption *struct{} `xml:"encryption"` // where libvirt before 3.9 has it
	Target     struct {
		Dev string `xml:"dev,attr"`
		Bus string `xml:"bus,attr"`
	} `xml:"target"`
	ReadOnly  *struct{} `xml:"readonly"`
	Shareable *struct{} `xml:"shareable"`
}

// path is the file or device behind a disk; empty for an empty drive and for
// what is reached otherwise.
func (d diskElement) path() string {
	if d.Type == "block" {
		return d.Source.Dev
	}
	return d.Source.File
}

// encrypted reports whether QEMU opens the disk with a secret.
func (d diskElement) encrypted() bool { return d.Source.Encryption != nil || d.Encryption != nil }

// readOnly also holds for drives that are so by nature.
func (d diskElement) readOnly() bool { return d.ReadOnly != nil || d.Device == "cdrom" }

func parseDocument(text string) (document, error) {
	var d document
	if err := xml.Unmarshal([]byte(text), &d); err != nil {
		return document{}, fault.New(fault.Invalid, "read domain document: %w", err)
	}
	d.doc, d.unread = domainxml.Parse(text)
	return d, nil
}

// firmware is what the guest boots from besides its disks.
func (d document) firmware() domainxml.Firmware {
	if d.unread != nil {
		return domainxml.Firmware{}
	}
	return d.doc.Firmware()
}

// emulated reports whether the guest runs without KVM.
func (d document) emulated() bool { return d.Type == "qemu" }

// files are the files besides disks that QEMU opens when it starts the guest.
func (d document) files() []string {
	var out []string
	f := d.firmware()
	for _, path := range append(f.Others, f.Kernel, f.Initrd, f.Loader, f.Template) {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// unmovable lists every device and property with which a guest cannot be live
// migrated by this version: what adoption named as kept (domainxml.Kept), and
// interfaces of a PCI function. Other host devices are immovable's.
func (d document) unmovable() []fault.Reason {
	var out []fault.Reason
	for _, nic := range d.Devices.Interface {
		if nic.Type == "hostdev" {
			out = append(out, notMovable("interface of a PCI host device "+nic.Source.where(), "detach it, or move the guest shut off"))
		}
	}
	if d.unread != nil {
		return append(out, notMovable("a guest whose document cannot be read ("+d.unread.Error()+")", "correct it: virsh edit "+fault.Quote(d.Name)))
	}
	for _, k := range d.kept() {
		if k.Stays && k.Element != keptHostDevice {
			out = append(out, notMovable(k.What, k.Change))
		}
	}
	return out
}

const keptHostDevice = "devices/hostdev"

// kept is what Berth leaves as it stands, of disks with the command that detaches them.
func (d document) kept() []domainxml.Kept {
	if d.unread != nil {
		return nil
	}
	out := d.doc.Kept()
	for i, k := range out {
		if rest, ok := strings.CutPrefix(k.Change, "detach it"); ok && k.Disk != "" {
			out[i].Change = "virsh detach-disk " + fault.Quote(d.Name) + " " + fault.Quote(k.Disk) + " --persistent" + rest
		}
	}
	return out
}

// where is the address as sysfs spells it: libvirt writes 0x0000, 0x3b, …
func (h hostdev) where() string {
	a := h.Address
	hex := func(s string) string { return strings.TrimPrefix(s, "0x") }
	switch {
	case a.UUID != "":
		return a.UUID
	case a.Slot != "":
		return fmt.Sprintf("%s:%s:%s.%s", hex(a.Domain), hex(a.Bus), hex(a.Slot), hex(a.Function))
	}
	return ""
}

// listensOnOneAddress reports whether the guest's graphics or consoles listen on
// an address of one particular host.
func (d document) listensOnOneAddress() bool {
	var all []string
	for _, g := range d.Devices.Graphics {
		all = append(all, g.Listen)
		for _, l := range g.Listens {
			all = append(all, l.Address)
		}
	}
	for _, c := range append(d.Devices.Serials[:len(d.Devices.Serials):len(d.Devices.Serials)], d.Devices.Consoles...) {
		for _, s := range c.Source {
			if s.Mode == "bind" {
				all = append(all, s.Host)
			}
		}
	}
	return slices.ContainsFunc(all, func(address string) bool {
		ip, err := netip.ParseAddr(address)
		// A name is no address of one host for certain, and left alone.
		return err == nil && !ip.IsUnspecified() && !ip.IsLoopback()
	})
}
