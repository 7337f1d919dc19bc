package openstack

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/halves"
	pc "berth/placementclient"
)

// reaching is a client of OpenStack's own with noauth2.
func reaching(t *testing.T, p *Placement, over http.RoundTripper) *pc.Client {
	t.Helper()
	c, err := pc.New(pc.Config{URL: p.URL, Token: "admin", Transport: over, RetryWait: 10 * time.Millisecond, Retries: 8})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// host makes a provider with room.
func host(t *testing.T, c *pc.Client, inv pc.Inventory) pc.ResourceProvider {
	t.Helper()
	id := uuid.NewString()
	p, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: id, Name: "host-" + id})
	must(t, err)
	_, err = c.PutInventories(t.Context(), id, pc.Inventories{Generation: p.Generation, Inventories: map[string]pc.Inventory{pc.ClassVCPU: inv}})
	must(t, err)
	return p
}

func vcpus(rp string, n int64) halves.Amounts {
	return halves.Amounts{rp: pc.Resources{pc.ClassVCPU: n}}
}

func owned(a halves.Amounts, generation *int) pc.Allocations {
	return pc.Allocations{Allocations: a, ProjectID: "p", UserID: "u", ConsumerGeneration: generation, ConsumerType: pc.ConsumerInstance}
}

// moving is a guest that holds two VCPU of from, settled, and its move.
func moving(t *testing.T, c *pc.Client, from string) (halves.Move, halves.Start) {
	t.Helper()
	m := halves.Move{
		Placement: c, Runtime: &runtime.System{}, Jitter: func(d time.Duration) time.Duration { return rand.N(max(d, 1)) },
		Instance: uuid.NewString(), Migration: uuid.NewString(),
	}
	must(t, c.PutAllocations(t.Context(), m.Instance, owned(vcpus(from, 2), nil)))
	start, err := m.Settle(t.Context(), halves.Source{Root: from, Claim: vcpus(from, 2), ProjectID: "p", UserID: "u"}, nil)
	must(t, err)
	return m, start
}

// holds fails the test where a consumer does not hold exactly this.
func holds(t *testing.T, c *pc.Client, consumer string, want halves.Amounts, generation int) {
	t.Helper()
	got, err := c.Allocations(t.Context(), consumer)
	must(t, err)
	if d := cmp.Diff(want, got.Allocations); d != "" {
		t.Errorf("consumer %s holds (-want +got)\n%s", consumer, d)
	}
	if g := got.ConsumerGeneration; generation > 0 && (g == nil || *g != generation) {
		t.Errorf("consumer %s was not written once a write: generation %v, want %d", consumer, g, generation)
	}
}

// losing answers a number of writes of allocations as the server does that lost a
// race inside itself, which nothing provokes surely; the text is the recorded one.
type losing struct {
	over  http.RoundTripper
	races atomic.Int64 // still to be lost
}

