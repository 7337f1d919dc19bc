package fitcase

import (
	"berth/claims/fit"
	"berth/topology"
)

// Document is a case as encoding/json writes it, for who composes one. Host and
// Limits take what HostDocument and LimitsDocument give, or what was read from
// another case.
type Document struct {
	ID      string `json:"id"`
	Host    any    `json:"host"`
	Request any    `json:"request"`
	Limits  any    `json:"limits"`
}

// HostDocument writes a machine's cells and pools as the host of a case. Beyond
// the case format it has the fields caches, of a cell, and excludes, of a pool.
func HostDocument(m *fit.Machine) map[string]any {
	cells := []any{}
	for _, c := range m.Cells {
		siblings, caches, pages := []string{}, []string{}, []any{}
		for _, s := range c.Cores {
			siblings = append(siblings, s.String())
		}
		for _, s := range c.Caches {
			caches = append(caches, s.String())
		}
		for _, p := range c.Pages {
			pages = append(pages, map[string]any{"size_kb": int64(p.Size) >> 10, "total": p.Total, "used": p.Used, "reserved": p.Reserved})
		}
		cell := map[string]any{
			"id": c.ID, "socket": c.Socket, "shared_cpus": c.Shared.String(), "dedicated_cpus": c.Dedicated.String(), "siblings": siblings,
			"memory_mb": c.MemoryMB, "memory_used_mb": c.MemoryUsedMB, "shared_vcpus_used": c.SharedUsed, "pinned_cpus": c.Pinned.String(), "mempages": pages,
		}
		if len(caches) > 0 {
			cell["caches"] = caches
		}
		if c.Network != nil {
			cell["network"] = networkDocument(c.Network)
		}
		cells = append(cells, cell)
	}
	pools := []any{}
	for _, p := range m.Pools {
		pool := map[string]any{"vendor_id": p.Vendor, "product_id": p.Product, "dev_type": string(p.Type), "numa_node": nil, "count": p.Count}
		if p.Cell != topology.UnknownCell {
			pool["numa_node"] = p.Cell
		}
		for k, v := range p.Tags {
			pool[k] = v
		}
		if len(p.Excludes) > 0 {
			pool["excludes"] = p.Excludes
		}
		pools = append(pools, pool)
	}
	return map[string]any{"strategy": "pack", "cells": cells, "pci_pools": pools}
}

// LimitsDocument writes limits; nil for none.
func LimitsDocument(l *fit.Limits) any {
	if l == nil {
		return nil
	}
	out := map[string]any{"cpu_allocation_ratio": l.CPURatio, "ram_allocation_ratio": l.RAMRatio, "network": nil}
	if l.Network != nil {
		out["network"] = networkDocument(l.Network)
	}
	return out
}

func networkDocument(n *fit.Network) map[string]any {
	names := n.Physical
	if names == nil {
		names = []string{}
	}
	return map[string]any{"physnets": names, "tunneled": n.Tunneled}
}

// RequestDocument writes the request of a case.
func RequestDocument(f topology.Flavor, image map[string]string, requests []topology.PCIRequest) map[string]any {
	pci := []any{}
	for _, q := range requests {
		specs := []any{}
		for _, s := range q.Specs {
			spec := map[string]any{}
			for k, v := range s.Tags {
				spec[k] = v
			}
			for k, v := range map[string]string{"vendor_id": s.Vendor, "product_id": s.Product, "dev_type": string(s.Type)} {
				if v != "" {
					spec[k] = v
				}
			}
			specs = append(specs, spec)
		}
		request := map[string]any{"id": q.ID, "count": q.Count, "spec": specs, "numa_policy": nil}
		if q.Affinity != "" {
			request["numa_policy"] = string(q.Affinity)
		}
		pci = append(pci, request)
	}
	extra, props := f.ExtraSpecs, image
	if extra == nil {
		extra = map[string]string{}
	}
	if props == nil {
		props = map[string]string{}
	}
	return map[string]any{
		"flavor":      map[string]any{"name": f.Name, "vcpus": f.VCPUs, "memory_mb": f.MemoryMB, "extra_specs": extra},
		"image_props": props, "pci_requests": pci,
	}
}
