package placement

import (
	"regexp"
	"sync"

	pc "berth/placementclient"
)

// The bodies and queries that each microversion takes, from Placement's API
// reference and its recorded refusals.

const (
	uuidKey          = `^[0-9a-fA-F-]{36}$`
	classKey         = `^[A-Z0-9_]+$`
	groupSuffix      = `[1-9][0-9]*`
	groupSuffixNamed = `[a-zA-Z0-9_-]{1,64}`
)

var (
	customName     = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]+$`)
	consumerTypeRE = regexp.MustCompile(`^[A-Z0-9_]+$`)
	// From 1.38 GET /usages also takes the words all and unknown.
	consumerTypeGetRE = regexp.MustCompile(`^[A-Z0-9_]+$|^all|^unknown$`)
)

func text() *schema { return typed("string") }

// textList is text whose type is written as a list of one.
func textList() *schema { return &schema{[]rule{{name: "type", value: []string{"string"}}}} }

func textOf(min, max string) *schema {
	s := text()
	if min != "" {
		s = s.with(bound("minLength", min))
	}
	return s.with(bound("maxLength", max))
}

func uuidText() *schema { return text().with(rule{name: "format", value: "uuid"}) }

func integer() *schema { return typed("integer") }

func between(min string) *schema {
	return integer().with(bound("maximum", "2147483647"), bound("minimum", min))
}

func parentSchema() *schema { return anyOf(uuidText(), typed("null")) }

func prop(name string, s *schema) property { return property{name: name, s: s} }

func closedObject(names []string, props ...property) *schema {
	s := typed("object").with(properties(props...))
	if len(names) > 0 {
		s = s.with(required(names...))
	}
	return s.with(closed())
}

// byVersion memoises schemas, which depend on nothing but the microversion.
type byVersion struct {
	make func(v pc.Microversion) *schema
	once [maxVersion + 1]sync.Once
	made [maxVersion + 1]*schema
}

func (b *byVersion) at(v pc.Microversion) *schema {
	b.once[v].Do(func() { b.made[v] = b.make(v) })
	return b.made[v]
}

var (
	newProviderBody = &byVersion{make: func(v pc.Microversion) *schema {
		props := []property{prop("name", textOf("", "200")), prop("uuid", uuidText())}
		if v >= 14 {
			props = append(props, prop("parent_provider_uuid", parentSchema()))
		}
		return closedObject([]string{"name"}, props...)
	}}
	providerBody = &byVersion{make: func(v pc.Microversion) *schema {
		props := []property{prop("name", textOf("", "200"))}
		if v >= 14 {
			props = append(props, prop("parent_provider_uuid", parentSchema()))
		}
		return closedObject([]string{"name"}, props...)
	}}
	providersQuery = &byVersion{make: func(v pc.Microversion) *schema {
		props := []property{prop("name", text()), prop("uuid", uuidText())}
		add := func(from pc.Microversion, name string, p *schema) {
			if v >= from {
				props = append(props, prop(name, p))
			}
		}
		add(3, "member_of", text())
		add(4, "resources", text())
		add(14, "in_tree", uuidText())
		add(18, "required", text())
		return closedObject(nil, props...)
	}}
	allocationsBody = &byVersion{make: func(v pc.Microversion) *schema { return allocationsSchema(v, v >= 28) }}
	// postAllocationsBody is several consumers; emptying one is allowed from the start.
	postAllocationsBody = &byVersion{make: func(v pc.Microversion) *schema { return consumersSchema(v, "1") }}
	reshaperBody        = &byVersion{make: func(v pc.Microversion) *schema {
		return closedObject([]string{"inventories", "allocations"},
			prop("inventories", typed("object").with(patternProperties(prop(uuidKey, inventoriesBody)), bound("minProperties", "1"), closed())),
			prop("allocations", consumersSchema(v, "0")))
	}}
	usagesQuery = &byVersion{make: func(v pc.Microversion) *schema {
		props := []property{prop("project_id", textOf("1", "255")), prop("user_id", textOf("1", "255"))}
		if v >= 38 {
			props = append(props, prop("consumer_type", typeText(consumerTypeGetRE)))
		}
		return closedObject([]string{"project_id"}, props...)
	}}
	candidatesQuery = &byVersion{make: candidatesSchema}
	aggregatesBody  = &byVersion{make: func(v pc.Microversion) *schema {
		list := typed("array").with(items(uuidText()), unique())
		if v < 19 {
			return list
		}
		return closedObject([]string{"aggregates", "resource_provider_generation"},
			prop("aggregates", list), prop("resource_provider_generation", integer()))
	}}
)

func typeText(re *regexp.Regexp) *schema {
	return text().with(pattern(re), bound("minLength", "1"), bound("maxLength", "255"))
}

// inventoryProps are the fields of one inventory.
func inventoryProps() []property {
	return []property{
		prop("resource_provider_generation", integer()),
		prop("total", between("1")), prop("reserved", between("0")), prop("min_unit", between("1")),
		prop("max_unit", between("1")), prop("step_size", between("1")),
		prop("allocation_ratio", typed("number").with(bound("maximum", "3.40282e+38"))),
	}
}

var (
	inventoryBody    = closedObject([]string{"total", "resource_provider_generation"}, inventoryProps()...)
	newInventoryBody = closedObject([]string{"total", "resource_class"}, append(inventoryProps(),
		prop("resource_class", text().with(pattern(regexp.MustCompile(classKey)))))...)
	inventoriesBody = closedObject([]string{"resource_provider_generation", "inventories"},
		prop("resource_provider_generation", integer()),
		prop("inventories", typed("object").with(patternProperties(prop(classKey, closedObject([]string{"total"}, inventoryProps()...))))))
	classBody  = closedObject([]string{"name"}, prop("name", text().with(pattern(customName), bound("maxLength", "255"))))
	traitsBody = closedObject([]string{"traits", "resource_provider_generation"},
		prop("traits", typed("array").with(items(textOf("1", "255")))),
		prop("resource_provider_generation", integer()))
	traitsQuery = closedObject(nil, prop("name", text()), prop("associated", text()))
	traitName   = textOf("1", "255").with(pattern(customName))
)

func resourcesSchema() *schema {
	return typed("object").with(bound("minProperties", "1"),
		patternProperties(prop(classKey, integer().with(bound("minimum", "1")))), closed())
}

// allocationsSchema is one consumer's allocations; empty says whether there may
// be none.
func allocationsSchema(v pc.Microversion, empty bool) *schema {
	owners := []property{prop("project_id", textOf("1", "255")), prop("user_id", textOf("1", "255"))}
	if v < 12 {
		rp := typed("object").with(properties(prop("uuid", uuidText())), closed(), required("uuid"))
		one := closedObject([]string{"resource_provider", "resources"},
			prop("resource_provider", rp), prop("resources", resourcesSchema()))
		props := []property{prop("allocations", typed("array").with(bound("minItems", "1"), items(one)))}
		names := []string{"allocations"}
		if v >= 8 {
			props = append(props, owners...)
			names = append(names, "project_id", "user_id")
		}
		return closedObject(names, props...)
	}
	min := "1"
	if empty {
		min = "0"
	}
	one := closedObject([]string{"resources"}, prop("generation", integer()), prop("resources", resourcesSchema()))
	all := typed("object").with(bound("minProperties", min), patternProperties(prop(uuidKey, one)), closed())
	props := append([]property{prop("allocations", all)}, owners...)
	names := []string{"allocations", "project_id", "user_id"}
	if v >= 28 {
		// The second keyword means nothing for a number; it is printed all the same.
		props = append(props, prop("consumer_generation", typed("integer", "null").with(closed())))
		names = append(names, "consumer_generation")
	}
	if v >= 34 {
		list := typed("array").with(bound("minItems", "1"), items(uuidText()))
		props = append(props, prop("mappings", typed("object").with(bound("minProperties", "1"), patternProperties(prop(groupSuffixNamed, list)))))
	}
	if v >= 38 {
		props = append(props, prop("consumer_type", typeText(consumerTypeRE)))
		names = append(names, "consumer_type")
	}
	return typed("object").with(properties(props...), closed(), required(names...))
}

func consumersSchema(v pc.Microversion, minProps string) *schema {
	return typed("object").with(bound("minProperties", minProps), closed(),
		patternProperties(prop(uuidKey, allocationsSchema(v, true))))
}

func candidatesSchema(v pc.Microversion) *schema {
	var props []property
	limit := typed("integer", "string").with(pattern(regexp.MustCompile(`^[1-9][0-9]*$`)), bound("minimum", "1"), bound("minLength", "1"))
	if v < 25 {
		props = append(props, prop("resources", text()))
		if v >= 16 {
			props = append(props, prop("limit", limit))
		}
		if v >= 17 {
			props = append(props, prop("required", textList()))
		}
		if v >= 21 {
			props = append(props, prop("member_of", textList()))
		}
		return closedObject([]string{"resources"}, props...)
	}
	props = append(props, prop("limit", limit),
		prop("group_policy", text().with(rule{name: "enum", value: []string{"none", "isolate"}})))
	if v >= 35 {
		props = append(props, prop("root_required", textList()))
	}
	if v >= 36 {
		props = append(props, prop("same_subtree", textList()))
	}
	suffix, keys := groupSuffix, []string{"resources", "required", "member_of"}
	if v >= 33 {
		suffix = groupSuffixNamed
	}
	if v >= 31 {
		keys = append(keys, "in_tree")
	}
	var groups []property
	for _, k := range keys {
		groups = append(groups, prop("^"+k+"("+suffix+")?$", text()))
	}
	return typed("object").with(properties(props...), closed(), patternProperties(groups...))
}
