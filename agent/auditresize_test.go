package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/migration"
	"berth/topology"
)

// followed calls look at each step of a move until it rests.
func (p *pair) followed(m migration.Migration, look func(when string)) migration.Migration {
	p.Helper()
	var last string
	p.until("the move rests", func() bool {
		var err error
		m, err = p.clients[m.SourceCompute].Migration(p.Context(), m.UUID)
		p.must(err)
		if at := fmt.Sprint(m.Status, " ", m.Step, " ", m.Phase); at != last {
			last = at
			look(at)
		}
		return m.Done() || m.Status == migration.StatusFinished
	})
	return m
}

// compared waits until both hosts that have just started have been compared with Placement:
// before that an audit knows nothing.
func (p *pair) compared() {
	p.Helper()
	for _, on := range slices.Sorted(maps.Keys(p.clients)) {
		p.until(on+" is compared with Placement", func() bool {
			return strings.Contains(p.condition(on, "placement").Detail, "equal to the host")
		})
	}
}

// Whatever step a resize has reached, on whatever host, and whoever has just started
// anew: no audit names or writes anything.
func TestAudit_OfAResizeFindsNothingToSay(t *testing.T) {
	t.Parallel()
	small := topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
	p := newPair(t, time.Hour)
	var mu sync.Mutex
	looks := 0
	look := func(when string) {
		for _, name := range slices.Sorted(maps.Keys(p.clients)) {
			report, err := p.clients[name].Audit(context.WithoutCancel(t.Context()), api.AuditRequest{Heal: true, AskAll: true})
			mu.Lock()
			looks++
			if err != nil {
				t.Error(err)
			}
			for _, h := range report.Hosts {
				if h.Calls.Writes > 0 || len(h.Left()) > 0 {
					t.Errorf("%s: an audit of %s makes %d writes and finds %+v", when, h.Host, h.Calls.Writes, h.Left())
				}
			}
			mu.Unlock()
		}
	}
	writes := func() { look("between two writes") }
	for _, tt := range []struct {
		name     string
		to       string
		from, by topology.Flavor
		confirm  bool
	}{
		{"there", "host-b", small, larger, true},
		{"back", "host-b", small, larger, false},
		{"larger", "host-a", small, larger, true},
		{"smaller", "host-a", larger, small, true},
		{"as-before", "host-a", larger, small, false},
	} {
		r := api.CreateInstance{}
		r.Name, r.Kernel, r.Start, r.Flavor = tt.name, p.kernel, true, tt.from
		in, err := p.clients["host-a"].CreateInstance(t.Context(), r)
		p.must(err)
		before := p.held()[in.UUID]
		p.conducted.Store(&writes)
		m, err := p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: in.UUID, Destination: tt.to, MigrationType: migration.TypeResize, Flavor: &tt.by, ShutdownTimeout: new(time.Duration)})
		p.must(err)
		if m = p.followed(m, func(when string) { look(tt.name + ": " + when) }); m.Status != migration.StatusFinished {
			t.Fatalf("%s: %s: %v", tt.name, m.Status, m.Error)
		}
		p.damage("host-a", nil)
		p.damage("host-b", nil)
		p.compared()
		look(tt.name + ": both hosts have started anew")
		end := p.clients["host-a"].RevertMigration
		if tt.confirm {
			end = p.clients["host-a"].ConfirmMigration
		}
		m, err = end(t.Context(), m.UUID)
		p.must(err)
		m = p.followed(m, func(when string) { look(tt.name + ": " + when) })
		if !m.Done() || m.Error != nil {
			t.Fatalf("%s: %s: %v", tt.name, m.Status, m.Error)
		}
		p.conducted.Store(nil)
		look(tt.name + ": over")
		if now := p.held()[in.UUID]; cmp.Equal(before, now) == tt.confirm {
			t.Errorf("%s: counted %v, was %v", tt.name, now, before)
		}
	}
	if looks < 40 {
		t.Errorf("%d audits alone", looks)
	}
}

// Each of the two hosts of a guest that waits to be confirmed loses its ledger.
func TestLedger_OfAGuestThatWaitsToBeConfirmed(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	lose := func(path string) { p.must(os.Remove(path)) }
	web := p.guest("host-a", "web")
	m := p.asked("host-a", api.Migrate{Instance: web, Destination: "host-b", MigrationType: migration.TypeResize, Flavor: &larger})
	if m.Status != migration.StatusFinished {
		t.Fatalf("%s: %v", m.Status, m.Error)
	}
	same := func(on string) {
		t.Helper()
		want := p.ledger(on)
		p.damage(on, lose)
		p.until("the ledger of "+on+" is whole", func() bool { return p.condition(on, "ledger").Health == api.HealthOK })
		if diff := cmp.Diff(want, p.ledger(on)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", on, diff)
		}
	}
	codes := func() (out []string) {
		p.compared()
		_, writes, left := p.audit(api.AuditRequest{Heal: true, All: true})
		for _, row := range left {
			out = append(out, row.Code)
		}
		if writes != 0 {
			t.Errorf("an audit makes %d writes", writes)
		}
		return out
	}
	same("host-b")
	if left := codes(); len(left) > 0 {
		t.Errorf("after the loss of the destination's ledger: %v", left)
	}
	if _, err := p.clients["host-b"].Migrate(t.Context(), api.Migrate{Instance: web, Destination: "host-a"}); err == nil || !strings.Contains(advice(err), "berth resize confirm") {
		t.Errorf("another move: %v", err)
	}
	reverted, err := p.clients["host-a"].RevertMigration(t.Context(), m.UUID)
	p.must(err)
	if reverted = p.rested(reverted); reverted.Status != migration.StatusReverted {
		t.Fatalf("%s: %v", reverted.Status, reverted.Error)
	}

	m = p.asked("host-a", api.Migrate{Instance: web, Destination: "host-b", MigrationType: migration.TypeResize, Flavor: &larger})
	if m.Status != migration.StatusFinished {
		t.Fatalf("%s: %v", m.Status, m.Error)
	}
	same("host-a") // but not its journal
	if got := codes(); !slices.Equal(got, []string{audit.CodeUnconducted}) {
		t.Errorf("after the loss of the source's ledger and journal: %v", got)
	}
	if _, err := p.clients["host-b"].StopInstance(t.Context(), web, api.StopInstance{Force: true}); err != nil {
		t.Errorf("the guest is not its user's any more: %v", err)
	}
}
