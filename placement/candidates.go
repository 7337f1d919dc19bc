package placement

import (
	"context"
	"net/http"
	"slices"

	pc "berth/placementclient"
)

// part is an amount taken from a provider.
type part struct {
	p     *provider
	class string
	n     int64
}

// option is a way to serve one group, or, merged, the whole request. All its
// providers are in the anchor's tree or share with it through an aggregate.
type option struct {
	anchor string // root provider
	parts  []part
	groups []served // which providers serve which group
}

type served struct {
	suffix    string
	providers []string
}

// search is one question for candidates.
type search struct {
	t       *tx
	ctx     context.Context
	w       wide
	all     []*provider     // in order of creation
	nested  bool            // some provider has a parent
	sharing []*provider     // providers that share through their aggregates
	roots   map[string]bool // the roots allowed; nil for all
	enough  int             // candidates; 0 for all there are
}

// maxOptions is how many ways to serve one group are looked at. Arbitrary: eight
// cells that serve each of five classes are 32,768.
const maxOptions = 1 << 18

// sharesTrait marks a provider whose inventory serves all members of its aggregates.
const sharesTrait = pc.TraitMiscSharesViaAggregate

func listCandidates(t *tx, r *request) (*answer, error) {
	if err := r.checkQuery(candidatesQuery.at(r.version)); err != nil {
		return nil, err
	}
	w, err := r.readWide()
	if err != nil {
		return nil, err
	}
	groups, err := r.readGroups(w)
	if err != nil {
		return nil, err
	}
	granular := 0
	for _, g := range groups {
		if g.granular() {
			granular++
		}
	}
	if _, given := r.last("group_policy"); !given && granular > 1 {
		return nil, badRequest(`The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.`)
	}
	s := &search{t: t, ctx: r.http.Context(), w: w}
	if r.version >= 29 { // below it, of those found some are no candidates
		s.enough = w.limit
	}
	options, err := s.run(groups)
	if err != nil {
		return nil, err
	}
	if r.version < 29 {
		options = oneProviderATree(options)
	}
	if w.limit > 0 && len(options) > w.limit {
		options = options[:w.limit]
	}
	return ok(t.candidatesJSON(options, groups, r.version)), nil
}

// checkTraits refuses traits that do not exist.
func (t *tx) checkTraits(sets ...[]string) error {
	if missing := t.unknownTrait(sets); missing != "" {
		return badRequest("No such trait(s): %s.", missing)
	}
	return nil
}

func (s *search) run(groups []*group) ([]option, error) {
	s.all = s.t.allProviders()
	for _, p := range s.all {
		s.nested = s.nested || p.Parent != ""
		if p.hasTrait(sharesTrait) {
			s.sharing = append(s.sharing, p)
		}
	}
	if len(s.w.rootRequired) > 0 || len(s.w.rootForbidden) > 0 {
		for _, list := range [][]string{s.w.rootRequired, s.w.rootForbidden} {
			if err := s.t.checkTraits(list); err != nil {
				return nil, err
			}
		}
		s.roots = map[string]bool{}
		for _, p := range s.all {
			missing := slices.ContainsFunc(s.w.rootRequired, func(n string) bool { return !p.hasTrait(n) })
			if p.Parent == "" && !missing && !slices.ContainsFunc(s.w.rootForbidden, p.hasTrait) {
				s.roots[p.UUID] = true
			}
		}
		if len(s.roots) == 0 {
			return nil, nil
		}
	}
	// By anchor, then by group, in the order of groups.
	byAnchor := map[string][][]option{}
	var anchors []string
	for i, g := range groups {
		options, err := s.serve(g)
		if err == nil && s.ctx.Err() != nil { // what was found by then is not all
			err = givenUp(s.ctx)
		}
		if err != nil {
			return nil, err
		}
		if len(options) == 0 {
			return nil, nil
		}
		for _, o := range options {
			if byAnchor[o.anchor] == nil {
				byAnchor[o.anchor] = make([][]option, len(groups))
				anchors = append(anchors, o.anchor)
			}
			byAnchor[o.anchor][i] = append(byAnchor[o.anchor][i], o)
		}
	}
	if len(groups) == 1 && !s.nested && len(s.sharing) == 0 {
		// One provider serves all, so each option is a candidate as it is: nothing to
		// join, to compare or to sum.
		var out []option
		for _, anchor := range anchors {
			out = append(out, byAnchor[anchor][0]...)
		}
		return out, nil
	}
	return s.merge(anchors, byAnchor)
}

