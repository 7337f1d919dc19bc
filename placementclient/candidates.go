package placementclient

import (
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
	Resources Resources
	Required  []string // traits
	Forbidden []string // traits
	InTree    string   // a provider UUID
	MemberOf  []string // in at least one of these aggregates
}

// CandidateRequest asks who could hold something.
type CandidateRequest struct {
	// RequestGroup is the unnumbered group: its resources may come from several
	// providers of one tree.
	RequestGroup
	// Groups are by suffix ("1", or from microversion 1.33 "_NUMA0"); each is served
	// by one provider.
	Groups map[string]RequestGroup
	// GroupPolicy is "none" or "isolate"; mandatory with two or more Groups.
	GroupPolicy string
	// SameSubtree lists suffixes whose providers must be in one subtree, from 1.36.
	SameSubtree [][]string
	// RootRequired and RootForbidden are traits of the root, from 1.35.
	RootRequired, RootForbidden []string
	// Limit bounds the candidates; zero means no bound. Which are left out is
	// arbitrary.
	Limit int
}

func (r CandidateRequest) query() url.Values {
	q := url.Values{}
	r.RequestGroup.query(q, "")
	for suffix, g := range r.Groups {
		g.query(q, suffix)
	}
	if r.GroupPolicy != "" {
		q.Set("group_policy", r.GroupPolicy)
	}
	for _, s := range r.SameSubtree {
		q.Add("same_subtree", strings.Join(s, ","))
	}
	if t := traitQuery(r.RootRequired, r.RootForbidden); t != "" {
		q.Set("root_required", t)
	}
	if r.Limit > 0 {
		q.Set("limit", strconv.Itoa(r.Limit))
	}
	return q
}

func (g RequestGroup) query(q url.Values, suffix string) {
	set := func(key, v string) {
		if v != "" {
			q.Set(key+suffix, v)
		}
	}
	set("resources", resourceQuery(g.Resources))
	set("required", traitQuery(g.Required, g.Forbidden))
	set("in_tree", g.InTree)
	if len(g.MemberOf) > 0 {
		set("member_of", "in:"+strings.Join(g.MemberOf, ","))
	}
}

// AllocationCandidates asks who could hold the request. No candidate is an empty
// answer, not an error; an unknown trait or class is fault.Invalid. Nothing is held:
// another claim may take the room before a write.
func (c *Client) AllocationCandidates(ctx context.Context, r CandidateRequest) (AllocationCandidates, error) {
	var doc struct {
		Requests []struct {
			Allocations map[string]wireAllocation `json:"allocations"`
			Mappings    map[string][]string       `json:"mappings"`
		} `json:"allocation_requests"`
		Summaries map[string]ProviderSummary `json:"provider_summaries"`
	}
	err := c.do(ctx, "ask for allocation candidates", call{
		method: http.MethodGet, route: "/allocation_candidates", path: "/allocation_candidates", query: r.query(), out: &doc,
	})
	out := AllocationCandidates{Summaries: doc.Summaries}
	for _, d := range doc.Requests {
		k := Candidate{Allocations: map[string]Resources{}, Mappings: d.Mappings}
		for rp, a := range d.Allocations {
			k.Allocations[rp] = a.Resources
		}
		out.Candidates = append(out.Candidates, k)
	}
	return out, err
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
