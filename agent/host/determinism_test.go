package host_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/runtime/simruntime"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

// chance is a source of bytes that one seed makes the same again.
type chance struct{ *rand.Rand }

func (c chance) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c.Uint32())
	}
	return len(p), nil
}

// simulated is one host of a simulated fleet.
type simulated struct {
	*host.Host
	process   *simruntime.Process
	store     *storetest.Memory
	files     *diskstest.Files
	conductor *conductor.Conductor
}

// simulate makes a guest with a disk on host a and moves it to b, all by the real
// parts on a simulated runtime, and gives all that happened.
func simulate(t *testing.T, seed uint64) string {
	t.Helper()
	s := simruntime.New(seed)
	defer s.Shutdown()
	var trace strings.Builder
	note := func(format string, args ...any) {
		fmt.Fprintf(&trace, "%s "+format+"\n", append([]any{s.Elapsed()}, args...)...)
	}
	s.OnTurn(func(_ time.Duration, actor string) { note("turn %s", actor) })
	world := s.Process("world", "world")
	fleet := drivertest.NewFleet(world)
	fleet.SetLatency(time.Millisecond)
	defer fleet.Close()
	disks, allocations := diskstest.NewWorld(), newPlacement()
	disks.OnStep(func(host, step, path string) error { note("%s: %s %s", host, step, path); return nil })
	hosts := map[string]*simulated{}
	for i, name := range []string{"a", "b"} {
		p := s.Process(name, "boot-1")
		h := &simulated{process: p, store: storetest.NewMemory(), files: disks.Host(name)}
		hosts[name] = h
		h.files.Put("/boot/vmlinuz", "raw", 1, "kernel")
		h.files.Put("/images/there", "raw", 1, "stays")
		random := chance{rand.New(rand.NewPCG(seed, uint64(i)))}
		var log io.Writer = writer(func(b []byte) { note("%s log %s", name, b) })
		logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{} // the machine's clock
			}
			return a
		}}))
		h.store.Live(p, func(at storetest.Point, batch []store.Mutation) storetest.Outcome {
			for _, m := range batch {
				note("%s: %s %s/%s %s", name, at, m.Bucket, m.Key, m.Value)
			}
			p.Yield()
			return storetest.Commit
		})
		fake := fleet.Host(name)
		fake.Fault(func(call, uuid string) error { note("%s: call %s %s", name, call, uuid); return nil })
		p.Go("agent", func() {
			ctx := context.Background()
			tracker, err := claims.Open(ctx, claims.Options{
				Store: h.store, Runtime: p, Host: name, Logger: logger, Random: random,
				Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}},
			})
			if err != nil {
				t.Error(err)
				return
			}
			h.Host = host.New(host.Options{
				Name: name, ProviderUUID: "rp-" + name, Tracker: tracker, Driver: fake, Runtime: p, Logger: logger, Random: random,
				Placement: allocations.of(name), ProjectID: "project", UserID: "user", ImagesDirs: []string{"/images"}, Files: h.files, Processes: fake.Processes(),
				Allowed:    func() host.Allowed { return host.Allowed{Paths: []string{"/boot"}} },
				LibvirtURI: "qemu+tls://" + name + "/system", MigrateURI: "tcp://" + name,
			})
			h.conductor = conductor.New(conductor.Config{
				Runtime: p, Store: h.store, Local: name, Placement: allocations, Logger: logger, Random: random,
				Hosts:  func(_ context.Context, name string) (migration.Host, error) { return hosts[name], nil },
				Jitter: func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(max(d, 1)))) },
			})
			p.Go("leases", func() { _ = tracker.Run(ctx) })
			p.Go("conductor", func() { _ = h.conductor.Run(ctx) })
			if err := h.Settle(ctx); err != nil {
				t.Error(err)
			}
			p.Go("follow", func() { _ = h.Follow(ctx) })
			p.Go("arrivals", func() { _ = h.External().FollowArrivals(ctx) })
		})
	}
	over := false
	hosts["a"].process.Go("user", func() {
		a := hosts["a"]
		ctx := context.Background()
		_ = a.process.Sleep(ctx, 10*time.Second)
		v, err := a.Create(ctx, host.CreateRequest{
			Name: "vm", Flavor: small, Kernel: "/boot/vmlinuz", Cmdline: "quiet", Disks: []host.CreateDisk{{SizeGB: 1}}, Start: true,
		})
		if err != nil {
			t.Errorf("create: %v", err)
			over = true
			return
		}
		m, err := a.conductor.LiveMigrate(ctx, conductor.Request{Instance: v.UUID, Destination: "b"})
		for err == nil && !m.Done() {
			_ = a.process.Sleep(ctx, time.Second)
			m, err = a.conductor.Get(ctx, m.UUID)
		}
		if err != nil || m.Outcome != migration.OutcomeCompleted {
			t.Errorf("the move: %v, %s %+v", err, m.Outcome, m.Error)
		}
		_ = a.process.Sleep(ctx, time.Minute)
		over = true
	})
	if err := s.Run(10*time.Minute, func() bool { return over }); err != nil {
		t.Error(err)
	}
	for _, e := range fleet.History() {
		note("%s %s", e.At, e)
	}
	for _, v := range fleet.Violations() {
		t.Error(v)
	}
	for name, want := range map[string]int{"a": 4, "b": 5} {
		if got := hosts[name].files.List(); len(got) != want {
			t.Errorf("files on %s: %v", name, got)
		}
	}
	return trace.String()
}

type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(bytes.TrimSpace(b)); return len(b), nil }

// A whole move by two real hosts and their conductors, on one seed, is one trace: so
// whatever a simulation finds can be found again.
func TestHost_OneSeedIsOneMove(t *testing.T) {
	for seed := range uint64(3) {
		one, two := simulate(t, seed), simulate(t, seed)
		if t.Failed() {
			return
		}
		if one != two {
			a, b := strings.Split(one, "\n"), strings.Split(two, "\n")
			i := 0
			for i < len(a) && i < len(b) && a[i] == b[i] {
				i++
			}
			t.Fatalf("seed %d: %d and %d lines, the first difference in line %d (-one +two):\n%s", seed, len(a), len(b), i,
				cmp.Diff(a[max(0, i-3):min(len(a), i+3)], b[max(0, i-3):min(len(b), i+3)]))
		}
		if seed == 0 {
			t.Logf("%d lines", strings.Count(one, "\n"))
		}
	}
}
