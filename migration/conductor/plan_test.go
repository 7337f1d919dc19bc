package conductor_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/candidates/candidatestest"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// planHost answers a plan's questions as it was told to; every other operation panics,
// since a plan must not ask it.
type planHost struct {
	migration.Host
	name   string
	check  error
	source func(dest string) error
}

func (h planHost) CheckDestination(_ context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	if ref.Migration != "" {
		return migration.CheckAnswer{}, fmt.Errorf("a plan names migration %s", ref.Migration)
	}
	claimed := c.Guest.Resources
	if c.Kind == migration.TypeMigration && c.Wanted != nil {
		claimed = c.Wanted.Resources
	}
	return migration.CheckAnswer{
		Destination: migration.Description{Name: h.name, ProviderUUID: "root of " + h.name, HostUUID: h.name},
		WouldClaim:  &migration.RoomAnswer{Resources: claimed, Allocations: map[string]placementclient.Resources{"rp-" + h.name: {"VCPU": 2}}},
	}, h.check
}

func (h planHost) CheckSource(_ context.Context, _ migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	if h.source == nil {
		return migration.SourceAnswer{}, nil
	}
	return migration.SourceAnswer{}, h.source(a.Destination.Name)
}

// newPlanner plans in candidatestest's fleet; checks are what hosts say, nil for
// yes.
func newPlanner(t *testing.T, checks map[string]error) (conductor.Planner, *placementclient.Client) {
	t.Helper()
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &embedded{t: t, server: server}
	client, err := placementclient.New(placementclient.Config{URL: "http://127.0.0.1:8778", Token: "admin", Transport: roundTrip(e.serve), Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	candidatestest.Fill(t, client)
	rt := new(runtime.System)
	t.Cleanup(rt.Wait)
	return conductor.Planner{
		Placement: client, Runtime: rt, Local: "flat-a", Known: []string{"flat-b", "known"},
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return operationtest.Over(planHost{name: name, check: checks[name]}), nil
		},
		Room: func(_ context.Context, name string, _ migration.RoomRequest) (migration.RoomAnswer, error) {
			return migration.RoomAnswer{}, checks[name]
		},
	}, client
}

var planGuest = migration.Guest{
	UUID: guestUUID, Name: "web", PowerState: migration.PowerRunning,
	Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 1}, Flavor: topology.Flavor{Name: "small"},
}

// told is a plan in few words: each host with its place, verdict and codes.
func told(p migration.Plan) string {
	var out []string
	for i, h := range p.Hosts {
		place := "-"
		if h.Candidate || h.OwnHost {
			place = fmt.Sprint(i + 1)
		}
		line := place + " " + h.Name + " " + string(h.Verdict)
		for _, r := range h.Reasons {
			line += " " + r.Code
		}
		out = append(out, line)
	}
	for _, r := range p.Blockers {
		out = append(out, "blocked "+r.Code)
	}
	return strings.Join(append(out, "chosen "+p.Chosen), "\n")
}

