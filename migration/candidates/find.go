package candidates

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/placementclient"
)

// Placement is what is asked of Placement; *placementclient.Client is one.
type Placement interface {
	AllocationCandidates(ctx context.Context, r placementclient.CandidateRequest) (placementclient.AllocationCandidates, error)
	Providers(ctx context.Context, f placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error)
	KnownTraits(ctx context.Context, names []string) ([]string, error)
	KnownClasses(ctx context.Context, names []string) ([]string, error)
	Aggregates(ctx context.Context, rp string) (placementclient.Aggregates, error)
}

// Host is one that Placement says has room.
type Host struct {
	Name  string `json:"name"`          // of the root provider
	Root  string `json:"provider_uuid"` // of the same
	Shape Shape  `json:"shape"`         // of the request that found it
	// Weight goes before all else: what it counts that the host is near, or is not.
	Weight float64 `json:"weight"`
	// SameDisk says that it shares the storage with the guest's disks.
	SameDisk bool `json:"same_disk,omitempty"`
	// MemoryUsed is the part of all its memory that is allocated, 0 to 1.
	MemoryUsed float64 `json:"memory_used"`
	// Allocations is what Placement proposes, by provider: one way of perhaps many;
	// nil for a guest that is spread over several of the host's cells.
	Allocations map[string]placementclient.Resources `json:"allocations,omitempty"`
}

// Found is what Placement said.
type Found struct {
	Hosts []Host // best first, each once
	// Requests are the questions, in order. What Placement could not be asked, since
	// it knows no host of that kind, is not among them.
	Requests []Request
	// Truncated says that an answer was as long as its limit: there may be more hosts.
	Truncated bool
	// Nearness is of all hosts, found or not.
	Nearness Nearness
}

// Find asks Placement for hosts and puts them in order: by weight, the greatest first;
// then those that share the guest's disks, then the emptiest by memory, then by uuid, so
// that the same answers give the same order. Where enough is not nil and is content with
// those of the hosts that share the disks which no other can outweigh, nobody else is
// asked for.
//
// It costs three questions for a usual guest: which traits are known, the
// candidates, and the names of all hosts. For the weight it asks one more, where the
// source is in an aggregate two more, and then one for each aggregate with a weight of its
// own; none where near hosts count as others do, where the guest is on no host, or where
// enough is not nil and there is but one host to choose. A trait or class of the flavor's that
// Placement does not know is fault.DoesNotFit, with a reason each: no host can
// have it, and an empty list would not say why. No host is no error.
func Find(ctx context.Context, p Placement, w Wish, enough func([]Host) bool) (Found, error) {
	requests, err := Build(w)
	if err != nil {
		return Found{}, err
	}
	requests, named, err := known(ctx, p, requests)
	if err != nil {
		return Found{}, err
	}
	var out Found
	best := map[string]Host{} // by root
	weighed := false
	names := names{p: p, marked: named}
	var sharers map[string]bool
	for i, r := range requests {
		if r.SameDisk && len(r.MemberOf) == 0 && sharers == nil {
			if sharers, err = sharing(ctx, p, w.Disk); err != nil {
				return out, err
			}
		}
		answer, err := p.AllocationCandidates(ctx, r.CandidateRequest)
		if err != nil {
			return out, fmt.Errorf("ask Placement for hosts: %w", err)
		}
		if r.SameDisk && len(r.MemberOf) == 0 {
			answer.Candidates = slices.DeleteFunc(answer.Candidates, func(c placementclient.Candidate) bool { return !sharers[rootOf(c, answer.Summaries)] })
		}
		out.Requests = append(out.Requests, r)
		out.Truncated = out.Truncated || len(answer.Candidates) >= r.Limit
		join(best, r, answer, w.Disk)
		last := i+1 == len(requests)
		if !last && (enough == nil || !r.SameDisk || requests[i+1].SameDisk) {
			continue
		}
		if !weighed && !(last && enough != nil && len(best) < 2) {
			if out.Nearness, err = nearness(ctx, p, w); err != nil {
				return out, err
			}
			weighed = true
		}
		if out.Hosts, err = names.of(ctx, ranked(best, out.Nearness)); err != nil {
			return out, err
		}
		if !last && enough(out.Nearness.best(out.Hosts)) {
			break
		}
	}
	return out, nil
}

