package placementtest

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	pc "berth/placementclient"
)

// What is here are the only answers in which the embedded server may differ from
// OpenStack's, each with the reason. All are of GET /allocation_candidates.

// lostProvider is the text of a KeyError whose key is a provider's number.
var lostProvider = regexp.MustCompile(`performing the requested operation\.\s+\d+\s*$`)

// realLosesASharingChild: where a provider that shares by aggregate is a child,
// and the tree it is in is no candidate otherwise, the real server does not find
// its summary again, as it takes sharing providers for roots, and fails; also where
// it would have found a trait of a later group unknown.
func realLosesASharingChild(path string, theirs answer) bool {
	if theirs.status != http.StatusInternalServerError || !strings.HasPrefix(path, "/allocation_candidates?") {
		return false
	}
	doc, _ := theirs.body.(map[string]any)
	list, _ := doc["errors"].([]any)
	if len(list) != 1 {
		return false
	}
	e, _ := list[0].(map[string]any)
	return lostProvider.MatchString(fmt.Sprint(e["detail"]))
}

// realSumsTwice: where an unnumbered and a numbered group meet on one provider and
// group_policy is not none, the real server adds their amounts in place, again for
// each combination, and so answers amounts that nobody asked for.
func realSumsTwice(path string) bool {
	u, err := url.Parse(path)
	if err != nil || u.Path != "/allocation_candidates" {
		return false
	}
	q := u.Query()
	return q.Get("resources") != "" && q.Get("group_policy") != "none" && (q.Get("resources1")+q.Get("resources2")+q.Get("resources3")+q.Get("resources_A")+q.Get("resources_B")) != ""
}

// withoutForgotten gives our answer without the candidates that the real server
// forgets: those in which sharing providers serve the whole unnumbered group by
// themselves, beside a numbered group. The real one keeps the ways to serve a group
// in a set in which two are equal that differ in nothing but the tree they are
// for, so it knows such a way for one of the trees alone, whichever came first,
// and of the others all candidates are lost that would have used it. Nothing else
// may be missing there, and nothing of theirs here.
func withoutForgotten(path string, ours, theirs any) any {
	u, err := url.Parse(path)
	if err != nil || u.Path != "/allocation_candidates" || u.Query().Get("resources") == "" {
		return ours
	}
	mine, _ := ours.(map[string]any)
	other, _ := theirs.(map[string]any)
	candidates, _ := mine["allocation_requests"].([]any)
	known, told := other["allocation_requests"].([]any)
	summaries, _ := mine["provider_summaries"].(map[string]any)
	if !told || len(candidates) <= len(known) {
		return ours
	}
	there := map[string]bool{}
	for _, c := range known {
		there[fmt.Sprint(canonical(c, false))] = true
	}
	var kept []any
	trees := map[any]bool{} // the roots of which something is left
	for _, c := range candidates {
		if !there[fmt.Sprint(canonical(c, false))] && servedByShares(c, summaries) {
			continue
		}
		kept = append(kept, c)
		held, _ := c.(map[string]any)["allocations"].(map[string]any)
		for rp := range held {
			trees[rootOf(summaries[rp])] = true
		}
	}
	if len(kept) == len(candidates) {
		return ours
	}
	left := map[string]any{}
	for rp, s := range summaries {
		if trees[rootOf(s)] {
			left[rp] = s
		}
	}
	if kept == nil {
		kept = []any{}
	}
	return map[string]any{"allocation_requests": kept, "provider_summaries": left}
}

func rootOf(summary any) any {
	m, _ := summary.(map[string]any)
	return m["root_provider_uuid"]
}

// servedByShares says whether the unnumbered group of a candidate is served by
// sharing providers alone, beside others. It needs mappings, so 1.34.
func servedByShares(candidate any, summaries map[string]any) bool {
	c, _ := candidate.(map[string]any)
	mappings, _ := c["mappings"].(map[string]any)
	group, _ := mappings[""].([]any)
	return len(mappings) > 1 && len(group) > 0 && !slices.ContainsFunc(group, func(rp any) bool {
		s, _ := summaries[fmt.Sprint(rp)].(map[string]any)
		traits, _ := s["traits"].([]any)
		return !slices.Contains(traits, any(pc.TraitMiscSharesViaAggregate))
	})
}

// limited says whether any of the candidates will do.
func limited(path string) bool {
	u, err := url.Parse(path)
	return err == nil && u.Path == "/allocation_candidates" && u.Query().Get("limit") != ""
}

// counted is an answer of candidates with their number in their place.
func counted(body any) any {
	m, _ := body.(map[string]any)
	list, is := m["allocation_requests"].([]any)
	if !is {
		return body
	}
	return map[string]any{"allocation_requests": float64(len(list))}
}
