package api_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
)

// fakeFleet answers what is asked of the fleet's records, of drains and of the doctor, and
// remembers it.
type fakeFleet struct {
	mu     sync.Mutex
	calls  []string
	drains chan api.Drain
}

func (f *fakeFleet) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeFleet) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.calls
	f.calls = nil
	return out
}

type fakeDeaths struct{ *fakeFleet }

func (f fakeDeaths) Fence(_ context.Context, host, by string) (fleet.Death, error) {
	f.note("fence %s by %s", host, by)
	return fleet.Death{Host: host, Proof: fleet.ProofFenced}, nil
}

func (f fakeDeaths) Declare(_ context.Context, host, because, by string, force bool) (fleet.Death, error) {
	f.note("declare %s dead by %s: %s %t", host, by, because, force)
	return fleet.Death{Host: host, Proof: fleet.ProofOperator}, nil
}

func (f fakeDeaths) List(context.Context) ([]fleet.Death, error) {
	return []fleet.Death{{Host: "host-s"}}, nil
}

type fakeRecords struct{ *fakeFleet }

func (f fakeRecords) Hosts(context.Context) (api.FleetHosts, error) {
	return api.FleetHosts{Store: "etcd", Hosts: []api.FleetHost{{Name: "host-s"}}}, nil
}

func (f fakeRecords) Instance(_ context.Context, ref string) (fleet.Instance, error) {
	return fleet.Instance{Name: ref, Host: "host-s"}, nil
}

func (f fakeRecords) Forget(_ context.Context, host string, abandon bool, by string) (api.Forgotten, error) {
	f.note("forget %s by %s: %t", host, by, abandon)
	return api.Forgotten{Host: host}, nil
}

func (f fakeRecords) Store(context.Context) (api.StoreSeen, error) {
	return api.StoreSeen{Asked: true, Age: time.Second}, nil
}

type fakeDrains struct{ *fakeFleet }

func (f fakeDrains) Plan(_ context.Context, r api.DrainRequest) (api.DrainPlan, error) {
	f.note("plan %s", r.Host)
	return api.DrainPlan{Host: r.Host}, nil
}

func (f fakeDrains) Begin(_ context.Context, r api.DrainRequest, by string) (api.Drain, error) {
	f.note("drain %s %t by %s", r.Host, r.Evacuate, by)
	return api.Drain{UUID: r.UUID, Host: r.Host}, nil
}

func (f fakeDrains) Get(_ context.Context, host string) (api.Drain, error) {
	return api.Drain{Host: host}, nil
}

func (f fakeDrains) Abort(_ context.Context, host, by string) (api.Drain, error) {
	f.note("abort %s by %s", host, by)
	return api.Drain{Host: host}, nil
}
func (f fakeDrains) List(context.Context) ([]api.Drain, error) { return nil, nil }
func (f fakeDrains) Watch(context.Context, string) (<-chan api.Drain, error) {
	if f.drains == nil {
		return nil, fault.New(fault.NotFound, "no drain")
	}
	return f.drains, nil
}
func (f *fakeFleet) Examine(context.Context) (api.Diagnosis, error) {
	return api.Diagnosis{Host: "host-a", Checks: []api.Check{{Name: "lease", Outcome: api.CheckOK}}}, nil
}

// fleetCalls calls each method of the client that older agents have no route for.
func fleetCalls(c *api.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"fence": func(ctx context.Context) error { _, err := c.FenceHost(ctx, "host-s"); return err },
		"declare": func(ctx context.Context) error {
			_, err := c.DeclareDead(ctx, "host-s", api.DeclareDead{Because: "it burns", Force: true})
			return err
		},
		"forget": func(ctx context.Context) error {
			_, err := c.ForgetHost(ctx, "host-s", api.ForgetHost{Abandon: true})
			return err
		},
		"begin": func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{UUID: "d-1"})
			return err
		},
		"evacuate": func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{Host: "host-s", Evacuate: true})
			return err
		},
		"abort":  func(ctx context.Context) error { _, err := c.AbortDrain(ctx, "host-a"); return err },
		"doctor": func(ctx context.Context) error { _, err := c.Examine(ctx); return err },

		"deaths": func(ctx context.Context) error { _, err := c.Deaths(ctx); return err },
		"hosts":  func(ctx context.Context) error { _, err := c.FleetHosts(ctx); return err },
		"store": func(ctx context.Context) error {
			got, err := c.FleetStore(ctx)
			if want := (api.StoreSeen{Asked: true, Age: time.Second}); err == nil && got != want {
				err = fmt.Errorf("the store as it was seen is %+v, want %+v", got, want)
			}
			return err
		},
		"instance": func(ctx context.Context) error { _, err := c.FleetInstance(ctx, "web"); return err },
		"plan":     func(ctx context.Context) error { _, err := c.PlanDrain(ctx, api.DrainRequest{}); return err },
		"drains":   func(ctx context.Context) error { _, err := c.Drains(ctx); return err },
		"drain":    func(ctx context.Context) error { _, err := c.Drain(ctx, "host-a"); return err },
	}
}

