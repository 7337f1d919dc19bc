package host_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/test/guest"
	testlab "berth/test/lab"
	"berth/topology"
)

// realHost is a Host over a real libvirtd in a namespace.
func realHost(t *testing.T, rt *runtime.System, h *testlab.Host, p *placement, change ...func(*host.Options)) (*host.Host, *claims.Tracker, *storetest.Memory) {
	t.Helper()
	return realHostOn(t, rt, h, p, storetest.NewMemory(), change...)
}

// realHostOn is realHost with a ledger that may have something in it.
func realHostOn(t *testing.T, rt *runtime.System, h *testlab.Host, p *placement, store *storetest.Memory, change ...func(*host.Options)) (*host.Host, *claims.Tracker, *storetest.Memory) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(logTo{t}, nil))
	d := libvirt.New(libvirt.Options{Dial: rpc.Dial, Socket: h.LibvirtSocket(), DefinitionDir: fmt.Sprintf("/proc/%d/root/etc/libvirt/qemu", h.InitPID()), Runtime: rt, Logger: log})
	tracker, err := claims.Open(t.Context(), claims.Options{
		Store: store, Runtime: rt, Host: h.Name, Logger: log,
		Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := host.Options{
		Name: h.Name, ProviderUUID: "rp-" + h.Name, Tracker: tracker, Driver: d, Runtime: rt, Logger: log, Placement: p.of(h.Name), ProjectID: "project", UserID: "user",
		ImagesDirs: []string{"/var/lib/libvirt/images"}, Root: fmt.Sprintf("/proc/%d/root", h.InitPID()),
		Allowed:    func() host.Allowed { return host.Allowed{Paths: []string{testlab.CacheDir()}} },
		LibvirtURI: "qemu+tls://" + h.Name + "/system", MigrateURI: "tcp://" + h.MigIP(), Version: "test",
	}
	for _, f := range change {
		f(&o)
	}
	n := host.New(o)
	t.Cleanup(func() {
		n.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, tracker, store
}

// logTo shows a log with its test.
type logTo struct{ t *testing.T }

func (w logTo) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// TestReal_GuestMovesWithItsDiskAndStaysWhenItStalls moves a real guest with real libvirt
// and QEMU. The second move stalls amid its disk: QEMU mirrors by pieces of 16 MiB, and with
// this bandwidth none is through before its patience is over.
func TestReal_GuestMovesWithItsDiskAndStaysWhenItStalls(t *testing.T) {
	l := testlab.Start(t, testlab.Options{Listen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	rt := new(runtime.System)
	t.Cleanup(rt.Wait)
	p := newPlacement()
	hosts, trackers, stores := map[string]*host.Host{}, map[string]*claims.Tracker{}, map[string]*storetest.Memory{}
	for _, h := range l.Hosts {
		hosts[h.Name], trackers[h.Name], stores[h.Name] = realHost(t, rt, h, p)
		if err := os.MkdirAll(h.Path("/var/lib/libvirt/images"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	from, to := l.Hosts[0], l.Hosts[1]
	o := guest.Options{Name: "g1", Guest: g, Beat: 100 * time.Millisecond}
	v, err := hosts[from.Name].Create(ctx, host.CreateRequest{
		Name: "g1", Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1},
		Kernel: g.Kernel, Initrd: g.Initrd, Cmdline: o.Cmdline(), Machine: guest.Machine, VirtType: "qemu",
		Disks: []host.CreateDisk{{SizeGB: 1}}, SerialFile: "/var/log/libvirt/g1.console", Start: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WaitBeat(ctx, from.Console("g1"), 2); err != nil {
		t.Fatal(err)
	}

	m := conductReal(t, ctx, rt, stores[from.Name], p, hosts, from.Name, to.Name, v.UUID, migration.Options{})
	if m.Status != migration.StatusCompleted {
		t.Fatalf("migration %s: %+v", m.Status, m.Error)
	}
	t.Logf("hand-over added %s to the downtime", m.HandoverDowntime)
	if _, err := guest.WaitBeat(ctx, to.Console("g1"), 5); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(from.Path("/var/lib/libvirt/images/g1-vda.qcow2")); !os.IsNotExist(err) {
		t.Errorf("the disk that moved is left at the source: %v", err)
	}
	if n := len(trackers[from.Name].List()); n != 0 {
		t.Errorf("%d claims left at the source", n)
	}

	// Back, and too slow: it stays where it is.
	m = conductReal(t, ctx, rt, stores[to.Name], p, hosts, to.Name, from.Name, v.UUID, migration.Options{Bandwidth: 1 << 20, StallTimeout: 2 * time.Second})
	if m.Outcome != migration.OutcomeUndone || m.Error == nil || !strings.Contains(m.Error.Message, "stalled") || m.Progress.Phase != "disk" {
		t.Errorf("outcome %q, while %+v: %+v", m.Outcome, m.Progress, m.Error)
	}
	beats, err := guest.ReadConsole(to.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WaitBeat(ctx, to.Console("g1"), len(beats)+3); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(from.Path("/var/lib/libvirt/images") + "/*")
	if len(files) != 0 || len(trackers[from.Name].List()) != 0 {
		t.Errorf("left at the host it did not reach: %v, %v", files, trackers[from.Name].List())
	}
	a, err := guest.ReadConsole(from.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := guest.ReadConsole(to.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	if proof, err := guest.Continuity(a, b); err != nil {
		t.Errorf("the guest says %+v: %v", proof, err)
	}
	list, err := hosts[to.Name].List(ctx)
	if err != nil || len(list) != 1 || list[0].State != string(driver.Running) {
		t.Errorf("guests %+v, %v", list, err)
	}
}

// conductReal runs a conductor on one host until its migration ends.
func conductReal(t *testing.T, ctx context.Context, rt *runtime.System, store *storetest.Memory, p *placement, hosts map[string]*host.Host,
	from, to, uuid string, options migration.Options) migration.Migration {
	t.Helper()
	c := conductor.New(conductor.Config{
		Runtime: rt, Store: store, Local: from, Placement: p, Logger: slog.New(slog.NewTextHandler(logTo{t}, nil)),
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			if h := hosts[name]; h != nil {
				return h, nil
			}
			return nil, fault.New(fault.NotFound, "no peer is named %s", name)
		},
	})
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	rt.Go("conductor", func() { ended <- c.Run(run) })
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var m migration.Migration
	waitFor(t, "the conductor", func() bool {
		var err error
		m, err = c.LiveMigrate(run, conductor.Request{Instance: uuid, Destination: to, Options: options})
		if err != nil && !strings.Contains(err.Error(), "the conductor does not run") {
			t.Fatal(err)
		}
		return err == nil
	})
	watch, err := c.Watch(run, m.UUID)
	if err != nil {
		t.Fatal(err)
	}
	for m = range watch {
		if m.Done() {
			return m
		}
	}
	t.Fatalf("nobody tells of the migration any more: %+v", m)
	return m
}
