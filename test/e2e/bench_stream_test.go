package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// BenchmarkStream sends the same paused guest, most of whose memory is data, by
// Berth's stream and by libvirt's and QEMU's own TLS, over one connection and over
// four. Reported are the bytes of memory by the time in which they flowed.
func BenchmarkStream(b *testing.B) {
	build(b)
	for _, transport := range []string{"stream", "libvirt-tls"} {
		f, err := fleet.Up(b.Context(), fleet.Options{
			Dir: filepath.Join(lab.TempDir(b), "fleet"), Binary: shared.bin, Transport: transport,
			Config:  map[string]string{"": "[migration]\ntls = true\n"}, // of libvirt-tls; a stream always is
			Flavors: map[string]string{"full": "name = \"full\"\nvcpus = 1\nmemory_mb = 768\ndisk_gb = 1\n"},
		})
		if err != nil {
			b.Fatal(err)
		}
		w := &world{TB: b, Fleet: f, ctx: b.Context(), a: f.Hosts[0], b: f.Hosts[1]}
		o := guest.Options{Name: "full", MemoryMiB: 768, Dirty: 600, Rate: -1, Beat: 200 * time.Millisecond,
			Disks: []guest.Disk{{Path: filepath.Join(w.SharedDir(), "full.qcow2")}}}
		w.xml(w.a, &o)
		w.berth(w.a, "instance", "create", "full", "--flavor", "full", "--xml", "/var/lib/libvirt/full.xml", "--start")
		for beats := w.beats(w.a, "full", 1); beats[len(beats)-1].Passes < 1; {
			beats = w.beats(w.a, "full", len(beats)+1)
		}
		if _, err := w.a.Virsh(w.ctx, "suspend", "full"); err != nil {
			b.Fatal(err)
		}
		from, to := w.a, w.b
		for _, parallel := range []string{"1", "4"} {
			b.Run(fmt.Sprintf("%s/connections=%s", transport, parallel), func(b *testing.B) {
				var rates []float64
				for b.Loop() {
					w.berth(from, "migrate", "full", to.Name, "--parallel", parallel)
					m := w.migration(from, "full", "is over", func(m migration.Migration) bool { return m.Done() && m.DestCompute == to.Name })
					rates = append(rates, float64(m.Progress.MemoryProcessed)/(1<<20)/m.Progress.Elapsed.Seconds())
					from, to = to, from
				}
				sum := 0.0
				for _, r := range rates {
					sum += r
				}
				b.ReportMetric(sum/float64(len(rates)), "MiB/s")
				b.ReportMetric(0, "ns/op")
			})
		}
		if err := f.Down(); err != nil {
			b.Fatal(err)
		}
	}
}
