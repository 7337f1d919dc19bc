package placementclient

import (
	"encoding/json"
	"maps"
	"slices"
)

// Resources is an amount per resource class, in the class's own unit (MEMORY_MB
// in MiB, DISK_GB in GiB, the others in pieces).
type Resources map[string]int64

// ResourceProvider is a host, or a part of one, that has inventory.
type ResourceProvider struct {
	UUID string `json:"uuid"`
	Name string `json:"name"`
	// Generation rises with each write to the provider, its inventories, traits,
	// aggregates or the allocations on it, also when nothing changed; only writing
	// the traits it has already does not raise it, nor does renaming it or deleting
	// a consumer's allocations (DELETE).
	Generation int `json:"generation"`
	// ParentProviderUUID is empty for a root.
	ParentProviderUUID string `json:"parent_provider_uuid,omitempty"`
	// RootProviderUUID is the provider's own UUID for a root.
	RootProviderUUID string `json:"root_provider_uuid,omitempty"`
}

// IsRoot says whether the provider has no parent.
func (p ResourceProvider) IsRoot() bool { return p.ParentProviderUUID == "" }

// Inventory is what a provider has of one resource class. In a write, MinUnit,
// MaxUnit, StepSize and AllocationRatio of zero mean Placement's defaults: 1,
// 2147483647, 1 and 1.0.
type Inventory struct {
	Total           int64   `json:"total"`
	Reserved        int64   `json:"reserved"`
	MinUnit         int64   `json:"min_unit"`
	MaxUnit         int64   `json:"max_unit"`
	StepSize        int64   `json:"step_size"`
	AllocationRatio float64 `json:"allocation_ratio"`
}

// MaxInt is the largest amount Placement knows, and the default MaxUnit.
const MaxInt = 2147483647

// WithDefaults is the inventory as Placement stores it: zero units and ratio are
// replaced by Placement's defaults.
func (i Inventory) WithDefaults() Inventory {
	if i.MinUnit == 0 {
		i.MinUnit = 1
	}
	if i.MaxUnit == 0 {
		i.MaxUnit = MaxInt
	}
	if i.StepSize == 0 {
		i.StepSize = 1
	}
	if i.AllocationRatio == 0 {
		i.AllocationRatio = 1
	}
	return i
}

// Capacity is how much can be allocated in all: (total - reserved) * ratio,
// rounded down, as Placement computes it. It ends at 2^62: a ratio may be as large as
// a 32-bit float, and used amounts are added.
func (i Inventory) Capacity() int64 {
	return int64(min(1<<62, max(-1<<62, float64(i.Total-i.Reserved)*i.AllocationRatio)))
}

// Inventories is everything a provider has, with the generation it was read at
// or is to be written at.
type Inventories struct {
	Generation  int                  `json:"resource_provider_generation"`
	Inventories map[string]Inventory `json:"inventories"` // by resource class
}

// Traits is a provider's traits with the generation they were read at or are to
// be written at. Reads are sorted.
type Traits struct {
	Generation int      `json:"resource_provider_generation"`
	Traits     []string `json:"traits"`
}

// Aggregates is the aggregates a provider is in (UUIDs, sorted when read), with
// the generation they were read at or are to be written at.
type Aggregates struct {
	Generation int      `json:"resource_provider_generation"`
	Aggregates []string `json:"aggregates"`
}

// Usages is what is allocated of a provider, by class.
type Usages struct {
	Generation int       `json:"resource_provider_generation"`
	Usages     Resources `json:"usages"`
}

// ConsumerUsage is a project's usage by consumers of one type.
type ConsumerUsage struct {
	ConsumerCount int
	Resources     Resources
}

// Allocations is everything one consumer holds, on all providers. A write
// replaces the whole; a consumer whose Allocations are empty is gone.
type Allocations struct {
	// Allocations is by provider UUID.
	Allocations map[string]Resources
	ProjectID   string
	UserID      string
	// ConsumerGeneration is nil for a consumer that does not exist: in an answer
	// none was found, in a write none must be there. Every write raises it by 1,
	// also when nothing changed; the first write makes it 1.
	ConsumerGeneration *int
	// ConsumerType is ConsumerInstance or ConsumerMigration; from microversion
	// 1.38, empty in answers and left out of writes below that. Consumers written
	// below 1.38 read as ConsumerUnknown.
	ConsumerType string
	// Mappings says, for request groups by suffix ("" is the unnumbered one),
	// which providers serve them. Only written, from 1.34; usually nil.
	Mappings map[string][]string
}

// Exists says whether the consumer was there when it was read. Orphan consumers
// of generation 0, which Placement keeps after some failed claims, cannot be seen.
func (a Allocations) Exists() bool { return a.ConsumerGeneration != nil }

