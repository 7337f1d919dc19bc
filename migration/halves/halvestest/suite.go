// Package halvestest holds what the two consumers of a move must hold at every moment
// of it in a Placement, the embedded one and OpenStack's alike: moves between hosts
// of one provider and of several, with and without a shared disk, on one host that is
// full, over a network that loses answers and repeats requests, with guests that are
// deleted meanwhile, with allocations that were doubled by other hands, and from hosts
// that are dead.
package halvestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/halves"
	pc "berth/placementclient"
)

// id is a uuid that says which of the made-up ones it is.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-0000ba%06d", n) }

// The hosts: a flat one, a nested one of three providers, one with the disks of a sharing
// provider, which the nested one uses too, and a small one that a guest fills.
var (
	flat         = id(1)
	nested       = id(2)
	cell, pages  = id(3), id(4)
	sharing      = id(5)
	pool         = id(6)
	full         = id(7)
	bandwidth    = id(8) // nobody's of these
	onFlat       = halves.Amounts{flat: {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}}
	onNested     = halves.Amounts{cell: {"VCPU": 2}, pages: {"MEMORY_MB": 1024}, pool: {"DISK_GB": 10}}
	onSharing    = halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}, pool: {"DISK_GB": 10}}
	ofBandwidth  = halves.Amounts{bandwidth: {"CUSTOM_LICENSE": 1}}
	flatProvider = func(rp string) bool { return rp == flat }
)

type suite struct {
	t         *testing.T
	url       string
	transport http.RoundTripper
	client    *pc.Client
	next      int // for uuids
}

// Suite runs all of it on the Placement at url, reached by transport; nil for the
// client's own. It leaves its providers there.
func Suite(t *testing.T, url string, transport http.RoundTripper) {
	s := &suite{t: t, url: url, transport: transport, next: 100}
	s.client = s.connect(transport)
	s.hosts()
	for _, c := range slices.Concat(cases, lostCases) {
		t.Run(c.name, func(t *testing.T) {
			s.next += 2
			m := &move{suite: s, t: t, instance: id(s.next), migration: id(s.next + 1), start: onFlat, to: onNested, both: func(rp string) bool {
				return slices.Contains([]string{flat, nested, cell, pages, sharing, pool, full}, rp)
			}}
			defer func() { // what a case leaves counts for the next, also where it failed
				for _, consumer := range []string{m.instance, m.migration} {
					if err := s.client.DeleteAllocations(t.Context(), consumer); err != nil && !errors.Is(err, fault.NotFound) {
						t.Error(err)
					}
				}
			}()
			c.run(m)
		})
	}
}

