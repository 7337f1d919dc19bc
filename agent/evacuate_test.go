package agent

import (
	"errors"
	"testing"
	"time"

	"berth/agent/api"
	"berth/driver"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// TestEvacuate_ByAskingAnyHost plans and evacuates a guest of a host that has died, through
// the API of another: refused without a proof, begun once for one uuid, and to its end.
func TestEvacuate_ByAskingAnyHost(t *testing.T) {
	t.Parallel()
	store := fleettest.NewMemory(&runtime.System{})
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		o.FleetStore = func(config.Config) (fleet.Store, error) { return store.Client(o.Config.Agent.Name), nil }
	})
	web := p.guest("host-a", "web")
	b := p.clients["host-b"]
	p.until("its record is kept", func() bool {
		in, err := b.FleetInstance(t.Context(), "web")
		return err == nil && in.Host == "host-a"
	})
	ask := api.Migrate{Instance: "web", Migration: "7f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", MigrationType: migration.TypeEvacuation}
	if _, err := b.Migrate(t.Context(), ask); !errors.Is(err, fault.Forbidden) {
		t.Fatalf("of a host that lives: %v, want %v", err, fault.Forbidden)
	}
	plan, err := b.Plan(t.Context(), api.PlanRequest{Instance: web, Kind: migration.PlanEvacuation})
	p.must(err)
	if plan.Chosen != "" || len(plan.Blockers) == 0 || plan.InstanceName != "web" || plan.Source != "host-a" {
		t.Errorf("planned for a host that lives: %+v", plan)
	}
	p.must(p.stop["host-a"]())
	doc, err := p.fleet.Host("host-a").XML(t.Context(), web, driver.Persistent)
	p.must(err)
	p.must(p.fleet.Host("host-a").Destroy(t.Context(), web)) // so that it is dead indeed
	_, err = b.DeclareDead(t.Context(), "host-a", api.DeclareDead{Because: "its plug is pulled"})
	p.must(err)
	// virsh migrate has taken it to host-b a moment before, and no record says so.
	p.must(p.fleet.Host("host-b").Define(t.Context(), doc))
	p.must(p.fleet.Host("host-b").Start(t.Context(), web, false))
	refused, err := b.Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "8f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", MigrationType: migration.TypeEvacuation})
	if err == nil {
		p.until("it is over", func() bool {
			refused, err = b.Migration(t.Context(), refused.UUID)
			p.must(err)
			return refused.Done()
		})
		err = refused.Error.Err()
	}
	if !fault.HasReason(err, "runs_elsewhere") {
		t.Errorf("while it runs on host-b: %v", err)
	}
	p.must(p.fleet.Host("host-b").Destroy(t.Context(), web))
	p.must(p.fleet.Host("host-b").Undefine(t.Context(), web))
	p.until("nothing of it is claimed on host-b", func() bool {
		l, err := b.Claims(t.Context())
		p.must(err)
		return len(l.Claims) == 0
	})
	plan, err = b.Plan(t.Context(), api.PlanRequest{Instance: "web", Kind: migration.PlanEvacuation})
	p.must(err)
	if plan.Chosen != "host-b" || plan.Proof == nil || plan.Proof.Because != "its plug is pulled" {
		t.Errorf("planned: %+v", plan)
	}
	if _, err := b.Migrate(t.Context(), api.Migrate{Instance: "web", MigrationType: migration.TypeEvacuation, Offline: true}); !errors.Is(err, fault.Invalid) {
		t.Errorf("with what is of other moves: %v", err)
	}
	m, err := b.Migrate(t.Context(), ask)
	p.must(err)
	if m.SourceCompute != "host-a" || m.InstanceUUID != web || m.ConductedBy() != "host-b" || m.By == "" {
		t.Errorf("begun: %+v", m)
	}
	p.until("it lives", func() bool {
		m, err = b.Migration(t.Context(), m.UUID)
		p.must(err)
		return m.Done()
	})
	if m.Outcome != migration.OutcomeCompleted || m.DestCompute != "host-b" || m.Evacuation == nil || !m.Evacuation.Started {
		t.Errorf("ended: %+v: %+v", m, m.Error)
	}
	if again, err := b.Migrate(t.Context(), ask); err != nil || again.UUID != m.UUID {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	hosts, err := b.FleetHosts(t.Context())
	p.must(err)
	for _, h := range hosts.Hosts {
		if h.Name == "host-a" && (h.Death == nil || len(h.ToEvacuate) != 0 || len(h.ToCleanUp) != 1) {
			t.Errorf("the records of host-a: %+v", h)
		}
	}
}