// join adds an answer's hosts to those known. Of several ways on one host the
// first is kept, but one with the guest's own disk goes before.
func join(best map[string]Host, r Request, answer placementclient.AllocationCandidates, disk Disk) {
	type memory struct{ used, capacity int64 }
	memories := map[string]memory{}
	for rp, s := range answer.Summaries {
		m, root := s.Resources[placementclient.ClassMemoryMB], cmp.Or(s.RootProviderUUID, rp)
		memories[root] = memory{memories[root].used + m.Used, memories[root].capacity + m.Capacity}
	}
	free := freeOf(r, answer.Summaries)
	for _, c := range answer.Candidates {
		root := rootOf(c, answer.Summaries)
		if root == "" || lacks(free[root], r.Spread) || !hasTraits(root, c, answer.Summaries, r.HostRequired) {
			continue
		}
		if r.Spread != nil {
			if !gives(c, placementclient.ClassMemoryMB) {
				continue // a server below 1.29 is not asked for the group
			}
			c.Allocations = nil
		}
		h := Host{Root: root, Shape: r.Shape, Allocations: c.Allocations, SameDisk: r.SameDisk || disk.Provider != "" && c.Allocations[disk.Provider] != nil}
		if m := memories[root]; m.capacity > 0 {
			h.MemoryUsed = float64(m.used) / float64(m.capacity)
		}
		if had, there := best[root]; !there || h.SameDisk && !had.SameDisk {
			best[root] = h
		}
	}
}

// freeOf sums up, by root, what is free of the classes that a request leaves to be
// summed. Pools of huge pages do not count.
func freeOf(r Request, summaries map[string]placementclient.ProviderSummary) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	if r.Spread == nil {
		return out
	}
	for rp, s := range summaries {
		if slices.Contains(s.Traits, placementclient.TraitPageSizeLarge) {
			continue
		}
		root := cmp.Or(s.RootProviderUUID, rp)
		if out[root] == nil {
			out[root] = placementclient.Resources{}
		}
		for class := range r.Spread {
			out[root][class] += max(0, s.Resources[class].Capacity-s.Resources[class].Used)
		}
	}
	return out
}

func lacks(free, want placementclient.Resources) bool {
	for class, n := range want {
		if free[class] < n {
			return true
		}
	}
	return false
}

func gives(c placementclient.Candidate, class string) bool {
	for _, r := range c.Allocations {
		if r[class] > 0 {
			return true
		}
	}
	return false
}

// hasTraits reports whether each trait is one of some provider of a host, or of who
// gives a candidate something.
func hasTraits(root string, c placementclient.Candidate, summaries map[string]placementclient.ProviderSummary, traits []string) bool {
	left := slices.Clone(traits)
	for rp, s := range summaries {
		if len(left) == 0 {
			break
		}
		if c.Allocations[rp] != nil || cmp.Or(s.RootProviderUUID, rp) == root {
			left = slices.DeleteFunc(left, func(t string) bool { return slices.Contains(s.Traits, t) })
		}
	}
	return len(left) == 0
}

// sharing are the providers, hosts' roots among them, that share a disk.
func sharing(ctx context.Context, p Placement, disk Disk) (map[string]bool, error) {
	list, err := p.Providers(ctx, placementclient.ProviderFilter{MemberOf: disk.Aggregates})
	if err != nil {
		return nil, fmt.Errorf("ask Placement who shares the guest's disks: %w", err)
	}
	out := map[string]bool{}
	for _, rp := range list {
		out[rp.UUID] = true
	}
	return out, nil
}

// rootOf is the host of a candidate: the root of who gives CPUs or memory. A
// provider that shares its disk is the root of a tree of its own.
func rootOf(c placementclient.Candidate, summaries map[string]placementclient.ProviderSummary) string {
	shared := ""
	for _, rp := range c.Providers() {
		root := cmp.Or(summaries[rp].RootProviderUUID, rp)
		if slices.Contains(summaries[rp].Traits, placementclient.TraitMiscSharesViaAggregate) {
			shared = root
			continue
		}
		return root
	}
	return shared
}

func ranked(best map[string]Host, n Nearness) []Host {
	var out []Host
	for _, h := range best {
		_, h.Weight = n.Of(h.Root)
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Host) int {
		if c := cmp.Compare(b.Weight, a.Weight); c != 0 {
			return c
		}
		if a.SameDisk != b.SameDisk {
			if a.SameDisk {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.MemoryUsed, b.MemoryUsed), cmp.Compare(a.Root, b.Root))
	})
	return out
}

// names finds the names of roots, all in one question: those marked as computes,
// or, where some are not, every provider there is.
type names struct {
	p      Placement
	marked bool // the trait COMPUTE_NODE is known
	byUUID map[string]string
}

