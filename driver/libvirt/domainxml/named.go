package domainxml

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/beevik/etree"
)

// NamedKind says what of a host a domain XML names.
type NamedKind string

// The kinds.
const (
	NamedEmulator NamedKind = "emulator" // the program that libvirt runs as the instance
	NamedPath     NamedKind = "path"     // a file, folder, socket or device node
	NamedVolume   NamedKind = "volume"   // POOL/VOLUME of libvirt's storage pools
	NamedNetwork  NamedKind = "network"  // PROTOCOL:NAME of a network disk
	NamedLabel    NamedKind = "label"    // a security label, MODEL:LABEL or MODEL:none
	NamedArgument NamedKind = "argument" // an element by which QEMU is given anything (qemu:commandline)
	NamedDevice   NamedKind = "device"   // a host device; the address of a PCI or mediated one, else empty
	NamedMarkup   NamedKind = "markup"   // what libvirt never writes, and may read otherwise than Berth: a comment, a document type
	// NamedForeign is an element or attribute of a namespace in which libvirt does not write: one
	// of the two readers skips it, the other may take it for the plain one.
	NamedForeign NamedKind = "foreign"
)

// Named is one thing of the host that a domain XML names.
type Named struct {
	Kind NamedKind
	// Device is the element of the device that it is of: disk, serial; empty for none. Type is
	// that one's type, and Target the name by which the guest knows it.
	Device, Type, Target string
	// At is the element that names it, below <domain>: devices/channel/source.
	At string
	// What is its place in words: "disk vda", "serial port", "kernel".
	What  string
	Value string
	// Writes: QEMU or libvirt may write it. Shared: the instance says that others may, too.
	Writes, Shared bool
	// Folder: the guest sees every file below the path (a shared folder, a disk of type dir).
	Folder bool
	// Binds: QEMU makes the socket. Without it QEMU connects to one that is there.
	Binds bool
}

// HostNames lists what of its host a domain XML names, in its order, whatever element it is
// in: each text or attribute that is an absolute path, and each that libvirt takes for a path,
// counts as one. What a guest or a person alone reads (metadata, kernel command line, SMBIOS)
// does not.
func (d *Doc) HostNames() []Named {
	w := namer{}
	w.markup(d.tree.Child)
	w.foreign(d.root)
	w.element(d.root, "domain", nil)
	return w.out
}

// MostVCPUs is how many vCPUs libvirt would start the guest with, by whichever of the elements
// says most: vcpu, its attribute current, or the list vcpus.
func (d *Doc) MostVCPUs() int {
	enabled := 0
	for _, e := range d.root.FindElements("./vcpus/vcpu") {
		if e.SelectAttrValue("enabled", "") == "yes" {
			enabled++
		}
	}
	return max(d.vcpus, enabled)
}

// MostMemoryMB is how much memory libvirt would start the guest with, MiB rounded up, by
// whichever of the elements says most: memory, or the guest's cells with its memory devices.
// The error names an amount that makes no sense.
func (d *Doc) MostMemoryMB() (int64, error) {
	var sum int64
	for _, e := range d.root.FindElements("./cpu/numa/cell") {
		n, err := scaled(strings.TrimSpace(e.SelectAttrValue("memory", "")), e.SelectAttrValue("unit", ""))
		if err != nil {
			return 0, fmt.Errorf("domain document: <cell> memory %w", err)
		}
		sum += mebibytes(n)
	}
	for _, e := range d.root.FindElements("./devices/memory/target/size") {
		n, err := scaled(strings.TrimSpace(e.Text()), e.SelectAttrValue("unit", ""))
		if err != nil {
			return 0, fmt.Errorf("domain document: <memory> device %w", err)
		}
		sum += mebibytes(n)
	}
	return max(d.memoryMB, sum), nil
}

type namer struct{ out []Named }

