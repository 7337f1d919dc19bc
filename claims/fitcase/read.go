package fitcase

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/topology"
)

// The ends of what a case may hold: far above any machine, far below where sums
// of them would overflow.
const (
	mostMemoryMB = 1 << 40 // MiB
	mostPages    = 1 << 42
	mostPageKB   = 1 << 30 // KiB
	mostCells    = 1 << 10
	mostPools    = 1 << 14
	mostDevices  = 1 << 20
	mostVCPUs    = 1 << 16
	mostCPUs     = 1 << 20 // in all lists of a case together
)

// Case is a case that was read.
type Case struct {
	ID      string
	Flavor  topology.Flavor
	Image   map[string]string // image properties, numbers and booleans as text
	Machine fit.Machine
	PCI     []topology.PCIRequest

	pools []pool // as Machine.Pools, in the case's own spelling
	doc   map[string]any
	cells map[uintptr]readCell // host cells by the object that they were read from
}

// readCell is a host cell that was read. It keeps the object, so that no other
// can come to stand at its address.
type readCell struct {
	object map[string]any
	cell   fit.Cell
}

// pool is a PCI pool's key as the case spells it, for the answer.
type pool struct {
	vendor, product, kind string
	node                  *int
}

// Read reads one case. The error names every fault and where it is; the Case is
// then nil, except that ReadID may still tell whose case it is.
func Read(line []byte) (*Case, error) {
	doc, err := parse(line)
	if err != nil {
		return nil, err
	}
	return FromDocument(doc)
}

// ReadID gives the id of a case that Read refuses, or "".
func ReadID(line []byte) string {
	var c struct{ ID any }
	if json.Unmarshal(line, &c) != nil || c.ID == nil {
		return ""
	}
	return fmt.Sprint(c.ID)
}

func parse(line []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read case: not a JSON object: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read case: something follows the JSON object")
	}
	if doc == nil {
		return nil, errors.New("read case: null is no case")
	}
	return doc, nil
}

// FromDocument reads a case that was decoded already, numbers as json.Number.
// The Case keeps the document; the caller no longer changes it.
func FromDocument(doc map[string]any) (*Case, error) {
	return fromDocument(doc, map[uintptr]readCell{})
}

func fromDocument(doc map[string]any, cells map[uintptr]readCell) (*Case, error) {
	c := &Case{doc: doc, cells: cells}
	r := &reader{}
	c.ID = r.id(doc)
	r.in("host", func() {
		if host := r.object(doc["host"]); host != nil {
			c.readHost(r, host)
		}
	})
	r.in("request", func() {
		if request := r.object(doc["request"]); request != nil {
			c.readRequest(r, request)
		}
	})
	if doc["limits"] != nil {
		r.in("limits", func() { c.Machine.Limits = r.limits(r.object(doc["limits"])) })
	}
	if len(r.faults) > 0 {
		return nil, fmt.Errorf("read case %q: %s", c.ID, strings.Join(r.faults, "; "))
	}
	return c, nil
}

func (c *Case) readHost(r *reader, host map[string]any) {
	if _, ok := host["cells"].([]any); !ok {
		r.in("cells", func() { r.fault("want a list%s", got(host["cells"])) })
		return
	}
	ids := map[topology.CellID]bool{}
	var owner []topology.CellID // by CPU: the cell it stands in, and one
	r.each(host, "cells", mostCells, func(_ int, v any) {
		m := r.object(v)
		if m == nil {
			return
		}
		cell := c.readCell(r, m)
		if ids[cell.ID] {
			r.in("id", func() { r.fault("a second cell %d", cell.ID) })
		}
		ids[cell.ID] = true
		for _, cpus := range []topology.CPUSet{cell.Shared, cell.Dedicated} {
			for _, cpu := range cpus {
				for len(owner) <= cpu {
					owner = append(owner, 0)
				}
				if other := owner[cpu] - 1; other >= 0 && other != cell.ID {
					r.fault("cpu %d stands in cell %d too", cpu, other)
				}
				owner[cpu] = cell.ID + 1
			}
		}
		c.Machine.Cells = append(c.Machine.Cells, cell)
	})
	r.each(host, "pci_pools", mostPools, func(_ int, v any) {
		if m := r.object(v); m != nil {
			c.readPool(r, m)
		}
	})
	for i, p := range c.Machine.Pools {
		for _, other := range p.Excludes {
			if other >= len(c.Machine.Pools) {
				r.in("pci_pools", func() { r.fault("pool %d excludes pool %d, which is not there", i, other) })
			}
		}
	}
}

