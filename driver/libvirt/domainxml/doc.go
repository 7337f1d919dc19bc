// Package domainxml reads and edits libvirt domain documents
// (https://libvirt.org/formatdomain.html), and builds those of new guests.
//
// It is pure: text in, text out. It understands what Berth needs and keeps
// everything else as it stands: elements and attributes it does not know, other
// people's metadata, comments, order. Whatever was not changed comes back byte for
// byte.
//
// Where a guest is put on a host is a Place: Build writes it into a new document,
// Rebind rewrites an existing one for a Place on another host, Change makes it that of
// a guest with other amounts, cells and devices, and Pinning and
// Assignment read what a document asks, so that a guest of others can be adopted;
// Kept names what of it they cannot hold.
//
// Berth's own facts about a guest stand in the document's metadata under the
// namespace Namespace, so that a lost ledger can be rebuilt from the hypervisor.
package domainxml

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"berth/topology"
)

// Doc is a parsed domain document. The zero value is not usable. It is not safe
// for concurrent use.
type Doc struct {
	text string // as parsed; what String gives while nothing has changed
	tree *etree.Document
	root *etree.Element

	origins map[etree.Token]*origin // of what was parsed

	uuid     string
	vcpus    int
	memoryMB int64
	disks    []Disk
	changed  bool
}

// Parse reads a document. The error names the element that is missing or makes
// no sense; elements that Berth does not read are not judged.
func Parse(text string) (*Doc, error) {
	d := &Doc{text: text}
	if err := d.read(); err != nil {
		return nil, err
	}
	if d.root = d.tree.Root(); d.root == nil || d.root.FullTag() != "domain" {
		return nil, fmt.Errorf("domain document: the root element is not <domain>")
	}
	if d.Name() == "" {
		return nil, fmt.Errorf("domain document: <name> is missing or empty")
	}
	var err error
	if d.uuid, err = parseUUID(child(d.root, "uuid")); err != nil {
		return nil, err
	}
	if d.memoryMB, err = memory(d.root); err != nil {
		return nil, err
	}
	if d.vcpus, err = vcpus(d.root); err != nil {
		return nil, err
	}
	if d.disks, err = disks(d.root); err != nil {
		return nil, err
	}
	return d, nil
}

// String gives the document: the very text that was parsed, but for what was
// changed since.
func (d *Doc) String() string {
	if !d.changed {
		return d.text
	}
	var out bytes.Buffer
	d.write(&out, d.tree.Child)
	return out.String()
}

// Clone gives a copy that can be edited by itself.
func (d *Doc) Clone() *Doc {
	c := *d
	c.tree, c.origins = d.cloneTree()
	c.root = c.tree.Root()
	c.disks = append([]Disk(nil), d.disks...)
	return &c
}

// Name is the domain's name.
func (d *Doc) Name() string { return child(d.root, "name") }

// UUID is the domain's, in lower case with dashes: the instance's and
// Placement's consumer.
func (d *Doc) UUID() string { return d.uuid }

// Identified reports whether uuid and name are there once each, as text alone: libvirt then
// reads the same as UUID and Name.
func (d *Doc) Identified() bool {
	for _, tag := range []string{"uuid", "name"} {
		all := d.root.SelectElements(tag)
		if len(all) != 1 || strings.TrimSpace(all[0].Text()) != all[0].Text() {
			return false
		}
		for _, t := range all[0].Child {
			if text, ok := t.(*etree.CharData); !ok || text.IsCData() {
				return false
			}
		}
	}
	return true
}

// Type is the hypervisor: kvm, qemu, test.
func (d *Doc) Type() string { return d.root.SelectAttrValue("type", "") }

// Machine is the machine type, pc-q35-7.2; empty when the document leaves it to
// libvirt.
func (d *Doc) Machine() string { return attribute(d.root, "os/type", "machine") }

// Arch is the guest's architecture; empty when the document leaves it to libvirt.
func (d *Doc) Arch() string { return attribute(d.root, "os/type", "arch") }