func (l *losing) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodPost && q.URL.Path == "/allocations" && l.races.Add(-1) >= 0 {
		return &http.Response{
			StatusCode: http.StatusConflict, Request: q, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"errors":[{"status":409,"title":"Conflict","detail":"There was a conflict when trying to complete your request.\n\n Inventory and/or allocations changed while attempting to allocate: Another thread concurrently updated the resource provider data. Please retry your update  ","code":"placement.concurrent_update"}]}`)),
		}, nil
	}
	return l.over.RoundTrip(q)
}

func TestFaults_AMoveOnTheRealService(t *testing.T) {
	t.Parallel()
	theirs := StartPlacement(t, PlacementOptions{})
	transport := &losing{over: &http.Transport{DisableKeepAlives: true}}
	c := reaching(t, theirs, transport)
	from, to := host(t, c, pc.Inventory{Total: 100}).UUID, host(t, c, pc.Inventory{Total: 100}).UUID

	t.Run("a provider changed: read again", func(t *testing.T) {
		inv, err := c.Inventories(t.Context(), from)
		must(t, err)
		before := c.Counters().Retries
		stale := inv
		stale.Generation--
		_, err = c.PutInventories(t.Context(), from, stale)
		if fault.KindOf(err) != fault.GenerationConflict || pc.ConflictOf(err) != pc.ConflictProviderGeneration || c.Counters().Retries != before {
			t.Errorf("got %v (%s), %d repeats; want it told, not repeated", err, pc.ConflictOf(err), c.Counters().Retries-before)
		}
		_, err = c.PutInventories(t.Context(), from, inv)
		must(t, err)
	})
	t.Run("a consumer changed: look", func(t *testing.T) {
		m, start := moving(t, c, from)
		// Somebody wrote what is there already: the move goes on.
		must(t, c.PutAllocations(t.Context(), m.Instance, owned(vcpus(from, 2), start.Held.ConsumerGeneration)))
		_, err := m.Swap(t.Context(), start, vcpus(to, 2))
		must(t, err)
		holds(t, c, m.Instance, vcpus(to, 2), 3)
		// Somebody wrote something else: it stops, and says what is there.
		m, start = moving(t, c, from)
		must(t, c.PutAllocations(t.Context(), m.Instance, owned(vcpus(from, 3), start.Held.ConsumerGeneration)))
		if _, err = m.Swap(t.Context(), start, vcpus(to, 2)); fault.KindOf(err) != fault.GenerationConflict || !strings.Contains(err.Error(), "another actor wrote them") {
			t.Errorf("got %v", err)
		}
		holds(t, c, m.Instance, vcpus(from, 3), 2)
		holds(t, c, m.Migration, halves.Amounts{}, 0)
	})
	t.Run("a race inside the server: the same again", func(t *testing.T) {
		m, start := moving(t, c, from)
		for i, write := range []func() error{
			func() error { _, err := m.Swap(t.Context(), start, vcpus(to, 2)); return err },
			func() error {
				return m.Back(t.Context(), halves.Undo{Start: start, Next: vcpus(to, 2), Guest: here})
			},
		} {
			before := c.Counters().Races
			transport.races.Store(3)
			must(t, write())
			if n := c.Counters().Races - before; n != 3 {
				t.Errorf("write %d lost %d races, want 3", i, n)
			}
		}
		holds(t, c, m.Instance, vcpus(from, 2), 3)
		holds(t, c, m.Migration, halves.Amounts{}, 0)
	})
	t.Run("orphans", func(t *testing.T) {
		nowhere := vcpus(uuid.NewString(), 1)
		for name, leave := range map[string]func(t *testing.T, consumer string){
			"of a provider that is not there": func(t *testing.T, consumer string) {
				if err := c.PutAllocations(t.Context(), consumer, owned(nowhere, nil)); fault.KindOf(err) != fault.Invalid {
					t.Fatalf("a claim on no provider: %v", err)
				}
			},
			"of an empty write": func(t *testing.T, consumer string) {
				must(t, c.PutAllocations(t.Context(), consumer, owned(halves.Amounts{}, nil)))
			},
			"of a POST": func(t *testing.T, consumer string) {
				if err := c.PostAllocations(t.Context(), map[string]pc.Allocations{consumer: owned(nowhere, nil)}); fault.KindOf(err) != fault.Invalid {
					t.Fatalf("a claim on no provider: %v", err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				consumer := uuid.NewString()
				leave(t, consumer)
				before := c.Counters().Orphans
				must(t, c.PutAllocations(t.Context(), consumer, owned(vcpus(from, 1), nil)))
				holds(t, c, consumer, vcpus(from, 1), 1)
				m, start := moving(t, c, from)
				leave(t, m.Migration) // before the move gives it its half
				_, err := m.Swap(t.Context(), start, vcpus(to, 2))
				must(t, err)
				holds(t, c, m.Instance, vcpus(to, 2), 2)
				holds(t, c, m.Migration, vcpus(from, 2), 1)
				must(t, m.Finish(t.Context(), halves.Undo{Start: start, Next: vcpus(to, 2)}, nil))
				if n := c.Counters().Orphans - before; n != 2 {
					t.Errorf("%d orphans were taken over, want 2", n)
				}
			})
		}
	})
}

// here is the word of a source that has its guest.
func here(context.Context) (halves.Whereabouts, halves.Amounts, error) { return halves.Here, nil, nil }

// TestFaults_ConnectionsThatAreReset has every write end right, exactly once, by a
// server that closes connections without a word.
func TestFaults_ConnectionsThatAreReset(t *testing.T) {
	t.Parallel()
	c := reaching(t, StartPlacement(t, PlacementOptions{Resets: true}), nil)
	from, to := host(t, c, pc.Inventory{Total: 100}), host(t, c, pc.Inventory{Total: 100})
	const moves = 12
	for range moves {
		m, start := moving(t, c, from.UUID) // 1 write
		_, err := m.Swap(t.Context(), start, vcpus(to.UUID, 2))
		must(t, err)
		holds(t, c, m.Instance, vcpus(to.UUID, 2), 2)
		holds(t, c, m.Migration, vcpus(from.UUID, 2), 1)
		must(t, m.Back(t.Context(), halves.Undo{Start: start, Next: vcpus(to.UUID, 2), Guest: here}))
		holds(t, c, m.Instance, vcpus(from.UUID, 2), 3)
		holds(t, c, m.Migration, halves.Amounts{}, 0)
		must(t, c.PutAllocations(t.Context(), m.Instance, owned(halves.Amounts{}, pc.Generation(3))))
	}
	// Each write of what is held of a provider raises its generation once, as did the
	// inventory; one that only takes something away from it does not.
	for rp, want := range map[string]int{from.UUID: 1 + 4*moves, to.UUID: 1 + moves} {
		got, err := c.Provider(t.Context(), rp)
		must(t, err)
		if got.Generation != want {
			t.Errorf("provider %s is at generation %d, want %d", rp, got.Generation, want)
		}
	}
	n := c.Counters()
	t.Logf("%d requests, %d repeats", n.Requests, n.Retries)
	if n.Retries == 0 || n.InDoubt != 0 {
		t.Errorf("%d repeats, %d writes in doubt: want some connections reset, and none in doubt", n.Retries, n.InDoubt)
	}
}

// TestFaults_AHostThatTakesNoWrite moves guests from a host that an operator filled
// up with `reserved`, or whose max_unit he lowered below what a guest holds: OpenStack's
// Placement 8.0.0 then refuses writes that give nobody more than it has. Before the
// swap the move is refused with the reason; after it the undo waits until the write
// is possible, and the guest runs all the while.
func TestFaults_AHostThatTakesNoWrite(t *testing.T) {
	t.Parallel()
	theirs := StartPlacement(t, PlacementOptions{})
	c := reaching(t, theirs, &http.Transport{DisableKeepAlives: true})
	p := startAgents(t, c, func(conf *config.Config) {
		conf.Placement.URL = theirs.URL
		conf.Placement.Interval = config.Duration(time.Hour) // else the host would be put right at once
	}, "host-a", "host-b")
	web := p.guest("host-a", "web")
	root, err := c.ProviderByName(t.Context(), "host-a")
	must(t, err)
	put := func(change func(*pc.Inventory)) {
		t.Helper()
		inv, err := c.Inventories(t.Context(), root.UUID)
		must(t, err)
		one := inv.Inventories[pc.ClassMemoryMB]
		change(&one)
		inv.Inventories[pc.ClassMemoryMB] = one
		_, err = c.PutInventories(t.Context(), root.UUID, inv)
		must(t, err)
	}
	stays := func(holders int) {
		t.Helper()
		if d := cmp.Diff([]string{"host-a"}, p.fleet.Running(web)); d != "" {
			t.Errorf("the guest runs on (-want +got)\n%s", d)
		}
		if h := p.held(); len(h) != holders {
			t.Errorf("%d consumers, want %d: %v", len(h), holders, h)
		}
	}
	inv, err := c.Inventories(t.Context(), root.UUID)
	must(t, err)
	normal := inv.Inventories[pc.ClassMemoryMB]
	for name, worse := range map[string]func(*pc.Inventory){
		"reserved rose":    func(i *pc.Inventory) { i.Reserved = i.Total },
		"max_unit lowered": func(i *pc.Inventory) { i.MaxUnit = 64 },
	} {
		t.Run(name, func(t *testing.T) {
			p := *p
			p.T = t
			put(worse)
			id := p.begin(web, "host-a", "host-b")
			p.until("the move says why it cannot begin", func() bool {
				m, err := p.clients["host-a"].Migration(t.Context(), id)
				must(t, err)
				return strings.Contains(words(m), pc.ClassMemoryMB)
			})
			stays(1)
			put(func(i *pc.Inventory) { *i = normal })
			if m := p.end("host-a", id); m.Outcome == migration.OutcomeCompleted || !strings.Contains(words(m), pc.ClassMemoryMB) {
				t.Errorf("a move before the swap: %s, %s; want it refused or undone, with the reason", m.Outcome, words(m))
			}
			stays(1)

			p.fleet.Manual() // the stream does not end by itself
			begun := time.Now()
			id = p.begin(web, "host-a", "host-b")
			look := func() migration.Migration {
				m, err := p.clients["host-a"].Migration(t.Context(), id)
				must(t, err)
				if m.Done() {
					t.Fatalf("it is over: %s, %s", m.Outcome, words(m))
				}
				return m
			}
			p.until("the stream runs", func() bool { return look().Step == migration.StepStream })
			put(worse)
			_, err := p.clients["host-a"].AbortMigration(t.Context(), id)
			must(t, err)
			var told migration.Migration
			p.until("the undo says what it waits for", func() bool {
				p.fleet.Advance(time.Millisecond) // for the job's end
				told = look()
				return strings.Contains(words(told), pc.ClassMemoryMB)
			})
			t.Logf("told: %s", words(told))
			stays(2)
			put(func(i *pc.Inventory) { *i = normal })
			if m := p.end("host-a", id); m.Outcome != migration.OutcomeUndone {
				t.Errorf("at last: %s, %s", m.Outcome, words(m))
			}
			stays(1)
			t.Logf("undone after %v", time.Since(begun))
		})
	}
}

// words is all that a migration says of what went wrong.
func words(m migration.Migration) string {
	var out []string
	if err := m.Err(); err != nil {
		out = append(out, err.Error())
	}
	for _, step := range m.Steps {
		if step.Error != "" {
			out = append(out, step.Name+": "+step.Error)
		}
	}
	return strings.Join(out, "; ")
}
