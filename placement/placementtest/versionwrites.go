package placementtest

// writeSteps is every write but claims: what one makes a later one removes.
func writeSteps() []step {
	rp := "/resource_providers/" + id(passing)
	generation := func(key string, v any) func(*walk) any {
		return func(w *walk) any { return doc{"resource_provider_generation": w.generation(passing), key: v} }
	}
	var out []step
	add := func(method, path string, body func(*walk) any, changes ...int) {
		out = append(out, step{method, path, body, changes})
	}
	// Always sent: the others need what they make.
	always := make([]int, latest+1)
	for v := range always {
		always[v] = v
	}
	add("POST", "/resource_providers", body(doc{"uuid": id(passing), "name": "passing"}), always...)
	add("POST", "/resource_providers", body(doc{"uuid": id(passing), "name": "passing"}))
	add("POST", "/resource_providers", body(doc{"name": "child", "uuid": id(8), "parent_provider_uuid": id(host)}), 14, 20)
	add("POST", "/resource_providers", body(doc{"name": "orphan", "uuid": id(8), "parent_provider_uuid": id(99)}), 14)
	add("DELETE", "/resource_providers/"+id(8), nil, always...)
	add("PUT", rp, body(doc{"name": "renamed"}), 14)
	add("PUT", rp, body(doc{"name": "passing", "parent_provider_uuid": id(host)}), 14)
	add("PUT", rp, body(doc{"name": "passing", "parent_provider_uuid": id(cell0)}), 14, 37)
	add("PUT", rp, body(doc{"name": "passing", "parent_provider_uuid": nil}), 14, 37)
	add("PUT", rp, body(doc{"name": "p1"}), 14)
	add("POST", rp+"/inventories", body(doc{"resource_class": "VCPU", "total": 4}))
	add("POST", rp+"/inventories", body(doc{"resource_class": "VCPU", "total": 4}))
	add("PUT", rp+"/inventories", generation("inventories", doc{"VCPU": doc{"total": 4, "reserved": 4}, "DISK_GB": doc{"total": 9}}), 26)
	add("PUT", rp+"/inventories", generation("inventories", doc{"VCPU": doc{"total": 4}, "DISK_GB": doc{"total": 9}}))
	add("PUT", rp+"/inventories", body(doc{"resource_provider_generation": 77, "inventories": doc{}}))
	add("PUT", rp+"/inventories/VCPU", generation("total", 5))
	add("DELETE", rp+"/inventories/VCPU", nil)
	add("DELETE", rp+"/inventories/VCPU", nil)
	add("DELETE", rp+"/inventories", nil, 5)
	add("PUT", rp+"/aggregates", body([]string{id(elsewhere)}), 1, 19)
	add("PUT", rp+"/aggregates", generation("aggregates", []string{id(inPool)}), 1, 19)
	add("PUT", rp+"/aggregates", body(doc{"resource_provider_generation": 77, "aggregates": []string{}}), 1, 19)
	add("PUT", rp+"/traits", generation("traits", []string{"HW_NUMA_ROOT"}), 6)
	add("PUT", rp+"/traits", generation("traits", []string{"CUSTOM_NONE"}), 6)
	add("PUT", rp+"/traits", body(doc{"resource_provider_generation": 77, "traits": []string{}}), 6)
	add("DELETE", rp+"/traits", nil, 6)
	add("PUT", "/traits/CUSTOM_V{v}", nil, 6)
	add("PUT", "/traits/CUSTOM_V{v}", nil, 6)
	add("DELETE", "/traits/CUSTOM_V{v}", nil, 6)
	add("DELETE", "/traits/CUSTOM_V{v}", nil, 6)
	add("DELETE", "/traits/HW_NUMA_ROOT", nil, 6)
	add("POST", "/resource_classes", body(doc{"name": "CUSTOM_POSTED"}), 2)
	add("POST", "/resource_classes", body(doc{"name": "CUSTOM_POSTED"}), 2)
	add("PUT", "/resource_classes/CUSTOM_POSTED", body(doc{"name": "CUSTOM_PUT"}), 2, 7)
	add("PUT", "/resource_classes/CUSTOM_PUT", nil, 2, 7)
	add("PUT", "/resource_classes/VCPU", nil, 2, 7)
	add("DELETE", "/resource_classes/CUSTOM_POSTED", nil, 2)
	add("DELETE", "/resource_classes/CUSTOM_PUT", nil, 2)
	add("DELETE", "/resource_classes/VCPU", nil, 2)
	add("POST", "/reshaper", func(w *walk) any { return w.reshape(w.generation(passing)) }, 30, 34, 38)
	add("POST", "/reshaper", func(w *walk) any { return w.reshape(77) }, 30)
	add("DELETE", "/resource_providers/"+id(host), nil)
	add("DELETE", "/resource_providers/"+id(cell0), nil)
	add("DELETE", rp, nil, always...)
	return out
}

func (w *walk) reshape(generation any) any {
	return doc{
		"inventories": doc{id(passing): doc{"resource_provider_generation": generation, "inventories": doc{"VCPU": doc{"total": 9}}}},
		"allocations": doc{},
	}
}

// formats are the bodies of a claim, with the microversion each came with; each
// came in the place of the one before, or beside it.
var formats = []struct {
	since                                 int
	dict, owner, generation, kind, mapped bool
}{
	{since: 0},
	{since: 8, owner: true},
	{since: 12, dict: true, owner: true},
	{since: 28, dict: true, owner: true, generation: true},
	{since: 34, dict: true, owner: true, generation: true, mapped: true},
	{since: 38, dict: true, owner: true, generation: true, kind: true},
	{since: 38, dict: true, owner: true, generation: true, kind: true, mapped: true},
}

// claimSteps sends every format at the microversions about which any came, where
// most are refused.
func claimSteps() []step {
	changes := []int{8, 12, 13, 28, 34, 38}
	var out []step
	for i := range formats {
		out = append(out,
			step{"PUT", "/allocations/{consumer}", func(w *walk) any { return w.claim(i, 900, doc{"VCPU": 1 + i}) }, changes},
			step{"POST", "/allocations", func(w *walk) any {
				return doc{id(900 + w.v): w.claim(i, 900, nil), id(950 + w.v): w.claim(i, 950, doc{"VCPU": 1 + i})}
			}, changes})
	}
	return out
}

// claim is a body of one format; none of resources makes it empty.
func (w *walk) claim(format, consumer int, resources doc) doc {
	f := formats[format]
	out := doc{}
	switch {
	case f.dict && resources == nil:
		out["allocations"] = doc{}
	case f.dict:
		out["allocations"] = doc{id(cell1): doc{"resources": resources}}
	case resources == nil:
		out["allocations"] = []any{}
	default:
		out["allocations"] = []any{doc{"resource_provider": doc{"uuid": id(cell1)}, "resources": resources}}
	}
	if f.owner {
		out["project_id"], out["user_id"] = "p", "u"
	}
	if f.generation {
		out["consumer_generation"] = w.field("/allocations/"+id(consumer+w.v), "consumer_generation")
	}
	if f.kind {
		out["consumer_type"] = "INSTANCE"
	}
	if f.mapped {
		out["mappings"] = doc{"_A": []string{id(cell1)}}
	}
	return out
}
