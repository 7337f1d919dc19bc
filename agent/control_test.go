package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
)

// TestControl_IsPassedOnToWhoConducts: asked of the destination, by the guest's name and by the
// migration's uuid, with who has asked on record.
func TestControl_IsPassedOnToWhoConducts(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	p.guest("host-a", "idle")
	id := p.guest("host-a", "web")
	there := p.clients["host-b"]
	if _, err := there.SetMigration(t.Context(), "web", api.SetMigration{Bandwidth: 1 << 20}); !errors.Is(err, fault.NotFound) {
		t.Errorf("of a guest that is on no move: %v, want %v", err, fault.NotFound)
	}
	uuid := p.move(id, "host-a", "host-b")
	var m migration.Migration
	var err error
	p.until("there is a transfer", func() bool {
		m, err = there.SetMigration(t.Context(), "web", api.SetMigration{MaxDowntime: 800 * time.Millisecond})
		return !errors.Is(err, fault.Busy)
	})
	p.must(err)
	throughB := func(by string) bool {
		return strings.HasPrefix(by, "user:") && strings.HasSuffix(by, " by host:host-b")
	}
	row := func(m migration.Migration, do converge.Act) (migration.Control, bool) {
		i := slices.IndexFunc(m.Control, func(c migration.Control) bool { return c.Action.Do == do })
		if i < 0 {
			return migration.Control{}, false
		}
		return m.Control[i], true
	}
	if r, noted := row(m, converge.ActDowntime); !noted || !r.Done || r.Action.Downtime != 800*time.Millisecond || !throughB(r.By) {
		t.Errorf("what was set: %+v", m.Control)
	}
	_, err = p.clients["host-a"].SetMigration(t.Context(), uuid, api.SetMigration{Bandwidth: 20 << 20})
	p.must(err)
	_, err = there.ForceComplete(t.Context(), uuid)
	p.must(err)
	p.until("it is done about it", func() bool {
		p.fleet.Advance(time.Millisecond)
		m, err = there.Migration(t.Context(), uuid)
		p.must(err)
		_, noted := row(m, converge.ActSuspend)
		return noted
	})
	if r, _ := row(m, converge.ActSuspend); !r.Done || !throughB(r.By) {
		t.Errorf("forced: %+v", r)
	}
	if m = p.finish("host-a", uuid); m.Outcome != migration.OutcomeCompleted {
		t.Fatalf("it ended %s: %+v", m.Outcome, m.Error)
	}
	bounds := 0
	for _, r := range m.Control {
		if strings.HasPrefix(r.By, "user:") && r.Bandwidth == 20<<20 {
			bounds++
		}
	}
	if bounds != 1 {
		t.Errorf("the bandwidth that a user of host-a has set is on record %d times: %+v", bounds, m.Control)
	}
	here := p.clients["host-a"]
	_, set := here.SetMigration(t.Context(), uuid, api.SetMigration{Bandwidth: 1 << 20})
	_, forced := here.ForceComplete(t.Context(), uuid)
	for what, err := range map[string]error{"set": set, "forced": forced} {
		if !errors.Is(err, fault.Forbidden) || len(fault.ReasonsOf(err)) == 0 {
			t.Errorf("%s when it is over: %v, want %v with the reason", what, err, fault.Forbidden)
		}
	}
}
