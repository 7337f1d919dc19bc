package candidates_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration/candidates"
	pc "berth/placementclient"
	"berth/topology"
)

// canned is a Placement whose answer to every question is made up: hosts, by
// number, with the memory that is used of 100, each so many times.
type canned struct {
	candidates.Placement
	used  map[int]int64
	times int
	gone  []int // hosts that have no provider any more
	mark  bool  // some providers are marked as computes, and these are not
}

func (p canned) uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func (p canned) KnownTraits(_ context.Context, names []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(names), func(t string) bool { return t == pc.TraitComputeNode && !p.mark }), nil
}

func (p canned) AllocationCandidates(_ context.Context, r pc.CandidateRequest) (pc.AllocationCandidates, error) {
	out := pc.AllocationCandidates{Summaries: map[string]pc.ProviderSummary{}}
	if len(r.Groups) > 0 {
		return out, nil
	}
	for n, used := range p.used {
		rp := p.uuid(n)
		out.Summaries[rp] = pc.ProviderSummary{RootProviderUUID: rp, Resources: map[string]pc.ResourceSummary{"MEMORY_MB": {Capacity: 100, Used: used}}}
		for range p.times {
			out.Candidates = append(out.Candidates, pc.Candidate{Allocations: map[string]pc.Resources{rp: {"VCPU": 1, "MEMORY_MB": 1}}})
		}
	}
	return out, nil
}

func (p canned) Providers(_ context.Context, f pc.ProviderFilter) ([]pc.ResourceProvider, error) {
	var out []pc.ResourceProvider
	for n := range p.used {
		if len(f.Required) == 0 && !slices.Contains(p.gone, n) {
			out = append(out, pc.ResourceProvider{UUID: p.uuid(n), Name: fmt.Sprint("h", n)})
		}
	}
	return out, nil
}

// TestFind_OrdersAlikeAnswersAlike: hosts that are equally full are in one order
// whatever the order of the answer; those that are gone meanwhile are left out.
func TestFind_OrdersAlikeAnswersAlike(t *testing.T) {
	p := canned{used: map[int]int64{1: 50, 9: 0}, times: 2, gone: []int{4}, mark: true}
	for n := 2; n < 9; n++ {
		p.used[n] = 10
	}
	for range 20 {
		found, err := candidates.Find(t.Context(), p, candidates.Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, h := range found.Hosts {
			names = append(names, h.Name)
		}
		if diff := cmp.Diff([]string{"h9", "h2", "h3", "h5", "h6", "h7", "h8", "h1"}, names); diff != "" || found.Truncated {
			t.Fatalf("truncated %v; order (-want +got):\n%s", found.Truncated, diff)
		}
	}
}

func TestFind_SaysThatAnAnswerEndedAtItsLimit(t *testing.T) {
	p := canned{used: map[int]int64{1: 0}, times: 5000}
	found, err := candidates.Find(t.Context(), p, candidates.Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}}, nil)
	if err != nil || !found.Truncated || len(found.Hosts) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}
