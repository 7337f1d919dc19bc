package placement

import (
	pc "berth/placementclient"
)

func providerUsages(t *tx, r *request) (*answer, error) {
	p, err := theProviderOr(t, r, "No resource provider with uuid %s found: %s")
	if err != nil {
		return nil, err
	}
	used := map[string]int64{}
	for class := range p.Inventories {
		used[class] = t.used(p.UUID, class)
	}
	return ok(map[string]any{"resource_provider_generation": p.Generation, "usages": used}), nil
}

// projectUsages sums what a project's consumers hold; from 1.38 by consumer type.
func projectUsages(t *tx, r *request) (*answer, error) {
	if err := r.checkQuery(usagesQuery.at(r.version)); err != nil {
		return nil, err
	}
	project, _ := r.last("project_id")
	user, byUser := r.last("user_id")
	wanted, _ := r.last("consumer_type")
	type sum struct {
		resources pc.Resources
		consumers int64
	}
	sums := map[string]*sum{}
	for _, c := range t.b.consumers { // a read: the base is all there is
		if c.Project != project || byUser && c.User != user || len(c.Allocations) == 0 {
			continue
		}
		kind := c.Type
		if kind == "" {
			kind = pc.ConsumerUnknown
		}
		switch {
		case r.version < 38 || wanted == "all":
			kind = "all"
		case wanted != "" && wanted != kind:
			continue
		}
		if sums[kind] == nil {
			sums[kind] = &sum{resources: pc.Resources{}}
		}
		sums[kind].consumers++
		for _, held := range c.Allocations {
			for class, n := range held {
				sums[kind].resources[class] += n
			}
		}
	}
	if r.version < 38 {
		out := pc.Resources{}
		if sums["all"] != nil {
			out = sums["all"].resources
		}
		return ok(map[string]any{"usages": out}), nil
	}
	out := map[string]any{}
	for kind, s := range sums {
		s.resources["consumer_count"] = s.consumers
		out[kind] = s.resources
	}
	return ok(map[string]any{"usages": out}), nil
}
