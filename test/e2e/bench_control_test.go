package e2e

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// BenchmarkControl moves guests of three kinds by Berth and by virsh migrate with the same
// options, in turn, there and back: one that changes nothing, one that converges, and one that
// never would and is made to stand still after ten seconds. Reported as in BenchmarkMove.
func BenchmarkControl(b *testing.B) {
	const rounds = 2
	w := benchWorld(b)
	for _, kind := range []struct {
		name         string
		o            guest.Options
		virsh, berth []string
	}{
		{"idle", guest.Options{Dirty: -1}, []string{"--bandwidth", "20"}, []string{"--bandwidth", "20MiB/s"}},
		{"moderate", guest.Options{Dirty: 32, Rate: 8}, []string{"--bandwidth", "20"}, []string{"--bandwidth", "20MiB/s"}},
		{"impossible", guest.Options{Dirty: 32, Rate: 60}, []string{"--bandwidth", "20", "--timeout", "10", "--timeout-suspend"},
			[]string{"--bandwidth", "20MiB/s", "--timeout", "10s", "--timeout-action", "suspend"}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			w := *w
			w.TB = b
			type way struct {
				name          string
				from, to      *lab.Host
				whole, silent []time.Duration
			}
			ways := []*way{{name: "virsh"}, {name: "berth"}}
			for _, v := range ways {
				v.from, v.to = w.a, w.b
				o := kind.o
				o.Name, o.Beat = kind.name+"-"+v.name, 20*time.Millisecond
				o.Disks = []guest.Disk{{Path: filepath.Join(w.SharedDir(), o.Name+".qcow2")}}
				if v.name == "virsh" {
					w.define(w.a, o)
				} else {
					w.bootHere(w.a, o)
				}
				w.virsh(w.a, "suspend", o.Name)
			}
			for b.Loop() {
				for range rounds {
					for _, v := range ways {
						name := kind.name + "-" + v.name
						w.virsh(v.from, "resume", name)
						before, err := guest.ReadConsole(v.from.Console(name))
						if err != nil {
							b.Fatal(err)
						}
						w.beats(v.from, name, len(before)+3)
						done := make(chan struct{})
						silence := w.silence(done, v.from.Console(name), v.to.Console(name))
						begun := time.Now()
						if v.name == "berth" {
							w.berth(v.from, append([]string{"migrate", name, v.to.Name}, kind.berth...)...)
							m := w.migration(v.from, name, "is over", migration.Migration.Done)
							b.Logf("%s: %v", name, acts(m))
						} else {
							w.virsh(v.from, "migrate-setmaxdowntime", name, "500")
							args := append([]string{"migrate", "--live", "--p2p", "--persistent", "--undefinesource", "--unsafe"}, kind.virsh...)
							w.virsh(v.from, append(args, name, "qemu+tls://"+v.to.Name+"/system")...)
						}
						v.whole = append(v.whole, time.Since(begun))
						v.silent = append(v.silent, <-silence)
						close(done)
						v.from, v.to = v.to, v.from
						w.virsh(v.from, "suspend", name)
					}
				}
			}
			for _, v := range ways {
				b.Logf("%s %s: whole %v, silent %v", kind.name, v.name, v.whole, v.silent)
				b.ReportMetric(median(v.whole).Seconds(), v.name+"-s/move")
				b.ReportMetric(float64(median(v.silent).Milliseconds()), v.name+"-silent-ms")
				b.ReportMetric(float64(slices.Max(v.silent).Milliseconds()), v.name+"-worst-silent-ms")
				w.drop(kind.name+"-"+v.name, v.from)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
