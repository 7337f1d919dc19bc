package fitcase

import (
	"maps"
	"slices"

	"berth/claims/fit"
	"berth/topology"
)

// nearness gives what devices and networks still lack on the chosen host cells,
// in several ways; one empty candidate where nothing is lacking. Without a guest
// topology, devices are taken from anywhere and networks ask nothing.
func (c *Case) nearness(guest *topology.GuestTopology, chosen []int) []candidate {
	networks := candidate{}
	if guest != nil {
		networks = c.nearNetworks(chosen)
	}
	pools, softer := c.nearDevices(guest != nil, chosen)
	out := []candidate{networks.with(pools)}
	if len(pools.ops) > 0 {
		out = append(out, networks.with(softer))
	}
	return out
}

// nearNetworks brings every network that the guest uses, and that has affinity
// to cells of which none is chosen, near to the first of those chosen.
func (c *Case) nearNetworks(chosen []int) (out candidate) {
	l := c.Machine.Limits
	if l == nil || l.Network == nil || len(chosen) == 0 {
		return out
	}
	var lack []string
	near := func(cells []int, has func(*fit.Network) bool) bool {
		return slices.ContainsFunc(cells, func(i int) bool { n := c.Machine.Cells[i].Network; return n != nil && has(n) })
	}
	all := make([]int, len(c.Machine.Cells))
	for i := range all {
		all[i] = i
	}
	for _, name := range l.Network.Physical {
		has := func(n *fit.Network) bool { return slices.Contains(n.Physical, name) }
		if near(all, has) && !near(chosen, has) {
			lack = append(lack, name)
		}
	}
	tunneled := func(n *fit.Network) bool { return n.Tunneled }
	lackTunnel := l.Network.Tunneled && near(all, tunneled) && !near(chosen, tunneled)
	if len(lack) == 0 && !lackTunnel {
		return out
	}
	now := c.Machine.Cells[chosen[0]].Network
	if now == nil {
		now = &fit.Network{}
	}
	physical := append(slices.Clone(now.Physical), lack...)
	if physical == nil {
		physical = []string{}
	}
	out.ops = []Op{{"add", pointer("host", "cells", itoa(chosen[0]), "network"),
		map[string]any{"physnets": physical, "tunneled": now.Tunneled || lackTunnel}}}
	out.departure = 10
	return out
}

// nearDevices gives two ways to the devices that are short: more in the pools,
// or softer requests. Requests draw in order, each from the first pools it may.
func (c *Case) nearDevices(cells bool, chosen []int) (pools, softer candidate) {
	left := make([]int, len(c.Machine.Pools))
	anywhere := 0
	for i, p := range c.Machine.Pools {
		left[i] = p.Count
		anywhere += p.Count
	}
	more := make([]int, len(left)) // by pool: how many it lacks
	var added []Op
	var gone []int
	for i, q := range c.PCI {
		want, first := q.Count, -1
		for p := range left {
			if !c.may(q, p, cells, chosen) {
				continue
			}
			if first < 0 {
				first = p
			}
			n := min(want, left[p])
			left[p] -= n
			want -= n
		}
		if want == 0 {
			continue
		}
		key := pointer("request", "pci_requests", itoa(i), "numa_policy")
		if cells && q.Affinity != topology.AffinityPreferred && c.matching(q) >= q.Count {
			softer.ops = append(softer.ops, Op{c.verb(key), key, string(topology.AffinityPreferred)})
			softer.departure += 0.5
		} else {
			gone = append(gone, i)
		}
		switch {
		case cells && q.Affinity == topology.AffinitySocket && slices.ContainsFunc(c.Machine.Cells, func(h fit.Cell) bool { return h.Socket == nil }):
			// No pool helps where sockets are unknown.
			pools.ops = append(pools.ops, Op{c.verb(key), key, string(topology.AffinityPreferred)})
			pools.departure += 0.5
			for p := range left {
				if want > 0 && c.Machine.Pools[p].Answers(q) {
					n := min(want, left[p])
					left[p] -= n
					if want -= n; first < 0 {
						first = p
					}
				}
			}
			if want == 0 {
				continue
			}
			fallthrough
		default:
			if first >= 0 {
				more[first] += want
			} else {
				added = append(added, Op{"add", "/host/pci_pools/-", c.newPool(q, want, chosen)})
			}
			pools.departure += 10 * (1 + float64(want)/float64(max(1, anywhere)))
		}
	}
	for p, n := range more {
		if n > 0 {
			pools.ops = append(pools.ops, Op{"replace", pointer("host", "pci_pools", itoa(p), "count"), c.Machine.Pools[p].Count + n})
		}
	}
	if host, _ := c.doc["host"].(map[string]any); len(added) > 0 && host["pci_pools"] == nil {
		pools.ops = append(pools.ops, Op{"add", "/host/pci_pools", []any{}})
	}
	pools.ops = append(pools.ops, added...)
	slices.Reverse(gone) // so that no removal moves what is removed after it
	for _, i := range gone {
		softer.ops = append(softer.ops, Op{Op: "remove", Path: pointer("request", "pci_requests", itoa(i))})
		softer.departure += 2
	}
	return pools, softer
}

// matching is how many devices match a request, wherever they are.
func (c *Case) matching(q topology.PCIRequest) (n int) {
	for p := range c.Machine.Pools {
		if c.Machine.Pools[p].Answers(q) {
			n += c.Machine.Pools[p].Count
		}
	}
	return n
}

// may reports whether a request may draw on a pool.
func (c *Case) may(q topology.PCIRequest, i int, cells bool, chosen []int) bool {
	if !c.Machine.Pools[i].Answers(q) {
		return false
	}
	if !cells || q.Affinity == topology.AffinityPreferred {
		return true
	}
	node := c.Machine.Pools[i].Cell
	at := slices.IndexFunc(c.Machine.Cells, func(h fit.Cell) bool { return h.ID == node })
	if node == topology.UnknownCell || at < 0 {
		return node == topology.UnknownCell && (q.Affinity == topology.AffinityLegacy || q.Affinity == "")
	}
	if q.Affinity != topology.AffinitySocket {
		return slices.Contains(chosen, at)
	}
	for _, h := range c.Machine.Cells {
		if h.Socket == nil {
			return false
		}
	}
	return slices.ContainsFunc(chosen, func(h int) bool { return *c.Machine.Cells[h].Socket == *c.Machine.Cells[at].Socket })
}

// newPool is a pool on the first chosen cell, of functions that a pool elsewhere
// has or, where none has, that the request names.
func (c *Case) newPool(q topology.PCIRequest, count int, chosen []int) map[string]any {
	out := map[string]any{}
	for p := range c.Machine.Pools {
		if c.Machine.Pools[p].Answers(q) {
			host, _ := c.doc["host"].(map[string]any)
			list, _ := host["pci_pools"].([]any)
			like, _ := list[p].(map[string]any)
			out = maps.Clone(like)
			break
		}
	}
	if len(out) == 0 {
		s := q.Specs[0]
		for k, v := range s.Tags {
			out[k] = v
		}
		out["vendor_id"], out["product_id"], out["dev_type"] = or(s.Vendor, "ffff"), or(s.Product, "ffff"), or(string(s.Type), string(topology.PCITypeFunction))
	}
	out["count"], out["numa_node"] = count, nil
	if len(chosen) > 0 {
		out["numa_node"] = int(c.Machine.Cells[chosen[0]].ID)
	}
	return out
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