// markup lists what libvirt does not write, outside what it does not read.
func (w *namer) markup(list []etree.Token) {
	for _, t := range list {
		what := ""
		switch t := t.(type) {
		case *etree.Comment:
			what = "comment"
		case *etree.Directive:
			what = "document type"
		case *etree.ProcInst:
			if t.Target != "xml" {
				what = "processing instruction"
			}
		case *etree.CharData:
			if t.IsCData() {
				what = "CDATA section"
			}
		}
		if what != "" {
			w.add(Named{Kind: NamedMarkup, What: what, Value: what})
		}
	}
}

// qemuElements are what libvirt writes below <domain> in QEMU's namespace.
var qemuElements = []string{"commandline", "capabilities", "override", "deprecation"}

// foreign lists the elements and attributes of namespaces in e and below it, outside <metadata>.
// libvirt's XPath skips them, its other readers and etree go by the name alone.
func (w *namer) foreign(e *etree.Element) {
	for _, a := range e.Attr {
		if a.Space != "" && a.Space != "xmlns" || a.FullKey() == "xmlns" {
			w.add(Named{Kind: NamedForeign, What: "attribute", Value: a.FullKey()})
		}
	}
	for _, c := range e.ChildElements() {
		below := e.Parent() != nil && e.Parent().Parent() == nil // e is <domain>
		switch {
		case c.Space == "" && below && c.Tag == "metadata":
		case c.Space == "":
			w.foreign(c)
		case below && c.NamespaceURI() == qemuNamespace && slices.Contains(qemuElements, c.Tag):
		default:
			w.add(Named{Kind: NamedForeign, What: "element", Value: c.FullTag()})
		}
	}
}

func (w *namer) add(n Named) { w.out = append(w.out, n) }

// unread are the elements, below <domain>, in which nothing is a name of the host's.
var unread = []string{
	"metadata", "name", "uuid", "genid", "title", "description", "os/cmdline", "os/initarg", "os/initenv", "resource", "cpu", "launchSecurity",
	"devices/disk/serial", "devices/disk/vendor", "devices/disk/product", "devices/disk/wwn",
}

// pathTexts are elements whose text libvirt takes for a path, and pathAttributes attributes.
var (
	pathTexts = []string{
		"os/loader", "os/nvram", "os/kernel", "os/initrd", "os/dtb", "os/shim", "os/acpi/table", "devices/smartcard/database", "devices/smartcard/certificate",
		"devices/memory/source/path", "devices/rng/backend", "bootloader",
	}
	pathAttributes = []string{"file", "dir", "path", "logFile", "template", "socket", "rendernode", "evdev", "keyfile"}
	// noPaths are attributes that may begin with a slash and are none.
	noPaths = []string{"passwd", "password", "username", "name", "value", "product", "vendor", "serial", "key", "query"}
	// readTexts are only read.
	readTexts = []string{"os/kernel", "os/initrd", "os/dtb", "os/shim", "os/acpi/table", "devices/rng/backend"}
)

// element lists what e and those below it name. at is its path below <domain>, device the
// device that it is in.
func (w *namer) element(e *etree.Element, at string, device *etree.Element) {
	if e.Space != "" {
		if e.NamespaceURI() == qemuNamespace {
			w.add(Named{Kind: NamedArgument, What: "qemu:" + e.Tag, Value: "qemu:" + e.Tag, Writes: true})
		}
		return // libvirt's QEMU driver reads no other
	}
	if strings.HasPrefix(at, "devices/") && device == nil {
		device = e
	}
	switch {
	case slices.Contains(unread, at):
		return
	case at == "devices/emulator":
		w.markup(e.Child)
		w.add(Named{Kind: NamedEmulator, What: "emulator", Value: e.Text()})
		return
	case e.Tag == "seclabel":
		w.label(e, device)
		return
	case at == "devices/shmem":
		// https://libvirt.org/formatdomain.html#shared-memory-device: an object of POSIX shared
		// memory, or a server's socket.
		n := Named{Kind: NamedPath, Device: e.Tag, At: at, What: "shared memory", Value: "/dev/shm/" + e.SelectAttrValue("name", ""), Writes: true}
		if s := e.SelectElement("server"); s != nil && s.SelectAttrValue("path", "") == "" {
			n.Value = "/var/lib/libvirt/shmem-" + e.SelectAttrValue("name", "") + "-sock"
		}
		if attribute(e, "server", "path") == "" {
			w.add(n)
		}
	case at == "devices/hostdev":
		w.device("host device", e.SelectElement("source"), e.SelectAttrValue("type", ""))
	case at == "devices/interface" && e.SelectAttrValue("type", "") == "hostdev":
		s := e.SelectElement("source")
		kind := ""
		if s != nil {
			kind = s.SelectAttrValue("type", "pci")
		}
		w.device("interface of a host device", s, kind)
	case e.Tag == "source" && device != nil && device.Tag == "disk":
		w.diskSource(e, at, device)
	}
	w.markup(e.Child)
	w.paths(e, at, device)
	for _, c := range e.ChildElements() {
		below := at + "/" + c.Tag
		if at == "domain" {
			below = c.Tag
		}
		w.element(c, below, device)
	}
}

