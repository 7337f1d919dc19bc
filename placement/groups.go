package placement

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// group is one request group of GET /allocation_candidates: resources that are
// asked for together, with conditions on who provides them.
type group struct {
	suffix        string
	resources     []amount
	required      [][]string // one trait of each set
	forbidden     []string
	memberOf      [][]string // in one aggregate of each set
	forbiddenAggs []string
	inTree        string
}

// granular says whether one provider must serve the whole group.
func (g *group) granular() bool { return g.suffix != "" }

// wide is what a request asks of a candidate as a whole.
type wide struct {
	limit         int
	isolate       bool
	rootRequired  []string
	rootForbidden []string
	subtrees      [][]string
}

var (
	groupKey      = regexp.MustCompile(`^(resources|required|member_of|in_tree)(` + groupSuffix + `)?$`)
	groupKeyNamed = regexp.MustCompile(`^(resources|required|member_of|in_tree)(` + groupSuffixNamed + `)?$`)
)

// readWide reads the parameters that apply to the request as a whole.
func (r *request) readWide() (wide, error) {
	var w wide
	if v := r.all("limit"); len(v) > 0 {
		if _, err := fmt.Sscan(v[0], &w.limit); err != nil {
			return w, badRequest("Invalid query string parameters: %s does not match '^[1-9][0-9]*$'", python(v[0]))
		}
	}
	if v := r.all("group_policy"); len(v) > 0 {
		w.isolate = v[0] == "isolate"
	}
	if v := r.all("root_required"); len(v) > 0 {
		if len(v) > 1 {
			return w, badRequest("Query parameter 'root_required' may be specified only once.").withCode(codeDuplicateKey)
		}
		sets, forbidden, err := parseTraits(v[0], true, false)
		if err != nil {
			return w, err
		}
		var both []string
		for _, s := range sets {
			w.rootRequired = append(w.rootRequired, s...)
			if slices.Contains(forbidden, s[0]) {
				both = append(both, s[0])
			}
		}
		if len(both) > 0 {
			return w, badRequest("Conflicting required and forbidden traits found in root_required: %s", strings.Join(both, ", ")).withCode(codeBadValue)
		}
		w.rootForbidden = forbidden
	}
	for _, v := range r.all("same_subtree") {
		set := trimmed(v)
		if slices.Contains(set, "") {
			return w, badRequest("Empty string (unsuffixed group) can not be specified in `same_subtree` ").withCode(codeBadValue)
		}
		w.subtrees = append(w.subtrees, set)
	}
	return w, nil
}

// The bounds of one question for candidates. The real service has none but the length of a request line,
// which its web servers end at 8 KiB by default: some 400 of the shortest groups. Nova asks for one group,
// and one for each device and for each port with a resource request: some dozens.
const (
	maxGroups  = 128
	maxTraits  = 1024 // required or forbidden in one group; os-traits has some 400
	maxClasses = 256  // in one group; os-resource-classes has some 30
)

// readGroups collects the groups in the order in which the query names them.
func (r *request) readGroups(w wide) ([]*group, error) {
	var groups []*group
	read := map[string]bool{} // keys all of whose values were read
	re := groupKey
	if r.version >= 33 {
		re = groupKeyNamed
	}
	for _, p := range r.query {
		m := re.FindStringSubmatch(p.key)
		if m == nil {
			continue
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.suffix == m[2] })
		if i < 0 {
			if len(groups) == maxGroups {
				return nil, badRequest("a request for allocation candidates may have %d request groups: ask for fewer in one", maxGroups)
			}
			groups = append(groups, &group{suffix: m[2]})
			i = len(groups) - 1
		}
		g := groups[i]
		if read[p.key] {
			continue
		}
		var err error
		switch m[1] {
		case "resources":
			g.resources, err = parseResources(p.value)
		case "required":
			read[p.key] = true
			g.required, g.forbidden, err = r.traits("required" + g.suffix)
			if err == nil && len(g.required)+len(g.forbidden) > maxTraits {
				err = badRequest("a request group may name %d traits", maxTraits)
			}
		case "member_of":
			read[p.key] = true
			g.memberOf, g.forbiddenAggs, err = r.memberOf(g.suffix)
		case "in_tree":
			if g.inTree = strings.TrimSpace(p.value); canonicalUUID(g.inTree) == "" {
				err = badRequest("Invalid query string parameters: Expected 'in_tree' parameter to be a format of uuid. Got: %s", p.value)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	check := orphanedGroups
	if r.version >= 36 {
		check = func(groups []*group) error { return checkSubtreeGroups(groups, w.subtrees) }
	}
	if err := check(groups); err != nil {
		return nil, err
	}
	if r.version >= 22 {
		if err := conflictingTraits(groups); err != nil {
			return nil, err
		}
	}
	return groups, nil
}

// checkSubtreeGroups holds from 1.36: a group without resources is allowed where
// same_subtree ties it to others.
func checkSubtreeGroups(groups []*group, subtrees [][]string) error {
	var all, empty, tied []string
	for _, g := range groups {
		all = append(all, g.suffix)
		if len(g.resources) == 0 {
			empty = append(empty, g.suffix)
		}
	}
	for _, s := range subtrees {
		tied = append(tied, s...)
	}
	if len(empty) == len(groups) {
		return badRequest("There must be at least one resources or resources[$S] parameter.").withCode(codeMissingValue)
	}
	if bad := without(empty, tied); len(bad) > 0 {
		return badRequest("Resourceless suffixed group request should be specified in `same_subtree` query param: bad group(s) - %s.", python(bad)).
			withCode(codeBadValue)
	}
	if bad := without(tied, all); len(bad) > 0 {
		return badRequest("Real suffixes should be specified in `same_subtree`: %s not found in %s.", python(bad), python(all)).withCode(codeBadValue)
	}
	return nil
}

func without(names, others []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(others, n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// orphanedGroups holds below 1.36: every group has resources.
func orphanedGroups(groups []*group) error {
	var traits, aggs []string
	all := true
	for _, g := range groups {
		if len(g.resources) > 0 {
			continue
		}
		all = false
		if len(g.required) > 0 {
			traits = append(traits, "required"+g.suffix)
		}
		if len(g.memberOf) > 0 || len(g.forbiddenAggs) > 0 {
			aggs = append(aggs, "member_of"+g.suffix)
		}
	}
	switch {
	case len(traits) > 0:
		return badRequest("All traits parameters must be associated with resources.  Found the following orphaned traits keys: %s", strings.Join(traits, ", "))
	case len(aggs) > 0:
		return badRequest("All member_of parameters must be associated with resources. Found the following orphaned member_of keys: %s", strings.Join(aggs, ", "))
	case !all:
		return badRequest("All request groups must specify resources.")
	case len(groups) == 0:
		return badRequest("At least one request group (`resources` or `resources{$S}`) is required.")
	}
	return nil
}

func conflictingTraits(groups []*group) error {
	var bad []string
	for _, g := range groups {
		for _, set := range g.required {
			if !slices.ContainsFunc(set, func(n string) bool { return !slices.Contains(g.forbidden, n) }) {
				names := slices.Sorted(slices.Values(set))
				bad = append(bad, fmt.Sprintf("required%s: (%s)", g.suffix, strings.Join(names, ", ")))
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	sort.Strings(bad)
	return badRequest("Conflicting required and forbidden traits found in the following traits keys: %s", strings.Join(bad, ", "))
}
