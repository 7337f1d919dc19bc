package placement

import (
	"context"
	"slices"
	"strings"
)

// maxCandidates is how many candidates an answer may have whose question names no
// limit. Arbitrary: the real service, by default, makes all of them until its memory
// or its caller gives up; such an answer would be hundreds of megabytes.
const maxCandidates = 1 << 17

// fruitless is how many choices in a row may come to no candidate before each next
// one is held against what is left (hopeless).
const fruitless = 1 << 10

// merge joins one option of every group of an anchor into candidates. A choice that
// cannot be part of any is not followed further, and none is looked for beyond the
// limit: eight groups that eight devices can serve each are sixteen million
// choices.
func (s *search) merge(anchors []string, byAnchor map[string][][]option) ([]option, error) {
	var out []option
	seen := map[string]bool{}
	for _, anchor := range anchors {
		lists := byAnchor[anchor]
		chosen := make([]option, 0, len(lists))
		tried, since := 0, 0
		var choose func() error
		choose = func() error {
			if len(chosen) == len(lists) {
				if s.sameSubtrees(chosen) {
					if o := join(chosen); !seen[o.key()] {
						seen[o.key()] = true
						out = append(out, o)
						since = 0
						if s.enough == 0 && len(out) > maxCandidates {
							return badRequest("there are more than %d allocation candidates: ask with limit", maxCandidates)
						}
					}
				}
				return nil
			}
			if since > fruitless {
				hopeless := s.hopeless(chosen, lists[len(chosen):])
				if s.ctx.Err() != nil { // one such look may take long, and ends early then
					return givenUp(s.ctx)
				}
				if hopeless {
					return nil
				}
			}
			for _, o := range lists[len(chosen)] {
				if s.enough > 0 && len(out) == s.enough {
					return nil
				}
				since++
				if tried++; tried%1024 == 0 && s.ctx.Err() != nil {
					return givenUp(s.ctx)
				}
				if s.w.isolate && clashes(chosen, o) || !s.fitsBeside(chosen, o) {
					continue
				}
				chosen = append(chosen, o)
				if err := choose(); err != nil {
					return err
				}
				chosen = chosen[:len(chosen)-1]
			}
			return nil
		}
		if slices.ContainsFunc(lists, func(l []option) bool { return len(l) == 0 }) {
			continue
		}
		if err := choose(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hopeless says that the groups which are left cannot all be served beside those
// that are: for one class of resource, or because of isolate, the providers have
// places for fewer. False proves nothing. It ends with the request, and means nothing then.
func (s *search) hopeless(chosen []option, left [][]option) bool {
	if s.w.isolate && lacking(s.ctx, left, s.granular, func(p *provider) int {
		if slices.ContainsFunc(chosen, func(c option) bool { return s.granular(c) == p }) {
			return 0
		}
		return 1
	}) {
		return true
	}
	classes := map[string]int64{} // the least that a group wants of it
	for _, options := range left {
		for _, a := range options[0].parts {
			if n, known := classes[a.class]; !known || a.n < n {
				classes[a.class] = a.n
			}
		}
	}
	for _, class := range sortedKeys(classes) {
		if s.ctx.Err() != nil {
			return false
		}
		least := classes[class]
		if least < 1 {
			continue
		}
		places := func(p *provider) int {
			inv := p.Inventories[class]
			held := int64(0)
			for _, c := range chosen {
				for _, a := range c.parts {
					if a.p == p && a.class == class {
						held += a.n
					}
				}
			}
			free := min(inv.Capacity()-s.t.used(p.UUID, class), inv.MaxUnit) - held
			return int(max(0, min(free/least, int64(len(left)))))
		}
		takes := func(o option) *provider {
			if i := slices.IndexFunc(o.parts, func(a part) bool { return a.class == class }); i >= 0 {
				return o.parts[i].p
			}
			return nil
		}
		if lacking(s.ctx, left, takes, places) {
			return true
		}
	}
	return false
}

// granular is the provider that serves the whole of a group with a suffix; nil for
// another.
func (s *search) granular(o option) *provider {
	if o.groups[0].suffix == "" {
		return nil
	}
	return s.t.provider(o.groups[0].providers[0])
}

// lacking says that the groups cannot each have a place: takes is the provider of
// which an option needs one, nil for none, and places how many a provider has. It is
// a matching by augmenting paths. It gives false when ctx ends.
func lacking(ctx context.Context, groups [][]option, takes func(option) *provider, places func(*provider) int) bool {
	wants := make([][]*provider, 0, len(groups)) // by group; those that can do without any are left out
	for _, options := range groups {
		if ctx.Err() != nil {
			return false
		}
		var from []*provider
		free, known := false, make(map[*provider]bool, len(options))
		for _, o := range options {
			p := takes(o)
			if free = p == nil; free {
				break
			}
			if !known[p] {
				known[p] = true
				from = append(from, p)
			}
		}
		if !free {
			wants = append(wants, from)
		}
	}
	has, holders := map[*provider]int{}, map[*provider][]int{}
	for _, from := range wants {
		for _, p := range from {
			if _, known := has[p]; !known {
				has[p] = places(p)
			}
		}
	}
	var seen map[*provider]bool
	var serve func(group int) bool
	serve = func(group int) bool {
		for _, p := range wants[group] {
			if seen[p] {
				continue
			}
			seen[p] = true
			if len(holders[p]) < has[p] {
				holders[p] = append(holders[p], group)
				return true
			}
			for i, other := range holders[p] {
				if serve(other) {
					holders[p][i] = group
					return true
				}
			}
		}
		return false
	}
	for group := range wants {
		if ctx.Err() != nil {
			return false
		}
		seen = map[*provider]bool{}
		if !serve(group) {
			return true
		}
	}
	return false
}

// clashes says whether two granular groups would be served by one provider.
func clashes(chosen []option, o option) bool {
	return o.groups[0].suffix != "" && slices.ContainsFunc(chosen, func(c option) bool {
		return c.groups[0].suffix != "" && c.groups[0].providers[0] == o.groups[0].providers[0]
	})
}

// fitsBeside checks the sums of groups that meet on one provider.
func (s *search) fitsBeside(chosen []option, o option) bool {
	for _, a := range o.parts {
		n := a.n
		for _, c := range chosen {
			for _, b := range c.parts {
				if b.p == a.p && b.class == a.class {
					n += b.n
				}
			}
		}
		if n == a.n {
			continue // found to fit when it was looked for
		}
		inv := a.p.Inventories[a.class]
		if s.t.used(a.p.UUID, a.class)+n > inv.Capacity() || n > inv.MaxUnit {
			return false
		}
	}
	return true
}

// sameSubtrees: of the providers that serve the tied groups, one must be an
// ancestor of, or be, all the others.
func (s *search) sameSubtrees(chosen []option) bool {
	for _, suffixes := range s.w.subtrees {
		set := map[string]bool{}
		for _, o := range chosen {
			if slices.Contains(suffixes, o.groups[0].suffix) {
				for _, p := range o.groups[0].providers {
					set[p] = true
				}
			}
		}
		common := map[string]int{}
		for p := range set {
			for id := p; id != ""; id = s.t.provider(id).Parent {
				common[id]++
			}
		}
		found := len(set) == 0
		for p := range set {
			found = found || common[p] == len(set)
		}
		if !found {
			return false
		}
	}
	return true
}

func join(chosen []option) option {
	o := option{anchor: chosen[0].anchor}
	for _, c := range chosen {
		for _, a := range c.parts {
			i := slices.IndexFunc(o.parts, func(b part) bool { return b.p == a.p && b.class == a.class })
			if i >= 0 {
				o.parts[i].n += a.n
			} else {
				o.parts = append(o.parts, a)
			}
		}
		o.groups = append(o.groups, c.groups...)
	}
	return o
}

// key is equal for options that are the same candidate.
func (o option) key() string {
	var lines []string
	for _, a := range o.parts {
		lines = append(lines, a.p.UUID+" "+a.class)
	}
	for _, g := range o.groups {
		for _, p := range g.providers {
			lines = append(lines, "="+g.suffix+" "+p)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
