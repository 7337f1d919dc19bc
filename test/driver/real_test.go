// Package driver holds the libvirt driver to its contract on real daemons: the
// conformance suite on libvirt's test driver and on QEMU, and what happens to
// calls when a daemon stops, dies, returns, or loses an answer.
package driver

import (
	"context"
	"fmt"
	"log/slog"
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
)

func TestMain(m *testing.M) {
	// With the tag native, libvirt's event loop is the process's and has no end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("libvirt.org/go/libvirt.EventRunDefaultImpl"))
}

// options reach a lab host's libvirtd and notice a dead one soon.
func options(t *testing.T, h *lab.Host) libvirt.Options {
	return libvirt.Options{
		Dial: rpc.Dial, Socket: h.LibvirtSocket(), PingInterval: 200 * time.Millisecond, PingTimeout: time.Second,
		ReconnectMax: 500 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
}

// testWriter shows a driver's log with its test.
type testWriter struct{ t *testing.T }

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

func restart(t *testing.T, h *lab.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.KillLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.StartLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
}

func hang(t *testing.T, h *lab.Host) (release func()) {
	t.Helper()
	if err := h.PauseLibvirtd(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := h.ResumeLibvirtd(); err != nil {
			t.Error(err)
		}
	}
}

func TestRPC_ConformsOnLibvirtsTestDriver(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	o := options(t, h)
	o.URI = "test:///default"
	cannot := map[string]string{
		"Restart_ReconnectsAndResyncs": "the test driver's domains end with its daemon",
		"Start_PausedDoesNotRun":       "the test driver refuses VIR_DOMAIN_START_PAUSED",
		"Node_HasAHostUUIDThatStays":   "the test driver's capabilities have no host uuid",
		"Node_ListsMachines":           "the test driver has no machine types",
	}
	for _, name := range append(drivertest.Properties("Migrate_"), drivertest.Properties("Job_")...) {
		cannot[name] = "the test driver has no peer-to-peer migration and no jobs"
	}
	for _, name := range drivertest.Properties("CheckCPU_") {
		cannot[name] = "the test driver compares no CPUs"
	}
	drivertest.Run(t, drivertest.Harness{
		New: func(t *testing.T) driver.Driver { return libvirt.New(o) },
		DomainXML: func(name, uuid string) string {
			return fmt.Sprintf("<domain type='test'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>", name, uuid)
		},
		Cannot: cannot,
		Hang:   func(t *testing.T) func() { return hang(t, h) },
	})
}

func TestRPC_ConformsOnQEMU(t *testing.T) { conformsOnQEMU(t, rpc.Dial) }

// conformsOnQEMU runs the whole suite on two real hosts through one binding.
func conformsOnQEMU(t *testing.T, dial libvirt.Dialer) {
	l := lab.Start(t, lab.Options{})
	a, b := l.Hosts[0], l.Hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(t *testing.T, h *lab.Host) *libvirt.Driver {
		o := options(t, h)
		o.Dial = dial
		return libvirt.New(o)
	}
	drivertest.Run(t, drivertest.Harness{
		New: func(t *testing.T) driver.Driver { return connect(t, a) },
		DomainXML: func(name, uuid string) string {
			return guest.DomainXML(guest.Options{Name: name, UUID: uuid, Guest: g, Dirty: 32, Rate: 30})
		},
		Restart: func(t *testing.T) { restart(t, a) },
		Hang:    func(t *testing.T) func() { return hang(t, a) },
		Pair: func(t *testing.T) drivertest.Pair {
			src, dst := connect(t, a), connect(t, b)
			limit := func(mibps int) func() {
				return func() {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
			return drivertest.Pair{
				Source: src, Destination: dst, DestinationURI: "qemu+tls://" + b.Name + "/system",
				Slow: limit(4), Fast: limit(0),
			}
		},
	})
}
