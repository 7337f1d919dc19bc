// Package reportertest holds what a reporter must do to every Placement, the
// embedded one and OpenStack's alike, and the bench that its tests stand on: a
// made-up host, a wire that counts and disturbs, and another client that looks and
// interferes.
//
// It knows a Placement by what carries requests to it, and makes its own providers
// there, under names of their own.
package reportertest

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

// Wire carries a client's requests to a Placement, counts them, and does to them
// what a test wants.
type Wire struct {
	mu     sync.Mutex
	to     http.RoundTripper
	calls  []string // method and path, since the last count
	before func(r *http.Request) error
	after  func(r *http.Request) error
}

// RoundTrip implements http.RoundTripper.
func (w *Wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.calls = append(w.calls, r.Method+" "+r.URL.RequestURI())
	to, before, after := w.to, w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(r); err != nil {
			return nil, err
		}
	}
	answer, err := to.RoundTrip(r)
	if err == nil && after != nil {
		if lost := after(r); lost != nil {
			_ = answer.Body.Close() // nobody reads it
			return nil, lost
		}
	}
	return answer, err
}

// To has requests go to another Placement from now on.
func (w *Wire) To(to http.RoundTripper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
}

// Disturb sets what is asked for each request, and for each that was answered: an
// error is a request, or an answer, that was lost. nil for none.
func (w *Wire) Disturb(before, after func(r *http.Request) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// Count gives the requests since the last time; all but GET are writes. Microversion
// negotiation is none.
func (w *Wire) Count() (reads, writes int, calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls, w.calls = w.calls, nil
	calls = slices.DeleteFunc(calls, func(c string) bool { return c == "GET /" })
	for _, c := range calls {
		if c[:4] == "GET " {
			reads++
		} else {
			writes++
		}
	}
	return reads, writes, calls
}

// Bench is a host that is reported.
type Bench struct {
	testing.TB
	Wire   *Wire
	Client *placementclient.Client // the reporter's, over Wire
	Theirs *placementclient.Client // another, undisturbed
	Older  *placementclient.Client // as Theirs, at the oldest microversion
	Root   string                  // the host's uuid
	Name   string

	Options reporter.Options // what Restart makes a reporter of
	R       *reporter.Reporter

	In        inventory.Input
	Unknown   string // why the host is not known; empty where it is
	Held      map[string]inventory.Held
	Moving    map[string]bool
	Kept      reporter.Remembered // the last that was kept
	Keeps     int                 // how often something was
	Found     []inventory.Report
	Estranged []error
}

// Silent is a log that nobody reads.
var Silent = slog.New(slog.DiscardHandler)

// New makes a bench at a Placement that to leads to, whose client speaks up to v.
func New(t testing.TB, to http.RoundTripper, v placementclient.Microversion) *Bench {
	t.Helper()
	root := uuid.NewString()
	b := &Bench{
		TB: t, Wire: &Wire{to: to}, Root: root, Name: "host-" + root[:8], In: Machine(),
		Held: map[string]inventory.Held{}, Moving: map[string]bool{},
	}
	c := placementclient.Config{URL: "http://placement", Token: "admin", MaxVersion: v, Transport: b.Wire, Retries: 1, RetryWait: time.Nanosecond}
	var err error
	b.Client, err = placementclient.New(c)
	b.Must(err)
	c.Transport, c.Retries, c.MaxVersion = to, 5, placementclient.MaxMicroversion
	b.Theirs, err = placementclient.New(c)
	b.Must(err)
	c.MaxVersion = placementclient.MinMicroversion
	b.Older, err = placementclient.New(c)
	b.Must(err)
	b.Options = reporter.Options{
		Placement: b.Client, Runtime: &runtime.System{}, Logger: Silent, Name: b.Name, UUID: root, Interval: time.Minute,
		Input:     func() (inventory.Input, bool, string) { return b.In, b.Unknown == "", b.Unknown },
		Found:     func(r inventory.Report) { b.Found = append(b.Found, r) },
		Estranged: func(err error) { b.Estranged = append(b.Estranged, err) },
		Held:      func(consumer string) (inventory.Held, bool) { h, ok := b.Held[consumer]; return h, ok },
		Moving:    func(consumer string) bool { return b.Moving[consumer] },
		Keep: func(_ context.Context, r reporter.Remembered) error {
			b.Kept, b.Keeps = r, b.Keeps+1
			return nil
		},
	}
	b.Restart()
	return b
}

// Restart makes a reporter that knows what was kept alone.
func (b *Bench) Restart() {
	b.Options.Remembered = b.Kept
	b.R = reporter.New(b.Options)
}

// ID is a uuid of this bench's own.
func (b *Bench) ID(what string) string { return inventory.ChildUUID(b.Root, "test "+what) }

// Child is the uuid of a child of the host's.
func (b *Bench) Child(suffix string) string { return inventory.ChildUUID(b.Root, suffix) }

// Must ends the test with an error.
func (b *Bench) Must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// Sync compares once, which must go well.
func (b *Bench) Sync() {
	b.Helper()
	b.Must(b.R.Sync(b.Context()))
}

// Steady requires n intervals without a write, to Placement or to what is
// remembered, and with one read each at most.
func (b *Bench) Steady(n int) {
	b.Helper()
	b.Wire.Count()
	keeps := b.Keeps
	for i := range n {
		b.Sync()
		if reads, writes, calls := b.Wire.Count(); reads > 1 || writes > 0 {
			b.Fatalf("interval %d of a steady state: %v; want one read", i, calls)
		}
	}
	if b.Keeps != keeps {
		b.Fatalf("remembered %d times in a steady state: %+v", b.Keeps-keeps, b.Kept)
	}
}

// Inventories gives what another client reads.
func (b *Bench) Inventories(rp string) map[string]placementclient.Inventory {
	b.Helper()
	got, err := b.Theirs.Inventories(b.Context(), rp)
	b.Must(err)
	return got.Inventories
}

// PutInventory sets one class, as another writer does.
func (b *Bench) PutInventory(rp, class string, i placementclient.Inventory) {
	b.Helper()
	if strings.HasPrefix(class, placementclient.CustomPrefix) {
		b.Must(b.Theirs.EnsureResourceClass(b.Context(), class))
	}
	now, err := b.Theirs.Inventories(b.Context(), rp)
	b.Must(err)
	now.Inventories[class] = i
	_, err = b.Theirs.PutInventories(b.Context(), rp, now)
	b.Must(err)
}

// Traits gives what another client reads.
func (b *Bench) Traits(rp string) []string {
	b.Helper()
	got, err := b.Theirs.Traits(b.Context(), rp)
	b.Must(err)
	return got.Traits
}

// AddTraits sets traits beside those that stand, as an operator does.
func (b *Bench) AddTraits(rp string, names ...string) {
	b.Helper()
	for _, n := range names {
		b.Must(b.Theirs.EnsureTrait(b.Context(), n))
	}
	got, err := b.Theirs.Traits(b.Context(), rp)
	b.Must(err)
	got.Traits = append(got.Traits, names...)
	_, err = b.Theirs.PutTraits(b.Context(), rp, got)
	b.Must(err)
}

// PutAggregates sets them, as an operator does.
func (b *Bench) PutAggregates(rp string, aggregates ...string) {
	b.Helper()
	got, err := b.Theirs.Aggregates(b.Context(), rp)
	b.Must(err)
	got.Aggregates = aggregates
	_, err = b.Theirs.PutAggregates(b.Context(), rp, got)
	b.Must(err)
}

// Names are the providers of the host's tree, without the host's name.
func (b *Bench) Names() []string {
	b.Helper()
	list, err := b.Theirs.ProvidersInTree(b.Context(), b.Root)
	b.Must(err)
	out := []string{}
	for _, p := range list {
		out = append(out, p.Name[min(len(b.Name), len(p.Name)):])
	}
	return out
}

// Give lets a consumer hold something, as another writer does.
func (b *Bench) Give(consumer, kind string, of map[string]placementclient.Resources) {
	b.Helper()
	now, err := b.Theirs.Allocations(b.Context(), consumer)
	b.Must(err)
	b.Must(b.Theirs.PutAllocations(b.Context(), consumer, placementclient.Allocations{
		Allocations: of, ProjectID: "p", UserID: "u", ConsumerGeneration: now.ConsumerGeneration, ConsumerType: kind,
	}))
}

// Place lets a guest hold what its claim stands for, as an agent does.
func (b *Bench) Place(guest string, h inventory.Held) {
	b.Helper()
	tree, known := b.R.Tree()
	if !known {
		b.Fatal("no tree is known")
	}
	h.Consumer = guest
	b.Held[guest] = h
	b.Give(guest, placementclient.ConsumerInstance, tree.Place(h, nil))
}

// Holds gives what a consumer holds.
func (b *Bench) Holds(consumer string) map[string]placementclient.Resources {
	b.Helper()
	got, err := b.Theirs.Allocations(b.Context(), consumer)
	b.Must(err)
	return got.Allocations
}

// Sum is what a consumer holds of each class.
func (b *Bench) Sum(consumer string) placementclient.Resources {
	b.Helper()
	out := placementclient.Resources{}
	for _, r := range b.Holds(consumer) {
		for class, n := range r {
			out[class] += n
		}
	}
	return out
}

// Equal requires Placement to say of each provider of ours what a report computed
// now says.
func (b *Bench) Equal() {
	b.Helper()
	if d := b.Different(); d != "" {
		b.Fatal(d)
	}
}

// Different says where Placement is not what a report computed now says; empty for
// nowhere.
func (b *Bench) Different() string {
	b.Helper()
	list, err := b.Theirs.ProvidersInTree(b.Context(), b.Root)
	b.Must(err)
	here := map[string]inventory.Standing{}
	for _, p := range list {
		here[p.UUID] = inventory.Standing{Provider: p, Inventories: b.Inventories(p.UUID), Traits: b.Traits(p.UUID)}
	}
	tree, known := b.R.Tree()
	if !known {
		return "no tree is known"
	}
	in := b.In
	in.UUID, in.Name, in.Applied = b.Root, b.Name, b.Kept.Applied
	if tree.Disk != b.Root {
		in.Sharing = tree.Disk
	}
	report := inventory.Compute(in, slices.Collect(maps.Values(here)))
	for _, p := range report.Tree.Providers {
		s, there := here[p.UUID]
		inventories, traits := p.Equal(s)
		if !there || !inventories || !traits || s.Provider.ParentProviderUUID != p.Parent || s.Provider.Name != p.Name {
			return "provider " + p.Name + " is not as it should be"
		}
	}
	if len(report.Tree.Retired) > 0 {
		return "provider " + report.Tree.Retired[0].Name + " should be gone"
	}
	return ""
}

// Machine has two cells, four CPUs, 8 GiB, a pool of huge pages and a disk.
func Machine() inventory.Input {
	return inventory.Input{
		Host: &topology.Host{
			Cells: []topology.Cell{
				{ID: 0, CPUs: topology.NewCPUSet(0, 1), MemoryBytes: 4 << 30, Pages: map[topology.PageSize]int64{4 << 10: 786432, 2 << 20: 512}},
				{ID: 1, CPUs: topology.NewCPUSet(2, 3), MemoryBytes: 4 << 30, Pages: map[topology.PageSize]int64{4 << 10: 1048576}},
			},
			Cores: []topology.CPUSet{{0}, {1}, {2}, {3}}, PageSizes: []topology.PageSize{4 << 10, 2 << 20}, BasePageSize: 4 << 10,
		},
		Arch: "x86_64", DiskGB: 50, Initial: inventory.Ratios{CPU: 4, RAM: 1, Disk: 1},
	}
}

// Claimed is what a guest without cells holds by its claim.
func Claimed(vcpus int, memoryMB, diskGB int64) inventory.Held {
	return inventory.Held{Resources: topology.Resources{VCPUs: vcpus, MemoryMB: memoryMB, DiskGB: diskGB}}
}