// paths lists the paths in an element's own text and attributes.
func (w *namer) paths(e *etree.Element, at string, device *etree.Element) {
	writes, shared := true, false
	if slices.Contains(readTexts, at) || at == "os/loader" && e.SelectAttrValue("readonly", "") == "yes" {
		writes = false
	}
	switch {
	case e.Tag == "rom", at == "os/loader" && e.SelectAttrValue("type", "rom") == "rom":
		writes = false
	case tagOf(device) == "disk" && (e.Tag == "config" || e.Attr != nil && e.SelectAttrValue("keyfile", "") != ""):
		writes = false // of a network disk's client
	}
	tag := tagOf(device)
	if tag == "disk" {
		shared = device.SelectElement("shareable") != nil
		if device.SelectElement("readonly") != nil || device.SelectAttrValue("device", "") == "cdrom" || strings.Contains(at, "backingStore") {
			writes = false
		}
	}
	what := whatOf(e, at, device)
	n := Named{Kind: NamedPath, Device: tag, At: at, What: what, Shared: shared, Binds: e.SelectAttrValue("mode", "") == "bind"}
	if device != nil {
		n.Type, n.Target = device.SelectAttrValue("type", ""), attribute(device, "target", "name")
	}
	add := func(value string, writes bool) {
		n.Value, n.Writes = value, writes
		w.add(n)
	}
	folder := e.Tag == "source" && (tag == "disk" || tag == "filesystem")
	text, must := e.Text(), slices.Contains(pathTexts, at)
	if len(e.ChildElements()) > 0 && must {
		must = false // newer libvirt has a <source> in <nvram>
		if at != "os/nvram" {
			w.add(Named{Kind: NamedMarkup, What: "element in the text of " + e.Tag})
		}
	}
	if (must && text != "" || strings.HasPrefix(strings.TrimSpace(text), "/")) && !strings.HasPrefix(at, "sysinfo/") {
		add(text, writes)
	}
	pty := device != nil && (device.SelectAttrValue("type", "") == "pty")
	for _, a := range e.Attr {
		switch {
		case a.Value == "" || a.Space != "" || slices.Contains(noPaths, a.Key):
		case pty && (at == "devices/"+device.Tag && a.Key == "tty" || at == "devices/"+device.Tag+"/source" && a.Key == "path"):
			// The terminal that it has where it runs; a new one is made.
		case at == "devices/filesystem/target":
			// What the guest mounts it by.
		case at == "os/nvram" && a.Key == "template", strings.HasPrefix(at, "sysinfo/"):
			add(a.Value, false)
		case folder && a.Key == "dir":
			n.Folder = true
			add(a.Value, writes)
			n.Folder = false
		case strings.HasPrefix(a.Value, "/"), slices.Contains(pathAttributes, a.Key),
			a.Key == "dev" && e.Tag == "source" && device != nil && (device.Tag == "disk" || device.Tag == "input"):
			add(a.Value, writes)
		}
	}
}

