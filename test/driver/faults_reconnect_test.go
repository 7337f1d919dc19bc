package driver

import (
	"context"
	"runtime"
	"testing"
	"time"

	"berth/driver"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// 1,000 times every connection of the driver ends, in turn by a cut at rest, a cut
// in place of an answer, and an answer that makes no sense; it connects again,
// tells its readers to read again, and keeps nothing of the old ones.
func TestRPC_AThousandReconnectsLeakNothing(t *testing.T) { rpcBinding.reconnects(t, 1000) }

func (n binding) reconnects(t *testing.T, times int) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	b := n.bench(t, h.LibvirtSocket())
	b.v = verbs()[2] // Domain
	b.ready()
	b.settled() // so that the first resync is over
	events, err := b.d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resync := func() {
		t.Helper()
		limit := time.After(recovery)
		for {
			select {
			case e := <-events:
				if e.Kind == driver.EventResync {
					return
				}
			case <-limit:
				t.Fatal("no resync")
			}
		}
	}
	use := func() {
		t.Helper()
		b.settled()
		// Refused here; it opens the connection of statistics.
		if _, err := b.d.Job(context.Background(), b.id); err == nil {
			t.Error("libvirt's test driver has jobs")
		}
	}
	use()
	const warm = 50 // after which caches of the runtime and the library are as they stay
	var goroutines, files int
	var memory uint64
	began := time.Now()
	for i := range times + warm {
		if i == warm {
			goroutines, files, memory = settledProcess(t)
			began = time.Now()
		}
		switch i % 3 {
		case 0:
			b.p.CutAll()
		case 1, 2:
			a := rpcproxy.CutInstead
			if i%3 == 2 {
				a = rpcproxy.Set(rpcproxy.Length, 5)
			}
			b.p.Add(rpcproxy.ReplyOf(rpcproxy.LookupByUUID), a)
			// What it says is held by other tests; here its connection ends.
			_, _ = b.d.Domain(context.Background(), b.id)
			b.p.CutAll()
		}
		resync()
		use()
	}
	took := time.Since(began)
	// Goroutines of closed connections may be some moments behind.
	limit := within(t, 2*time.Minute)
	g, f, m := settledProcess(t)
	for (g > goroutines || f > files) && limit.Err() == nil {
		<-time.After(50 * time.Millisecond)
		g, f, m = settledProcess(t)
	}
	t.Logf("%d reconnects, %v each: goroutines %d, then %d; files %d, then %d; memory %d KiB, then %d KiB",
		times, (took / time.Duration(times)).Round(10*time.Microsecond), goroutines, g, files, f, memory>>10, m>>10)
	if g > goroutines || f > files {
		t.Errorf("goroutines %d, were %d; files %d, were %d", g, goroutines, f, files)
	}
	// One connection kept would be 10 KiB and more: ten times what is let pass.
	if grown := int64(m) - int64(memory); grown > int64(times)<<10 {
		t.Errorf("%d bytes of memory more than before", grown)
	}
}

// settledProcess counts what this process has once it has cleaned up.
func settledProcess(t *testing.T) (goroutines, files int, memory uint64) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), descriptors(t), m.HeapAlloc + m.StackInuse
}