// TestFleet_WordsAreAnOperatorsAndReadingIsEveryones: what ends a host's guests, or moves
// them, is told with who has said it; a host's certificate only reads.
func TestFleet_WordsAreAnOperatorsAndReadingIsEveryones(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	words := map[string]string{
		"fence": "fence host-s by ", "declare": "declare host-s dead by WHO: it burns true", "forget": "forget host-s by WHO: true",
		"begin": "drain  false by ", "evacuate": "drain host-s true by ", "abort": "abort host-a by ", "doctor": "",
	}
	for who, o := range map[string]api.ClientOptions{
		"operator:alice": {Address: w.address, Name: "host-a", Identity: ours.operator("alice")},
		"user:":          {Socket: w.socket},
		"":               {Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"},
	} {
		for name, call := range fleetCalls(client(t, o)) {
			w.fleet.take()
			err := call(t.Context())
			want, word := words[name]
			got := strings.Join(w.fleet.take(), ";")
			switch {
			case word && who == "":
				if r := fault.ReasonsOf(err); !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != "caller" || got != "" {
					t.Errorf("%s by a host: %v, and asked %q", name, err, got)
				}
			case err != nil:
				t.Errorf("%s by %q: %v", name, who, err)
			case word:
				before, after, whole := strings.Cut(want, "WHO")
				if !whole && want != "" {
					before = want
				}
				if want != "" && (!strings.HasPrefix(got, before+who) || !strings.HasSuffix(got, after)) {
					t.Errorf("%s by %q: asked %q, want %q", name, who, got, want)
				}
			}
		}
	}
}

func TestFleet_RefusesWhatContradictsItself(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	for name, tt := range map[string]struct {
		call func(context.Context) error
		code string
	}{
		"its own death": {func(ctx context.Context) error {
			_, err := c.DeclareDead(ctx, "host-a", api.DeclareDead{Because: "x"})
			return err
		}, "own_host"},
		"its own fence": {func(ctx context.Context) error { _, err := c.FenceHost(ctx, "host-a"); return err }, "own_host"},
		"no reason": {func(ctx context.Context) error {
			_, err := c.DeclareDead(ctx, "host-s", api.DeclareDead{Because: " "})
			return err
		}, "because_missing"},
		"a drain of another host": {func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{Host: "host-b"})
			return err
		}, "not_own_host"},
		"an evacuation of its own": {func(ctx context.Context) error {
			_, err := c.PlanDrain(ctx, api.DrainRequest{Host: "host-a", Evacuate: true})
			return err
		}, "own_host"},
		"a cold evacuation": {func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{Host: "host-s", Evacuate: true, Cold: true})
			return err
		}, "cold_evacuation"},
		"a loss of a drain": {func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{AcceptLoss: true})
			return err
		}, "evacuation_only"},
		"to itself": {func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{To: []string{"host-a"}})
			return err
		}, "destination_own"},
		"a host twice": {func(ctx context.Context) error {
			_, err := c.BeginDrain(ctx, api.DrainRequest{To: []string{"host-b", "host-b"}})
			return err
		}, "destination_twice"},
		"a word without its reason": {func(ctx context.Context) error { _, err := c.StartConfirmed(ctx, "web", ""); return err }, "because_missing"},
	} {
		err := tt.call(t.Context())
		if r := fault.ReasonsOf(err); !errors.Is(err, fault.Invalid) || len(r) != 1 || r[0].Code != tt.code {
			t.Errorf("%s: %v, want the reason %s", name, err, tt.code)
		}
	}
	if asked := w.fleet.take(); len(asked) > 0 {
		t.Errorf("asked all the same: %q", asked)
	}
}

func TestDrain_IsWatchedToItsEnd(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	if err := c.WatchDrain(t.Context(), "host-a", time.Second, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("no drain: %v", err)
	}
	w.fleet.drains = make(chan api.Drain, 2)
	want := []api.Drain{
		{UUID: "d-1", State: api.DrainRunning, Guests: []api.DrainedGuest{{Name: "web", State: api.DrainedMoving, How: api.DrainLive, To: "host-b"}}, Left: time.Minute},
		{UUID: "d-1", State: api.DrainIncomplete, Guests: []api.DrainedGuest{{Name: "web", State: api.DrainedFailed, Reasons: []fault.Reason{{Code: "x", Message: "no"}}}}},
	}
	for _, d := range want {
		w.fleet.drains <- d
	}
	close(w.fleet.drains)
	var got []api.Drain
	err := c.WatchDrain(t.Context(), "host-a", time.Second, func(d api.Drain) error { got = append(got, d); return nil })
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !reflect.DeepEqual([]bool{api.DrainRunning.Over(), api.DrainAborting.Over(), api.DrainDone.Over(), api.DrainIncomplete.Over(), api.DrainAborted.Over()}, []bool{false, false, true, true, true}) {
		t.Error("the wrong states are the end")
	}
}

// TestStart_ByAnOperatorsWordSaysWhose: a start without it is what it always was.
func TestStart_ByAnOperatorsWordSaysWhose(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")})
	_, _ = c.StartInstance(t.Context(), "web") // the fake refuses every start
	_, _ = c.StartConfirmed(t.Context(), "web", "host-b is scrap")
	want := []api.StartInstance{{By: "operator:alice"}, {ConfirmOwnership: true, Because: "host-b is scrap", By: "operator:alice"}}
	if diff := cmp.Diff(want, w.instances.starts); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
}

// TestPlan_OfAnEvacuationNamesItsImage keeps the image of the request.
func TestPlan_OfAnEvacuationNamesItsImage(t *testing.T) {
	w := serve(t, "host-a", nil)
	want := api.PlanRequest{Instance: "web", Kind: migration.PlanEvacuation, Image: &migration.Image{Path: "/i", Format: "raw"}}
	if _, err := client(t, api.ClientOptions{Socket: w.socket}).Plan(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]api.PlanRequest{want}, w.plans.asked); diff != "" {
		t.Errorf("planned (-want +got):\n%s", diff)
	}
}
