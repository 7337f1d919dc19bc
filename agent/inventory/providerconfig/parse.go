// Package providerconfig reads Nova's provider config files: what an operator adds
// to the inventories and traits of a host's providers (Nova's administration guide,
// "Managing Resource Providers Using Config Files"; nova/compute/provider_config.py).
//
// It is pure: the bytes of a file go in, agent/inventory's ProviderConfigs come
// out; agent/inventory merges them into the tree. It knows schema 1.0. A later 1.x
// is read as 1.0, and what it has beyond that is ignored and named.
//
//	meta:
//	  schema_version: "1.0"
//	providers:
//	  - identification:            # one of the two
//	      uuid: <uuid>             # or $COMPUTE_NODE, the host's root provider
//	      name: <name>
//	    inventories:
//	      additional:
//	        - CUSTOM_LICENSE: {total: 4, reserved: 0, min_unit: 1, max_unit: 4, step_size: 1, allocation_ratio: 1.0}
//	    traits:
//	      additional: [CUSTOM_RACK_7]
//
// What Nova refuses is refused; so are amounts that Placement would refuse, a class
// that stands twice in one entry, and a key that stands twice. Keys that Nova lets
// through unread are remarks: a word that is spelt wrong is seen. Aliases and merge
// keys (<<) are followed as PyYAML follows them for Nova, up to MaxNodes.
package providerconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"berth/agent/inventory"
	"berth/placementclient"
)

// Ignored is the code of a remark on what a file has and means nothing.
const Ignored = "provider_config_ignored"

// Limits on what a file may cost.
const (
	MaxBytes  = 1 << 20 // a file's size
	MaxNodes  = 1 << 15 // keys, values and items that are looked at, those behind an alias each time
	maxFaults = 20      // that an error names; the rest is counted
)

// File is one file that was read.
type File struct {
	Providers []inventory.ProviderConfig // in the file's order
	Remarks   []inventory.Reason
}

// Parse reads one file; name is what messages call it. The error joins every
// fault, each with file, line and key, and then nothing of the file may be used.
func Parse(name string, data []byte) (File, error) {
	if len(data) > MaxBytes {
		return File{}, fmt.Errorf("%s: %d bytes, want at most %d", name, len(data), MaxBytes)
	}
	p := &parser{name: name}
	var doc yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(data))
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return File{}, fmt.Errorf("%s: it is empty; want meta.schema_version", name)
	case err != nil:
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	var second yaml.Node
	if err := in.Decode(&second); err == nil {
		return File{}, fmt.Errorf("%s:%d: a second document; want one", name, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	p.file(doc.Content[0])
	if p.looked > MaxNodes {
		return File{}, fmt.Errorf("%s: more than %d values, those behind aliases each time that they are meant", name, MaxNodes)
	}
	if more := len(p.faults) - maxFaults; more > 0 {
		p.faults = append(p.faults[:maxFaults:maxFaults], fmt.Errorf("%s: and %d more", name, more))
	}
	if len(p.faults) > 0 {
		return File{}, errors.Join(p.faults...)
	}
	if r := p.out.Remarks; len(r) > maxFaults {
		p.out.Remarks = append(r[:maxFaults:maxFaults], inventory.Reason{
			Code: Ignored, Message: fmt.Sprintf("%s: and %d more", name, len(r)-maxFaults), Change: r[0].Change,
		})
	}
	return p.out, nil
}

type parser struct {
	name   string
	out    File
	faults []error
	looked int // nodes so far
}

// look counts the parts of a node that are about to be looked at; false when that
// is too many, and then nothing of the file counts.
func (p *parser) look(n *yaml.Node) bool {
	p.looked += len(n.Content)
	return p.looked <= MaxNodes
}

func (p *parser) bad(n *yaml.Node, key, format string, args ...any) {
	if key == "" {
		key = "the file"
	}
	p.faults = append(p.faults, fmt.Errorf("%s:%d: %s: "+format, append([]any{p.name, n.Line, key}, args...)...))
}

func (p *parser) ignored(n *yaml.Node, format string, args ...any) {
	p.out.Remarks = append(p.out.Remarks, inventory.Reason{
		Code: Ignored, Message: fmt.Sprintf("%s:%d: %s", p.name, n.Line, fmt.Sprintf(format, args...)), Change: "correct it, or take it out",
	})
}

// entry is a key of a mapping with its value.
type entry struct {
	key   string
	at    *yaml.Node
	value *yaml.Node
}

// mapping gives the entries of a mapping, and tells of a node that is none.
func (p *parser) mapping(n *yaml.Node, key string) []entry {
	n = aliased(n)
	if n.Kind != yaml.MappingNode {
		p.bad(n, key, "%s, want a mapping", kindOf(n))
		return nil
	}
	out, _ := p.entries(n, key, map[string]bool{})
	return out
}

// entries gives those of a mapping whose keys are not there yet, merged ones last.
func (p *parser) entries(n *yaml.Node, key string, there map[string]bool) (out []entry, ok bool) {
	if !p.look(n) {
		return nil, false
	}
	mine := map[string]bool{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], aliased(n.Content[i+1])
		switch {
		case k.Kind != yaml.ScalarNode:
			p.bad(k, key, "%s as a key, want a word", kindOf(k))
		case mine[k.Value]:
			p.bad(k, under(key, k.Value), "stands twice")
		case k.Tag == "!!merge":
			mine[k.Value] = true
			merged = append(merged, p.merges(k, v, key)...)
		case !there[k.Value]:
			mine[k.Value], there[k.Value] = true, true
			out = append(out, entry{k.Value, k, v})
		}
	}
	for _, m := range merged {
		more, ok := p.entries(m, key, there)
		if out = append(out, more...); !ok {
			return nil, false
		}
	}
	return out, true
}

