package agent

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"berth/hwdiscovery"
	"berth/topology"
)

// differences says in an operator's words what a host has that it had not, and
// the other way round; none when both are the same but for what is free of them.
func differences(was, is *topology.Host) []string {
	if was == nil || is == nil {
		return nil
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	cpuDifferences(was, is, say)
	cellDifferences(was, is, say)
	deviceDifferences(was, is, say)
	mdevDifferences(was, is, say)
	if len(out) == 0 && !reflect.DeepEqual(lasting(was), lasting(is)) {
		say("how CPUs, caches and cells belong together")
	}
	return out
}

// lasting is a host without what moves from moment to moment.
func lasting(h *topology.Host) topology.Host {
	out := *h
	out.Reasons, out.Health = nil, ""
	out.Cells = slices.Clone(h.Cells)
	for i := range out.Cells {
		out.Cells[i].MemoryFreeBytes, out.Cells[i].PagesFree = 0, nil
	}
	out.PCI = slices.Clone(h.PCI)
	for i := range out.PCI {
		out.PCI[i] = lastingDevice(out.PCI[i])
	}
	return out
}

func lastingDevice(d topology.PCIDevice) topology.PCIDevice {
	d.Mdev = slices.Clone(d.Mdev)
	for i := range d.Mdev {
		d.Mdev[i].Available = 0
	}
	return d
}

// dead are the functions that are there and do not work, with the reason.
func dead(h *topology.Host) map[topology.PCIAddress]string {
	out := map[topology.PCIAddress]string{}
	for _, r := range h.Reasons {
		if r.Code == hwdiscovery.CodeDead && r.Device != nil {
			out[*r.Device] = r.Message
		}
	}
	return out
}

func cpuDifferences(was, is *topology.Host, say func(string, ...any)) {
	before, after := was.CPUs(), is.CPUs()
	lost := before.Difference(after)
	if off := lost.Intersection(is.OfflineCPUs); !off.IsEmpty() {
		say("CPUs %s offline", off)
	}
	if gone := lost.Difference(is.OfflineCPUs); !gone.IsEmpty() {
		say("CPUs %s gone", gone)
	}
	if came := after.Difference(before); !came.IsEmpty() {
		say("CPUs %s online", came)
	}
}

func cellDifferences(was, is *topology.Host, say func(string, ...any)) {
	const mib = 1 << 20
	for _, c := range was.Cells {
		if _, ok := is.Cell(c.ID); !ok {
			say("cell %d gone", c.ID)
		}
	}
	for _, c := range is.Cells {
		old, ok := was.Cell(c.ID)
		if !ok {
			say("cell %d came: CPUs %s, %d MiB", c.ID, c.CPUs, c.MemoryBytes/mib)
			continue
		}
		if old.MemoryBytes != c.MemoryBytes {
			say("cell %d memory %d → %d MiB", c.ID, old.MemoryBytes/mib, c.MemoryBytes/mib)
		}
		sizes := slices.Concat(slices.Collect(maps.Keys(old.Pages)), slices.Collect(maps.Keys(c.Pages)))
		slices.Sort(sizes)
		for _, size := range slices.Compact(sizes) {
			// Ordinary pages are what pools leave of the memory.
			if size != is.BasePageSize && old.Pages[size] != c.Pages[size] {
				say("cell %d pages of %s %d → %d", c.ID, size, old.Pages[size], c.Pages[size])
			}
		}
	}
}

func deviceDifferences(was, is *topology.Host, say func(string, ...any)) {
	before, after := dead(was), dead(is)
	for _, d := range was.PCI {
		if _, ok := is.Device(d.Address); !ok {
			say("device %s removed", d.Address)
		}
	}
	for _, d := range is.PCI {
		words, dies := after[d.Address]
		switch _, died := before[d.Address]; {
		case dies && !died:
			say("%s", words)
		case died && !dies:
			say("device %s works again", d.Address)
		}
		old, ok := was.Device(d.Address)
		switch {
		case !ok:
			say("device %s added (%s:%s)", d.Address, d.Vendor, d.Product)
		case old.Vendor != d.Vendor || old.Product != d.Product:
			say("device %s is another (%s:%s → %s:%s)", d.Address, old.Vendor, old.Product, d.Vendor, d.Product)
		case len(old.VFs) != len(d.VFs):
			say("device %s virtual functions %d → %d", d.Address, len(old.VFs), len(d.VFs))
		case old.Driver != d.Driver:
			say("device %s driver %s → %s", d.Address, orNone(old.Driver), orNone(d.Driver))
		case old.NUMANode != d.NUMANode:
			say("device %s cell %d → %d", d.Address, old.NUMANode, d.NUMANode)
		case old.SerialNumber != d.SerialNumber:
			say("device %s serial number %s → %s", d.Address, orNone(old.SerialNumber), orNone(d.SerialNumber))
		case !reflect.DeepEqual(lastingDevice(*old), lastingDevice(d)):
			say("device %s changed", d.Address)
		}
	}
}

func mdevDifferences(was, is *topology.Host, say func(string, ...any)) {
	for _, m := range was.Mdevs {
		if !slices.Contains(is.Mdevs, m) {
			say("mediated device %s of %s removed", m.UUID, m.Parent)
		}
	}
	for _, m := range is.Mdevs {
		if !slices.Contains(was.Mdevs, m) {
			say("mediated device %s of %s added (%s)", m.UUID, m.Parent, orNone(m.Type))
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