// of gives the hosts with their names, without those that are gone.
func (n *names) of(ctx context.Context, hosts []Host) ([]Host, error) {
	missing := func() bool {
		return slices.ContainsFunc(hosts, func(h Host) bool { return n.byUUID[h.Root] == "" })
	}
	filters := []placementclient.ProviderFilter{{}}
	if n.marked {
		filters = []placementclient.ProviderFilter{{Required: []string{placementclient.TraitComputeNode}}, {}}
	}
	for _, f := range filters {
		if !missing() {
			break
		}
		list, err := n.p.Providers(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("ask Placement for the names of hosts: %w", err)
		}
		n.byUUID = map[string]string{}
		for _, p := range list {
			n.byUUID[p.UUID] = p.Name
		}
	}
	var out []Host
	for _, h := range hosts {
		if h.Name = n.byUUID[h.Root]; h.Name != "" {
			out = append(out, h)
		}
	}
	return out, nil
}

// ownTrait reports whether Build names a trait by itself: one that this Placement
// does not know is one that no host has.
func ownTrait(name string) bool {
	switch name {
	case placementclient.TraitHWNUMARoot, placementclient.TraitComputeStatusDisabled, placementclient.TraitComputeNode,
		placementclient.TraitPageSizeSmall, placementclient.TraitPageSizeLarge:
		return true
	}
	return false
}

// known leaves out of the requests what Placement would refuse to be asked: traits
// that are not to be there and are not, and requests for what no host has. marked
// says that it knows COMPUTE_NODE.
func known(ctx context.Context, p Placement, requests []Request) (askable []Request, marked bool, err error) {
	traits, classes := map[string]bool{placementclient.TraitComputeNode: false}, map[string]bool{}
	for _, r := range requests {
		r.each(func(list []string) {
			for _, t := range list {
				traits[t] = false
			}
		}, func(class string) {
			if !slices.Contains(counted, class) {
				classes[class] = false
			}
		})
	}
	there, err := p.KnownTraits(ctx, slices.Sorted(maps.Keys(traits)))
	if err == nil && len(classes) > 0 {
		var have []string
		have, err = p.KnownClasses(ctx, slices.Sorted(maps.Keys(classes)))
		for _, c := range have {
			classes[c] = true
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("ask Placement what it knows: %w", err)
	}
	for _, t := range there {
		traits[t] = true
	}
	var reasons []fault.Reason
	add := func(r fault.Reason) {
		if !slices.Contains(reasons, r) {
			reasons = append(reasons, r)
		}
	}
	for _, r := range requests {
		may := true
		for _, t := range r.wanted() {
			if traits[t] {
				continue
			}
			may = false
			if !ownTrait(t) && !isPageSize(t) {
				add(fault.Reason{
					Code: "trait_unknown", Message: "the flavor or an alias asks for trait " + t + ", which Placement does not know: no host has it",
					Want: t, Change: "correct the name, or set the trait on a host",
				})
			}
		}
		for _, t := range r.forbidden() {
			if !traits[t] && !ownTrait(t) {
				may = false
				add(fault.Reason{
					Code: "trait_unknown", Message: "the flavor forbids trait " + t + ", which Placement does not know", Want: t, Change: "correct the name",
				})
			}
		}
		r.each(func([]string) {}, func(class string) {
			if known, asked := classes[class]; asked && !known {
				may = false
				add(fault.Reason{
					Code: "resource_class_unknown", Message: "resource class " + class + " is asked for, which Placement does not know: no host has any",
					Want: class, Change: "correct the flavor or the alias, or let a host report it",
				})
			}
		})
		if may {
			r.dropForbidden(func(t string) bool { return !traits[t] })
			askable = append(askable, r)
		}
	}
	if len(askable) == 0 && len(reasons) > 0 {
		return nil, false, fault.Refuse(fault.DoesNotFit, "ask Placement for hosts", reasons...)
	}
	return askable, traits[placementclient.TraitComputeNode], nil
}

// Own finds the sharing provider among those that a guest's disk is counted on; the
// zero value where the disk is its host's own. allocations are the guest's.
func Own(ctx context.Context, p Placement, allocations map[string]placementclient.Resources) (Disk, error) {
	for _, rp := range slices.Sorted(maps.Keys(allocations)) {
		if r := allocations[rp]; len(allocations) < 2 || len(r) != 1 || r[placementclient.ClassDiskGB] == 0 {
			continue
		}
		sharing, err := p.Providers(ctx, placementclient.ProviderFilter{UUID: rp, Required: []string{placementclient.TraitMiscSharesViaAggregate}})
		if err != nil || len(sharing) == 0 {
			return Disk{}, err
		}
		aggregates, err := p.Aggregates(ctx, rp)
		return Disk{Provider: rp, Aggregates: aggregates.Aggregates}, err
	}
	return Disk{}, nil
}