// readCell reads a host cell, unless it was read from this same object before:
// changes share all that they do not touch with the case that they change.
func (c *Case) readCell(r *reader, m map[string]any) fit.Cell {
	key := reflect.ValueOf(m).Pointer()
	if read, ok := c.cells[key]; ok {
		return read.cell
	}
	faults := len(r.faults)
	cell := fit.Cell{
		ID:           topology.CellID(r.count(m, "id", 0, topology.MaxCPU, true)),
		Shared:       r.cpusOf(m, "shared_cpus"),
		Dedicated:    r.cpusOf(m, "dedicated_cpus"),
		Pinned:       r.cpusOf(m, "pinned_cpus"),
		MemoryMB:     r.count(m, "memory_mb", 0, mostMemoryMB, true),
		MemoryUsedMB: r.count(m, "memory_used_mb", 0, mostMemoryMB, false),
		SharedUsed:   int(r.count(m, "shared_vcpus_used", 0, mostVCPUs, false)),
	}
	if m["socket"] != nil {
		socket := int(r.count(m, "socket", 0, math.MaxInt32, true))
		cell.Socket = &socket
	}
	core := map[int]bool{}
	r.each(m, "siblings", topology.MaxCPU+1, func(_ int, v any) {
		siblings := r.cpus(v)
		for _, cpu := range siblings {
			if core[cpu] {
				r.fault("cpu %d stands among other siblings too", cpu)
			}
			core[cpu] = true
		}
		if !siblings.IsEmpty() {
			cell.Cores = append(cell.Cores, siblings)
		}
	})
	r.each(m, "caches", topology.MaxCPU+1, func(_ int, v any) { cell.Caches = append(cell.Caches, r.cpus(v)) })
	r.each(m, "mempages", 64, func(_ int, v any) {
		if p := r.object(v); p != nil {
			cell.Pages = append(cell.Pages, fit.Pages{
				Size:  topology.PageSize(r.count(p, "size_kb", 1, mostPageKB, true)) << 10,
				Total: r.count(p, "total", 0, mostPages, true), Used: r.count(p, "used", 0, mostPages, false), Reserved: r.count(p, "reserved", 0, mostPages, false),
			})
		}
	})
	slices.SortStableFunc(cell.Pages, func(a, b fit.Pages) int { return int(min(1, max(-1, a.Size-b.Size))) })
	for i, p := range cell.Pages {
		if i > 0 && p.Size == cell.Pages[i-1].Size && p.Size > 0 {
			r.in("mempages", func() { r.fault("two pools of pages of %d KiB", p.Size>>10) })
		}
		if p.Size > 0 && p.Total > mostMemoryMB<<20/int64(p.Size) {
			r.in("mempages", func() { r.fault("%d pages of %d KiB are more than %d MiB", p.Total, p.Size>>10, int64(mostMemoryMB)) })
		}
	}
	if m["network"] != nil {
		r.in("network", func() { cell.Network = r.network(r.object(m["network"])) })
	}
	if len(r.faults) == faults {
		c.cells[key] = readCell{m, cell}
	}
	return cell
}

func (r *reader) network(m map[string]any) *fit.Network {
	if m == nil {
		return nil
	}
	n := &fit.Network{}
	r.each(m, "physnets", mostPools, func(_ int, v any) {
		name, ok := v.(string)
		if !ok {
			r.fault("want a text%s", got(v))
		}
		n.Physical = append(n.Physical, name)
	})
	n.Tunneled = r.yes(m, "tunneled")
	return n
}

func (r *reader) yes(m map[string]any, key string) bool {
	yes, ok := m[key].(bool)
	if !ok && m[key] != nil {
		r.in(key, func() { r.fault("want true or false%s", got(m[key])) })
	}
	return yes
}

func (r *reader) limits(m map[string]any) *fit.Limits {
	if m == nil {
		return nil
	}
	ratio := func(key string) float64 {
		number, ok := m[key].(json.Number)
		f, err := number.Float64()
		if !ok || err != nil || f <= 0 || f > 1e6 {
			r.in(key, func() { r.fault("want a number above 0 and at most 1e6%s", got(m[key])) })
		}
		return f
	}
	l := &fit.Limits{CPURatio: ratio("cpu_allocation_ratio"), RAMRatio: ratio("ram_allocation_ratio")}
	if m["network"] != nil {
		r.in("network", func() { l.Network = r.network(r.object(m["network"])) })
	}
	return l
}