// Emulator is the path of the QEMU binary; empty when left to libvirt.
func (d *Doc) Emulator() string {
	if e := d.root.FindElement("./devices/emulator"); e != nil {
		return strings.TrimSpace(e.Text())
	}
	return ""
}

// VCPUs is how many vCPUs the guest has now (vcpu/@current, else vcpu).
func (d *Doc) VCPUs() int { return d.vcpus }

// MemoryMB is the guest's maximum memory, MiB rounded up (memory). libvirt counts
// memory devices in, whatever its author wrote.
func (d *Doc) MemoryMB() int64 { return d.memoryMB }

// Resources is what the guest uses of a host. DiskGB is 0: what a disk takes is
// asked of its file, not of the document.
func (d *Doc) Resources() topology.Resources {
	return topology.Resources{VCPUs: d.vcpus, MemoryMB: d.memoryMB}
}

// child is the text of a child element; empty when there is none.
func child(e *etree.Element, tag string) string {
	if c := e.SelectElement(tag); c != nil {
		return strings.TrimSpace(c.Text())
	}
	return ""
}

// attribute is an attribute of the element at a path below e.
func attribute(e *etree.Element, path, name string) string {
	if c := e.FindElement("./" + path); c != nil {
		return c.SelectAttrValue(name, "")
	}
	return ""
}

// parseUUID takes what libvirt takes: 32 hexadecimal digits, dashes anywhere.
func parseUUID(s string) (string, error) {
	hex := strings.ToLower(strings.ReplaceAll(s, "-", ""))
	if s == "" {
		return "", fmt.Errorf("domain document: <uuid> is missing or empty")
	}
	if len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("domain document: <uuid> %q is not a uuid", s)
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:], nil
}

// units are the bytes of libvirt's scaled integers (virScaleInteger); memory
// without a unit is in KiB.
var units = map[string]uint64{
	"b": 1, "byte": 1, "bytes": 1,
	"KB": 1e3, "k": 1 << 10, "K": 1 << 10, "KiB": 1 << 10, "": 1 << 10,
	"MB": 1e6, "M": 1 << 20, "MiB": 1 << 20,
	"GB": 1e9, "G": 1 << 30, "GiB": 1 << 30,
	"TB": 1e12, "T": 1 << 40, "TiB": 1 << 40,
}

func memory(root *etree.Element) (int64, error) {
	e := root.SelectElement("memory")
	if e == nil {
		return 0, fmt.Errorf("domain document: <memory> is missing")
	}
	bytes, err := scaled(strings.TrimSpace(e.Text()), e.SelectAttrValue("unit", ""))
	if err != nil {
		return 0, fmt.Errorf("domain document: <memory> %w", err)
	}
	return mebibytes(bytes), nil
}

// scaled gives the bytes of a positive number with one of libvirt's units.
func scaled(number, unit string) (int64, error) {
	scale, known := units[unit]
	if !known {
		return 0, fmt.Errorf("has the unknown unit %q", unit)
	}
	n, err := strconv.ParseUint(number, 10, 64)
	// A pebibyte is beyond any machine and far from overflow.
	if err != nil || n == 0 || n > 1<<50/scale {
		return 0, fmt.Errorf("is %q, want a positive number", number)
	}
	return int64(n * scale), nil
}

// mebibytes rounds up.
func mebibytes(bytes int64) int64 { return topology.AddCapped(bytes, 1<<20-1) >> 20 }

func vcpus(root *etree.Element) (int, error) {
	e := root.SelectElement("vcpu")
	if e == nil {
		return 1, nil // libvirt's default
	}
	text := strings.TrimSpace(e.Text())
	if current := e.SelectAttrValue("current", ""); current != "" {
		text = current
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<16 {
		return 0, fmt.Errorf("domain document: <vcpu> is %q, want a positive number", text)
	}
	return n, nil
}
