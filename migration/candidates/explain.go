package candidates

import (
	"context"
	"fmt"
	"slices"

	"berth/internal/fault"
	"berth/placementclient"
	"berth/topology"
)

// Reader is what is read of a host that Placement does not offer;
// *placementclient.Client is one.
type Reader interface {
	Inventories(ctx context.Context, rp string) (placementclient.Inventories, error)
	Usages(ctx context.Context, rp string) (placementclient.Usages, error)
	Traits(ctx context.Context, rp string) (placementclient.Traits, error)
}

// Seen is one provider of a host's tree as Placement has it.
type Seen struct {
	placementclient.ResourceProvider
	Inventories map[string]placementclient.Inventory
	Usages      placementclient.Resources
	Traits      []string
}

// maxSeen bounds how many providers of one host are read. Arbitrary.
const maxSeen = 32

// See reads a host's tree: three questions a provider. tree are its providers; of
// a tree with more than maxSeen the root and some others are read.
func See(ctx context.Context, p Reader, tree []placementclient.ResourceProvider) ([]Seen, error) {
	var out []Seen
	tree = slices.Clone(tree)
	slices.SortStableFunc(tree, func(a, b placementclient.ResourceProvider) int {
		switch {
		case a.IsRoot() == b.IsRoot():
			return 0
		case a.IsRoot():
			return -1
		}
		return 1
	})
	for _, rp := range tree[:min(len(tree), maxSeen)] {
		s := Seen{ResourceProvider: rp}
		inventories, err := p.Inventories(ctx, rp.UUID)
		if err != nil {
			return nil, err
		}
		usages, err := p.Usages(ctx, rp.UUID)
		if err != nil {
			return nil, err
		}
		traits, err := p.Traits(ctx, rp.UUID)
		if err != nil {
			return nil, err
		}
		s.Inventories, s.Usages, s.Traits = inventories.Inventories, usages.Usages, traits.Traits
		out = append(out, s)
	}
	return out, nil
}

// The codes of Explain's reasons.
const (
	CodeDisabled   = "host_disabled"
	CodeTrait      = "trait_missing"
	CodeForbidden  = "trait_forbidden"
	CodeShort      = "placement_short"
	CodeNotOffered = "placement_not_offered"
	CodeUnread     = "placement_not_read" // too many providers to say why
)

// Explain says why Placement does not offer a host for what Find asked: every
// reason that shows in its sums and traits, or, where these are well, that no
// provider of it has all that is asked of one. Of a tree that was read in part only
// what is sure is said.
func Explain(w Wish, host string, tree []Seen) []fault.Reason {
	specs, err := readSpecs(w.ExtraSpecs)
	if err != nil {
		return fault.ReasonsOf(err)
	}
	var out []fault.Reason
	whole := len(tree) < maxSeen
	has := func(trait string) bool {
		return slices.ContainsFunc(tree, func(s Seen) bool { return slices.Contains(s.Traits, trait) })
	}
	if has(placementclient.TraitComputeStatusDisabled) {
		out = append(out, fault.Reason{
			Code: CodeDisabled, Message: host + " is disabled for new guests (" + placementclient.TraitComputeStatusDisabled + ")",
			Change: "berth host set --enable on " + host + ", or name it in berth migrate",
		})
	}
	for _, trait := range specs.required {
		// Those of storage may be a sharing provider's.
		if whole && !has(trait) {
			out = append(out, fault.Reason{Code: CodeTrait, Message: host + " has no trait " + trait + " in Placement", Want: trait, Change: "set it on the host, or correct the flavor"})
		}
	}
	for _, trait := range specs.forbidden {
		if has(trait) {
			out = append(out, fault.Reason{Code: CodeForbidden, Message: host + " has trait " + trait + ", which the flavor forbids", Have: trait, Change: "take it from the host, or correct the flavor"})
		}
	}
	asked := (&builder{wish: w, specs: specs}).amounts()
	for _, r := range w.Devices {
		if kinds, all := kindsOf(r, w.Counted); all && len(kinds) == 1 {
			asked[kinds[0].class] = topology.AddCapped(asked[kinds[0].class], int64(r.Count))
		}
	}
	for _, class := range sortedClasses(asked) {
		if whole {
			out = append(out, short(host, class, asked[class], tree)...)
		}
	}
	if len(out) == 0 && !whole {
		out = append(out, fault.Reason{
			Code: CodeUnread, Message: fmt.Sprintf("Placement does not offer %s, which has too many providers to say why: %d of them were read", host, len(tree)),
			Change: "see berth host show -c " + host + " for its providers",
		})
	}
	if len(out) == 0 {
		out = append(out, fault.Reason{
			Code: CodeNotOffered, Message: "Placement does not offer " + host + ", though the sums would do: no one of its providers has all that is asked of one",
			Change: "see berth host show -c " + host + " for its providers",
		})
	}
	return out
}

// sortedClasses are the four that a claim counts first, in the order people name
// them, then the others by name.
func sortedClasses(r placementclient.Resources) []string {
	var first, rest []string
	for _, class := range counted {
		if _, is := r[class]; is {
			first = append(first, class)
		}
	}
	for class := range r {
		if !slices.Contains(counted, class) {
			rest = append(rest, class)
		}
	}
	slices.Sort(rest)
	return append(first, rest...)
}

// short says whether a host's providers lack a class, in sum or in what one takes
// at once.
func short(host, class string, want int64, tree []Seen) []fault.Reason {
	var total, free, most int64
	there := false
	for _, s := range tree {
		inv, is := s.Inventories[class]
		if !is {
			continue
		}
		there = true
		left := max(0, inv.Capacity()-s.Usages[class])
		total, free, most = total+inv.Capacity(), free+left, max(most, inv.MaxUnit)
	}
	switch {
	case !there && class == placementclient.ClassDiskGB:
		return nil // a sharing provider's, perhaps
	case !there:
		return []fault.Reason{{
			Code: CodeShort, Message: fmt.Sprintf("%s: want %d, %s has none in Placement", class, want, host), Want: fmt.Sprint(want), Have: "0",
			Change: "look whether its agent reports (berth status -c " + host + ")",
		}}
	case free < want:
		return []fault.Reason{{
			Code: CodeShort, Message: fmt.Sprintf("%s: want %d, Placement has %d of %d free on %s", class, want, free, total, host),
			Want: fmt.Sprint(want), Have: fmt.Sprint(free), Change: "free some, or raise the host's ratio",
		}}
	case most < want:
		return []fault.Reason{{
			Code: CodeShort, Message: fmt.Sprintf("%s: want %d at once, %s gives at most %d", class, want, host, most), Want: fmt.Sprint(want), Have: fmt.Sprint(most),
		}}
	}
	return nil
}
