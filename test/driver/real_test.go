// Package driver holds the libvirt driver to its contract on real daemons: the
// conformance suite on libvirt's test driver and on QEMU, and what happens to
// calls when a daemon stops, dies, returns, or loses an answer.
package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/test/guest"
	"berth/test/lab"
	"berth/test/matrix"
)

func TestMain(m *testing.M) {
	// With the tag native, libvirt's event loop is the process's and has no end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("libvirt.org/go/libvirt.EventRunDefaultImpl"))
}

// options reach a lab host's libvirtd and notice a dead one soon.
func options(t testing.TB, h *lab.Host) libvirt.Options {
	return libvirt.Options{
		Dial: rpc.Dial, Socket: h.LibvirtSocket(), PingInterval: 200 * time.Millisecond, PingTimeout: 5 * time.Second,
		ReconnectMax: 500 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
}

// testWriter shows a driver's log with its test.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func open(t *testing.T, o libvirt.Options) *libvirt.Driver {
	t.Helper()
	d := libvirt.New(o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func restart(t testing.TB, h *lab.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := h.KillLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.StartLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
}

func hang(t testing.TB, h *lab.Host) (release func()) {
	t.Helper()
	if err := h.PauseLibvirtd(); err != nil {
		t.Fatal(err)
	}
	return func() { goesOn(t, h) }
}

// goesOn ends it. libvirtd 9.0.0 may die of what its clients did meanwhile; a host's systemd
// starts it anew.
func goesOn(t testing.TB, h *lab.Host) {
	t.Helper()
	if err := h.ResumeLibvirtd(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for range 10 {
		if _, err := h.Virsh(ctx, "uri"); err != nil {
			t.Logf("libvirtd of %s has died when it went on, and is started again: %v", h.Name, err)
			if err := h.StartLibvirtd(ctx); err != nil {
				t.Error(err)
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// virsh does on a host what an operator does.
func virsh(t testing.TB, h *lab.Host, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := h.Exec(ctx, append([]string{"virsh", "-q"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// record writes what a run of the suite found into the matrix, under the name of
// the daemon that answered.
func record(t *testing.T, c matrix.Column, h drivertest.Harness, of string, results map[string]drivertest.Result) {
	t.Helper()
	d := h.New(t)
	n, err := d.Node(t.Context())
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	matrix.Record(t, c, fmt.Sprintf("libvirt %s, %s", version(n.LibraryVersion), strings.Replace(of, "QEMU", "QEMU "+version(n.HypervisorVersion), 1)), results)
}

func version(v driver.Version) string {
	return fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1000%1000, v%1000)
}

// impossible declares groups of properties, by the beginnings of their names.
func impossible(cannot map[string]string, why string, prefixes ...string) {
	for _, name := range drivertest.Properties(prefixes...) {
		cannot[name] = why
	}
}

// onQEMU is the harness of real QEMU: d is the host that is held to the suite,
// guests move from a to b.
func onQEMU(t *testing.T, dial libvirt.Dialer, d, a, b *lab.Host) drivertest.Harness {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(t testing.TB, h *lab.Host) *libvirt.Driver {
		o := options(t, h)
		o.Dial = dial
		return libvirt.New(o)
	}
	busy := guest.Options{Guest: g, MemoryMiB: 96, Dirty: 16, Rate: 30} // more does not boot in so little memory
	document := func(o guest.Options, name, id string) string {
		o.Name, o.UUID = name, id
		return guest.DomainXML(o)
	}
	return drivertest.Harness{
		New:       func(t testing.TB) driver.Driver { return connect(t, d) },
		DomainXML: func(name, id string) string { return document(busy, name, id) },
		AgentXML: func(name, id string) string {
			o := busy
			o.Devices = guest.AgentChannel
			return document(o, name, id)
		},
		Restart: func(t testing.TB) { restart(t, d) },
		Hang:    func(t testing.TB) func() { return hang(t, d) },
		// A pin: what Berth must hear of most, and the event that carries typed parameters.
		Change: func(t testing.TB, id string) { virsh(t, d, "vcpupin", id, "0", "0", "--live") },
		Wired:  wired(d),
		Save:   func(t testing.TB, id string) { virsh(t, d, "managedsave", id) },
		SavedXML: func(t testing.TB, name, id string) string {
			path := "/var/lib/libvirt/images/" + name + ".qcow2"
			if err := os.MkdirAll(d.Path("/var/lib/libvirt/images"), 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := d.Exec(context.Background(), "qemu-img", "create", "-q", "-f", "qcow2", path, "8M"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			o := busy
			o.Disks = []guest.Disk{{Path: path}}
			return document(o, name, id)
		},
		Snapshot:   func(t testing.TB, id, name string) { virsh(t, d, "snapshot-create-as", id, name) },
		Checkpoint: func(t testing.TB, id, name string) { virsh(t, d, "checkpoint-create-as", id, name) },
		Unsnapshot: func(t testing.TB, id, name string) {
			for _, what := range []string{"snapshot", "checkpoint"} {
				_, _ = d.Virsh(context.Background(), what+"-delete", id, name, "--metadata") // one of them has it
			}
		},
		Cannot: map[string]string{
			"Devices_ComeAndGoAsEvents":   "a lab host has no udevd, which tells libvirt of devices",
			"Connections_NetworksAreRead": "the libvirtd of a lab host has no driver of networks",
		},
		Pair: func(t testing.TB) drivertest.Pair {
			src, dst := connect(t, a), connect(t, b)
			limit := func(mibps int) func() {
				return func() {
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
					defer cancel()
					if err := a.Limit(ctx, lab.Mig, mibps); err != nil {
						t.Error(err)
					}
				}
			}
			t.Cleanup(func() {
				limit(0)()
				for _, d := range []*libvirt.Driver{src, dst} {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}
			})
			breaks := func() {}
			return drivertest.Pair{
				Source: src, Destination: dst, DestinationURI: "qemu+tls://" + b.Name + "/system",
				Slow: limit(2), Fast: limit(0),
				Endless: func(t testing.TB, m *driver.Migration) {
					// Until the guest has booted it changes nothing. Then 16 MiB change in half a
					// second, and take two to send.
					limit(0)()
					m.Bandwidth, m.MaxDowntime = 8<<20, time.Millisecond
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
					defer cancel()
					name := regexp.MustCompile("<name>(.*)</name>").FindStringSubmatch(m.DestinationXML)[1]
					if _, err := guest.WaitBeat(ctx, a.Console(name), 2); err != nil {
						t.Fatal(err)
					}
				},
				DiskXML: func(t testing.TB, name, id string) string {
					inside := "/var/lib/libvirt/" + name + ".raw" // each host's own
					for i, h := range []*lab.Host{a, b} {
						// The destination's is empty, and as large.
						content := bytes.Repeat([]byte{byte(1 - i)}, 8<<20)
						if err := os.WriteFile(h.Path(inside), content, 0o600); err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { _ = os.Remove(h.Path(inside)) }) // the host's folder goes with the lab
					}
					o := busy
					o.Disks = []guest.Disk{{Path: inside, Format: "raw"}}
					return document(o, name, id)
				},
				Forward: func(t testing.TB, id string, m *driver.Migration) func() (control, memory, disks int) {
					f := forward(t, a, b, src, id, m)
					breaks = f.breakOff
					return f.counts
				},
				Break: func(testing.TB, string) { breaks() },
				HeavyXML: func(name, id string) string {
					return document(guest.Options{Guest: g, MemoryMiB: 192, Dirty: 96, Busy: time.Millisecond, Quiet: time.Hour}, name, id)
				},
				Filled: beats(a, 1), // all of it is written before the first beat
				Warm:   beats(b, 8),
				Lacks:  "avx512f", // QEMU emulates no AVX-512
			}
		},
	}
}

// beats waits until a guest has beaten so often on a host.
func beats(h *lab.Host, n int) func(testing.TB, string) {
	return func(t testing.TB, name string) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if _, err := guest.WaitBeat(ctx, h.Console(name), n); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRPC_ConformsOnQEMU(t *testing.T) { conformsOnQEMU(t, rpc.Dial, matrix.QEMURPC) }

// conformsOnQEMU runs the whole suite on two real hosts through one binding.
func conformsOnQEMU(t *testing.T, dial libvirt.Dialer, c matrix.Column) {
	l := lab.Start(t, lab.Options{Listen: true})
	h := onQEMU(t, dial, l.Hosts[0], l.Hosts[0], l.Hosts[1])
	record(t, c, h, "QEMU", drivertest.Run(t, h))
}

// The libvirt of the release's backports keeps the contract too, and guests move
// to it from the release's own.
func TestRPC_ConformsOnBackports(t *testing.T) {
	l := lab.Start(t, lab.Options{Backports: []string{"host-b"}, Listen: true})
	old, backports := l.Hosts[0], l.Hosts[1]
	h := onQEMU(t, rpc.Dial, backports, old, backports)
	// What may differ from one libvirt to the next; the rest is Berth's own code. A destination
	// with libvirt 11.3 dies when a post-copy is to go on: the agent does not begin one there.
	h.Only = func(p string) bool {
		return slices.Contains(drivertest.Properties("Node_", "Start_", "SuspendResume_", "Destroy_", "Undefine_", "Abilities_",
			"Events_Tell", "GuestAgent_", "Statistics_", "Devices_Are", "Restart_",
			"Migrate_PausedHandOver", "Migrate_AbortRollsBack", "Migrate_RefusesOptions", "Migrate_TakesEvery", "PostCopy_Runs", "CheckCPU_Names"), p)
	}
	if virsh(t, old, "--version") == virsh(t, backports, "--version") {
		t.Log("the machine's own libvirt is as new as the backports': both hosts run it")
	}
	record(t, matrix.QEMURPC, h, "QEMU, from backports", drivertest.Run(t, h))
}
