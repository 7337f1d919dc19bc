package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
)

// newTrio are hosts a and b, which do not reach each other, and c, which reaches both and
// whose agent may conduct moves between them, for this test's user.
func newTrio(t *testing.T, log *lockedBuffer) *pair {
	t.Helper()
	me := fmt.Sprintf("user:%d", os.Getuid())
	return newHosts(t, time.Hour, []string{"host-a", "host-b", "host-c"}, func(o *Options) {
		other := map[string]string{"host-a": "host-b", "host-b": "host-a"}[o.Config.Agent.Name]
		if other == "" {
			o.Config.Rights.ShareNothing = []string{me}
			o.Logger = slog.New(slog.NewTextHandler(log, nil))
			return
		}
		o.Config.Peers[other] = "127.0.0.1:1" // where nobody listens
		o.Config.Rights.Conduct = []string{"host:host-c"}
		if o.Config.Agent.Name == "host-b" {
			o.Config.Rights.ShareNothing = []string{me}
		}
	})
}

// rests waits until a move that host-c conducts is over, or waits to be confirmed.
func (p *pair) rests(m migration.Migration) migration.Migration {
	p.Helper()
	p.until("the move rests", func() bool {
		var err error
		m, err = p.clients["host-c"].Migration(p.Context(), m.UUID)
		p.must(err)
		return m.Done() || m.Status == migration.StatusFinished
	})
	return m
}

// listed are the guests that a host shows, with their remarks.
func (p *pair) listed(host string, hidden bool) []string {
	p.Helper()
	look := p.clients[host].Instances
	if hidden {
		look = p.clients[host].AllInstances
	}
	list, err := look(p.Context())
	p.must(err)
	out := []string{}
	for _, i := range list.Instances {
		out = append(out, strings.TrimSpace(i.Name+" "+i.Status+" "+i.Conductor))
	}
	return out
}

func TestApart_AThirdHostConductsForWhoeverHasTheRight(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	p := newTrio(t, &log)
	web, db := p.guest("host-a", "web"), p.guest("host-a", "db")
	c := p.clients["host-c"]

	plan, err := c.Plan(t.Context(), api.PlanRequest{Instance: "web", Flavor: &larger, ShareNothing: true})
	p.must(err)
	if plan.Chosen == "" || len(plan.Blockers) > 0 || plan.Source != "host-a" {
		t.Errorf("plan: %+v", plan)
	}
	// Asked of its own host, whose user has not the right, it is conducted by nobody.
	_, err = p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: "web", Destination: "host-b", Flavor: &larger, ShareNothing: true})
	if r := fault.ReasonsOf(err); !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != "right_missing" {
		t.Errorf("without the right: %v", err)
	}
	for what, r := range map[string]api.Migrate{
		"live":     {Instance: "web", Destination: "host-b", MigrationType: migration.TypeLiveMigration, ShareNothing: true},
		"rebuild":  {Instance: "web", MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: "/x"}, ShareNothing: true},
		"parallel": {Instance: "web", Destination: "host-b", ShareNothing: true, Options: migration.Options{Parallel: 4}},
		"itself":   {Instance: "web", Destination: "host-a", ShareNothing: true},
	} {
		if _, err := c.Migrate(t.Context(), r); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want %v", what, err, fault.Invalid)
		}
	}

	// By its name, which only the hosts themselves know.
	ask := api.Migrate{
		Instance: "web", Destination: "host-b", Migration: "6f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", Flavor: &larger, ShareNothing: true, ShutdownTimeout: new(time.Duration),
	}
	m, err := c.Migrate(t.Context(), ask)
	p.must(err)
	if again, err := c.Migrate(t.Context(), ask); err != nil || again.UUID != m.UUID {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	if m = p.rests(m); m.Status != migration.StatusFinished || m.Conductor != "host-c" || m.SourceCompute != "host-a" || m.DestCompute != "host-b" {
		t.Fatalf("%s, conducted by %s: %+v", m.Status, m.ConductedBy(), m.Error)
	}
	if diff := cmp.Diff([][]string{{"db ACTIVE"}, {"db ACTIVE", "web VERIFY_RESIZE host-c"}, {"web VERIFY_RESIZE host-c"}},
		[][]string{p.listed("host-a", false), p.listed("host-a", true), p.listed("host-b", true)}); diff != "" {
		t.Errorf("shown on host-a, with what is hidden, and on host-b (-want +got):\n%s", diff)
	}
	for _, host := range []string{"host-a", "host-b"} {
		if got, err := p.clients[host].Migration(t.Context(), m.UUID); err != nil || got.UUID != m.UUID || got.Conductor != "host-c" {
			t.Errorf("shown by %s: %+v, %v", host, got, err)
		}
	}
	// The asker's right is that at the host which he asks: on host-a he has none.
	if _, err := p.clients["host-a"].ConfirmMigration(t.Context(), m.UUID); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "on host-a, which passes the request on") {
		t.Errorf("confirmed by host-a: %v", err)
	}
	m, err = p.clients["host-b"].ConfirmMigration(t.Context(), "web")
	p.must(err)
	if m = p.rests(m); m.Outcome != migration.OutcomeCompleted || slices.ContainsFunc(p.listed("host-a", true), func(s string) bool { return strings.HasPrefix(s, "web") }) {
		t.Errorf("confirmed: %s: %+v; host-a has %v", m.Outcome, m.Error, p.listed("host-a", true))
	}

	// The other one goes there and back.
	m, err = c.Migrate(t.Context(), api.Migrate{Instance: db, Destination: "host-x", Alternates: []string{"host-b"}, ShareNothing: true, ShutdownTimeout: new(time.Duration)})
	p.must(err)
	if m = p.rests(m); m.Status != migration.StatusFinished || m.DestCompute != "host-b" || len(m.Refusals) != 1 || m.Refusals[0].DestCompute != "host-x" {
		t.Fatalf("with an alternate: %s on %s, refused by %+v: %+v", m.Status, m.DestCompute, m.Refusals, m.Error)
	}
	m, err = c.RevertMigration(t.Context(), db)
	p.must(err)
	if m = p.rests(m); m.Outcome != migration.OutcomeReverted || !cmp.Equal(p.listed("host-a", true), []string{"db ACTIVE"}) {
		t.Errorf("reverted: %s: %+v; host-a has %v", m.Outcome, m.Error, p.listed("host-a", true))
	}
	want := p.held()
	if len(want) != 2 || want[web]["host-b"] == nil || want[db]["host-a"] == nil {
		t.Errorf("Placement has %v", want)
	}
	// Each use is in the log, with who and by what.
	for _, line := range []string{"right=share-nothing", "given_by=\"[rights] share_nothing user:", "by=host:host-b given_by=\"host host-b, for user:", "migration=" + ask.Migration} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log does not say %s", line)
		}
	}
}

