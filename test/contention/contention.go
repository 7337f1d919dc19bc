package contention

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placementclient"
)

// Options are how much is done. The work is fixed, so how long it takes depends
// on the server.
type Options struct {
	Seed   uint64
	Agents int // each with a guest, on a host of its own
	Hosts  int // that all guests go to
	Room   int // guests that fit on one of them
	Moves  int // of each guest, onto one of the hosts or home again
	Lose   int // one answer of a write in so many is lost; 0 for none
}

// Report is what came of it.
type Report struct {
	Done, Undone int // moves; an undone one was swapped and swapped back, or never swapped for want of room
	NoRoom       int // of the undone
	Requests     int
	Lost         int            // answers
	Conflicts    map[string]int // 409s by meaning
	MostCopies   int            // of one swap or swap back
	Looks        int            // at a provider while guests moved
	Elapsed      time.Duration
}

func (r Report) String() string {
	return fmt.Sprintf("%d moves done, %d undone (%d for want of room); %d requests, %d answers lost; 409s %v; at most %d copies of one swap; %d looks at providers; %v",
		r.Done, r.Undone, r.NoRoom, r.Requests, r.Lost, r.Conflicts, r.MostCopies, r.Looks, r.Elapsed.Round(time.Millisecond))
}

// mostCopies is how often one swap or swap back may be sent at most: the story
// writes it seven times and the client repeats each write five times (tries in
// berth/migration/halves, Retries in berth/placementclient).
const mostCopies = 7 * 6

// T is what of *testing.T is used.
type T interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Failed() bool
	FailNow()
}

type run struct {
	t       T
	o       Options
	fleet   *fleet
	wire    *wire
	hosts   map[string]*host
	shared  []string // names of the hosts that all go to
	driver  map[string]*conductor.Conductor
	observe *placementclient.Client

	mu     sync.Mutex // guards report
	report Report
}

// Run moves guests and fails t when an allocation was lost, doubled or too much
// at any time it was looked at. transport carries the requests; nil means
// net/http's.
func Run(t T, url string, transport http.RoundTripper, o Options) Report {
	t.Helper()
	if transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = o.Agents
		t.Cleanup(own.CloseIdleConnections)
		transport = own
	}
	choices := rand.New(rand.NewPCG(o.Seed, 1))
	r := &run{
		t: t, o: o, hosts: map[string]*host{}, driver: map[string]*conductor.Conductor{},
		fleet: &fleet{rand: rand.New(rand.NewPCG(o.Seed, 2)), guests: map[string]*guest{}, moves: map[string]*move{}},
		wire: &wire{to: transport, lose: o.Lose, rand: rand.New(rand.NewPCG(o.Seed, 3)),
			conflicts: map[string]int{}, sent: map[string]int{}},
	}
	rt := &runtime.System{}
	ctx, stop := context.WithCancel(t.Context())
	defer rt.Wait()
	defer stop()
	r.observe = r.client(url, transport)
	for i := range o.Hosts {
		r.shared = append(r.shared, fmt.Sprint("shared-", i))
		r.hosts[r.shared[i]] = &host{fleet: r.fleet, name: r.shared[i], provider: uuid.NewString()}
	}
	guests := make([]string, o.Agents)
	for i := range guests {
		home := fmt.Sprint("home-", i)
		r.hosts[home] = &host{fleet: r.fleet, name: home, provider: uuid.NewString()}
		guests[i] = uuid.NewString()
		r.fleet.guests[guests[i]] = &guest{at: home, epoch: 1}
	}
	var making sync.WaitGroup
	for _, name := range r.shared {
		making.Go(func() { r.makeProvider(ctx, r.hosts[name], o.Room) })
	}
	for id, g := range r.fleet.guests {
		making.Go(func() {
			h := r.hosts[g.at]
			r.makeProvider(ctx, h, 1)
			r.check("make guest "+id, r.observe.PutAllocations(ctx, id, placementclient.Allocations{Allocations: allocation(h.provider),
				ProjectID: "contention", UserID: "contention", ConsumerType: placementclient.ConsumerInstance}))
		})
	}
	making.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for name := range r.hosts {
		c := conductor.New(conductor.Config{
			Runtime: rt, Store: storetest.NewMemory(), Local: name, Placement: r.client(url, r.wire),
			Hosts: func(_ context.Context, name string) (migration.Host, error) {
				if h := r.hosts[name]; h != nil {
					return operationtest.Over(h), nil
				}
				return nil, fault.New(fault.NotFound, "no host %s", name)
			},
			PollInterval: 10 * time.Millisecond, UndoLater: 200 * time.Millisecond,
		})
		r.driver[name] = c
		rt.Go("conductor of "+name, func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	begun := time.Now()
	var movers sync.WaitGroup
	for i, id := range guests {
		own := rand.New(rand.NewPCG(choices.Uint64(), uint64(i)))
		movers.Go(func() { r.travel(ctx, id, fmt.Sprint("home-", i), own) })
	}
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(ctx, over) })
	movers.Wait()
	close(over)
	watcher.Wait()
	r.settled(ctx)
	return r.sum(time.Since(begun))
}

