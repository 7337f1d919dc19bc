package domainxml

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/beevik/etree"
)

// DiskElement is the <disk> element of a target as it stands; false for none.
func (d *Doc) DiskElement(target string) (string, bool) {
	for _, e := range d.root.FindElements("./devices/disk") {
		if attribute(e, "target", "dev") == target {
			return alone(e), true
		}
	}
	return "", false
}

// ReadDisk reads a <disk> element that stands alone.
func ReadDisk(element string) (Disk, error) {
	_, k, err := readDisk(element)
	return k, err
}

func readDisk(element string) (*etree.Element, Disk, error) {
	if len(element) > maxBytes {
		return nil, Disk{}, fmt.Errorf("disk element: %d bytes, more than libvirt takes", len(element))
	}
	tree := etree.NewDocument()
	tree.ReadSettings.MaxDepth = maxDepth
	if err := tree.ReadFromString(element); err != nil {
		return nil, Disk{}, fmt.Errorf("disk element: %w", err)
	}
	e := tree.Root()
	if e == nil || e.FullTag() != "disk" || len(tree.ChildElements()) != 1 {
		return nil, Disk{}, errors.New("disk element: it is no <disk>")
	}
	devices := etree.NewElement("devices")
	devices.AddChild(e)
	domain := etree.NewElement("domain")
	domain.AddChild(devices)
	list, err := disks(domain)
	if err != nil {
		return nil, Disk{}, err
	}
	return e, list[0], nil
}

// DetachDisk takes a disk out of the document.
func (d *Doc) DetachDisk(target string) error {
	for i, e := range d.root.FindElements("./devices/disk") {
		if attribute(e, "target", "dev") == target {
			d.drop(e)
			d.disks = slices.Delete(d.disks, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("domain document: there is no disk %s", target)
}

// AttachDisk puts a disk of another document of the guest into this one, and says which
// target it has here: its own, or where that is taken the next free one of its kind. What
// libvirt gives out by itself is left out where it would collide: the address, which may
// be another device's here or on a controller that is not there, the number in the boot
// order, and an alias.
func (d *Doc) AttachDisk(element string) (target string, err error) {
	e, k, err := readDisk(element)
	if err != nil {
		return "", err
	}
	t := e.SelectElement("target")
	if target, err = d.freeTarget(k.Target); err != nil {
		return "", err
	}
	if target != k.Target {
		t.CreateAttr("dev", target)
		k.Target = target
	}
	if a := e.SelectElement("address"); a != nil && !d.addressFree(a, k.Bus) {
		e.RemoveChild(a)
	}
	if b := e.SelectElement("boot"); b != nil && d.has("boot", "order", b.SelectAttrValue("order", "")) {
		e.RemoveChild(b)
	}
	if a := e.SelectElement("alias"); a != nil && d.has("alias", "name", a.SelectAttrValue("name", "")) {
		e.RemoveChild(a)
	}
	e.Parent().RemoveChild(e)
	devices := d.section("devices")
	var order []string
	if devices.SelectElement("disk") != nil {
		order = []string{"disk"}
	}
	d.insert(devices, e, order)
	at := slices.Index(targets(d.root), target)
	d.disks = slices.Insert(d.disks, at, k)
	return target, nil
}

func targets(root *etree.Element) []string {
	var out []string
	for _, e := range root.FindElements("./devices/disk") {
		out = append(out, attribute(e, "target", "dev"))
	}
	return out
}

// freeTarget is the name, or the next one of its kind (vda, vdb, … vdz, vdaa) that no disk
// here has.
func (d *Doc) freeTarget(name string) (string, error) {
	taken := targets(d.root)
	if !slices.Contains(taken, name) {
		return name, nil
	}
	for _, prefix := range []string{"vd", "sd", "hd", "xvd", "ubd", "fd"} {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		for i := range len(taken) + 1 {
			if next := prefix + letters(i); !slices.Contains(taken, next) {
				return next, nil
			}
		}
	}
	return "", fmt.Errorf("domain document: disk %s is there already, and the name has no next one", name)
}

// letters is a number as libvirt spells disks: a, b, … z, aa.
func letters(i int) string {
	out := ""
	for i++; i > 0; i = (i - 1) / 26 {
		out = string(rune('a'+(i-1)%26)) + out
	}
	return out
}

// addressFree reports whether no device here has an address, and the controller is there
// that it is on.
func (d *Doc) addressFree(a *etree.Element, bus string) bool {
	kind := a.SelectAttrValue("type", "")
	var on, number string // controller's type, and the attribute that names it
	switch kind {
	case "pci":
		on, number = "pci", "bus"
	case "drive":
		on, number = bus, "controller"
	default:
		return false // ccw, usb and others: libvirt gives one out
	}
	index, err := numberOf(a.SelectAttrValue(number, "0"))
	if err != nil {
		return false
	}
	there := kind == "pci" && index == 0 // the root needs no element
	for _, c := range d.root.FindElements("./devices/controller") {
		i, err := numberOf(c.SelectAttrValue("index", ""))
		there = there || err == nil && i == index && c.SelectAttrValue("type", "") == on
	}
	if !there {
		return false
	}
	parts := map[string][]string{"pci": {"domain", "bus", "slot", "function"}, "drive": {"controller", "bus", "target", "unit"}}[kind]
	for _, other := range d.root.FindElements("./devices/*/address") {
		if other.SelectAttrValue("type", "") != kind {
			continue
		}
		if dev := other.Parent(); kind == "drive" && dev.Tag == "disk" && attribute(dev, "target", "bus") != bus {
			continue // of another controller's numbers
		}
		same := true
		for _, part := range parts {
			x, errX := numberOf(a.SelectAttrValue(part, "0"))
			y, errY := numberOf(other.SelectAttrValue(part, "0"))
			same = same && (errX != nil || errY != nil || x == y)
		}
		if same {
			return false
		}
	}
	return true
}

// numberOf reads a number of an address, as libvirt writes them: 0x1a, or 26.
func numberOf(text string) (uint64, error) { return strconv.ParseUint(text, 0, 32) }

// has reports whether a device has a child with that value.
func (d *Doc) has(tag, name, value string) bool {
	return slices.ContainsFunc(d.root.FindElements("./devices/*/"+tag), func(e *etree.Element) bool { return e.SelectAttrValue(name, "") == value })
}

// Devices counts the guest's devices by their elements' names, but for disks, interfaces,
// and what libvirt adds by itself.
func (d *Doc) Devices() map[string]int {
	out := map[string]int{}
	for _, e := range d.root.FindElements("./devices/*") {
		switch e.Tag {
		case "disk", "interface", "controller", "emulator", "console":
		default:
			out[e.Tag]++
		}
	}
	return out
}
