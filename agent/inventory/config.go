package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/placementclient"
)

// ProviderConfig is one entry of a provider config file: what an operator adds to
// a provider of the tree. Package providerconfig reads them.
type ProviderConfig struct {
	Where string // file and line, for messages: "gpu.yaml:7"

	// One of the two says which provider. UUID may be ComputeNode.
	UUID, Name string

	// Inventories are whole: what a file leaves out is Placement's default.
	Inventories map[string]placementclient.Inventory // of CUSTOM_ classes
	Traits      []string                             // CUSTOM_ ones
}

// ComputeNode stands for the root provider where no entry names it by its own
// uuid or name.
const ComputeNode = "$COMPUTE_NODE"

// The codes of reasons on provider config files.
const (
	ConfigUnmatched = "provider_config_unmatched" // the entry names no provider of this host
	ConfigClash     = "provider_config_clash"     // a class or trait is Berth's own, or another entry's
)

// configure adds what provider config files give. A class or trait that Berth gives
// to the same provider itself is refused and Berth's stands (Nova does not start);
// so is an entry for a provider that another names too. What the files gave and do
// not give any more was left out before.
func (b *builder) configure() {
	b.remember()
	at := map[string]string{} // provider → where
	root := slices.ContainsFunc(b.in.Config, func(c ProviderConfig) bool { return b.named(c) == b.in.UUID && c.UUID != ComputeNode })
	for _, c := range b.in.Config {
		rp := b.named(c)
		if c.UUID == ComputeNode && root {
			continue // Nova: for the compute nodes that are not named otherwise
		}
		p, ok := b.tree.provider(rp)
		if !ok {
			b.refuse(ConfigUnmatched, "correct it, or take it out", "%s: this host has no provider %s, or it is not Berth's to write", c.Where, c.UUID+c.Name)
			continue
		}
		if before, twice := at[rp]; twice {
			b.refuse(ConfigClash, "put both into one entry", "%s: provider %s (%s) is configured by %s already", c.Where, p.Name, rp, before)
			continue
		}
		at[rp] = c.Where
		var classes, traits []string
		for _, class := range slices.Sorted(maps.Keys(c.Inventories)) {
			if _, ours := p.Inventories[class]; ours && !b.foreignClass(rp, class) {
				b.refuse(ConfigClash, "take it out of the file", "%s: class %s of provider %s (%s) is Berth's own", c.Where, class, p.Name, rp)
				continue
			}
			p.Inventories[class] = c.Inventories[class].WithDefaults()
			classes = append(classes, class)
		}
		for _, trait := range c.Traits {
			if b.ownTrait(p, trait) {
				b.refuse(ConfigClash, "take it out of the file", "%s: trait %s of provider %s (%s) is Berth's own", c.Where, trait, p.Name, rp)
				continue
			}
			traits = append(traits, trait)
		}
		p.Traits = sortedSet(append(p.Traits, traits...))
		b.gave(rp, classes, traits)
	}
}

func (b *builder) refuse(code, change, format string, args ...any) {
	b.report.Reasons = append(b.report.Reasons, Reason{Code: code, Message: fmt.Sprintf(format, args...), Change: change})
}

func (b *builder) named(c ProviderConfig) string {
	switch {
	case c.UUID == ComputeNode:
		return b.in.UUID
	case c.UUID != "":
		return strings.ToLower(c.UUID)
	}
	for _, p := range b.tree.Providers {
		if p.Name == c.Name {
			return p.UUID
		}
	}
	return ""
}

// foreignClass reports whether a class that the tree has was only kept from what
// stands: an operator put it there by hand, and the file may say it as well.
func (b *builder) foreignClass(rp, class string) bool {
	_, stands := b.standing[rp].Inventories[class]
	return stands && !slices.ContainsFunc(b.tree.homes(), func(h Home) bool { return h.Provider == rp && h.Class == class })
}

// ownTrait reports whether Berth itself gives a trait to a provider: one that it
// has and that is not merely kept from what stands, or that device_spec gives.
func (b *builder) ownTrait(p *Provider, trait string) bool {
	if strings.HasPrefix(trait, pageSizeTraits) {
		return true
	}
	given := b.ofSpec[p.UUID]
	return slices.Contains(given, trait)
}

func (t *Tree) homes() []Home {
	return slices.Concat(slices.Collect(maps.Values(t.Devices)), slices.Collect(maps.Values(t.Mdevs)))
}
