package placement

import (
	"regexp"
	"sync"

	pc "berth/placementclient"
)

// The bodies and queries that each microversion takes, from Placement's API
// reference and its recorded refusals.

var (
	uuidKey        = regexp.MustCompile(`^[0-9a-fA-F-]{36}$`)
	classKey       = regexp.MustCompile(`^[A-Z0-9_]+$`)
	customName     = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]+$`)
	consumerTypeRE = regexp.MustCompile(`^[A-Z0-9_]+$`)
	// From 1.38 GET /usages also takes the words all and unknown.
	consumerTypeGetRE = regexp.MustCompile(`^[A-Z0-9_]+$|^all|^unknown$`)
	groupSuffix       = regexp.MustCompile(`[1-9][0-9]*`)
	groupSuffixNamed  = regexp.MustCompile(`[a-zA-Z0-9_-]{1,64}`)
)

func number(f float64) *float64 { return &f }

func text() *schema { return &schema{types: []string{"string"}} }

func textOf(min, max int) *schema {
	return &schema{types: []string{"string"}, minLen: min, maxLen: max}
}

func uuidText() *schema { return &schema{types: []string{"string"}, uuid: true} }

func integer() *schema { return &schema{types: []string{"integer"}} }

func between(min float64) *schema {
	return &schema{types: []string{"integer"}, min: number(min), max: number(pc.MaxInt)}
}

func parentSchema() *schema {
	return &schema{anyOf: []*schema{uuidText(), {types: []string{"null"}}}}
}

func closedObject(required []string, props ...property) *schema {
	return &schema{types: []string{"object"}, props: props, required: required, closed: true}
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
		s := closedObject([]string{"name"}, property{"name", textOf(0, 200)}, property{"uuid", uuidText()})
		if v >= 14 {
			s.props = append(s.props, property{"parent_provider_uuid", parentSchema()})
		}
		return s
	}}
	providerBody = &byVersion{make: func(v pc.Microversion) *schema {
		s := closedObject([]string{"name"}, property{"name", textOf(0, 200)})
		if v >= 14 {
			s.props = append(s.props, property{"parent_provider_uuid", parentSchema()})
		}
		return s
	}}
	providersQuery = &byVersion{make: func(v pc.Microversion) *schema {
		s := closedObject(nil, property{"name", text()}, property{"uuid", uuidText()})
		add := func(from pc.Microversion, name string, p *schema) {
			if v >= from {
				s.props = append(s.props, property{name, p})
			}
		}
		add(3, "member_of", text())
		add(4, "resources", text())
		add(14, "in_tree", uuidText())
		add(18, "required", text())
		return s
	}}
	allocationsBody = &byVersion{make: func(v pc.Microversion) *schema { return allocationsSchema(v, v >= 28) }}
	// postAllocationsBody is several consumers; emptying one is allowed from the start.
	postAllocationsBody = &byVersion{make: func(v pc.Microversion) *schema { return consumersSchema(v, 1) }}
	reshaperBody        = &byVersion{make: func(v pc.Microversion) *schema {
		return closedObject([]string{"inventories", "allocations"},
			property{"inventories", &schema{types: []string{"object"}, minProps: 1, closed: true,
				patterns: []patternProperty{{uuidKey, inventoriesBody}}}},
			property{"allocations", consumersSchema(v, 0)})
	}}
	usagesQuery = &byVersion{make: func(v pc.Microversion) *schema {
		s := closedObject([]string{"project_id"}, property{"project_id", textOf(1, 255)}, property{"user_id", textOf(1, 255)})
		if v >= 38 {
			t := textOf(1, 255)
			t.pattern = consumerTypeGetRE
			s.props = append(s.props, property{"consumer_type", t})
		}
		return s
	}}
	candidatesQuery = &byVersion{make: candidatesSchema}
	aggregatesBody  = &byVersion{make: func(v pc.Microversion) *schema {
		list := &schema{types: []string{"array"}, items: uuidText(), unique: true}
		if v < 19 {
			return list
		}
		return closedObject([]string{"aggregates", "resource_provider_generation"},
			property{"aggregates", list}, property{"resource_provider_generation", integer()})
	}}
)

// inventoryProps are the fields of one inventory.
func inventoryProps() []property {
	return []property{
		{"resource_provider_generation", integer()},
		{"total", between(1)}, {"reserved", between(0)}, {"min_unit", between(1)},
		{"max_unit", between(1)}, {"step_size", between(1)},
		{"allocation_ratio", &schema{types: []string{"number"}, max: number(3.40282e+38)}},
	}
}

var (
	inventoryBody    = closedObject([]string{"total", "resource_provider_generation"}, inventoryProps()...)
	newInventoryBody = closedObject([]string{"total", "resource_class"}, append(inventoryProps(),
		property{"resource_class", &schema{types: []string{"string"}, pattern: classKey}})...)
	inventoriesBody = closedObject([]string{"resource_provider_generation", "inventories"},
		property{"resource_provider_generation", integer()},
		property{"inventories", &schema{types: []string{"object"},
			patterns: []patternProperty{{classKey, closedObject([]string{"total"}, inventoryProps()...)}}}})
	classBody = closedObject([]string{"name"},
		property{"name", &schema{types: []string{"string"}, pattern: customName, maxLen: 255}})
	traitsBody = closedObject([]string{"traits", "resource_provider_generation"},
		property{"traits", &schema{types: []string{"array"}, items: textOf(1, 255)}},
		property{"resource_provider_generation", integer()})
	traitsQuery = closedObject(nil, property{"name", text()}, property{"associated", text()})
	traitName   = &schema{types: []string{"string"}, minLen: 1, maxLen: 255, pattern: customName}
)

func resourcesSchema() *schema {
	amount := &schema{types: []string{"integer"}, min: number(1)}
	return &schema{types: []string{"object"}, minProps: 1, closed: true, patterns: []patternProperty{{classKey, amount}}}
}

// allocationsSchema is one consumer's allocations; empty says whether there may
// be none.
func allocationsSchema(v pc.Microversion, empty bool) *schema {
	if v < 12 {
		rp := closedObject([]string{"uuid"}, property{"uuid", uuidText()})
		one := closedObject([]string{"resource_provider", "resources"},
			property{"resource_provider", rp}, property{"resources", resourcesSchema()})
		s := closedObject([]string{"allocations"},
			property{"allocations", &schema{types: []string{"array"}, minItems: 1, items: one}})
		if v >= 8 {
			s.props = append(s.props, property{"project_id", textOf(1, 255)}, property{"user_id", textOf(1, 255)})
			s.required = append(s.required, "project_id", "user_id")
		}
		return s
	}
	one := closedObject([]string{"resources"}, property{"generation", integer()}, property{"resources", resourcesSchema()})
	all := &schema{types: []string{"object"}, closed: true, patterns: []patternProperty{{uuidKey, one}}}
	if !empty {
		all.minProps = 1
	}
	s := closedObject([]string{"allocations", "project_id", "user_id"},
		property{"allocations", all}, property{"project_id", textOf(1, 255)}, property{"user_id", textOf(1, 255)})
	if v >= 28 {
		s.props = append(s.props, property{"consumer_generation", &schema{types: []string{"integer", "null"}}})
		s.required = append(s.required, "consumer_generation")
	}
	if v >= 34 {
		s.props = append(s.props, property{"mappings", &schema{types: []string{"object"}, minProps: 1,
			patterns: []patternProperty{{groupSuffixNamed, &schema{types: []string{"array"}, minItems: 1, items: uuidText()}}}}})
	}
	if v >= 38 {
		t := textOf(1, 255)
		t.pattern = consumerTypeRE
		s.props = append(s.props, property{"consumer_type", t})
		s.required = append(s.required, "consumer_type")
	}
	return s
}

func consumersSchema(v pc.Microversion, minProps int) *schema {
	return &schema{types: []string{"object"}, minProps: minProps, closed: true,
		patterns: []patternProperty{{uuidKey, allocationsSchema(v, true)}}}
}

func candidatesSchema(v pc.Microversion) *schema {
	s := closedObject(nil)
	if v >= 16 {
		s.props = append(s.props, property{"limit", &schema{types: []string{"integer", "string"},
			pattern: regexp.MustCompile(`^[1-9][0-9]*$`), minLen: 1}})
	}
	if v < 25 {
		s.required = []string{"resources"}
		s.props = append(s.props, property{"resources", text()})
		if v >= 17 {
			s.props = append(s.props, property{"required", text()})
		}
		if v >= 21 {
			s.props = append(s.props, property{"member_of", text()})
		}
		return s
	}
	s.props = append(s.props, property{"group_policy", &schema{types: []string{"string"}, enum: []string{"none", "isolate"}}})
	suffix := groupSuffix.String()
	if v >= 33 {
		suffix = groupSuffixNamed.String()
	}
	keys := []string{"resources", "required", "member_of"}
	if v >= 31 {
		keys = append(keys, "in_tree")
	}
	for _, k := range keys {
		s.patterns = append(s.patterns, patternProperty{regexp.MustCompile("^" + k + "(" + suffix + ")?$"), text()})
	}
	if v >= 35 {
		s.props = append(s.props, property{"root_required", text()})
	}
	if v >= 36 {
		s.props = append(s.props, property{"same_subtree", text()})
	}
	return s
}
