package placement

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	pc "berth/placementclient"
)

// provider is a resource provider with all that hangs on it. A provider in the
// base state is never changed in place: a transaction edits a copy.
type provider struct {
	UUID        string                  `json:"uuid"`
	Name        string                  `json:"name"`
	Generation  int                     `json:"generation"`
	Parent      string                  `json:"parent,omitempty"` // empty for a root
	Root        string                  `json:"root"`
	Seq         int64                   `json:"seq"` // order of creation
	Inventories map[string]pc.Inventory `json:"inventories,omitempty"`
	Traits      []string                `json:"traits,omitempty"`     // sorted
	Aggregates  []string                `json:"aggregates,omitempty"` // as written
	Updated     time.Time               `json:"updated"`
	// Saved says that its own row was written since it was made: a new name or
	// parent, or being a root, which the real service makes in two steps.
	Saved bool `json:"saved,omitempty"`
}

func (p *provider) clone() *provider {
	c := *p
	c.Inventories = maps.Clone(p.Inventories)
	if c.Inventories == nil {
		c.Inventories = map[string]pc.Inventory{}
	}
	c.Traits = slices.Clone(p.Traits)
	c.Aggregates = slices.Clone(p.Aggregates)
	return &c
}

func (p *provider) hasTrait(name string) bool {
	_, ok := slices.BinarySearch(p.Traits, name)
	return ok
}

func (p *provider) inAnyAggregate(set []string) bool {
	return slices.ContainsFunc(p.Aggregates, func(a string) bool { return slices.Contains(set, a) })
}

// consumer holds allocations. One with no allocations is an orphan that no GET
// shows; it has generation 0.
type consumer struct {
	UUID        string                  `json:"uuid"`
	Project     string                  `json:"project"`
	User        string                  `json:"user"`
	Type        string                  `json:"type,omitempty"` // empty when last written below 1.38
	Generation  int                     `json:"generation"`
	Seq         int64                   `json:"seq"`
	Allocations map[string]pc.Resources `json:"allocations,omitempty"` // by provider
}

func (c *consumer) clone() *consumer {
	d := *c
	d.Allocations = map[string]pc.Resources{}
	for rp, r := range c.Allocations {
		d.Allocations[rp] = maps.Clone(r)
	}
	return &d
}

// custom is a custom trait or resource class.
type custom struct {
	Name string `json:"name"`
	Seq  int64  `json:"seq"`
}

// base is the committed state with its indexes.
type base struct {
	providers map[string]*provider
	names     map[string]string   // provider name to uuid
	children  map[string][]string // provider uuid to its children
	consumers map[string]*consumer
	holders   map[string]map[string]bool // provider uuid to consumers with allocations on it
	used      map[string]pc.Resources    // provider uuid to the sum of its allocations
	classes   map[string]*custom
	traits    map[string]*custom
	seq       int64 // highest sequence number in use
}

func newBase() *base {
	return &base{
		providers: map[string]*provider{}, names: map[string]string{}, children: map[string][]string{},
		consumers: map[string]*consumer{}, holders: map[string]map[string]bool{}, used: map[string]pc.Resources{},
		classes: map[string]*custom{}, traits: map[string]*custom{},
	}
}

// Buckets of the database.
const (
	bucketFormat    = "placement"
	bucketProviders = "providers"
	bucketConsumers = "consumers"
	bucketClasses   = "classes"
	bucketTraits    = "traits"
)

// table is the changed records of one kind in a transaction; nil is deleted.
type table[T any] map[string]*T

func lookup[T any](changed table[T], committed map[string]*T, key string) *T {
	if v, ok := changed[key]; ok {
		return v
	}
	return committed[key]
}

// tx is a transaction: the base and what it changes. A read-only one changes
// nothing. It is used by one goroutine.
type tx struct {
	b         *base
	providers table[provider]
	consumers table[consumer]
	classes   table[custom]
	traits    table[custom]
	seq       int64
	now       time.Time

	// added is what the changed consumers hold beyond what they held before, by
	// provider; nil when it is to be summed anew. Whoever changes a consumer makes
	// it nil: editConsumer and setConsumer do.
	added map[string]pc.Resources
}