func (c *Case) readRequest(r *reader, request map[string]any) {
	r.in("flavor", func() {
		m := r.object(request["flavor"])
		if m == nil {
			return
		}
		c.Flavor = topology.Flavor{
			Name:       "flavor", // a case names none
			VCPUs:      int(r.count(m, "vcpus", 1, mostVCPUs, true)),
			MemoryMB:   r.count(m, "memory_mb", 1, mostMemoryMB, true),
			ExtraSpecs: r.texts(m, "extra_specs"),
		}
		if name, ok := m["name"].(string); ok && name != "" {
			c.Flavor.Name = name
		}
	})
	c.Image = r.texts(request, "image_props")
	ids := map[string]bool{}
	r.each(request, "pci_requests", mostPools, func(_ int, v any) {
		m := r.object(v)
		if m == nil {
			return
		}
		q := r.pciRequest(m)
		if ids[q.ID] {
			r.in("id", func() { r.fault("a second request %q", q.ID) })
		}
		ids[q.ID] = true
		c.PCI = append(c.PCI, q)
	})
}

func (r *reader) pciRequest(m map[string]any) topology.PCIRequest {
	q := topology.PCIRequest{Count: int(r.count(m, "count", 0, mostDevices, true))}
	id, ok := text(m["id"])
	if !ok {
		r.in("id", func() { r.fault("want a text%s", got(m["id"])) })
	}
	q.ID = id
	switch policy, _ := m["numa_policy"].(string); topology.PCIAffinity(policy) {
	case topology.AffinityLegacy, topology.AffinityPreferred, topology.AffinityRequired, topology.AffinitySocket:
		q.Affinity = topology.PCIAffinity(policy)
	default:
		if m["numa_policy"] != nil {
			r.in("numa_policy", func() { r.fault("%v, want legacy, preferred, required, socket or null", m["numa_policy"]) })
		}
	}
	if l, _ := m["spec"].([]any); len(l) == 0 {
		r.in("spec", func() { r.fault("want at least one") })
	}
	r.each(m, "spec", mostPools, func(_ int, v any) {
		o := r.object(v)
		keys := r.keys(o)
		s := topology.PCISpec{Vendor: keys["vendor_id"], Product: keys["product_id"], Type: pciType(keys["dev_type"])}
		for k, v := range keys {
			switch k {
			case "vendor_id", "product_id", "dev_type":
			default:
				if s.Tags == nil {
					s.Tags = map[string]string{}
				}
				s.Tags[k] = v
			}
		}
		q.Specs = append(q.Specs, s)
	})
	return q
}

// keys are attributes of a device or a spec, in lower case: they compare so.
func (r *reader) keys(m map[string]any) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		t, ok := text(v)
		if !ok {
			r.in(k, func() { r.fault("want a text, a number or a boolean%s", got(v)) })
			continue
		}
		out[k] = strings.ToLower(t)
	}
	return out
}

func pciType(lower string) topology.PCIType {
	for _, t := range []topology.PCIType{topology.PCITypeFunction, topology.PCITypePF, topology.PCITypeVF} {
		if strings.EqualFold(lower, string(t)) {
			return t
		}
	}
	return topology.PCIType(lower)
}

func (c *Case) readPool(r *reader, m map[string]any) {
	p := fit.Pool{Cell: topology.UnknownCell, Count: int(r.count(m, "count", 0, mostDevices, true))}
	raw := pool{}
	if m["numa_node"] != nil {
		node := int(r.count(m, "numa_node", 0, topology.MaxCPU, true))
		p.Cell, raw.node = topology.CellID(node), &node
	}
	r.each(m, "excludes", mostPools, func(_ int, v any) {
		n, ok := whole(v)
		if !ok || n < 0 || n >= mostPools {
			r.fault("want the index of a pool%s", got(v))
		}
		p.Excludes = append(p.Excludes, int(n))
	})
	attributes := maps.Clone(m)
	delete(attributes, "excludes")
	delete(attributes, "count")
	delete(attributes, "numa_node")
	maps.DeleteFunc(attributes, func(_ string, v any) bool { return v == nil })
	keys := r.keys(attributes)
	p.Vendor, p.Product, p.Type = keys["vendor_id"], keys["product_id"], pciType(keys["dev_type"])
	for k, v := range keys {
		switch k {
		case "vendor_id", "product_id", "dev_type":
		default:
			if p.Tags == nil {
				p.Tags = map[string]string{}
			}
			p.Tags[k] = v
		}
	}
	for key, to := range map[string]*string{"vendor_id": &raw.vendor, "product_id": &raw.product, "dev_type": &raw.kind} {
		t, ok := text(m[key])
		if !ok {
			r.in(key, func() { r.fault("want a text%s", got(m[key])) })
		}
		*to = t
	}
	c.Machine.Pools = append(c.Machine.Pools, p)
	c.pools = append(c.pools, raw)
}