func (r *run) client(url string, transport http.RoundTripper) *placementclient.Client {
	c, err := placementclient.New(placementclient.Config{URL: url, Token: "admin", Transport: transport, AttemptTimeout: time.Minute, Timeout: 3 * time.Minute})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// check fails the test, which goes on.
func (r *run) check(doing string, err error) {
	if err != nil {
		r.t.Errorf("%s: %v", doing, err)
	}
}

// makeProvider makes that of a host with room for n guests.
func (r *run) makeProvider(ctx context.Context, h *host, n int) {
	p, err := r.observe.CreateProvider(ctx, placementclient.NewProvider{UUID: h.provider, Name: h.name + "-" + h.provider})
	r.check("make the provider of "+h.name, err)
	inventories := map[string]placementclient.Inventory{}
	for class, amount := range allocation(h.provider)[h.provider] {
		inventories[class] = placementclient.Inventory{Total: amount * int64(n)}
	}
	_, err = r.observe.PutInventories(ctx, h.provider, placementclient.Inventories{Generation: p.Generation, Inventories: inventories})
	r.check("give "+h.name+" its inventory", err)
}

// travel moves one guest about, and looks after each move whether it holds what
// it should.
func (r *run) travel(ctx context.Context, id, home string, choices *rand.Rand) {
	for range r.o.Moves {
		from := r.at(id)
		to := r.shared[choices.IntN(len(r.shared))]
		if from == to || from != home && choices.IntN(3) == 0 {
			to = home
		}
		m, err := r.move(ctx, id, from, to)
		if err != nil {
			r.t.Errorf("move guest %s from %s to %s: %v", id, from, to, err)
			return
		}
		r.mu.Lock()
		want := from
		if m.Outcome == migration.OutcomeCompleted {
			want = to
			r.report.Done++
		} else {
			r.report.Undone++
			if m.Error != nil && m.Error.Kind == fault.DoesNotFit {
				r.report.NoRoom++
			}
		}
		r.mu.Unlock()
		if at := r.at(id); at != want {
			r.t.Errorf("guest %s is on %q after a move from %s to %s that ended %s", id, at, from, to, m.Outcome)
		}
		r.holds(ctx, id, want)
		if held, err := r.observe.Allocations(ctx, m.UUID); err != nil || held.Exists() {
			r.t.Errorf("migration %s of guest %s ended %s and holds %v (%v)", m.UUID, id, m.Outcome, held.Allocations, err)
		}
	}
}

func (r *run) at(id string) string {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	return r.fleet.guests[id].at
}

// move asks the conductor of the guest's host and waits for the end.
func (r *run) move(ctx context.Context, id, from, to string) (migration.Migration, error) {
	c := r.driver[from]
	for !c.Running() { // it has just been started
		if ctx.Err() != nil {
			return migration.Migration{}, ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	m, err := c.LiveMigrate(ctx, conductor.Request{Instance: id, Destination: to})
	if err != nil {
		return m, err
	}
	changes, err := c.Watch(ctx, m.UUID)
	if err != nil {
		return m, err
	}
	for m = range changes {
	}
	if !m.Done() {
		return m, fmt.Errorf("not over: %s %s, %v", m.Status, m.Outcome, m.Error)
	}
	return m, nil
}

// holds wants a guest to hold its one place.
func (r *run) holds(ctx context.Context, id, name string) {
	got, err := r.observe.Allocations(ctx, id)
	want := placementclient.Allocations{Allocations: allocation(r.hosts[name].provider)}
	if err != nil || !got.SameResources(want) {
		r.t.Errorf("guest %s on %s holds %v, want %v (%v)", id, name, got.Allocations, want.Allocations, err)
	}
}

// watch looks at the hosts that all go to, one after the other, until over.
func (r *run) watch(ctx context.Context, over <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-over:
			return
		case <-time.After(20 * time.Millisecond): // so that it is a small part of the load
		}
		h := r.hosts[r.shared[i%len(r.shared)]]
		held, err := r.observe.ProviderAllocations(ctx, h.provider)
		if err != nil {
			r.t.Errorf("look at %s: %v", h.name, err)
			return
		}
		r.report.Looks++ // by this goroutine alone until it has ended
		r.fits(h, held, r.o.Room)
	}
}

// fits wants a provider to be within its capacity, and each of its consumers to
// be a guest, or the half that a migration keeps.
func (r *run) fits(h *host, held placementclient.ProviderAllocations, room int) {
	sum := placementclient.Resources{}
	one := allocation(h.provider)[h.provider]
	for consumer, got := range held.Allocations {
		if !maps.Equal(got, one) {
			r.t.Errorf("consumer %s holds %v of %s, a guest has %v", consumer, got, h.name, one)
		}
		for class, n := range got {
			sum[class] += n
		}
	}
	for class, n := range one {
		if sum[class] > n*int64(room) {
			r.t.Errorf("%s is over its capacity: %d %s of %d, held by %v", h.name, sum[class], class, n*int64(room), slices.Sorted(maps.Keys(held.Allocations)))
		}
	}
}

// settled wants every provider to be held by the guests that are there, and by
// nobody else.
func (r *run) settled(ctx context.Context) {
	for name, h := range r.hosts {
		held, err := r.observe.ProviderAllocations(ctx, h.provider)
		if err != nil {
			r.t.Errorf("look at %s: %v", name, err)
			continue
		}
		r.fits(h, held, r.o.Room)
		var want []string
		for id, g := range r.fleet.guests {
			if g.at == name {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(held.Allocations)); !slices.Equal(got, want) {
			r.t.Errorf("%s is held by %v, and its guests are %v", name, got, want)
		}
	}
}

func (r *run) sum(elapsed time.Duration) Report {
	w := r.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	r.report.Requests, r.report.Lost, r.report.Conflicts, r.report.Elapsed = w.requests, w.lost, w.conflicts, elapsed
	for swap, n := range w.sent {
		r.report.MostCopies = max(r.report.MostCopies, n)
		if n > mostCopies {
			r.t.Errorf("swap %s was sent %d times, want %d at most", swap, n, mostCopies)
		}
	}
	if r.report.Done == 0 || r.report.Undone == 0 {
		r.t.Errorf("%d moves were done and %d undone: want both", r.report.Done, r.report.Undone)
	}
	return r.report
}
