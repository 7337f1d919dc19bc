package agent

import (
	"errors"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

// TestPassedOn_WithoutTheRightRelay has users of one host's socket ask for an instance of another:
// the other host refuses and says where to ask, unless the first is a party that may.
func TestPassedOn_WithoutTheRightRelay(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b", "host-c"}, func(o *Options) { o.Config.Rights.Relay = nil })
	id := p.guest("host-a", "web")
	askThere := func(what string, err error) {
		t.Helper()
		r := fault.ReasonsOf(err)
		if !errors.Is(err, fault.Forbidden) || len(r) == 0 || r[0].Code != api.ReasonAskThere || r[0].Want != "host-a" {
			t.Errorf("%s: %v, want it refused with where to ask", what, err)
		}
	}
	_, err := p.clients["host-b"].Migrate(t.Context(), api.Migrate{Instance: id, Destination: "host-b"})
	askThere("migrate, asked of host-b", err)
	_, err = p.clients["host-c"].Via("host-a").Migrate(t.Context(), api.Migrate{Instance: "web", Destination: "host-c"})
	askThere("migrate, by ?host=", err)
	if list, err := p.clients["host-a"].Migrations(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("host-a has moves: %+v, %v", list, err)
	}

	day := 24 * time.Hour
	m := p.asked("host-a", api.Migrate{Instance: "web", Destination: "host-b", MigrationType: migration.TypeResize, Flavor: &larger, ConfirmWindow: &day})
	if m.Status != migration.StatusFinished {
		t.Fatalf("%+v", m)
	}
	for _, ref := range []string{"web", id, m.UUID} {
		_, err = p.clients["host-b"].ConfirmMigration(t.Context(), ref)
		askThere("confirm "+ref+", asked of the destination", err)
		_, err = p.clients["host-c"].Via("host-a").RevertMigration(t.Context(), ref)
		askThere("revert "+ref+", asked of a host that is no party", err)
		_, err = p.clients["host-c"].Via("host-a").AbortMigration(t.Context(), ref)
		askThere("abort "+ref+", asked of a host that is no party", err)
	}
	// The destination can lose what it has in any case.
	m, err = p.clients["host-b"].RevertMigration(t.Context(), "web")
	p.must(err)
	if m = p.rested(m); m.Status != migration.StatusReverted {
		t.Errorf("reverted: %s, %v", m.Status, m.Error)
	}
}