// TestApart_ASourceThatConductsIsTheSameStory asks the guest's own host, which reaches the
// other.
func TestApart_ASourceThatConductsIsTheSameStory(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		o.Config.Rights = config.Rights{ShareNothing: []string{fmt.Sprintf("user:%d", os.Getuid())}}
	})
	p.guest("host-a", "web")
	m, err := p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: "web", Destination: "host-b", ShareNothing: true, ShutdownTimeout: new(time.Duration)})
	p.must(err)
	p.until("the move rests", func() bool {
		m, err = p.clients["host-a"].Migration(t.Context(), m.UUID)
		p.must(err)
		return m.Done() || m.Status == migration.StatusFinished
	})
	if m.Status != migration.StatusFinished || m.Conductor != "" || !m.ShareNothing {
		t.Fatalf("%s, conducted by %q: %+v", m.Status, m.Conductor, m.Error)
	}
	if got := p.listed("host-a", false); len(got) != 0 {
		t.Errorf("host-a shows %v", got)
	}
	m, err = p.clients["host-b"].RevertMigration(t.Context(), "web")
	p.must(err)
	p.until("it is back", func() bool {
		m, err = p.clients["host-a"].Migration(t.Context(), m.UUID)
		p.must(err)
		return m.Done()
	})
	if m.Outcome != migration.OutcomeReverted || !cmp.Equal(p.listed("host-a", true), []string{"web ACTIVE"}) {
		t.Errorf("reverted: %s: %+v; host-a has %v", m.Outcome, m.Error, p.listed("host-a", true))
	}
}

// TestApart_ADestinationMayFetch asks the host that the guest is to go to.
func TestApart_ADestinationMayFetch(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		if o.Config.Agent.Name == "host-a" {
			o.Config.Rights.Conduct = []string{"host:host-b"}
			return
		}
		o.Config.Rights.ShareNothing = []string{fmt.Sprintf("user:%d", os.Getuid())}
	})
	p.guest("host-a", "web")
	b := p.clients["host-b"]
	m, err := b.Migrate(t.Context(), api.Migrate{Instance: "web", Destination: "host-b", ShareNothing: true, ShutdownTimeout: new(time.Duration)})
	p.must(err)
	rests := func() {
		p.until("the move rests", func() bool {
			m, err = b.Migration(t.Context(), m.UUID)
			p.must(err)
			return m.Done() || m.Status == migration.StatusFinished
		})
	}
	if rests(); m.Status != migration.StatusFinished || m.Conductor != "host-b" {
		t.Fatalf("%s, conducted by %q: %+v", m.Status, m.Conductor, m.Error)
	}
	m, err = b.RevertMigration(t.Context(), "web")
	p.must(err)
	if rests(); m.Outcome != migration.OutcomeReverted || !cmp.Equal(p.listed("host-a", true), []string{"web ACTIVE"}) || len(p.listed("host-b", true)) != 0 {
		t.Errorf("reverted: %s: %+v; host-a has %v, host-b %v", m.Outcome, m.Error, p.listed("host-a", true), p.listed("host-b", true))
	}
}
