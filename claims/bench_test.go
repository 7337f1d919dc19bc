package claims_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/topology"
)

func TestMain(m *testing.M) {
	// Before the command line, which may say otherwise.
	if err := flag.Set("rapid.checks", strconv.Itoa(100/stride)); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// clock is a runtime whose time the test moves. Sleep passes time to the test:
// it blocks until the context ends or the clock is moved far enough.
type clock struct {
	mu    sync.Mutex
	boot  runtime.BootTime
	moved chan struct{} // closed and renewed by each move
	slept chan struct{} // gets a token for each Sleep that begins
}

func newClock() *clock {
	return &clock{boot: runtime.BootTime{ID: "boot-1", Since: time.Hour}, moved: make(chan struct{}), slept: make(chan struct{}, 100)}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot.Since += d
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *clock) reboot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot = runtime.BootTime{ID: c.boot.ID + "+", Since: time.Second}
}

func (c *clock) Boot() runtime.BootTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *clock) Now() time.Time { return time.Unix(1_700_000_000, 0).Add(c.Boot().Since) }

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	until := c.Boot().Since + d
	for {
		c.mu.Lock()
		moved, now := c.moved, c.boot.Since
		c.mu.Unlock()
		if now >= until {
			return nil
		}
		select {
		case c.slept <- struct{}{}:
		default:
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *clock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (c *clock) Block(ctx context.Context, w runtime.Waiter) error {
	return new(runtime.System).Block(ctx, w)
}

func (c *clock) Go(_ string, f func()) { go f() }

// bench is one host with a store that can fail and crash.
type bench struct {
	*claims.Tracker
	t     fataler
	host  string
	clock *clock
	store *storetest.Memory
	ids   *rand.Rand

	capacity claims.Capacity
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

var capacity = claims.Capacity{
	Total:    topology.Resources{VCPUs: 4, MemoryMB: 4096, DiskGB: 40},
	Reserved: topology.Resources{MemoryMB: 512},
	CPURatio: 2, RAMRatio: 1, DiskRatio: 1,
}

func newBench(t fataler, host string) *bench { return newBenchWith(t, host, capacity) }

func newBenchWith(t fataler, host string, c claims.Capacity) *bench {
	b := &bench{t: t, host: host, clock: newClock(), store: storetest.NewMemory(), ids: rand.New(rand.NewPCG(1, 2)), capacity: c}
	b.open()
	return b
}

func (b *bench) open() {
	b.t.Helper()
	tracker, err := claims.Open(context.Background(), claims.Options{
		Store: b.store, Runtime: b.clock, Host: b.host, Capacity: b.capacity,
		Logger: slog.New(slog.DiscardHandler), Random: seeded{b.ids},
	})
	if err != nil {
		b.t.Fatalf("open ledger of %s: %v", b.host, err)
	}
	b.Tracker = tracker
}

// restart kills the agent and starts it again.
func (b *bench) restart() {
	b.t.Helper()
	b.store = b.store.Crash()
	b.open()
}

// seeded makes ids that a seed repeats.
type seeded struct{ *rand.Rand }

func (s seeded) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(s.Uint32())
	}
	return len(p), nil
}

var _ io.Reader = seeded{}

func (b *bench) failCommits(o storetest.Outcome) {
	b.store.OnCommit(func(int, []store.Mutation) storetest.Outcome { return o })
}

func (b *bench) healCommits() { b.store.OnCommit(nil) }

var (
	small = topology.Resources{VCPUs: 1, MemoryMB: 1024, DiskGB: 10}
	ctx   = context.Background()
)

func instanceOwner(uuid string) claims.Owner {
	return claims.Owner{Instance: uuid, Kind: claims.KindInstance}
}

func moveOwner(instance, migration string, attempt int) claims.Owner {
	return claims.Owner{Instance: instance, Migration: migration, Attempt: attempt, Kind: claims.KindLiveMigration}
}

func refOf(o claims.Owner, step string) migration.Ref {
	return migration.Ref{Migration: o.Migration, Instance: o.Instance, Attempt: o.Attempt, Step: step}
}

func guest(uuid string) claims.Instance {
	return claims.Instance{UUID: uuid, Name: "name-" + uuid, Flavor: topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 1024, DiskGB: 10,
		ExtraSpecs: map[string]string{"a": "b"}}}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want %s", err, kind)
	}
}

func wantUsed(t *testing.T, b *bench, want topology.Resources) {
	t.Helper()
	if got := b.Usage().Used; got != want {
		t.Errorf("used %s, want %s", got, want)
	}
}