func (s *suite) connect(transport http.RoundTripper) *pc.Client {
	s.t.Helper()
	c, err := pc.New(pc.Config{URL: s.url, Token: "admin", Transport: transport, Retries: 3, RetryWait: 5 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *suite) hosts() {
	s.t.Helper()
	ctx := s.t.Context()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	must(s.client.EnsureResourceClass(ctx, "CUSTOM_LICENSE"))
	for _, p := range []struct {
		uuid, name, parent string
		has                map[string]pc.Inventory
	}{
		{flat, "halves-flat", "", map[string]pc.Inventory{"VCPU": {Total: 8}, "MEMORY_MB": {Total: 8192}, "DISK_GB": {Total: 100}}},
		{nested, "halves-nested", "", nil},
		{cell, "halves-nested_cell", nested, map[string]pc.Inventory{"VCPU": {Total: 8}}},
		{pages, "halves-nested_pages", cell, map[string]pc.Inventory{"MEMORY_MB": {Total: 8192}}},
		{sharing, "halves-sharing", "", map[string]pc.Inventory{"VCPU": {Total: 8}, "MEMORY_MB": {Total: 8192}}},
		{pool, "halves-pool", "", map[string]pc.Inventory{"DISK_GB": {Total: 10}}},
		{full, "halves-full", "", map[string]pc.Inventory{"VCPU": {Total: 4, MaxUnit: 4}, "MEMORY_MB": {Total: 4096, MaxUnit: 4096}}},
		{bandwidth, "halves-license", "", map[string]pc.Inventory{"CUSTOM_LICENSE": {Total: 8}}},
	} {
		made, err := s.client.CreateProvider(ctx, pc.NewProvider{Name: p.name, UUID: p.uuid, ParentProviderUUID: p.parent})
		must(err)
		if p.has != nil {
			_, err = s.client.PutInventories(ctx, p.uuid, pc.Inventories{Generation: made.Generation, Inventories: p.has})
			must(err)
		}
	}
}

// move is one case.
type move struct {
	*suite
	t                   *testing.T
	instance, migration string
	start, to           halves.Amounts
	both                func(string) bool
	guest               halves.Whereabouts
	counted             halves.Amounts // as the source's tree stands when it is undone; nil for nothing said
}

// hasty sleeps shortly: what is waited for here comes at once or never.
type hasty struct{ *runtime.System }

func (h hasty) Sleep(ctx context.Context, d time.Duration) error {
	return h.System.Sleep(ctx, min(d, time.Millisecond))
}

// by is the move as somebody makes it whose requests travel by a transport.
func (m *move) by(c *pc.Client) halves.Move {
	return halves.Move{
		Placement: c, Runtime: hasty{new(runtime.System)}, Jitter: func(time.Duration) time.Duration { return 0 },
		Instance: m.instance, Migration: m.migration,
	}
}

func (m *move) source(leftover halves.Leftover) halves.Source {
	return halves.Source{Root: flat, Uses: flatProvider, Claim: m.start, ProjectID: "host's", UserID: "host's", Leftover: leftover}
}

// has makes the instance hold something, as whoever wrote it before.
func (m *move) has(a halves.Amounts) {
	m.t.Helper()
	now, err := m.client.Allocations(m.t.Context(), m.instance)
	m.must(err)
	m.must(m.client.PutAllocations(m.t.Context(), m.instance, pc.Allocations{
		Allocations: a, ProjectID: "p", UserID: "u", ConsumerGeneration: now.ConsumerGeneration, ConsumerType: pc.ConsumerInstance,
	}))
}

func (m *move) settled() halves.Start {
	m.t.Helper()
	s, err := m.by(m.client).Settle(m.t.Context(), m.source(nil), nil)
	m.must(err)
	if d := cmp.Diff(m.read(), s.Held); d != "" {
		m.t.Errorf("settled, it says that the instance holds (-Placement +it):\n%s", d)
	}
	return s
}

func (m *move) undo(s halves.Start) halves.Undo {
	return halves.Undo{Start: s, Next: m.to, Both: m.both, Guest: func(context.Context) (halves.Whereabouts, halves.Amounts, error) { return m.guest, m.counted, nil }}
}

func (m *move) swap(s halves.Start) {
	m.t.Helper()
	_, err := m.by(m.client).Swap(m.t.Context(), s, m.to)
	m.must(err)
}

func (m *move) back(s halves.Start) {
	m.t.Helper()
	m.must(m.by(m.client).Back(m.t.Context(), m.undo(s)))
}

func (m *move) finish(s halves.Start, leftover halves.Leftover) {
	m.t.Helper()
	m.must(m.by(m.client).Finish(m.t.Context(), m.undo(s), leftover))
}

func (m *move) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *move) kind(what string, err error, want fault.Kind) {
	m.t.Helper()
	if fault.KindOf(err) != want {
		m.t.Errorf("%s: %v of kind %q, want %q", what, err, fault.KindOf(err), want)
	}
}

// hold compares what both consumers hold.
func (m *move) hold(when string, inst, mig halves.Amounts) {
	m.t.Helper()
	for consumer, want := range map[string]halves.Amounts{m.instance: inst, m.migration: mig} {
		got, err := m.client.Allocations(m.t.Context(), consumer)
		m.must(err)
		what := map[string]string{m.instance: "instance", m.migration: "migration"}[consumer]
		if len(want) == 0 {
			if got.Exists() {
				m.t.Errorf("%s the %s holds %v, want no such consumer", when, what, got.Allocations)
			}
			continue
		}
		if d := cmp.Diff(want, got.Allocations); d != "" {
			m.t.Errorf("%s the %s holds (-want +got):\n%s", when, what, d)
		}
		wants := map[string]string{m.instance: pc.ConsumerInstance, m.migration: pc.ConsumerMigration}[consumer]
		if got.ConsumerType != wants {
			m.t.Errorf("%s the %s is of type %s", when, what, got.ConsumerType)
		}
	}
}

// used compares the usage of one class of a provider.
func (m *move) used(when, rp, class string, want int64) {
	m.t.Helper()
	u, err := m.client.Usages(m.t.Context(), rp)
	m.must(err)
	if got := u.Usages[class]; got != want {
		m.t.Errorf("%s %d of %s are used, want %d", when, got, class, want)
	}
}

// network is a transport that spoils writes of allocations.
type network struct {
	under http.RoundTripper
	// spoil is asked of each such write: whether it is delivered twice, and whether its
	// answer is lost; hold keeps it back altogether, for deliver.
	spoil func(n int) (twice, lose, hold bool)
	n     int
	held  []func() (*http.Response, error)
}

var errLost = errors.New("connection reset by peer")

func (m *move) network(spoil func(n int) (twice, lose, hold bool)) *network {
	under := m.transport
	if under == nil {
		under = http.DefaultTransport
	}
	return &network{under: under, spoil: spoil}
}

func (n *network) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodGet {
		return n.under.RoundTrip(q)
	}
	n.n++
	twice, lose, hold := n.spoil(n.n)
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		_ = q.Body.Close()
	}
	again := func() (*http.Response, error) {
		c := q.Clone(context.WithoutCancel(q.Context()))
		c.Body = io.NopCloser(bytes.NewReader(body))
		return n.under.RoundTrip(c)
	}
	if hold {
		n.held = append(n.held, again)
		return nil, errLost
	}
	if twice {
		r, err := again()
		if err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	r, err := again()
	if err == nil && lose {
		_ = r.Body.Close()
		return nil, errLost
	}
	return r, err
}

// deliver sends what was kept back, long after its sender has given up, and expects
// that it is turned away.
func (n *network) deliver(m *move) {
	m.t.Helper()
	if len(n.held) == 0 {
		m.t.Error("nothing was kept back")
	}
	for _, send := range n.held {
		r, err := send()
		m.must(err)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusConflict {
			m.t.Errorf("a swap that came late was answered %d, want 409", r.StatusCode)
		}
	}
}

// all loses every answer, or keeps back every request.
func losing(int) (bool, bool, bool)  { return false, true, false }
func holding(int) (bool, bool, bool) { return false, false, true }