// merges gives the mappings that a merge key means, the first of which wins.
func (p *parser) merges(k, v *yaml.Node, key string) []*yaml.Node {
	of := []*yaml.Node{v}
	if v.Kind == yaml.SequenceNode && p.look(v) {
		of = v.Content
	}
	var out []*yaml.Node
	for _, m := range of {
		if m = aliased(m); m.Kind != yaml.MappingNode {
			p.bad(k, under(key, k.Value), "%s, want a mapping or a list of them", kindOf(m))
			continue
		}
		out = append(out, m)
	}
	return out
}

func (p *parser) list(n *yaml.Node, key string) []*yaml.Node {
	n = aliased(n)
	if n.Kind != yaml.SequenceNode {
		p.bad(n, key, "%s, want a list", kindOf(n))
		return nil
	}
	if !p.look(n) {
		return nil
	}
	out := make([]*yaml.Node, len(n.Content))
	for i, c := range n.Content {
		out[i] = aliased(c)
	}
	return out
}

func (p *parser) text(n *yaml.Node, key string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		p.bad(n, key, "%s, want a string (in quotes, if it looks like a number)", kindOf(n))
		return "", false
	}
	return n.Value, true
}

func under(key, sub string) string {
	if key == "" {
		return sub
	}
	return key + "." + sub
}

