package reporter_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	rootID   = "aaaaaaaa-0000-4000-8000-000000000000"
	sharedID = "bbbbbbbb-0000-4000-8000-000000000000"
	fleetID  = "cccccccc-0000-4000-8000-000000000000"
	guestA   = "dddddddd-0000-4000-8000-00000000000a"
	guestB   = "dddddddd-0000-4000-8000-00000000000b"
	moveID   = "eeeeeeee-0000-4000-8000-000000000000"
)

var silent = slog.New(slog.DiscardHandler)

// wire carries a client's requests to an embedded Placement, counts them, and does
// to them what a test wants.
type wire struct {
	mu     sync.Mutex
	server http.Handler
	reads  int
	writes int
	calls  []string // method and path, since the last count
	// before is asked for each request: an error is a request that was lost. after is
	// asked when it was answered: an error is an answer that was lost. nil for none.
	before, after func(r *http.Request) error
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Method == http.MethodGet {
		w.reads++
	} else {
		w.writes++
	}
	w.calls = append(w.calls, r.Method+" "+r.URL.RequestURI())
	if w.before != nil {
		if err := w.before(r); err != nil {
			return nil, err
		}
	}
	answer, err := w.serve(r)
	if err != nil {
		return nil, err
	}
	if w.after != nil {
		if err := w.after(r); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// serve lets the server answer; mu is held.
func (w *wire) serve(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	in := r.Clone(r.Context())
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer := httptest.NewRecorder()
	w.server.ServeHTTP(answer, in)
	return answer.Result(), nil
}

// count gives the reads and writes since the last time.
func (w *wire) count() (reads, writes int, calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reads, writes, calls = w.reads, w.writes, w.calls
	w.reads, w.writes, w.calls = 0, 0, nil
	return reads, writes, calls
}

// bench is a host that is reported to an embedded Placement.
type bench struct {
	testing.TB
	wire   *wire
	theirs *placementclient.Client // another client, undisturbed
	client *placementclient.Client
	opt    reporter.Options
	r      *reporter.Reporter

	in         inventory.Input
	unknown    string // why the host is not known; empty where it is
	held       map[string]inventory.Held
	moving     map[string]bool
	remembered reporter.Remembered
	found      []inventory.Report
	estranged  []error
}

func newBench(t testing.TB) *bench { return newBenchAt(t, placementclient.MaxMicroversion) }

func newBenchAt(t testing.TB, v placementclient.Microversion) *bench {
	t.Helper()
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &wire{server: server}
	c := placementclient.Config{URL: "http://placement", Token: "admin", MaxVersion: v}
	c.Transport = transport(func(r *http.Request) (*http.Response, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.serve(r)
	})
	theirs, err := placementclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Transport, c.Retries, c.RetryWait = w, 1, time.Nanosecond
	client, err := placementclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, wire: w, theirs: theirs, client: client, in: machine(), held: map[string]inventory.Held{}, moving: map[string]bool{}}
	b.opt = reporter.Options{
		Placement: client, Runtime: &runtime.System{}, Logger: silent, Name: "host-a", UUID: rootID, Interval: time.Minute,
		Input:     func() (inventory.Input, bool, string) { return b.in, b.unknown == "", b.unknown },
		Found:     func(r inventory.Report) { b.found = append(b.found, r) },
		Estranged: func(err error) { b.estranged = append(b.estranged, err) },
		Held:      func(consumer string) (inventory.Held, bool) { h, ok := b.held[consumer]; return h, ok },
		Moving:    func(consumer string) bool { return b.moving[consumer] },
		Keep: func(_ context.Context, r reporter.Remembered) error {
			b.remembered = r
			return nil
		},
	}
	b.restart()
	return b
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// restart makes a reporter that knows what was kept alone.
func (b *bench) restart() {
	b.opt.Remembered = b.remembered
	b.r = reporter.New(b.opt)
}

func (b *bench) sync() {
	b.Helper()
	if err := b.r.Sync(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// stands gives what another client reads.
func (b *bench) inventories(rp string) map[string]placementclient.Inventory {
	b.Helper()
	got, err := b.theirs.Inventories(b.Context(), rp)
	b.must(err)
	return got.Inventories
}

func (b *bench) traits(rp string) []string {
	b.Helper()
	got, err := b.theirs.Traits(b.Context(), rp)
	b.must(err)
	return got.Traits
}

// names are the providers of the host's tree.
func (b *bench) names() []string {
	b.Helper()
	list, err := b.theirs.ProvidersInTree(b.Context(), rootID)
	b.must(err)
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	return out
}

// give lets a consumer hold something, as another writer does.
func (b *bench) give(consumer, kind string, of map[string]placementclient.Resources) {
	b.Helper()
	now, err := b.theirs.Allocations(b.Context(), consumer)
	b.must(err)
	b.must(b.theirs.PutAllocations(b.Context(), consumer, placementclient.Allocations{
		Allocations: of, ProjectID: "p", UserID: "u", ConsumerGeneration: now.ConsumerGeneration, ConsumerType: kind,
	}))
}

func (b *bench) holds(consumer string) map[string]placementclient.Resources {
	b.Helper()
	got, err := b.theirs.Allocations(b.Context(), consumer)
	b.must(err)
	return got.Allocations
}

// addTraits sets traits beside those that stand, as an operator does.
func (b *bench) addTraits(rp string, names ...string) {
	b.Helper()
	for _, n := range names {
		b.must(b.theirs.EnsureTrait(b.Context(), n))
	}
	got, err := b.theirs.Traits(b.Context(), rp)
	b.must(err)
	got.Traits = append(got.Traits, names...)
	_, err = b.theirs.PutTraits(b.Context(), rp, got)
	b.must(err)
}

// machine has two cells, four CPUs, 8 GiB and pools of huge pages.
func machine() inventory.Input {
	return inventory.Input{
		Host: &topology.Host{
			Cells: []topology.Cell{
				{ID: 0, CPUs: topology.NewCPUSet(0, 1), MemoryBytes: 4 << 30, Pages: map[topology.PageSize]int64{4 << 10: 786432, 2 << 20: 512}},
				{ID: 1, CPUs: topology.NewCPUSet(2, 3), MemoryBytes: 4 << 30, Pages: map[topology.PageSize]int64{4 << 10: 786432, 2 << 20: 512}},
			},
			Cores: []topology.CPUSet{{0}, {1}, {2}, {3}}, PageSizes: []topology.PageSize{4 << 10, 2 << 20}, BasePageSize: 4 << 10,
		},
		Arch: "x86_64", DiskGB: 50, Initial: inventory.Ratios{CPU: 4, RAM: 1, Disk: 1},
	}
}

// claimed is what a guest without cells holds by its claim.
func claimed(vcpus int, memoryMB, diskGB int64) inventory.Held {
	return inventory.Held{Resources: topology.Resources{VCPUs: vcpus, MemoryMB: memoryMB, DiskGB: diskGB}}
}

func kind(err error) fault.Kind { return fault.KindOf(err) }
