package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
)

// aggregate is the uuid of one of the made-up ones.
func aggregate(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-a99%09d", n) }

// TestAggregates_HostsInOneAreTriedFirst, or last where the configuration says so.
func TestAggregates_HostsInOneAreTriedFirst(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b", "host-c"}, func(o *Options) {
		o.Config.Migration.NearWeightByAggregate = map[string]float64{aggregate(2): -5}
	})
	p.guest("host-a", "web")
	order := func() (hosts []string, told string) {
		t.Helper()
		plan, err := p.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: "web"})
		p.must(err)
		for _, h := range plan.Hosts {
			hosts = append(hosts, h.Name)
			near := "unknown"
			if h.Near != nil {
				near = map[bool]string{true: "near", false: "far"}[*h.Near]
			}
			told += fmt.Sprintf("%s %s %g; ", h.Name, near, h.Weight)
		}
		return hosts, told
	}
	put := func(host string, change api.ChangeAggregates, want ...string) {
		t.Helper()
		for range 2 { // what is so already is no error
			got, err := p.clients[host].ChangeAggregates(t.Context(), change)
			p.must(err)
			if diff := cmp.Diff(append([]string{}, want...), got.Aggregates); diff != "" || got.Name != host {
				t.Fatalf("%s in aggregates (-want +got):\n%s", got.Name, diff)
			}
		}
	}
	hosts, told := order()
	if len(hosts) != 2 || !strings.Contains(told, hosts[0]+" unknown 0; "+hosts[1]+" unknown 0") {
		t.Fatalf("without aggregates: %s", told)
	}
	first, second := hosts[0], hosts[1]
	put("host-a", api.ChangeAggregates{Add: []string{aggregate(1)}}, aggregate(1))
	put(second, api.ChangeAggregates{Add: []string{aggregate(3), aggregate(1)}}, aggregate(1), aggregate(3))
	if _, told = order(); told != second+" near 1e+06; "+first+" far 0; " {
		t.Errorf("with the second in one: %s", told)
	}
	put(second, api.ChangeAggregates{Add: []string{aggregate(2)}, Remove: []string{aggregate(3)}}, aggregate(1), aggregate(2))
	if _, told = order(); told != first+" far 0; "+second+" near -5; " {
		t.Errorf("and in one that is drained: %s", told)
	}
	via := p.clients["host-a"].Via(second)
	got, err := via.Aggregates(t.Context())
	if want := []string{aggregate(1), aggregate(2)}; err != nil || !cmp.Equal(want, got.Aggregates) {
		t.Errorf("read through another host: %+v, %v; want %v", got, err, want)
	}
	if _, err := via.ChangeAggregates(t.Context(), api.ChangeAggregates{Add: []string{aggregate(4)}}); len(fault.ReasonsOf(err)) != 1 || fault.ReasonsOf(err)[0].Code != "not_relayed" {
		t.Errorf("changed through another host, whose certificate is no operator's: %v", err)
	}

	// A move that names no host goes by it: it would have gone to the first.
	put(second, api.ChangeAggregates{Remove: []string{aggregate(2)}}, aggregate(1))
	m := p.asked("host-a", api.Migrate{Instance: "web", MigrationType: migration.TypeMigration})
	if m.Status != migration.StatusFinished || m.DestCompute != second {
		t.Errorf("moved to %s, %s: %+v; want %s, which is near", m.DestCompute, m.Status, m.Error, second)
	}
}

// TestAggregates_SomebodyElsesWriteIsReadAgain: of the provider, in between, a bounded
// number of times.
func TestAggregates_SomebodyElsesWriteIsReadAgain(t *testing.T) {
	for _, tt := range []struct {
		between int // writes of somebody else's
		want    fault.Kind
	}{{0, ""}, {4, ""}, {5, fault.GenerationConflict}} {
		t.Run(fmt.Sprint(tt.between), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newGuardBench(t, config.Manage)
				server, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
				b.must(err)
				defer func() { b.must(server.Close()) }()
				left, theirs := 0, (*placementclient.Client)(nil)
				config := placementclient.Config{URL: "http://127.0.0.1:8778", Token: "admin", Retries: -1}
				config.Transport = served{server.Handler()}
				theirs, err = placementclient.New(config)
				b.must(err)
				config.Transport = served{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut && left > 0 {
						left--
						had, err := theirs.Aggregates(r.Context(), b.a.uuid)
						if err == nil {
							_, err = theirs.PutAggregates(r.Context(), b.a.uuid, placementclient.Aggregates{Generation: had.Generation, Aggregates: []string{aggregate(10 + left)}})
						}
						if err != nil {
							t.Error(err)
						}
					}
					server.Handler().ServeHTTP(w, r)
				})}
				b.a.placement, err = placementclient.New(config)
				b.must(err)
				s, change := agentService{b.a}, api.ChangeAggregates{Add: []string{aggregate(1)}}
				if _, err := s.ChangeAggregates(t.Context(), change); !errors.Is(err, fault.NotFound) || fault.ReasonsOf(err)[0].Code != "provider_missing" {
					t.Errorf("before it is in Placement: %v, want %v", err, fault.NotFound)
				}
				_, err = theirs.CreateProvider(t.Context(), placementclient.NewProvider{UUID: b.a.uuid, Name: b.a.name})
				b.must(err)
				left = tt.between
				got, err := s.ChangeAggregates(t.Context(), change)
				if fault.KindOf(err) != tt.want {
					t.Fatalf("%d writes in between: %v, want %q", tt.between, err, tt.want)
				}
				want := []string{aggregate(10)} // theirs is kept
				if tt.between == 0 {
					want = nil
				}
				if tt.want == "" {
					want = append([]string{aggregate(1)}, want...)
					if diff := cmp.Diff(want, got.Aggregates); diff != "" {
						t.Errorf("answered (-want +got):\n%s", diff)
					}
				}
				has, err := theirs.Aggregates(t.Context(), b.a.uuid)
				if diff := cmp.Diff(want, has.Aggregates); diff != "" || err != nil {
					t.Errorf("%v; Placement has (-want +got):\n%s", err, diff)
				}
			})
		})
	}
}

func TestAggregates_AHostThatObservesWritesNone(t *testing.T) {
	s := agentService{newGuardBench(t, config.Observe).a}
	_, err := s.ChangeAggregates(t.Context(), api.ChangeAggregates{Add: []string{aggregate(1)}})
	if !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Code != "mode_observe" {
		t.Errorf("got %v, want %v", err, fault.Forbidden)
	}
}

func TestNearWeight_IsWhatAReloadSays(t *testing.T) {
	b := newGuardBench(t, config.Observe)
	c := b.a.config()
	c.Migration.NearWeight, c.Migration.NearWeightByAggregate = -3, map[string]float64{aggregate(1): 4}
	next := config.Reload(b.a.config(), c)
	b.a.conf.Store(&next)
	if got := b.a.nearWeight(); got.Multiplier != -3 || got.ByAggregate[aggregate(1)] != 4 {
		t.Errorf("%+v", got)
	}
}
