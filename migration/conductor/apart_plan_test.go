package conductor_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation/operationtest"
	"berth/topology"
)

// apartPlanHost answers what a plan asks of hosts that share nothing.
type apartPlanHost struct {
	planHost
	reaches map[string]error
	copies  map[string]bool // destinations to which a disk would be copied
}

func (h apartPlanHost) Reaches(_ context.Context, _ migration.Ref, r migration.ReachRequest) error {
	return h.reaches[r.Host]
}

func (h apartPlanHost) CheckSource(_ context.Context, _ migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	if h.copies[a.Destination.Name] {
		return migration.SourceAnswer{CopyDisks: []string{"vda"}}, nil
	}
	return migration.SourceAnswer{Shared: true}, nil
}

// TestPlanner_SaysByWhichWayDisksGo: planned at the conductor, of a guest that is elsewhere.
func TestPlanner_SaysByWhichWayDisksGo(t *testing.T) {
	planner, _ := newPlanner(t, nil)
	planner.Local = "flat-a"
	planner.Hosts = func(_ context.Context, name string) (migration.Host, error) {
		h := apartPlanHost{planHost: planHost{name: name}, copies: map[string]bool{"nested": true, "flat-off": true, "flat-a": true}}
		h.reaches = map[string]error{"nested": fault.New(fault.Unavailable, "no route to host")}
		return operationtest.Over(h), nil
	}
	r := migration.PlanRequest{
		Kind: migration.PlanResize, Guest: planGuest, ShareNothing: true,
		Wanted: &migration.Wanted{Flavor: topology.Flavor{Name: "larger", VCPUs: 2}, Resources: topology.Resources{VCPUs: 2, MemoryMB: 64}},
		Source: migration.Description{Name: "flat-b", ProviderUUID: "root of flat-b", HostUUID: "flat-b"},
	}
	p, err := planner.Plan(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, h := range p.Hosts {
		got[h.Name] = string(h.Way) + ": " + h.WayReason
	}
	want := map[string]string{
		"flat-a":    "straight: flat-a conducts, and reaches the other",
		"nested":    "relay: flat-b does not reach nested: no route to host",
		"flat-off":  "straight: flat-b reaches flat-off",
		"shared-d":  ": the two hosts share all of its disks",
		"flat-full": ": the two hosts share all of its disks",
		"known":     ": the two hosts share all of its disks",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ways (-want +got):\n%s", diff)
	}
	r.ShareNothing = false
	if p, err = planner.Plan(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, h := range p.Hosts {
		if h.Way != migration.WayNone || h.WayReason != "" {
			t.Errorf("of a move that its own host conducts: %s %s: %s", h.Name, h.Way, h.WayReason)
		}
	}
}

// TestPlanner_SaysThatAThirdHostCouldConduct: of hosts that the guest's own does not reach,
// where the guest may be off on its way.
func TestPlanner_SaysThatAThirdHostCouldConduct(t *testing.T) {
	away := map[string]error{"flat-b": fault.New(fault.Unavailable, "no route to host")}
	for kind, want := range map[migration.PlanKind]string{
		migration.PlanLive:   "",
		migration.PlanCold:   "ask such a host: berth -c HOST migrate web flat-b --share-nothing",
		migration.PlanResize: "ask such a host: berth -c HOST resize web --flavor larger flat-b --share-nothing",
	} {
		planner, _ := newPlanner(t, away)
		p, err := planner.Plan(t.Context(), migration.PlanRequest{
			Kind: kind, Guest: planGuest, Named: "flat-b", Source: migration.Description{Name: "flat-a", ProviderUUID: "root of flat-a", HostUUID: "flat-a"},
			Wanted: &migration.Wanted{Flavor: topology.Flavor{Name: "larger", VCPUs: 2}, Resources: topology.Resources{VCPUs: 2, MemoryMB: 64}},
		})
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		if i := slices.IndexFunc(p.Hosts[0].Reasons, func(r fault.Reason) bool { return r.Code == "share_nothing" }); i >= 0 {
			said = p.Hosts[0].Reasons[i].Change
		}
		if said != want || !strings.Contains(told(p), "no answer") {
			t.Errorf("%s: said %q, want %q\n%s", kind, said, want, told(p))
		}
	}
}