func (s *search) allowed(root string) bool { return s.roots == nil || s.roots[root] }

// serve gives every way to serve one group. Conditions are resolved in the real
// service's order, which ends as soon as nobody can meet one: what is unknown
// further on, in this group or the next, is then not told.
func (s *search) serve(g *group) ([]option, error) {
	for _, a := range g.resources {
		if _, known := s.t.classID(a.class); !known {
			return nil, badRequest("Invalid resource class in resources parameter: No such resource class %s.", a.class)
		}
	}
	if len(g.memberOf) > 0 && !s.t.anybody(filter{memberOf: g.memberOf}) {
		return nil, nil
	}
	for _, set := range append(slices.Clone(g.required), g.forbidden) {
		if err := s.t.checkTraits(set); err != nil {
			return nil, err
		}
	}
	root := ""
	if g.inTree != "" {
		p := s.t.provider(g.inTree)
		if p == nil {
			return nil, nil
		}
		root = p.Root
	}
	if !g.granular() && (s.nested || len(s.sharing) > 0) {
		return s.serveByTree(g, root)
	}
	return s.serveByOne(g, root), nil
}

// serveByOne finds single providers that serve the whole group.
func (s *search) serveByOne(g *group, root string) []option {
	if len(g.resources) == 0 && len(g.required) == 0 && len(g.memberOf) == 0 {
		// Nothing asked for but absence: the real service finds nobody here.
		return nil
	}
	var out []option
	for _, p := range s.all {
		if s.ctx.Err() != nil {
			break // run says so
		}
		if !s.servesAll(p, g, root) {
			continue
		}
		o := option{anchor: p.Root, parts: make([]part, 0, len(g.resources)), groups: []served{{g.suffix, []string{p.UUID}}}}
		for _, a := range g.resources {
			o.parts = append(o.parts, part{p, a.class, a.n})
		}
		if s.allowed(p.Root) {
			out = append(out, o)
		}
		if p.hasTrait(sharesTrait) {
			for _, anchor := range s.anchorsOf(p) {
				if anchor != p.Root && s.allowed(anchor) {
					o.anchor = anchor
					out = append(out, o)
				}
			}
		}
	}
	return out
}

func (s *search) servesAll(p *provider, g *group, root string) bool {
	if !p.hasOneOfEach(g.required) || slices.ContainsFunc(g.forbidden, p.hasTrait) || p.inAnyAggregate(g.forbiddenAggs) {
		return false
	}
	for _, set := range g.memberOf {
		if !p.inAnyAggregate(set) {
			return false
		}
	}
	for _, a := range g.resources {
		if root != "" && p.Root != root || !s.t.hasRoom(p, a) {
			return false
		}
	}
	return true
}

// anchorsOf is the roots of every tree with a member in an aggregate of the
// sharing provider, in order of creation.
func (s *search) anchorsOf(p *provider) []string {
	var out []string
	seen := map[string]bool{}
	for _, q := range s.all {
		if q.inAnyAggregate(p.Aggregates) && !seen[q.Root] {
			seen[q.Root] = true
			out = append(out, q.Root)
		}
	}
	return out
}

// located is a provider seen from the tree it can serve.
type located struct {
	p      *provider
	anchor string
}

