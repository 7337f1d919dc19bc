package placementclient

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// RequestGroup is resources that are asked for together, with conditions on who
// provides them.
type RequestGroup struct {
	Resources   Resources
	Required    []string   // traits
	AnyOf       [][]string // of each list at least one trait, from 1.39
	Forbidden   []string   // traits
	InTree      string     // a provider UUID, from 1.31
	MemberOf    []string   // in at least one of these aggregates
	NotMemberOf []string   // in none of these aggregates, from 1.32
}

// CandidateRequest asks who could hold something.
//
// It is written for the newest microversion. A server that speaks less is asked
// for as much of it as it understands, so that it may name providers that the
// whole request would not, never fewer:
//
//	below 1.39  a list of AnyOf is left out, but one of a single trait
//	below 1.36  SameSubtree is left out, and groups without resources with it
//	below 1.35  conditions on the root are not asked; the answer is held against
//	            them here
//	below 1.33  groups are numbered, in the order of their suffixes
//	below 1.32  NotMemberOf is left out, below 1.31 InTree
//	below 1.29  all of a tree's resources come from one provider of it (and from
//	            sharing ones), so groups with names, which ask for what children
//	            have, are left out, and a request with SameSubtree, which only a
//	            nested host can serve, is not sent. Here fewer are named
type CandidateRequest struct {
	// RequestGroup is the unnumbered group: its resources may come from several
	// providers of one tree, each class from one.
	RequestGroup
	// Groups are by suffix ("1", or "_NUMA0"); each is served by one provider.
	Groups map[string]RequestGroup
	// GroupPolicy is "none" or "isolate"; mandatory with two or more Groups.
	GroupPolicy string
	// SameSubtree lists suffixes of which one's provider is the others' ancestor.
	SameSubtree [][]string
	// RootRequired and RootForbidden are traits of the root.
	RootRequired, RootForbidden []string
	// Limit bounds the candidates; zero means no bound. Which are left out is
	// arbitrary: it may be all but one of a host's, or all of another's.
	Limit int
}

// Query is the request as a server of microversion v is asked.
func (r CandidateRequest) Query(v Microversion) string { return r.query(v).Encode() }

func (r CandidateRequest) query(v Microversion) url.Values {
	q := url.Values{}
	if v >= versionRootRequired {
		addTraits(q, "root_required", r.RootRequired, r.RootForbidden)
	}
	r.RequestGroup.query(q, "", v)
	groups := 0
	for i, suffix := range slices.Sorted(maps.Keys(r.Groups)) {
		g := r.Groups[suffix]
		if len(g.Resources) == 0 && v < versionSameSubtree || v < versionNested && !isNumber(suffix) {
			continue
		}
		groups++
		if v < versionNamedGroups {
			suffix = strconv.Itoa(i + 1)
		}
		g.query(q, suffix, v)
	}
	if r.GroupPolicy != "" && groups > 0 {
		q.Set("group_policy", r.GroupPolicy)
	}
	if v >= versionSameSubtree {
		for _, s := range r.SameSubtree {
			q.Add("same_subtree", strings.Join(s, ","))
		}
	}
	if r.Limit > 0 {
		q.Set("limit", strconv.Itoa(r.Limit))
	}
	return q
}

func (g RequestGroup) query(q url.Values, suffix string, v Microversion) {
	set := func(key, value string) {
		if value != "" {
			q.Set(key+suffix, value)
		}
	}
	set("resources", resourceQuery(g.Resources))
	required := slices.Clone(g.Required)
	var lists []string
	for _, any := range g.AnyOf {
		switch {
		case len(any) == 1:
			required = append(required, any[0])
		case len(any) > 1 && v >= versionAnyTraits:
			lists = append(lists, "in:"+strings.Join(any, ","))
		}
	}
	addTraits(q, "required"+suffix, required, g.Forbidden)
	for _, in := range lists {
		q.Add("required"+suffix, in)
	}
	if v >= versionInTree {
		set("in_tree", g.InTree)
	}
	if len(g.MemberOf) > 0 {
		q.Add("member_of"+suffix, "in:"+strings.Join(g.MemberOf, ","))
	}
	if len(g.NotMemberOf) > 0 && v >= versionForbiddenAggregates {
		q.Add("member_of"+suffix, "!in:"+strings.Join(g.NotMemberOf, ","))
	}
}

