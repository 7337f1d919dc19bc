package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// BenchmarkStream sends the same paused guest, most of whose memory is data, by
// Berth's stream and by libvirt's and QEMU's own TLS, over one connection and over
// four. They take turns, so that what else the machine does is everybody's. Reported
// are the medians of the bytes of memory by the time in which they flowed, and of the
// CPU time that all processes of both hosts took for a GiB of it.
func BenchmarkStream(b *testing.B) {
	build(b)
	const rounds = 3
	ways := []*travel{{transport: "stream"}, {transport: "libvirt-tls"}}
	for _, way := range ways {
		way.up(b)
	}
	for _, way := range ways {
		way.fill()
	}
	type sample struct{ rate, cpu []float64 }
	got := map[string]*sample{}
	for b.Loop() {
		for range rounds {
			for _, parallel := range []string{"1", "4"} {
				for _, way := range ways {
					name := way.transport + "-" + parallel
					if got[name] == nil {
						got[name] = &sample{}
					}
					rate, cpu := way.move(parallel)
					got[name].rate, got[name].cpu = append(got[name].rate, rate), append(got[name].cpu, cpu)
				}
			}
		}
	}
	for name, s := range got {
		b.Logf("%-14s MiB/s %.0f, CPU s/GiB %.2f", name, s.rate, s.cpu)
		b.ReportMetric(middle(s.rate), name+"-MiB/s")
		b.ReportMetric(middle(s.cpu), name+"-cpu-s/GiB")
	}
	b.ReportMetric(0, "ns/op")
}

// travel is a fleet whose guests come in one way, with a guest that comes and goes.
type travel struct {
	transport string
	w         *world
	from, to  *lab.Host
}

func (v *travel) up(b *testing.B) {
	f, err := fleet.Up(b.Context(), fleet.Options{
		Dir: filepath.Join(lab.TempDir(b), "fleet"), Binary: shared.bin, Transport: v.transport,
		Config:  map[string]string{"": "[migration]\ntls = true\n"}, // of libvirt-tls; a stream always is
		Flavors: map[string]string{"full": "name = \"full\"\nvcpus = 1\nmemory_mb = 512\ndisk_gb = 1\n"},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := f.Down(); err != nil {
			b.Error(err)
		}
	})
	w := &world{TB: b, Fleet: f, ctx: b.Context(), a: f.Hosts[0], b: f.Hosts[1]}
	o := guest.Options{Name: "full", MemoryMiB: 512, Dirty: 400, Rate: -1, Beat: 200 * time.Millisecond,
		Disks: []guest.Disk{{Path: filepath.Join(w.SharedDir(), "full.qcow2")}}}
	w.xml(w.a, &o)
	w.berth(w.a, "instance", "create", "full", "--flavor", "full", "--xml", "/var/lib/libvirt/full.xml", "--start")
	v.w, v.from, v.to = w, w.a, w.b
}

// fill waits until the guest has written all that it writes, and suspends it.
func (v *travel) fill() {
	for beats := v.w.beats(v.from, "full", 1); beats[len(beats)-1].Passes < 1; {
		beats = v.w.beats(v.from, "full", len(beats)+1)
	}
	v.w.virsh(v.from, "suspend", "full")
}

// move sends the guest to the other host, and gives MiB/s and CPU seconds a GiB.
func (v *travel) move(parallel string) (rate, cpu float64) {
	before := v.cpu()
	begun := time.Now()
	v.w.berth(v.from, "migrate", "full", v.to.Name, "--parallel", parallel)
	m := v.w.migration(v.from, "full", "is over", func(m migration.Migration) bool { return !m.CreatedAt.Before(begun.Add(-time.Second)) && m.Done() })
	if m.Outcome != migration.OutcomeCompleted {
		v.w.Fatalf("the move is %s: %v", m.Outcome, m.Error.Err())
	}
	v.from, v.to = v.to, v.from
	gib := float64(m.Progress.MemoryProcessed) / (1 << 30)
	return 1024 * gib / m.Progress.Elapsed.Seconds(), (v.cpu() - before).Seconds() / gib
}

// cpu is what all processes of both hosts have taken so far, those that ended too:
// their parents, and each host's first process, have waited for them
// (/proc/PID/stat, fields 14 to 17, in hundredths of a second).
func (v *travel) cpu() time.Duration {
	var spaces []string
	for _, h := range v.w.Hosts {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.InitPID()))
		if err != nil {
			v.w.Fatal(err)
		}
		spaces = append(spaces, space)
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		v.w.Fatal(err)
	}
	var total time.Duration
	for _, path := range all {
		space, err := os.Readlink(path)
		if err != nil || !slices.Contains(spaces, space) {
			continue // another's, or gone meanwhile
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "stat"))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))[11:15] {
			n, err := strconv.Atoi(f)
			if err != nil {
				v.w.Fatal(err)
			}
			total += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return total
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