// tagOf is a device's tag; empty outside of devices.
func tagOf(device *etree.Element) string {
	if device == nil {
		return ""
	}
	return device.Tag
}

// diskSource lists what of a disk's source is no path.
func (w *namer) diskSource(e *etree.Element, at string, device *etree.Element) {
	// The type stands beside the source; libvirt reads it at the element around it.
	n := Named{Device: "disk", What: whatOf(e, at, device), Shared: device.SelectElement("shareable") != nil}
	n.Writes = device.SelectElement("readonly") == nil && device.SelectAttrValue("device", "") != "cdrom" && !strings.Contains(at, "backingStore")
	if v := e.SelectAttrValue("volume", ""); v != "" {
		n.Kind, n.Value = NamedVolume, e.SelectAttrValue("pool", "")+"/"+v
		w.add(n)
	}
	if p := e.SelectAttrValue("protocol", ""); p != "" {
		n.Kind, n.Value = NamedNetwork, p+":"+e.SelectAttrValue("name", "")
		if e.SelectAttrValue("name", "") == "" { // the server's only one
			for _, h := range e.SelectElements("host") {
				n.Value += h.SelectAttrValue("name", "") + ":" + h.SelectAttrValue("port", "") + h.SelectAttrValue("socket", "")
			}
		}
		w.add(n)
	}
	if e.Parent().SelectAttrValue("type", "") == "nvme" {
		w.device("NVMe device of disk "+attribute(device, "target", "dev"), e, "pci")
	}
}

// device lists a host device.
func (w *namer) device(what string, source *etree.Element, kind string) {
	n := Named{Kind: NamedDevice, What: strings.TrimSpace(kind + " " + what), Writes: true}
	if source != nil && (kind == "pci" || kind == "mdev") {
		if a := source.SelectElement("address"); a != nil {
			n.Value = deviceAddress(a)
		}
	}
	w.add(n)
}

// deviceAddress is an address as sysfs spells it, of a mediated device its uuid; empty for one
// that is not whole.
func deviceAddress(a *etree.Element) string {
	if id := a.SelectAttrValue("uuid", ""); id != "" {
		return strings.ToLower(id)
	}
	if p, err := pciAddress(a); err == nil {
		return p.String()
	}
	return ""
}

// label lists a security label, unless libvirt makes it by itself or it leaves a file as it is.
func (w *namer) label(e, device *etree.Element) {
	n := Named{Kind: NamedLabel, What: "security label", Writes: true}
	model := e.SelectAttrValue("model", "")
	if device != nil {
		n.What = "security label of a " + device.Tag
		if text := child(e, "label"); text != "" {
			n.Value = model + ":" + text
			w.add(n)
		}
		return
	}
	switch kind := e.SelectAttrValue("type", "dynamic"); {
	case kind == "none":
		n.Value = model + ":none"
	case kind == "dynamic" && child(e, "baselabel") == "":
		return
	case kind == "dynamic":
		n.Value = model + ":" + child(e, "baselabel")
	default:
		n.Value = model + ":" + child(e, "label")
	}
	w.add(n)
}

// whatOf is what people call the thing that an element is of.
func whatOf(e *etree.Element, at string, device *etree.Element) string {
	switch {
	case at == "os/nvram", at == "os/nvram/source":
		return "firmware variables"
	case device == nil:
		return strings.ReplaceAll(path.Base(at), "/", " ")
	case device.Tag == "disk" && strings.Contains(at, "backingStore"):
		return "backing file of disk " + attribute(device, "target", "dev")
	case device.Tag == "disk":
		return "disk " + attribute(device, "target", "dev")
	case e.Tag == "log":
		return "log of a " + device.Tag
	case device.Tag == "serial" || device.Tag == "parallel":
		return device.Tag + " port"
	case device.Tag == "interface" && e.Tag == "script":
		return "script of an interface"
	}
	return device.Tag
}