// serveByTree finds, tree by tree, combinations of providers that serve the
// group together. Required traits may come from any of them; a forbidden one
// from none.
func (s *search) serveByTree(g *group, root string) ([]option, error) {
	resources := slices.Clone(g.resources)
	slices.SortStableFunc(resources, func(a, b amount) int {
		x, _ := s.t.classID(a.class)
		y, _ := s.t.classID(b.class)
		return int(x - y)
	})
	byAnchor := map[string][][]*provider{}
	var anchors []string
	for i, a := range resources {
		for _, l := range s.withRoom(g, a, root) {
			if byAnchor[l.anchor] == nil {
				byAnchor[l.anchor] = make([][]*provider, len(resources))
				anchors = append(anchors, l.anchor)
			}
			byAnchor[l.anchor][i] = append(byAnchor[l.anchor][i], l.p)
		}
	}
	var out []option
	for _, anchor := range anchors {
		choices := byAnchor[anchor]
		err := product(s.ctx, lengths(choices), func(pick []int) {
			if len(out) > maxOptions {
				return
			}
			o := option{anchor: anchor, parts: make([]part, 0, len(pick))}
			uuids := make([]string, 0, len(pick))
			traits := map[string]bool{}
			for i, j := range pick {
				p := choices[i][j]
				if slices.ContainsFunc(g.forbidden, p.hasTrait) {
					return
				}
				for _, n := range p.Traits {
					traits[n] = true
				}
				o.parts = append(o.parts, part{p, resources[i].class, resources[i].n})
				if !slices.Contains(uuids, p.UUID) {
					uuids = append(uuids, p.UUID)
				}
			}
			for _, set := range g.required {
				if !slices.ContainsFunc(set, func(n string) bool { return traits[n] }) {
					return
				}
			}
			o.groups = []served{{g.suffix, uuids}}
			out = append(out, o)
		})
		if err != nil {
			return nil, err
		}
		if len(out) > maxOptions {
			return nil, badRequest("there are more than %d ways to serve the resources of one group: ask for fewer of them in one group", maxOptions)
		}
	}
	return out, nil
}

// withRoom is who has room for one amount of a group, for which trees.
func (s *search) withRoom(g *group, a amount, root string) []located {
	var found []located
	seen := map[located]bool{}
	add := func(l located) {
		if !seen[l] && s.allowed(l.anchor) && s.aggregatesAgree(g, l) {
			seen[l] = true
			found = append(found, l)
		}
	}
	for _, p := range s.all {
		if s.ctx.Err() != nil {
			break // run says so
		}
		if root != "" && p.Root != root || !s.t.hasRoom(p, a) {
			continue
		}
		add(located{p, p.Root})
		if root == "" && p.hasTrait(sharesTrait) && s.isMember(p, g) {
			for _, anchor := range s.anchorsOf(p) {
				add(located{p, anchor})
			}
		}
	}
	return found
}

func (s *search) isMember(p *provider, g *group) bool {
	return !slices.ContainsFunc(g.memberOf, func(set []string) bool { return !p.inAnyAggregate(set) })
}

// aggregatesAgree: a provider counts as a member where it or its anchor is one.
func (s *search) aggregatesAgree(g *group, l located) bool {
	anchor := s.t.provider(l.anchor)
	if len(g.memberOf) > 0 && !s.isMember(l.p, g) && !s.isMember(anchor, g) {
		return false
	}
	return !l.p.inAnyAggregate(g.forbiddenAggs) && !anchor.inAnyAggregate(g.forbiddenAggs)
}

func lengths[T any](lists [][]T) []int {
	out := make([]int, len(lists))
	for i, l := range lists {
		out[i] = len(l)
	}
	return out
}

func givenUp(ctx context.Context) error {
	return refuse(http.StatusServiceUnavailable, "the request was given up: %v", ctx.Err())
}

// product calls f with every combination of indexes; none where a list is empty.
// It ends early when the client has gone: combinations can be very many.
func product(ctx context.Context, sizes []int, f func(pick []int)) error {
	if slices.Contains(sizes, 0) {
		return nil
	}
	pick := make([]int, len(sizes))
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return givenUp(ctx)
		}
		f(pick)
		i := len(pick) - 1
		for ; i >= 0; i-- {
			if pick[i]++; pick[i] < sizes[i] {
				break
			}
			pick[i] = 0
		}
		if i < 0 {
			return nil
		}
	}
}
