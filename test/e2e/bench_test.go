package e2e

import (
	"context"
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

// BenchmarkMove moves two equal guests, one through Berth and one through virsh
// migrate, in turn, there and back, so that what else the machine does is both's; the
// one that does not move is suspended. Reported are the median of the whole time, and
// median and worst of the guest's silence: from its last byte on one host's console to
// its first on the other's, as seen from outside, so with up to one beat (20 ms) of its
// own.
func BenchmarkMove(b *testing.B) {
	const rounds = 6
	w := benchWorld(b)
	type way struct {
		name                         string
		make                         func(*world, *lab.Host, guest.Options)
		move                         func(*world, string, *lab.Host, *lab.Host) (still, commit time.Duration)
		from, to                     *lab.Host
		whole, silent, said, commits []time.Duration
	}
	ways := []*way{
		{name: "virsh", make: (*world).define, move: (*world).moveByVirsh},
		{name: "berth", make: (*world).bootHere, move: (*world).moveByBerth},
	}
	for _, v := range ways {
		disk := filepath.Join(w.SharedDir(), v.name+".qcow2")
		v.make(w, w.a, guest.Options{Name: v.name, Dirty: 16, Rate: 4, Beat: 20 * time.Millisecond, Disks: []guest.Disk{{Path: disk}}})
		v.from, v.to = w.a, w.b
		w.virsh(w.a, "suspend", v.name)
	}
	for b.Loop() {
		for range rounds {
			for _, v := range ways {
				before, err := guest.ReadConsole(v.from.Console(v.name))
				if err != nil {
					b.Fatal(err)
				}
				w.virsh(v.from, "resume", v.name)
				w.beats(v.from, v.name, len(before)+3)
				begun := time.Now()
				done := make(chan struct{})
				silence := w.silence(done, v.from.Console(v.name), v.to.Console(v.name))
				still, commit := v.move(w, v.name, v.from, v.to)
				v.whole = append(v.whole, time.Since(begun))
				v.silent = append(v.silent, <-silence)
				close(done)
				v.said, v.commits = append(v.said, still), append(v.commits, commit)
				v.from, v.to = v.to, v.from
				w.virsh(v.from, "suspend", v.name)
			}
		}
	}
	for _, v := range ways {
		b.ReportMetric(median(v.whole).Seconds(), v.name+"-s/move")
		b.ReportMetric(float64(median(v.silent).Milliseconds()), v.name+"-silent-ms")
		b.ReportMetric(float64(slices.Max(v.silent).Milliseconds()), v.name+"-worst-silent-ms")
		b.Logf("%s: silent %v", v.name, v.silent)
		if c := median(v.commits); c > 0 {
			b.ReportMetric(float64(c.Microseconds())/1000, v.name+"-commit+resume-ms")
			b.ReportMetric(float64(median(v.said).Milliseconds()), v.name+"-reported-downtime-ms")
		}
		w.drop(v.name, v.from)
	}
	b.ReportMetric(0, "ns/op") // the whole time is reported in seconds
}

// BenchmarkAgent starts an agent on a host and waits until it is ready; its
// memory a moment later is that of an idle agent.
func BenchmarkAgent(b *testing.B) {
	w := benchWorld(b)
	var ready []time.Duration
	var memory []int64
	for b.Loop() {
		b.StopTimer()
		w.Agent("host-a").Kill()
		b.StartTimer()
		begun := time.Now()
		if err := w.StartAgent(w.ctx, "host-a"); err != nil {
			b.Fatal(err)
		}
		if err := w.WaitReady(w.ctx, "host-a"); err != nil {
			b.Fatal(err)
		}
		ready = append(ready, time.Since(begun))
		b.StopTimer()
		time.Sleep(2 * time.Second) // a benchmark may wait: an idle agent is what is measured
		memory = append(memory, rss(b, w.Agent("host-a")))
		b.StartTimer()
	}
	slices.Sort(memory)
	b.ReportMetric(float64(median(ready).Milliseconds()), "ready-ms")
	b.ReportMetric(float64(memory[len(memory)/2])/1024, "rss-MiB")
	b.ReportMetric(0, "ns/op")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// silence watches both consoles and gives the time between the last byte on the
// first and the next one on the second.
func (w *world) silence(done <-chan struct{}, from, to string) <-chan time.Duration {
	out := make(chan time.Duration, 1)
	length := func(path string) int64 {
		if info, err := os.Stat(path); err == nil {
			return info.Size()
		}
		return 0
	}
	go func() {
		last, source, destination := time.Now(), length(from), length(to)
		for {
			if n := length(from); n != source {
				source, last = n, time.Now()
			}
			if length(to) != destination {
				out <- time.Since(last)
				return
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return out
}

func (w *world) moveByBerth(name string, from, to *lab.Host) (still, commit time.Duration) {
	w.berth(from, "migrate", name, to.Name)
	m := w.migration(from, name, "is over", migration.Migration.Done)
	return m.Progress.Downtime + m.HandoverDowntime, m.HandoverDowntime
}

func (w *world) moveByVirsh(name string, from, to *lab.Host) (still, commit time.Duration) {
	w.virsh(from, "migrate-setmaxdowntime", name, "500") // Berth's own; libvirt's default is 300
	if _, err := from.Virsh(w.ctx, "migrate", "--live", "--p2p", "--persistent", "--undefinesource", "--unsafe",
		name, "qemu+tls://"+to.Name+"/system"); err != nil {
		w.Fatal(err)
	}
	return 0, 0
}

func (w *world) define(h *lab.Host, o guest.Options) {
	w.xml(h, &o)
	for _, args := range [][]string{{"define", "/var/lib/libvirt/" + o.Name + ".xml"}, {"start", o.Name}} {
		if _, err := h.Virsh(w.ctx, args...); err != nil {
			w.Fatal(err)
		}
	}
	w.beats(h, o.Name, 3)
}

func (w *world) bootHere(h *lab.Host, o guest.Options) {
	w.xml(h, &o)
	w.berth(h, "instance", "create", o.Name, "--flavor", "small", "--xml", "/var/lib/libvirt/"+o.Name+".xml", "--start")
	w.beats(h, o.Name, 3)
}

func (w *world) drop(name string, on *lab.Host) {
	for _, args := range [][]string{{"destroy", name}, {"undefine", name}} {
		if _, err := on.Virsh(w.ctx, args...); err != nil {
			w.Error(err)
		}
	}
}

func benchWorld(b *testing.B) *world { return ownBench(b, fleet.Options{Listen: true}) }

// ownBench is ownWith for a benchmark.
func ownBench(b *testing.B, o fleet.Options) *world {
	b.Helper()
	build(b)
	o.Dir, o.Binary = filepath.Join(lab.TempDir(b), "fleet"), shared.bin
	f, err := fleet.Up(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := f.Down(); err != nil {
			b.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	b.Cleanup(cancel)
	return &world{TB: b, Fleet: f, ctx: ctx, a: f.Hosts[0], b: f.Hosts[1]}
}

// rss is a process's resident memory in KiB, /proc/PID/status VmRSS.
func rss(b *testing.B, p *fleet.Process) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.Cmd.Process.Pid) + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