func isNumber(suffix string) bool {
	_, err := strconv.ParseUint(suffix, 10, 32)
	return err == nil
}

func addTraits(q url.Values, key string, required, forbidden []string) {
	if t := traitQuery(required, forbidden); t != "" {
		q.Add(key, t)
	}
}

// AllocationCandidates asks who could hold the request. No candidate is an empty
// answer, not an error; an unknown trait or class is fault.Invalid. Nothing is held:
// another claim may take the room before a write. What a server below 1.39 is asked
// is told at CandidateRequest.
func (c *Client) AllocationCandidates(ctx context.Context, r CandidateRequest) (AllocationCandidates, error) {
	var doc struct {
		Requests []struct {
			Allocations map[string]wireAllocation `json:"allocations"`
			Mappings    map[string][]string       `json:"mappings"`
		} `json:"allocation_requests"`
		Summaries map[string]ProviderSummary `json:"provider_summaries"`
	}
	v, err := c.Version(ctx)
	for range 2 {
		if err != nil {
			return AllocationCandidates{}, err
		}
		q := r.query(v)
		if !asks(q) || v < versionNested && len(r.SameSubtree) > 0 {
			return AllocationCandidates{}, nil // nobody of whom this server could tell
		}
		err = c.do(ctx, "ask for allocation candidates", call{
			method: http.MethodGet, route: "/allocation_candidates", path: "/allocation_candidates", query: q, out: &doc,
		})
		// The server may have been replaced by one that speaks less than what the
		// query was written for.
		now, lost := c.Version(ctx)
		if err == nil || lost != nil || now == v {
			break
		}
		v, err = now, nil
	}
	out := AllocationCandidates{Summaries: doc.Summaries}
	for _, d := range doc.Requests {
		k := Candidate{Allocations: map[string]Resources{}, Mappings: d.Mappings}
		for rp, a := range d.Allocations {
			k.Allocations[rp] = a.Resources
		}
		if v >= versionRootRequired || rootHas(k, doc.Summaries, r.RootRequired, r.RootForbidden) {
			out.Candidates = append(out.Candidates, k)
		}
	}
	return out, err
}

// rootHas holds conditions on the root against a candidate, for servers that cannot
// be asked. A sharing provider is the root of a tree of its own, and not the host's.
func rootHas(k Candidate, summaries map[string]ProviderSummary, required, forbidden []string) bool {
	for rp := range k.Allocations {
		if slices.Contains(summaries[rp].Traits, TraitMiscSharesViaAggregate) {
			continue
		}
		traits := summaries[cmp.Or(summaries[rp].RootProviderUUID, rp)].Traits
		has := func(t string) bool { return slices.Contains(traits, t) }
		return !slices.ContainsFunc(required, func(t string) bool { return !has(t) }) && !slices.ContainsFunc(forbidden, has)
	}
	return true
}

// asks tells whether a query names a resource.
func asks(q url.Values) bool {
	for key := range q {
		if strings.HasPrefix(key, "resources") {
			return true
		}
	}
	return false
}

// KnownClasses gives those of the names that this Placement has as resource
// classes, sorted: a question that names another is refused.
func (c *Client) KnownClasses(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var out struct {
		Classes []struct {
			Name string `json:"name"`
		} `json:"resource_classes"`
	}
	err := c.do(ctx, "list resource classes", call{method: http.MethodGet, route: "/resource_classes", path: "/resource_classes", out: &out})
	var known []string
	for _, class := range out.Classes {
		if slices.Contains(names, class.Name) {
			known = append(known, class.Name)
		}
	}
	slices.Sort(known)
	return known, err
}

// Providers is the sorted UUIDs of the providers that a candidate uses.
func (k Candidate) Providers() []string { return slices.Sorted(maps.Keys(k.Allocations)) }

// String is the candidate as JSON, for logs.
func (k Candidate) String() string {
	b, err := json.Marshal(k.Allocations)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