// aliased follows *name to what &name stands at.
func aliased(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.Tag == "!!null" {
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

var version = regexp.MustCompile(`^([0-9]+)\.([0-9]|[1-9][0-9]+)$`)

func (p *parser) file(n *yaml.Node) {
	var meta, providers *yaml.Node
	for _, e := range p.mapping(n, "") {
		switch e.key {
		case "meta":
			meta = e.value
		case "providers":
			providers = e.value
		case "__source_file":
			p.bad(e.at, e.key, "is kept for Nova's own use")
		default:
			p.ignored(e.at, "unknown key %s", e.key)
		}
	}
	if meta == nil {
		if len(p.faults) == 0 {
			p.bad(n, "meta", "missing; want schema_version in it")
		}
		return
	}
	p.meta(meta)
	if providers == nil {
		return
	}
	for i, n := range p.list(providers, "providers") {
		p.provider(n, fmt.Sprintf("providers[%d]", i))
	}
}

func (p *parser) meta(n *yaml.Node) {
	const key = "meta.schema_version"
	told := false
	for _, e := range p.mapping(n, "meta") {
		if e.key != "schema_version" {
			p.ignored(e.at, "unknown key meta.%s", e.key)
			continue
		}
		told = true
		text, ok := p.text(e.value, key)
		if !ok {
			continue
		}
		switch v := version.FindStringSubmatch(text); {
		case v == nil:
			p.bad(e.value, key, "%q, want \"1.0\"", text)
		case v[1] != "1":
			p.bad(e.value, key, "%q is not supported, want \"1.0\"", text)
		case v[2] != "0":
			p.ignored(e.value, "schema_version %s is read as 1.0: what it has beyond that is ignored", text)
		}
	}
	if !told && n.Kind == yaml.MappingNode {
		p.bad(n, key, "missing; want \"1.0\"")
	}
}

func (p *parser) provider(n *yaml.Node, key string) {
	c := inventory.ProviderConfig{Where: fmt.Sprintf("%s:%d", p.name, n.Line), Inventories: map[string]placementclient.Inventory{}}
	identified, before := false, len(p.faults)
	for _, e := range p.mapping(n, key) {
		switch e.key {
		case "identification":
			identified = true
			p.identification(&c, e, under(key, e.key))
		case "inventories", "traits":
			for _, kind := range p.mapping(e.value, under(key, e.key)) {
				at := under(under(key, e.key), kind.key)
				switch {
				case kind.key != "additional":
					p.ignored(kind.at, "unknown key %s", at)
				case e.key == "inventories":
					p.inventories(&c, kind.value, at)
				default:
					p.traits(&c, kind.value, at)
				}
			}
		default:
			p.ignored(e.at, "unknown key %s", under(key, e.key))
		}
	}
	switch {
	case len(p.faults) > before:
	case !identified:
		p.bad(n, under(key, "identification"), "missing; want uuid or name in it")
	case len(c.Inventories) == 0 && len(c.Traits) == 0:
		p.ignored(n, "%s adds neither inventories nor traits", key)
	default:
		p.out.Providers = append(p.out.Providers, c)
	}
}

var uuidForm = regexp.MustCompile(`^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$`)

func (p *parser) identification(c *inventory.ProviderConfig, e entry, key string) {
	entries := p.mapping(e.value, key)
	if len(entries) != 1 && e.value.Kind == yaml.MappingNode {
		p.bad(e.at, key, "%d keys, want one of uuid and name", len(entries))
	}
	for _, id := range entries {
		at := under(key, id.key)
		switch id.key {
		case "uuid":
			text, ok := p.text(id.value, at)
			if ok && text != inventory.ComputeNode && !uuidForm.MatchString(text) {
				p.bad(id.value, at, "%q, want a uuid or %s", text, inventory.ComputeNode)
			}
			c.UUID = text
			if text != inventory.ComputeNode {
				c.UUID = strings.ToLower(text)
			}
		case "name":
			text, ok := p.text(id.value, at)
			if n := utf8.RuneCountInString(text); ok && (n == 0 || n > 200) {
				p.bad(id.value, at, "%d characters, want 1 to 200", n)
			}
			c.Name = text
		default:
			p.bad(id.at, at, "unknown key; want uuid or name")
		}
	}
}

var customName = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]+$`)

func (p *parser) custom(n *yaml.Node, key, name string) bool {
	if !customName.MatchString(name) || len(name) > 255 {
		p.bad(n, key, "%q, want CUSTOM_ and capitals, digits or _, at most 255 characters", name)
		return false
	}
	return true
}

func (p *parser) traits(c *inventory.ProviderConfig, n *yaml.Node, key string) {
	for i, t := range p.list(n, key) {
		at := fmt.Sprintf("%s[%d]", key, i)
		if name, ok := p.text(t, at); ok && p.custom(t, at, name) && !slices.Contains(c.Traits, name) {
			c.Traits = append(c.Traits, name)
		}
	}
}

func (p *parser) inventories(c *inventory.ProviderConfig, n *yaml.Node, key string) {
	for i, item := range p.list(n, key) {
		for _, class := range p.mapping(item, fmt.Sprintf("%s[%d]", key, i)) {
			at := fmt.Sprintf("%s[%d].%s", key, i, class.key)
			if !p.custom(class.at, at, class.key) {
				continue
			}
			if _, twice := c.Inventories[class.key]; twice {
				p.bad(class.at, at, "stands twice for this provider")
				continue
			}
			c.Inventories[class.key] = p.inventory(class, at)
		}
	}
}

// inventory reads one class's amounts, and holds them against what Placement takes.
func (p *parser) inventory(class entry, key string) placementclient.Inventory {
	inv := placementclient.Inventory{}
	told := map[string]bool{}
	for _, f := range p.mapping(class.value, key) {
		at := under(key, f.key)
		told[f.key] = true
		whole := func(into *int64, least int64) {
			n, err := strconv.ParseInt(f.value.Value, 0, 64)
			if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!int" || err != nil || n < least || n > placementclient.MaxInt {
				p.bad(f.value, at, "%s, want a whole number from %d to %d", kindOf(f.value), least, int64(placementclient.MaxInt))
				return
			}
			*into = n
		}
		switch f.key {
		case "total":
			whole(&inv.Total, 1)
		case "reserved":
			whole(&inv.Reserved, 0)
		case "min_unit":
			whole(&inv.MinUnit, 1)
		case "max_unit":
			whole(&inv.MaxUnit, 1)
		case "step_size":
			whole(&inv.StepSize, 1)
		case "allocation_ratio":
			r, err := strconv.ParseFloat(f.value.Value, 64)
			if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!int" && f.value.Tag != "!!float" || err != nil || !(r > 0) || r > 1e9 {
				p.bad(f.value, at, "%s, want a number above 0", kindOf(f.value))
				continue
			}
			inv.AllocationRatio = r
		default:
			p.bad(f.at, at, "unknown key; want total, reserved, min_unit, max_unit, step_size or allocation_ratio")
		}
	}
	if aliased(class.value).Kind == yaml.MappingNode && !told["total"] {
		p.bad(class.at, under(key, "total"), "missing")
	}
	if inv.Total > 0 && inv.Reserved > inv.Total {
		p.bad(class.at, under(key, "reserved"), "%d, of a total of %d", inv.Reserved, inv.Total)
	}
	return inv
}