// Clone is a deep copy.
func (a Allocations) Clone() Allocations {
	if a.Allocations != nil {
		all := make(map[string]Resources, len(a.Allocations))
		for rp, r := range a.Allocations {
			all[rp] = maps.Clone(r)
		}
		a.Allocations = all
	}
	if a.ConsumerGeneration != nil {
		a.ConsumerGeneration = Generation(*a.ConsumerGeneration)
	}
	if a.Mappings != nil {
		m := make(map[string][]string, len(a.Mappings))
		for k, v := range a.Mappings {
			m[k] = slices.Clone(v)
		}
		a.Mappings = m
	}
	return a
}

// SameResources says whether both hold the same amounts on the same providers.
// Generations, owners and types do not count.
func (a Allocations) SameResources(b Allocations) bool {
	return maps.EqualFunc(a.Allocations, b.Allocations, func(x, y Resources) bool { return maps.Equal(x, y) })
}

// Generation makes a consumer generation to write with.
func Generation(g int) *int { return &g }

// wireAllocation is one provider's part of a consumer's allocations.
type wireAllocation struct {
	Resources  Resources `json:"resources"`
	Generation *int      `json:"generation,omitempty"`
}

// wireAllocations is a consumer's allocations as they travel. The generation is
// a RawMessage because a write wants null where it has none, and a read omits it.
type wireAllocations struct {
	Allocations        map[string]wireAllocation `json:"allocations"`
	ProjectID          string                    `json:"project_id,omitempty"`
	UserID             string                    `json:"user_id,omitempty"`
	ConsumerGeneration *int                      `json:"consumer_generation"`
	ConsumerType       string                    `json:"consumer_type,omitempty"`
	Mappings           map[string][]string       `json:"mappings,omitempty"`
}

func (a Allocations) wire(v Microversion) wireAllocations {
	w := wireAllocations{
		Allocations:        map[string]wireAllocation{},
		ProjectID:          a.ProjectID,
		UserID:             a.UserID,
		ConsumerGeneration: a.ConsumerGeneration,
	}
	for rp, r := range a.Allocations {
		w.Allocations[rp] = wireAllocation{Resources: r}
	}
	if v >= versionConsumerTypes {
		w.ConsumerType = a.ConsumerType
	}
	if v >= versionMappings {
		w.Mappings = a.Mappings
	}
	return w
}

func (w wireAllocations) allocations() Allocations {
	a := Allocations{
		Allocations:        map[string]Resources{},
		ProjectID:          w.ProjectID,
		UserID:             w.UserID,
		ConsumerGeneration: w.ConsumerGeneration,
		ConsumerType:       w.ConsumerType,
	}
	for rp, r := range w.Allocations {
		a.Allocations[rp] = r.Resources
	}
	return a
}

// UnmarshalJSON reads the answer of GET /allocations/{consumer}.
func (a *Allocations) UnmarshalJSON(b []byte) error {
	var w wireAllocations
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*a = w.allocations()
	return nil
}

// MarshalJSON is the form of UnmarshalJSON, at the newest microversion.
func (a Allocations) MarshalJSON() ([]byte, error) { return json.Marshal(a.wire(MaxMicroversion)) }

// ProviderAllocations is who holds what of one provider.
type ProviderAllocations struct {
	Generation int
	// Allocations is by consumer UUID.
	Allocations map[string]Resources
	// ConsumerGenerations is by consumer UUID.
	ConsumerGenerations map[string]int
}

// AllocationCandidates is the answer to "who could hold this".
type AllocationCandidates struct {
	Candidates []Candidate
	// Summaries is by provider UUID and lists every provider of each tree that
	// appears (only the ones that take part, below 1.29).
	Summaries map[string]ProviderSummary
}

// Candidate is one way to place the whole request.
type Candidate struct {
	// Allocations is by provider UUID; it can be written as it stands.
	Allocations map[string]Resources
	// Mappings is by request group suffix; nil below 1.34.
	Mappings map[string][]string
}

// ProviderSummary is what a provider has and how much of it is used.
type ProviderSummary struct {
	Resources          map[string]ResourceSummary `json:"resources"`
	Traits             []string                   `json:"traits"`
	ParentProviderUUID string                     `json:"parent_provider_uuid"` // empty for a root
	RootProviderUUID   string                     `json:"root_provider_uuid"`
}

// ResourceSummary is the capacity (see Inventory.Capacity) and usage of a class.
type ResourceSummary struct {
	Capacity int64 `json:"capacity"`
	Used     int64 `json:"used"`
}
