package domainxml

import (
	"fmt"
	"slices"

	"github.com/beevik/etree"

	"berth/topology"
)

// The order in which libvirt writes elements, as far as Berth puts some between
// them. libvirt itself reads any order.
var (
	rootOrder = []string{"name", "uuid", "genid", "title", "description", "metadata", "maxMemory", "memory", "currentMemory",
		"blkiotune", "memtune", "memoryBacking", "vcpu", "vcpus", "iothreads", "iothreadids", "defaultiothread", "cputune", "numatune",
		"resource", "sysinfo", "bootloader", "bootloader_args", "os", "features", "cpu"}
	tuneOrder = []string{"shares", "period", "quota", "global_period", "global_quota", "emulator_period", "emulator_quota",
		"iothread_period", "iothread_quota", "vcpupin", "emulatorpin", "iothreadpin", "vcpusched"}
	backingOrder = []string{"hugepages", "nosharepages", "locked"}
	cpuOrder     = []string{"model", "vendor", "topology", "cache", "maxphysaddr", "feature", "numa"}
	numaOrder    = []string{"memory", "memnode"}
)

// set gives an attribute a value, and notes whether that is a change.
func (d *Doc) set(e *etree.Element, name, value string) {
	if a := e.SelectAttr(name); a == nil || a.Value != value {
		e.CreateAttr(name, value)
		d.changed = true
	}
}

// setOrRemove is set, where the empty value is no attribute.
func (d *Doc) setOrRemove(e *etree.Element, name, value string) {
	if value != "" {
		d.set(e, name, value)
	} else if e.RemoveAttr(name) != nil {
		d.changed = true
	}
}

// setList is set for a list of numbers; one that says the same in other words
// stays.
func (d *Doc) setList(e *etree.Element, name string, want topology.CPUSet) {
	r := &reading{}
	if have := r.set(e, name); len(r.faults) > 0 || !have.SameAs(want) {
		d.set(e, name, want.String())
	}
}

// drop takes an element away.
func (d *Doc) drop(e *etree.Element) {
	remove(e)
	d.changed = true
}

// section is a child of the root, made where it is missing.
func (d *Doc) section(tag string) *etree.Element {
	e := d.root.SelectElement(tag)
	if e == nil {
		e = etree.NewElement(tag)
		d.insert(d.root, e, rootOrder)
	}
	return e
}

// insert puts a child where its tag stands in the order: after the last sibling
// that is not later; at the end where the order does not name it.
func (d *Doc) insert(parent, e *etree.Element, order []string) {
	d.changed = true
	depth := 0
	for p := parent; p != nil && p.Parent() != nil; p = p.Parent() {
		depth += 2
	}
	rank := slices.Index(order, e.Tag)
	at := -1
	for _, sibling := range parent.ChildElements() {
		if r := slices.Index(order, sibling.Tag); rank < 0 || r >= 0 && r <= rank {
			at = sibling.Index()
		}
	}
	pad := fmt.Sprintf("\n%*s", depth, "")
	empty := len(parent.Child) == 0
	parent.InsertChildAt(at+1, etree.NewText(pad))
	parent.InsertChildAt(at+2, e)
	if empty {
		parent.CreateText(pad[:len(pad)-2])
	}
}
