package placement

import (
	"slices"

	pc "berth/placementclient"
)

// oneProviderATree leaves the candidates that a client without nested providers
// (below 1.29) can use.
func oneProviderATree(options []option) []option {
	return slices.DeleteFunc(options, func(o option) bool {
		providers, roots := map[string]bool{}, map[string]bool{}
		for _, a := range o.parts {
			providers[a.p.UUID], roots[a.p.Root] = true, true
		}
		return len(providers) != len(roots)
	})
}

func requestsJSON(options []option, v pc.Microversion) []any {
	out := []any{}
	for _, o := range options {
		byProvider := map[string]pc.Resources{}
		var order []string
		for _, a := range o.parts {
			if byProvider[a.p.UUID] == nil {
				byProvider[a.p.UUID] = pc.Resources{}
				order = append(order, a.p.UUID)
			}
			byProvider[a.p.UUID][a.class] += a.n
		}
		if v < 12 {
			list := []any{}
			for _, id := range order {
				list = append(list, map[string]any{"resource_provider": map[string]any{"uuid": id}, "resources": byProvider[id]})
			}
			out = append(out, map[string]any{"allocations": list})
			continue
		}
		all := map[string]any{}
		for id, held := range byProvider {
			all[id] = map[string]any{"resources": held}
		}
		one := map[string]any{"allocations": all}
		if v >= 34 {
			mappings := map[string][]string{}
			for _, g := range o.groups {
				mappings[g.suffix] = g.providers
			}
			one["mappings"] = mappings
		}
		out = append(out, one)
	}
	return out
}

// summariesJSON describes every provider of each tree that appears; below 1.29
// only those that take part.
func (t *tx) summariesJSON(options []option, groups []*group, v pc.Microversion) map[string]any {
	asked := map[string]bool{}
	for _, g := range groups {
		for _, a := range g.resources {
			asked[a.class] = true
		}
	}
	providers := map[string]*provider{}
	roots := map[string]bool{}
	for _, o := range options {
		for _, a := range o.parts {
			if v < 29 {
				providers[a.p.UUID] = a.p
			} else if !roots[a.p.Root] {
				roots[a.p.Root] = true
				for _, p := range t.tree(a.p.Root) {
					providers[p.UUID] = p
				}
			}
		}
	}
	out := map[string]any{}
	for id, p := range providers {
		resources := map[string]any{}
		for class, inv := range p.Inventories {
			if v >= 27 || asked[class] {
				resources[class] = pc.ResourceSummary{Capacity: inv.Capacity(), Used: t.used(id, class)}
			}
		}
		one := map[string]any{"resources": resources}
		if v >= 17 {
			one["traits"] = append([]string{}, p.Traits...)
		}
		if v >= 29 {
			one["parent_provider_uuid"] = orNull(p.Parent)
			one["root_provider_uuid"] = p.Root
		}
		out[id] = one
	}
	return out
}
