package conductor_test

import (
	"context"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/placementclient"
	"berth/topology"
)

// simPlacement is Placement's allocations: generations of consumers, and all or
// nothing.
type simPlacement struct {
	w         *world
	consumers map[string]*placementclient.Allocations
	down      bool
	full      map[string]bool   // providers without room
	lateFull  string            // this one is full, but the candidates do not say so
	lost      map[string]string // classes that providers have no more
	swapping  func()            // before the first write of two consumers
	writes    int               // that came
	answers   func(n int) error // to the nth of them, in its place; nil for none
}

func newSimPlacement(w *world) *simPlacement {
	return &simPlacement{w: w, consumers: map[string]*placementclient.Allocations{}, full: map[string]bool{}}
}

func (s *simPlacement) write(set map[string]placementclient.Allocations) error {
	if s.writes++; s.answers != nil {
		if err := s.answers(s.writes); err != nil {
			return err
		}
	}
	for id, a := range set {
		have := s.consumers[id]
		if (have == nil) != (a.ConsumerGeneration == nil) || have != nil && *have.ConsumerGeneration != *a.ConsumerGeneration {
			return fault.New(fault.GenerationConflict, "consumer generation conflict on %s", id)
		}
	}
	// All consumers are looked at before any amount, as the service does.
	for _, id := range slices.Sorted(maps.Keys(set)) {
		for rp, r := range set[id].Allocations {
			if _, holds := r[s.lost[rp]]; holds {
				return fault.New(fault.DoesNotFit, "provider %s has no %s", rp, s.lost[rp])
			}
			if s.full[rp] || s.lateFull == rp {
				return fault.Refuse(fault.DoesNotFit, "allocate", fault.Reason{Code: "placement_capacity", Message: "would exceed the capacity of " + rp})
			}
		}
	}
	for id, a := range set {
		if len(a.Allocations) == 0 {
			delete(s.consumers, id)
			continue
		}
		next := 1
		if a.ConsumerGeneration != nil {
			next = *a.ConsumerGeneration + 1
		}
		kept := a.Clone()
		kept.ConsumerGeneration = placementclient.Generation(next)
		s.consumers[id] = &kept
	}
	// What hosts share is counted once, whatever moves.
	shared := int64(0)
	for _, a := range s.consumers {
		shared += a.Allocations[sharedDisk]["DISK_GB"]
	}
	most := guestSize.DiskGB
	if s.w.script.request.Change.Flavor != nil {
		most = wantedSize.DiskGB
	}
	if shared > most {
		s.w.violate("%d GiB of the sharing provider are held for a guest of %d", shared, most)
	}
	return nil
}

func (s *simPlacement) verify(owner *simHost, size topology.Resources) {
	inst := s.consumers[guestUUID]
	want := owner.place(size)
	if inst == nil || !inst.SameResources(placementclient.Allocations{Allocations: want}) {
		s.w.violate("at the end the instance holds %+v, want %v", inst, want)
	} else if inst.ConsumerType != placementclient.ConsumerInstance {
		s.w.violate("at the end the instance's consumer type is %s", inst.ConsumerType)
	}
	if len(s.consumers) > 1 {
		s.w.violate("at the end Placement has consumers %v", slices.Sorted(maps.Keys(s.consumers)))
	}
}

// placementWire is Placement as one process sees it.
type placementWire struct {
	w *world
	p *simruntime.Process
}

func (x placementWire) up() bool { return !x.w.placement.down }

func (x placementWire) Allocations(_ context.Context, consumer string) (placementclient.Allocations, error) {
	if !x.up() {
		return placementclient.Allocations{}, fault.New(fault.Unavailable, "Placement does not answer")
	}
	x.p.Yield()
	if a := x.w.placement.consumers[consumer]; a != nil {
		return a.Clone(), nil
	}
	return placementclient.Allocations{}, nil
}

func (x placementWire) PutAllocations(_ context.Context, consumer string, a placementclient.Allocations) error {
	_, err := wire(x.w, x.p, "put allocations", x.up, func() (struct{}, error) {
		return struct{}{}, x.w.placement.write(map[string]placementclient.Allocations{consumer: a.Clone()})
	})
	return err
}

func (x placementWire) PostAllocations(_ context.Context, set map[string]placementclient.Allocations) error {
	if f := x.w.placement.swapping; f != nil {
		x.w.placement.swapping = nil
		f()
	}
	_, err := wire(x.w, x.p, "post allocations", x.up, func() (struct{}, error) {
		return struct{}{}, x.w.placement.write(set)
	})
	return err
}

func (x placementWire) DeleteAllocations(_ context.Context, consumer string) error {
	_, err := wire(x.w, x.p, "delete allocations", x.up, func() (struct{}, error) {
		if x.w.placement.consumers[consumer] == nil {
			return struct{}{}, fault.New(fault.NotFound, "consumer %s holds nothing", consumer)
		}
		delete(x.w.placement.consumers, consumer)
		return struct{}{}, nil
	})
	return err
}

func (x placementWire) Providers(_ context.Context, f placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error) {
	if !x.up() {
		return nil, fault.New(fault.Unavailable, "Placement does not answer")
	}
	var out []placementclient.ResourceProvider
	for _, name := range slices.Sorted(maps.Keys(x.w.hosts)) {
		h := x.w.hosts[name]
		tree := []placementclient.ResourceProvider{{UUID: h.provider, Name: name, RootProviderUUID: h.provider}}
		if h.pages != h.provider {
			tree = append(tree, placementclient.ResourceProvider{UUID: h.pages, Name: name + "_pages", ParentProviderUUID: h.provider, RootProviderUUID: h.provider})
		}
		if h.disk == sharedDisk && !slices.ContainsFunc(out, func(p placementclient.ResourceProvider) bool { return p.UUID == sharedDisk }) && (f.InTree == "" || f.InTree == sharedDisk) {
			out = append(out, placementclient.ResourceProvider{UUID: sharedDisk, Name: "nfs", RootProviderUUID: sharedDisk}) // a host of its own, without an agent
		}
		if f.InTree == "" || slices.ContainsFunc(tree, func(p placementclient.ResourceProvider) bool { return p.UUID == f.InTree }) {
			out = append(out, tree...)
		}
	}
	return out, nil
}

func (x placementWire) KnownTraits(_ context.Context, names []string) ([]string, error) {
	if !x.up() {
		return nil, fault.New(fault.Unavailable, "Placement does not answer")
	}
	return names, nil
}

func (x placementWire) KnownClasses(_ context.Context, names []string) ([]string, error) {
	return names, nil
}

func (x placementWire) Aggregates(context.Context, string) (placementclient.Aggregates, error) {
	return placementclient.Aggregates{}, nil
}

func (x placementWire) AllocationCandidates(context.Context, placementclient.CandidateRequest) (placementclient.AllocationCandidates, error) {
	var out placementclient.AllocationCandidates
	if !x.up() {
		return out, fault.New(fault.Unavailable, "Placement does not answer")
	}
	out.Summaries = map[string]placementclient.ProviderSummary{}
	for _, name := range slices.Sorted(maps.Keys(x.w.hosts)) {
		rp := x.w.hosts[name].provider
		if x.w.placement.full[rp] {
			continue
		}
		out.Candidates = append(out.Candidates, placementclient.Candidate{Allocations: map[string]placementclient.Resources{rp: {"VCPU": 2}}})
		out.Summaries[rp] = placementclient.ProviderSummary{RootProviderUUID: rp}
	}
	return out, nil
}