func TestPlanner_TellsOfEveryHost(t *testing.T) {
	small := fault.Refuse(fault.DoesNotFit, "room", fault.Reason{Code: "memory_short", Message: "memory: want 512 MiB, 3 MiB free"})
	device := fault.Refuse(fault.Forbidden, "check", fault.Reason{Code: "device_not_migratable", Message: "pci host device cannot be live-migrated"})
	away := fault.New(fault.Unavailable, "no answer")
	rack := map[string]string{"trait:CUSTOM_RACK_1": "required"}
	typo := map[string]string{"trait:CUSTOM_TYPO": "required"}
	guest := func(change func(g *migration.Guest)) migration.Guest {
		g := planGuest
		change(&g)
		return g
	}
	for _, tt := range []struct {
		name   string
		checks map[string]error
		ask    migration.PlanRequest
		want   string
	}{
		{"the first that takes it is chosen", map[string]error{"flat-b": small, "known": away}, migration.PlanRequest{Guest: planGuest},
			"1 flat-b refuses memory_short\n2 nested takes it\n3 shared-d takes it\n- flat-full takes it placement_short\n- flat-off takes it host_disabled\n- known no answer placement_not_offered unavailable\nchosen nested"},
		{"nobody", map[string]error{"flat-b": small, "nested": small, "shared-d": away}, migration.PlanRequest{Guest: planGuest},
			"1 flat-b refuses memory_short\n2 nested refuses memory_short\n3 shared-d no answer unavailable\n- flat-full takes it placement_short\n- flat-off takes it host_disabled\n- known takes it placement_not_offered\nchosen "},
		{"what every host says of the guest is the guest's", map[string]error{"flat-b": device, "nested": device}, migration.PlanRequest{Guest: planGuest},
			"1 flat-b refuses\n2 nested refuses\n3 shared-d takes it\n- flat-full takes it placement_short\n- flat-off takes it host_disabled\n- known takes it placement_not_offered\nblocked device_not_migratable\nchosen "},
		{"a guest that does not run", nil, migration.PlanRequest{Guest: guest(func(g *migration.Guest) { g.PowerState = migration.PowerShutOff }), Named: "flat-b"},
			"1 flat-b takes it\nblocked guest_not_running\nchosen "},
		{"shut off, and cold", nil, migration.PlanRequest{Kind: migration.PlanCold, Guest: guest(func(g *migration.Guest) { g.PowerState = migration.PowerShutOff }), Named: "flat-b"},
			"1 flat-b takes it\nchosen flat-b"},
		{"who names a host that is disabled has it", nil, migration.PlanRequest{Guest: planGuest, Named: "flat-off"}, "- flat-off takes it host_disabled\nchosen flat-off"},
		{"but not one without room in Placement", nil, migration.PlanRequest{Guest: planGuest, Named: "flat-full"}, "- flat-full takes it placement_short\nchosen "},
		{"nor one that Placement does not know", nil, migration.PlanRequest{Guest: planGuest, Named: "nowhere"}, "- nowhere takes it placement_not_offered\nchosen "},
		{"a trait", nil, migration.PlanRequest{Guest: guest(func(g *migration.Guest) { g.Flavor.ExtraSpecs = rack }), Named: "flat-b"}, "- flat-b takes it trait_missing\nchosen flat-b"},
		{"a trait that nobody knows", nil, migration.PlanRequest{Guest: guest(func(g *migration.Guest) { g.Flavor.ExtraSpecs = typo })},
			"- flat-b takes it\n- flat-full takes it\n- flat-off takes it\n- known takes it\n- nested takes it\n- shared-d takes it\nblocked trait_unknown\nchosen "},
		{"a trait that nobody knows, and a host by its name", nil, migration.PlanRequest{Guest: guest(func(g *migration.Guest) { g.Flavor.ExtraSpecs = typo }), Named: "flat-b"},
			"- flat-b takes it trait_unknown\nchosen flat-b"},
		{"a new guest may be here", map[string]error{"flat-b": small}, migration.PlanRequest{Kind: migration.PlanNew, Room: migration.RoomRequest{Resources: planGuest.Resources, Flavor: topology.Flavor{ExtraSpecs: rack}}},
			"1 nested takes it\n2 flat-a takes it\n- flat-b refuses trait_missing memory_short\n- flat-full takes it placement_short\n- flat-off takes it host_disabled trait_missing\n- known takes it placement_not_offered\n- shared-d takes it trait_missing\nchosen nested"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			planner, _ := newPlanner(t, tt.checks)
			if tt.ask.Kind == "" {
				tt.ask.Kind = migration.PlanLive
			}
			tt.ask.Source = migration.Description{Name: "flat-a", ProviderUUID: "root of flat-a", HostUUID: "flat-a"}
			p, err := planner.Plan(t.Context(), tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, told(p)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanner_AColdPlanAsksForTheColdMoveItself(t *testing.T) {
	planner, _ := newPlanner(t, map[string]error{"flat-b": fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "device_stays", Message: "a disk of its own"})})
	ask := migration.PlanRequest{
		Kind: migration.PlanCold, Guest: planGuest, Source: migration.Description{Name: "flat-a", ProviderUUID: "root of flat-a", HostUUID: "flat-a"},
		Wanted: &migration.Wanted{Resources: topology.Resources{VCPUs: 7}}, Named: "nested",
	}
	p, err := planner.Plan(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Hosts) != 1 || p.Chosen != "nested" || p.Hosts[0].Claim == nil || p.Hosts[0].Claim.Resources.VCPUs != 7 {
		t.Errorf("plan %+v", p)
	}
	// What speaks against the guest anywhere is the guest's.
	ask.Named = "flat-b"
	if p, err = planner.Plan(t.Context(), ask); err != nil || p.Chosen != "" || len(p.Blockers) != 1 || p.Blockers[0].Code != "device_stays" {
		t.Errorf("plan %+v, %v", p, err)
	}
}

func TestPlanner_AResizeTriesTheGuestsOwnHostFirst(t *testing.T) {
	small := fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "memory_short"})
	no := fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "no_way"})
	wanted := &migration.Wanted{Flavor: topology.Flavor{Name: "larger", VCPUs: 2}, Resources: topology.Resources{VCPUs: 2, MemoryMB: 64}}
	for _, tt := range []struct {
		name   string
		checks map[string]error
		wanted *migration.Wanted
		named  string
		want   string
	}{
		{"it stays", map[string]error{"flat-b": small}, wanted, "", "1 flat-a takes it|2 flat-b refuses memory_short|chosen flat-a"},
		{"it fits elsewhere only", map[string]error{"flat-a": small}, wanted, "", "1 flat-a refuses memory_short|2 flat-b takes it|chosen flat-b"},
		{"what forbids it here forbids it", map[string]error{"flat-a": no}, wanted, "", "1 flat-a refuses|2 flat-b takes it|blocked no_way|chosen "},
		{"on its host by name", nil, wanted, "flat-a", "1 flat-a takes it|chosen flat-a"},
		{"elsewhere by name", nil, wanted, "flat-b", "1 flat-b takes it|chosen flat-b"},
		{"to what it is", nil, &migration.Wanted{Flavor: planGuest.Flavor, Resources: planGuest.Resources}, "flat-a", "1 flat-a takes it|blocked same_flavor|chosen "},
		{"that cannot be", nil, nil, "", "blocked disk_shrinks|chosen "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			planner, _ := newPlanner(t, tt.checks)
			r := migration.PlanRequest{
				Kind: migration.PlanResize, Guest: planGuest, Wanted: tt.wanted, Named: tt.named,
				Source: migration.Description{Name: "flat-a", ProviderUUID: "root of flat-a", HostUUID: "flat-a"},
			}
			if tt.wanted == nil {
				r.Blockers = []fault.Reason{{Code: "disk_shrinks"}}
			}
			p, err := planner.Plan(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			p.Hosts = slices.DeleteFunc(p.Hosts, func(h migration.PlanHost) bool { return h.Name != "flat-a" && h.Name != "flat-b" })
			if diff := cmp.Diff(tt.want, strings.ReplaceAll(told(p), "\n", "|")); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanner_WithoutPlacementAsksTheHostsThatAreKnown(t *testing.T) {
	planner, _ := newPlanner(t, nil)
	gone, err := placementclient.New(placementclient.Config{URL: "http://127.0.0.1:1", Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	planner.Placement = gone
	p, err := planner.Plan(t.Context(), migration.PlanRequest{Kind: migration.PlanLive, Guest: planGuest, Source: migration.Description{Name: "flat-a"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("- flat-b takes it\n- known takes it\nblocked unavailable\nchosen ", told(p)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// TestPlanner_SaysWhereAMoveGivesUp: a host that takes the guest after as many that
// do not is chosen, and has to be named.
func TestPlanner_SaysWhereAMoveGivesUp(t *testing.T) {
	checks := map[string]error{}
	for i := range 6 {
		checks[fmt.Sprintf("more-%d", i)] = fault.New(fault.Unavailable, "no answer")
	}
	planner, c := newPlanner(t, checks)
	for i := range 6 {
		uuid := fmt.Sprintf("00000000-0000-4000-8000-000000000%03d", i)
		p, err := c.CreateProvider(t.Context(), placementclient.NewProvider{Name: fmt.Sprintf("more-%d", i), UUID: uuid})
		if err == nil {
			_, err = c.PutInventories(t.Context(), uuid, placementclient.Inventories{Generation: p.Generation, Inventories: map[string]placementclient.Inventory{
				"VCPU": {Total: 8}, "MEMORY_MB": {Total: 8192}, "DISK_GB": {Total: 100},
			}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := planner.Plan(t.Context(), migration.PlanRequest{Kind: migration.PlanLive, Guest: planGuest, Source: migration.Description{Name: "flat-a"}})
	if err != nil {
		t.Fatal(err)
	}
	if h := p.Hosts[6]; p.Chosen != "flat-b" || h.Name != "flat-b" || len(h.Reasons) != 1 || h.Reasons[0].Code != "beyond_attempts" {
		t.Errorf("chosen %s: %+v", p.Chosen, h)
	}
}

// TestPlanner_AsksSomeHostsOfALargeFleet: the rest is named as not asked.
func TestPlanner_AsksSomeHostsOfALargeFleet(t *testing.T) {
	planner, _ := newPlanner(t, nil)
	for i := range 100 {
		planner.Known = append(planner.Known, fmt.Sprintf("x-%03d", i))
	}
	p, err := planner.Plan(t.Context(), migration.PlanRequest{Kind: migration.PlanLive, Guest: planGuest, Source: migration.Description{Name: "flat-a"}})
	if err != nil {
		t.Fatal(err)
	}
	count := map[migration.PlanVerdict]int{}
	for _, h := range p.Hosts {
		count[h.Verdict]++
	}
	if diff := cmp.Diff(map[migration.PlanVerdict]int{migration.VerdictTakes: 64, migration.VerdictUnasked: 42}, count); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// TestPlanner_WaitsForNoHost: one that hangs is silent after a while, one that says
// it is the source is no destination, nor one that the source refuses, and a plan that nobody waits for ends.
func TestPlanner_WaitsForNoHost(t *testing.T) {
	planner, _ := newPlanner(t, nil)
	usual := planner.Hosts
	planner.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
		switch name {
		case "nested":
			<-ctx.Done()
			return nil, fault.New(fault.Unavailable, "host nested: %w", context.Cause(ctx))
		case "flat-b":
			return operationtest.Over(planHost{name: "flat-a"}), nil
		case "flat-a":
			return operationtest.Over(planHost{name: name, source: func(dest string) error {
				if dest == "shared-d" {
					return fault.New(fault.Forbidden, "the source does not go to %s", dest)
				}
				return nil
			}}), nil
		}
		return usual(ctx, name)
	}
	planner.Runtime = hasty{planner.Runtime}
	ask := migration.PlanRequest{Kind: migration.PlanLive, Guest: planGuest, Source: migration.Description{Name: "flat-a", ProviderUUID: "root of flat-a", HostUUID: "flat-a"}}
	p, err := planner.Plan(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if got := told(p); !strings.HasPrefix(got, "1 flat-b refuses same_host\n2 nested no answer unavailable\n3 shared-d refuses forbidden\n") || p.Chosen != "" {
		t.Errorf("plan:\n%s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := planner.Plan(ctx, ask); err == nil {
		t.Error("a plan that was cancelled is told as one that was made")
	}
}

// hasty is a runtime in which patience is short.
type hasty struct{ runtime.Runtime }

func (h hasty) WithTimeout(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
	return h.Runtime.WithTimeout(ctx, 300*time.Millisecond)
}
