package placement

import (
	"slices"
	"strings"
)

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
		tried := 0
		var choose func() error
		choose = func() error {
			if len(chosen) == len(lists) {
				if s.sameSubtrees(chosen) {
					if o := join(chosen); !seen[o.key()] {
						seen[o.key()] = true
						out = append(out, o)
					}
				}
				return nil
			}
			for _, o := range lists[len(chosen)] {
				if s.enough > 0 && len(out) == s.enough {
					return nil
				}
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
