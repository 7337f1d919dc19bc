package candidates

import (
	"maps"
	"slices"
	"strings"

	"berth/placementclient"
)

// each calls traits with every list of them, and class with every class.
func (r Request) each(traits func([]string), class func(string)) {
	traits(r.wanted())
	traits(r.forbidden())
	r.groups(func(g *placementclient.RequestGroup) {
		for c := range g.Resources {
			class(c)
		}
	})
}

// groups calls f with the unnumbered group and then with each other.
func (r Request) groups(f func(*placementclient.RequestGroup)) {
	f(&r.RequestGroup)
	for _, suffix := range slices.Sorted(maps.Keys(r.Groups)) {
		g := r.Groups[suffix]
		f(&g)
	}
}

// wanted are all traits that somebody must have.
func (r Request) wanted() []string {
	out := slices.Concat(r.RootRequired, r.HostRequired)
	r.groups(func(g *placementclient.RequestGroup) { out = append(out, g.Required...) })
	return out
}

// forbidden are all traits that somebody must not have.
func (r Request) forbidden() []string {
	out := slices.Clone(r.RootForbidden)
	r.groups(func(g *placementclient.RequestGroup) { out = append(out, g.Forbidden...) })
	return out
}

// dropForbidden takes forbidden traits out; it changes r's own lists only.
func (r *Request) dropForbidden(drop func(string) bool) {
	without := func(list []string) []string { return slices.DeleteFunc(slices.Clone(list), drop) }
	r.RootForbidden, r.Forbidden = without(r.RootForbidden), without(r.Forbidden)
	groups := maps.Clone(r.Groups)
	for suffix, g := range groups {
		g.Forbidden = without(g.Forbidden)
		groups[suffix] = g
	}
	r.Groups = groups
}

// isPageSize reports whether a trait is that of one page size.
func isPageSize(trait string) bool {
	prefix := strings.TrimSuffix(placementclient.TraitPageSizeSmall, "SMALL")
	return strings.HasPrefix(trait, prefix)
}
