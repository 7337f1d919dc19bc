package candidates_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration/candidates"
	"berth/migration/candidates/candidatestest"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// embedded gives clients of an empty Placement of ours.
func embedded(t testing.TB) func(placementclient.Microversion) *placementclient.Client {
	t.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(v placementclient.Microversion) *placementclient.Client {
		c, err := placementclient.New(placementclient.Config{URL: h.URL, Token: "admin", MaxVersion: v, Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
}

func TestFind_FindsEveryKindOfHost(t *testing.T) {
	candidatestest.Suite(t, embedded(t))
}

// counting counts the questions for candidates.
type counting struct {
	*placementclient.Client
	asked int
}

func (c *counting) AllocationCandidates(ctx context.Context, r placementclient.CandidateRequest) (placementclient.AllocationCandidates, error) {
	c.asked++
	return c.Client.AllocationCandidates(ctx, r)
}

// TestFind_StopsAtHostsThatShareTheDisks: a move that has somewhere to go without
// copying disks does not look further.
func TestFind_StopsAtHostsThatShareTheDisks(t *testing.T) {
	c := &counting{Client: embedded(t)(placementclient.MaxMicroversion)}
	candidatestest.Fill(t, c.Client)
	byName := func(name string) placementclient.ResourceProvider {
		t.Helper()
		p, err := c.ProviderByName(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	pool := byName("pool").UUID
	disk, err := candidates.Own(t.Context(), c, map[string]placementclient.Resources{
		byName("flat-b").UUID: {"VCPU": 2, "MEMORY_MB": 512}, pool: {"DISK_GB": 50},
	})
	if err != nil || disk.Provider != pool || len(disk.Aggregates) != 1 {
		t.Fatalf("its disk is on %+v, %v; want %s", disk, err, pool)
	}
	none, err := candidates.Own(t.Context(), c, map[string]placementclient.Resources{
		byName("nested").UUID: {"DISK_GB": 1}, byName("nested_NUMA0").UUID: {"VCPU": 2},
	})
	if err != nil || none.Provider != "" {
		t.Errorf("a disk of the host's own is on %+v, %v", none, err)
	}
	const rack = "00000000-0000-4000-8000-0000cafe0001"
	for _, host := range []string{"flat-a", "nested"} {
		p := byName(host)
		if _, err := c.PutAggregates(t.Context(), p.UUID, placementclient.Aggregates{Generation: p.Generation, Aggregates: []string{rack}}); err != nil {
			t.Fatal(err)
		}
	}
	w := candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 50}, Disk: disk}
	w.Source = byName("nested").UUID
	for _, tt := range []struct {
		content bool
		near    float64
		asked   int
		want    []string
	}{
		{true, 0, 2, []string{"shared-d"}},
		{false, 0, 4, []string{"shared-d", "flat-b", "nested", "flat-a"}},
		// A host that is near may be better than one that shares the disks.
		{true, 10, 4, []string{"flat-a", "shared-d", "flat-b", "nested"}},
		{true, -10, 2, []string{"shared-d"}},
	} {
		c.asked, w.Near.Multiplier = 0, tt.near
		found, err := candidates.Find(t.Context(), c, w, func(hosts []candidates.Host) bool { return tt.content && len(hosts) > 0 })
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, h := range found.Hosts {
			names = append(names, h.Name)
		}
		if diff := cmp.Diff(tt.want, names); diff != "" || c.asked != tt.asked {
			t.Errorf("content %v, near %g: %d questions, want %d; hosts (-want +got):\n%s", tt.content, tt.near, c.asked, tt.asked, diff)
		}
	}
}