func newTx(b *base, now time.Time) *tx {
	return &tx{
		b: b, seq: b.seq, now: now,
		providers: table[provider]{}, consumers: table[consumer]{}, classes: table[custom]{}, traits: table[custom]{},
	}
}

func (t *tx) nextSeq() int64 { t.seq++; return t.seq }

func (t *tx) provider(uuid string) *provider { return lookup(t.providers, t.b.providers, uuid) }

func (t *tx) consumer(uuid string) *consumer { return lookup(t.consumers, t.b.consumers, uuid) }

// edit gives the transaction's own copy of a provider that exists.
func (t *tx) edit(uuid string) *provider {
	if p, ok := t.providers[uuid]; ok && p != nil {
		return p
	}
	p := t.b.providers[uuid].clone()
	p.Updated = t.now
	t.providers[uuid] = p
	return p
}

// editConsumer gives the transaction's own copy of a consumer that exists.
func (t *tx) editConsumer(uuid string) *consumer {
	t.added = nil
	if c, ok := t.consumers[uuid]; ok && c != nil {
		return c
	}
	c := t.b.consumers[uuid].clone()
	t.consumers[uuid] = c
	return c
}

// setConsumer has the transaction's record of a consumer be c; nil deletes it.
func (t *tx) setConsumer(uuid string, c *consumer) {
	t.added = nil
	t.consumers[uuid] = c
}

// allProviders is every provider in order of creation.
func (t *tx) allProviders() []*provider {
	var out []*provider
	for uuid, p := range t.b.providers {
		if _, changed := t.providers[uuid]; !changed {
			out = append(out, p)
		}
	}
	for _, p := range t.providers {
		if p != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *provider) int { return int(a.Seq - b.Seq) })
	return out
}

// tree is every provider with that root, in order of creation.
func (t *tx) tree(root string) []*provider {
	if len(t.providers) > 0 { // the children index knows committed providers only
		return slices.DeleteFunc(t.allProviders(), func(p *provider) bool { return p.Root != root })
	}
	var out []*provider
	var walk func(uuid string)
	walk = func(uuid string) {
		if p := t.b.providers[uuid]; p != nil {
			out = append(out, p)
			for _, c := range t.b.children[uuid] {
				walk(c)
			}
		}
	}
	walk(root)
	slices.SortFunc(out, func(a, b *provider) int { return int(a.Seq - b.Seq) })
	return out
}

// subtree is the provider and everything below it.
func (t *tx) subtree(uuid string) []*provider {
	in := map[string]bool{uuid: true}
	out := []*provider{t.provider(uuid)}
	members := t.tree(t.provider(uuid).Root)
	for grew := true; grew; {
		grew = false
		for _, p := range members {
			if !in[p.UUID] && in[p.Parent] {
				in[p.UUID] = true
				out = append(out, p)
				grew = true
			}
		}
	}
	return out
}

// providerNamed gives the provider with that name, or nil.
func (t *tx) providerNamed(name string) *provider {
	for _, p := range t.providers {
		if p != nil && p.Name == name {
			return p
		}
	}
	if p := t.provider(t.b.names[name]); p != nil && p.Name == name {
		return p
	}
	return nil
}

// hasChildren says whether some provider has this one as its parent.
func (t *tx) hasChildren(uuid string) bool {
	for _, p := range t.providers {
		if p != nil && p.Parent == uuid {
			return true
		}
	}
	return slices.ContainsFunc(t.b.children[uuid], func(c string) bool {
		p := t.provider(c)
		return p != nil && p.Parent == uuid
	})
}

// used is how much of a class of a provider is allocated, this transaction's
// changes included.
func (t *tx) used(rp, class string) int64 {
	if len(t.consumers) == 0 {
		return t.b.used[rp][class]
	}
	if t.added == nil {
		t.added = map[string]pc.Resources{}
		add := func(c *consumer, sign int64) {
			if c == nil {
				return
			}
			for rp, held := range c.Allocations {
				sum := t.added[rp]
				if sum == nil {
					sum = pc.Resources{}
					t.added[rp] = sum
				}
				for class, n := range held {
					sum[class] += sign * n
				}
			}
		}
		for uuid, c := range t.consumers {
			add(t.b.consumers[uuid], -1)
			add(c, 1)
		}
	}
	return t.b.used[rp][class] + t.added[rp][class]
}

