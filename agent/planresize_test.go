package agent

import (
	"errors"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

func TestPlan_OfAResizeSaysWhereItWouldGo(t *testing.T) {
	p := newPair(t, time.Hour)
	p.guest("host-a", "web")
	plan := func(r api.PlanRequest) migration.Plan {
		t.Helper()
		r.Instance = "web"
		got, err := p.clients["host-b"].Plan(t.Context(), r)
		p.must(err)
		return got
	}
	for _, to := range []string{"", "host-a"} {
		if got := plan(api.PlanRequest{Flavor: &larger, Destination: to}); got.Kind != migration.PlanResize || got.Chosen != "host-a" || got.Flavor != "larger" ||
			got.Wants != larger.Resources() || len(got.Blockers) > 0 || !got.Hosts[0].OwnHost || got.Hosts[0].Claim == nil || got.Hosts[0].Claim.Resources != larger.Resources() {
			t.Errorf("to %q: %+v", to, got)
		}
	}
	if got := plan(api.PlanRequest{Flavor: &larger, Destination: "host-b"}); got.Chosen != "host-b" || len(got.Hosts) != 1 {
		t.Errorf("to host-b: %+v", got)
	}
	huge := topology.Flavor{Name: "huge", VCPUs: 1, MemoryMB: 1 << 30, DiskGB: 1}
	if got := plan(api.PlanRequest{Flavor: &huge}); got.Chosen != "" || len(got.Hosts) != 2 || len(got.Hosts[0].Reasons) == 0 {
		t.Errorf("larger than any host: %+v", got)
	}
	less := topology.Flavor{Name: "less", VCPUs: 1, MemoryMB: 128, DiskGB: 0}
	if got := plan(api.PlanRequest{Flavor: &less}); got.Chosen != "" && len(got.Blockers) > 0 {
		t.Errorf("blocked, and chosen: %+v", got)
	}
	for _, r := range []api.PlanRequest{
		{FlavorName: "nothing"}, {Flavor: &larger, FlavorName: "small"}, {Flavor: &larger, Kind: migration.PlanLive}, {Kind: migration.PlanResize}, {Flavor: &topology.Flavor{}},
	} {
		r.Instance = "web"
		if got, err := p.clients["host-a"].Plan(t.Context(), r); !errors.Is(err, fault.Invalid) {
			t.Errorf("%+v: %+v, %v", r, got, err)
		}
	}
}
