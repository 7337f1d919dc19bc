package conductor_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// embedded is the embedded Placement behind its own HTTP API and the real
// client, without a network.
type embedded struct {
	t      testing.TB
	server *placement.Server
	admin  *placementclient.Client
}

// roundTrip answers a request by the server, in the caller's goroutine.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

func newEmbedded(t testing.TB, w *world) *embedded {
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e := &embedded{t: t, server: server}
	if e.admin, err = placementclient.New(placementclient.Config{
		URL: "http://127.0.0.1:8778", Token: "admin", Transport: roundTrip(e.serve),
	}); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	shared, err := e.admin.CreateProvider(ctx, placementclient.NewProvider{Name: "nfs", UUID: "55555555-5555-4555-8555-555555555555"})
	if err != nil {
		t.Fatal(err)
	}
	const aggregate = "66666666-6666-4666-8666-666666666666"
	share := func(rp string) {
		have, err := e.admin.Aggregates(ctx, rp)
		if err == nil {
			_, err = e.admin.PutAggregates(ctx, rp, placementclient.Aggregates{Generation: have.Generation, Aggregates: []string{aggregate}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	traits, err := e.admin.PutTraits(ctx, shared.UUID, placementclient.Traits{Generation: shared.Generation, Traits: []string{"MISC_SHARES_VIA_AGGREGATE"}})
	if err != nil {
		t.Fatal(err)
	}
	shared.Generation = traits.Generation
	// Room for one guest: counted twice it would not fit.
	most := guestSize
	if w.script.request.Change.Flavor != nil {
		most = wantedSize
	}
	if _, err := e.admin.PutInventories(ctx, shared.UUID, placementclient.Inventories{Generation: shared.Generation, Inventories: map[string]placementclient.Inventory{
		"DISK_GB": {Total: most.DiskGB},
	}}); err != nil {
		t.Fatal(err)
	}
	share(shared.UUID)
	for i, name := range []string{"a", "b", "c"} {
		h := w.hosts[name]
		if h == nil {
			continue
		}
		h.provider = fmt.Sprintf("33333333-3333-4333-8333-33333333333%d", i)
		p, err := e.admin.CreateProvider(ctx, placementclient.NewProvider{Name: name, UUID: h.provider})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.admin.PutInventories(ctx, h.provider, placementclient.Inventories{Generation: p.Generation, Inventories: map[string]placementclient.Inventory{
			"VCPU": {Total: int64(guestSize.VCPUs)},
		}}); err != nil {
			t.Fatal(err)
		}
		h.pages = fmt.Sprintf("44444444-4444-4444-8444-44444444444%d", i)
		if p, err = e.admin.CreateProvider(ctx, placementclient.NewProvider{Name: name + "_pages", UUID: h.pages, ParentProviderUUID: h.provider}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.admin.PutInventories(ctx, h.pages, placementclient.Inventories{Generation: p.Generation, Inventories: map[string]placementclient.Inventory{
			"MEMORY_MB": {Total: most.MemoryMB},
		}}); err != nil {
			t.Fatal(err)
		}
		h.disk = shared.UUID
		share(h.provider)
	}
	a := *w.placement.consumers[guestUUID]
	a.Allocations = w.hosts["a"].place(guestSize)
	a.ConsumerGeneration = nil
	if err := e.admin.PutAllocations(ctx, guestUUID, a); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *embedded) serve(q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody // as a server's request always has one
	}
	r := httptest.NewRecorder()
	e.server.ServeHTTP(r, q)
	return r.Result(), nil
}

// embeddedWire is the client as one process of the simulation uses it: each
// write may be lost, late, or the last thing that the process does. (Not below
// the client: a simulated death inside net/http would leave its timers behind.)
type embeddedWire struct {
	*placementclient.Client
	w *world
	p *simruntime.Process
}

func (x embeddedWire) write(what string, do func(context.Context) error) error {
	_, err := wire(x.w, x.p, what, func() bool { return true }, func() (struct{}, error) { return struct{}{}, do(context.Background()) })
	return err
}

func (x embeddedWire) PutAllocations(_ context.Context, consumer string, a placementclient.Allocations) error {
	return x.write("put allocations", func(ctx context.Context) error { return x.Client.PutAllocations(ctx, consumer, a) })
}

func (x embeddedWire) PostAllocations(_ context.Context, set map[string]placementclient.Allocations) error {
	return x.write("post allocations", func(ctx context.Context) error { return x.Client.PostAllocations(ctx, set) })
}

func (x embeddedWire) DeleteAllocations(_ context.Context, consumer string) error {
	return x.write("delete allocations", func(ctx context.Context) error { return x.Client.DeleteAllocations(ctx, consumer) })
}

func (e *embedded) verify(w *world, owner *simHost, size topology.Resources) {
	w.asking = e.admin.Counters()
	inst, mig := e.consumer(guestUUID), e.consumer(moveUUID)
	want := placementclient.Allocations{Allocations: owner.place(size)}
	if !inst.SameResources(want) || inst.ConsumerType != placementclient.ConsumerInstance {
		w.violate("at the end the instance holds %+v, want %v", inst, want.Allocations)
	}
	if mig.Exists() {
		w.violate("at the end the migration holds %+v", mig)
	}
}

// consumer is what one holds there.
func (e *embedded) consumer(id string) placementclient.Allocations {
	a, err := e.admin.Allocations(context.Background(), id)
	if err != nil {
		e.t.Fatal(err)
	}
	return a
}

// TestLive_AgainstTheEmbeddedPlacement repeats what matters most about the two
// consumers with the real client and the embedded server: every crash point,
// and every lost message.
func TestLive_AgainstTheEmbeddedPlacement(t *testing.T) {
	runs := 0
	for i, sc := range scenarios {
		switch sc.name {
		case "completes", "second candidate takes it", "hook fails", "aborted in the stream":
		default:
			continue
		}
		run := func(f faults) *world {
			w, m := play(t, i, 1, f, func(w *world) { w.embedded = newEmbedded(t, w) })
			if err := w.embedded.server.Close(); err != nil {
				t.Error(err)
			}
			if len(f.crash)+len(f.answers)+len(f.requests) == 0 && m.Outcome != sc.script.want[0] {
				t.Errorf("%s: outcome %s (%v)", sc.name, m.Outcome, m.Error)
			}
			runs++
			return w
		}
		reference := run(faults{})
		reference.report(sc.name)
		for point := i % stride; point < reference.points && !t.Failed(); point += stride {
			one := map[int]bool{point: true}
			for how, f := range map[string]faults{"crash": {crash: one}, "lost request": {requests: one}, "lost answer": {answers: one}} {
				run(f).report(fmt.Sprintf("%s: %s at point %d (%s)", sc.name, how, point, reference.trace[point]))
			}
		}
	}
	t.Logf("%d runs", runs)
}

// TestCold_AgainstTheEmbeddedPlacement is the same for cold moves and changes, on hosts
// with room for one guest as it is to be and no more, around every call of Placement.
func TestCold_AgainstTheEmbeddedPlacement(t *testing.T) {
	runs := 0
	for i, sc := range coldScenarios {
		switch sc.name {
		case "migrate, revert", "resize to a named host, confirm", "resize elsewhere, revert", "migrate, the guest cannot live there",
			"resize in place, confirm", "resize in place, revert", "resize in place, the guest cannot live so":
		default:
			continue
		}
		run := func(f faults) (*world, migration.Migration) {
			f.embedded = true
			w, m := playCold(t, i, 1, f)
			if err := w.embedded.server.Close(); err != nil {
				t.Error(err)
			}
			runs++
			return w, m
		}
		reference, m := run(faults{})
		reference.report(sc.name)
		if m.Outcome != sc.script.want[0] {
			t.Errorf("%s: outcome %s (%v)", sc.name, m.Outcome, m.Error)
		}
		for point, what := range reference.trace {
			if !strings.Contains(what, "allocations") || point%min(stride, 4) != i%min(stride, 4) {
				continue
			}
			one := map[int]bool{point: true}
			for how, f := range map[string]faults{"crash": {crash: one}, "lost request": {requests: one}, "lost answer": {answers: one}} {
				w, _ := run(f)
				w.report(fmt.Sprintf("%s: %s at point %d (%s)", sc.name, how, point, what))
			}
		}
	}
	t.Logf("%d runs", runs)
}

// TestLive_AsksPlacementAsLittleAsItCan counts what a move to a named host costs.
func TestLive_AsksPlacementAsLittleAsItCan(t *testing.T) {
	i := slices.IndexFunc(scenarios, func(s struct {
		name   string
		script script
		paused bool
		gone   bool
	}) bool {
		return s.name == "completes, named destination"
	})
	var before placementclient.Counters
	w, m := play(t, i, 1, faults{}, func(w *world) {
		w.embedded = newEmbedded(t, w)
		before = w.embedded.admin.Counters()
	})
	// Read before it is verified, which reads too.
	after := w.asking
	if err := w.embedded.server.Close(); err != nil {
		t.Error(err)
	}
	if m.Outcome != migration.OutcomeCompleted {
		t.Fatalf("outcome %s (%v)", m.Outcome, m.Error)
	}
	got := map[string]int64{}
	for call, n := range after.Calls {
		if n -= before.Calls[call]; n > 0 {
			got[call] = n
		}
	}
	want := map[string]int64{
		// Whether the uuid that was asked for is free, and what the instance holds.
		"GET /allocations/{consumer} 200":    2,
		"POST /allocations 204":              1,
		"DELETE /allocations/{consumer} 204": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls of Placement (-want +got):\n%s", diff)
	}
}

var _ conductor.Placement = (*placementclient.Client)(nil)
