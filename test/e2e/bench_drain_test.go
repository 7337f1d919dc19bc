package e2e

import (
	"slices"
	"testing"
	"time"

	"berth/agent/api"
	"berth/test/fleet"
	"berth/test/guest"
)

// BenchmarkDrain empties a host of ten running guests, and moves ten by one command after
// the other, in turns on the same fleet.
func BenchmarkDrain(b *testing.B) {
	const guests, rounds = 10, 2
	w := ownBench(b, fleet.Options{
		Names:  []string{"host-a", "host-b", "host-c"},
		Config: map[string]string{"": "[migration]\nmax_outbound = 4\nmax_inbound = 2\n[placement]\ncpu_allocation_ratio = 16.0\n"},
	})
	names := w.crowd(guests, guest.Options{Dirty: 4, Rate: 1, Beat: time.Second})
	took := map[string][]time.Duration{}
	back := func() {
		w.berth(w.a, "host", "set", "--enable")
		for _, name := range names {
			for _, h := range w.Hosts[1:] {
				if w.domain(h, name) != "" {
					w.berth(h, "migrate", name, w.a.Name)
				}
			}
		}
	}
	for b.Loop() {
		for range rounds {
			began := time.Now()
			w.berth(w.a, "host", "drain", "--yes")
			took["drain"] = append(took["drain"], time.Since(began))
			d := w.drained()
			if moved := slices.DeleteFunc(d.Guests, func(g api.DrainedGuest) bool { return g.State != api.DrainedMoved }); len(moved) != guests {
				b.Fatalf("%d guests were moved, want %d: %+v", len(moved), guests, d)
			}
			back()
			began = time.Now()
			for _, name := range names {
				w.berth(w.a, "migrate", name)
			}
			took["one-by-one"] = append(took["one-by-one"], time.Since(began))
			back()
		}
	}
	for name, d := range took {
		b.ReportMetric(median(d).Seconds(), name+"-s")
		b.Logf("%s: %v", name, d)
	}
	b.ReportMetric(0, "ns/op")
}