// holders is the consumers with allocations on a provider, in order of creation.
func (t *tx) holders(rp string) []*consumer {
	var out []*consumer
	for uuid := range t.b.holders[rp] {
		if _, changed := t.consumers[uuid]; !changed {
			out = append(out, t.b.consumers[uuid])
		}
	}
	for _, c := range t.consumers {
		if c != nil && len(c.Allocations[rp]) > 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *consumer) int { return int(a.Seq - b.Seq) })
	return out
}

// fork gives a transaction on top of this one's changes, to be kept (adopt) or
// dropped.
func (t *tx) fork() *tx {
	c := *t
	c.providers, c.consumers = maps.Clone(t.providers), maps.Clone(t.consumers)
	c.classes, c.traits = maps.Clone(t.classes), maps.Clone(t.traits)
	for uuid, p := range c.providers {
		if p != nil {
			c.providers[uuid] = p.clone()
		}
	}
	for uuid, k := range c.consumers {
		if k != nil {
			c.consumers[uuid] = k.clone()
		}
	}
	return &c
}

func (t *tx) adopt(c *tx) { *t = *c }

func (t *tx) empty() bool {
	return len(t.providers) == 0 && len(t.consumers) == 0 && len(t.classes) == 0 && len(t.traits) == 0
}

// apply makes a transaction part of the base.
func (b *base) apply(t *tx) {
	for uuid := range t.providers {
		if old := b.providers[uuid]; old != nil {
			if b.names[old.Name] == uuid {
				delete(b.names, old.Name)
			}
			b.dropChild(old.Parent, uuid)
			delete(b.providers, uuid)
		}
	}
	for uuid, p := range t.providers {
		if p != nil {
			b.putProvider(uuid, p)
		}
	}
	for uuid, c := range t.consumers {
		if old := b.consumers[uuid]; old != nil {
			b.account(old, -1)
			delete(b.consumers, uuid)
		}
		if c != nil {
			b.consumers[uuid] = c
			b.account(c, 1)
		}
	}
	for uuid, p := range t.providers {
		if p == nil { // after its consumers, who are given back together with it
			delete(b.used, uuid)
			delete(b.holders, uuid)
		}
	}
	applyCustom(b.classes, t.classes)
	applyCustom(b.traits, t.traits)
	b.seq = t.seq
}

func applyCustom(to map[string]*custom, changed table[custom]) {
	for name, v := range changed {
		if v == nil {
			delete(to, name)
		} else {
			to[name] = v
		}
	}
}

func (b *base) putProvider(uuid string, p *provider) {
	b.providers[uuid] = p
	b.names[p.Name] = uuid
	if p.Parent != "" {
		b.children[p.Parent] = append(slices.Clone(b.children[p.Parent]), uuid)
	}
}

func (b *base) dropChild(parent, uuid string) {
	if parent == "" {
		return
	}
	left := slices.DeleteFunc(slices.Clone(b.children[parent]), func(c string) bool { return c == uuid })
	if len(left) == 0 {
		delete(b.children, parent)
	} else {
		b.children[parent] = left
	}
}

// account adds (sign 1) or takes away (-1) a consumer's allocations.
func (b *base) account(c *consumer, sign int64) {
	for rp, r := range c.Allocations {
		if sign > 0 {
			if b.holders[rp] == nil {
				b.holders[rp] = map[string]bool{}
			}
			b.holders[rp][c.UUID] = true
		} else {
			delete(b.holders[rp], c.UUID)
		}
		used := maps.Clone(b.used[rp]) // a searchable may have the old one
		if used == nil {
			used = pc.Resources{}
		}
		for class, n := range r {
			used[class] += sign * n
			if used[class] == 0 {
				delete(used, class)
			}
		}
		b.used[rp] = used
	}
}

// searchable is the base as it is now, for a search that takes long: providers and
// what is used of them, classes and traits. It knows no names and no consumers.
func (b *base) searchable() *base {
	return &base{
		providers: maps.Clone(b.providers), children: maps.Clone(b.children), used: maps.Clone(b.used),
		classes: maps.Clone(b.classes), traits: maps.Clone(b.traits),
	}
}

// encode gives one record as the database keeps it.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return b, nil
}
