package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/fault"
	"berth/test/guest"
	"berth/test/lab"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// defined defines a guest on a host and removes it at the end.
func defined(t *testing.T, d driver.Driver, o guest.Options) string {
	t.Helper()
	o.UUID = uuid.NewString()
	if o.Name == "" {
		o.Name = "g-" + o.UUID[:8]
	}
	if err := d.Define(within(t, 2*time.Minute), guest.DomainXML(o)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeDomain(t, d, o.UUID) })
	return o.UUID
}

func removeDomain(t *testing.T, d driver.Driver, id string) {
	t.Helper()
	if err := d.Destroy(within(t, 2*time.Minute), id); err != nil && !errors.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if err := d.Undefine(within(t, 2*time.Minute), id); err != nil {
		t.Error(err)
	}
}

// state is "running (booted)".
func state(t *testing.T, d driver.Driver, id string) string {
	t.Helper()
	v, err := d.Domain(within(t, 2*time.Minute), id)
	switch {
	case errors.Is(err, fault.NotFound):
		return "no domain"
	case err != nil:
		t.Fatal(err)
	}
	return fmt.Sprintf("%s (%s)", v.State, v.Reason)
}

// pairOf is two hosts' drivers and a guest that runs on the first.
func pairOf(t *testing.T, o guest.Options) (l *lab.Lab, src, dst *libvirt.Driver, id string, m driver.Migration) {
	t.Helper()
	l = lab.Start(t, lab.Options{Listen: true})
	g, err := guest.Build(within(t, 2*time.Minute), "")
	if err != nil {
		t.Fatal(err)
	}
	o.Guest = g
	src, dst = open(t, options(t, l.Hosts[0])), open(t, options(t, l.Hosts[1]))
	id = defined(t, src, o)
	t.Cleanup(func() { removeDomain(t, dst, id) })
	if err := src.Start(within(t, 2*time.Minute), id, false); err != nil {
		t.Fatal(err)
	}
	live, err := src.XML(within(t, 2*time.Minute), id, driver.Migratable)
	if err != nil {
		t.Fatal(err)
	}
	persistent, err := src.XML(within(t, 2*time.Minute), id, driver.Persistent)
	if err != nil {
		t.Fatal(err)
	}
	return l, src, dst, id, driver.Migration{
		DestinationURI: "qemu+tls://" + l.Hosts[1].Name + "/system", DestinationXML: live, PersistentXML: persistent, Paused: true,
	}
}

func TestMigrate_WithEveryOptionAndADisk(t *testing.T) {
	l := lab.Start(t, lab.Options{Listen: true})
	a, b := l.Hosts[0], l.Hosts[1]
	const image = "/var/lib/libvirt/images/opts.qcow2"
	for _, h := range l.Hosts {
		if err := os.MkdirAll(h.Path("/var/lib/libvirt/images"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Exec(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", image, "32M"); err != nil {
			t.Fatal(err)
		}
	}
	g, err := guest.Build(within(t, 2*time.Minute), "")
	if err != nil {
		t.Fatal(err)
	}
	src, dst := open(t, options(t, a)), open(t, options(t, b))
	o := guest.Options{Name: "opts", Guest: g, Disks: []guest.Disk{{Path: image}}, Beat: 100 * time.Millisecond}
	id := defined(t, src, o)
	t.Cleanup(func() { removeDomain(t, dst, id) })
	if err := src.Start(within(t, 2*time.Minute), id, false); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WaitBeat(within(t, 2*time.Minute), a.Console("opts"), 5); err != nil {
		t.Fatal(err)
	}
	live, err := src.XML(within(t, 2*time.Minute), id, driver.Migratable)
	if err != nil {
		t.Fatal(err)
	}
	persistent, err := src.XML(within(t, 2*time.Minute), id, driver.Persistent)
	if err != nil {
		t.Fatal(err)
	}
	m := driver.Migration{
		DestinationURI: "qemu+tls://" + b.Name + "/system", MigrateURI: "tcp://" + b.MigIP(), DisksURI: "tcp://" + b.MigIP(),
		DestinationXML: live, PersistentXML: persistent, CopyDisks: []string{"vda"}, Paused: true, TLS: true,
		Bandwidth: 200<<20 - 1, MaxDowntime: 700 * time.Millisecond, AutoConverge: true,
	}
	if err := src.Migrate(within(t, 2*time.Minute), id, m); err != nil {
		t.Fatal(err)
	}
	if got := state(t, src, id); got != "shut off (migrated)" {
		t.Errorf("source is %s", got)
	}
	if got := state(t, dst, id); got != "paused (user)" {
		t.Errorf("destination is %s", got)
	}
	job, err := src.CompletedJob(within(t, 2*time.Minute), id)
	if err != nil || job.DiskTotal == 0 || job.MemoryProcessed == 0 || job.Downtime == 0 {
		t.Errorf("completed job %+v, %v", job, err)
	}
	t.Logf("job: %+v", job)
	if err := dst.Resume(within(t, 2*time.Minute), id); err != nil {
		t.Fatal(err)
	}
	source, err := guest.ReadConsole(a.Console("opts"))
	if err != nil {
		t.Fatal(err)
	}
	destination, err := guest.WaitBeat(within(t, 2*time.Minute), b.Console("opts"), 20)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := guest.Continuity(source, destination)
	if err != nil {
		t.Error(err)
	}
	t.Log(proof)
}

func TestMigrate_ParallelConnections(t *testing.T) {
	_, src, dst, id, m := pairOf(t, guest.Options{})
	m.ParallelConnections = 2
	if err := src.Migrate(within(t, 2*time.Minute), id, m); err != nil {
		t.Fatal(err)
	}
	if a, b := state(t, src, id), state(t, dst, id); a != "shut off (migrated)" || b != "paused (user)" {
		t.Errorf("source is %s, destination %s", a, b)
	}
}

func TestMigrate_MaxDowntimeIsSetBeforeTheJob(t *testing.T) {
	l, src, _, id, m := pairOf(t, guest.Options{})
	m.MaxDowntime = 1234 * time.Millisecond
	if err := l.Hosts[0].Limit(t.Context(), lab.Mig, 4); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- src.Migrate(context.Background(), id, m) }()
	awaitJob(t, src, id)
	got, err := l.Hosts[0].Virsh(t.Context(), "migrate-getmaxdowntime", id)
	if err != nil || strings.TrimSpace(got) != "1234" {
		t.Errorf("maximum downtime is %q, %v, want 1234", got, err)
	}
	if err := src.AbortJob(within(t, 2*time.Minute), id); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, fault.Undone) {
		t.Errorf("Migrate: %v, want undone", err)
	}
	if got, err := l.Hosts[0].Virsh(t.Context(), "migrate-getmaxdowntime", id); err != nil || strings.TrimSpace(got) != "300" {
		t.Errorf("maximum downtime after the rollback is %q, %v, want QEMU's 300", got, err)
	}
}

func awaitJob(t *testing.T, d *libvirt.Driver, id string) {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	for {
		j, err := d.Job(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if j.MemoryProcessed > 0 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no job")
		}
	}
}

func TestMigrate_SourceDaemonDiesInDoubt(t *testing.T) {
	l, src, dst, id, m := pairOf(t, guest.Options{Dirty: 32, Rate: 30})
	if err := l.Hosts[0].Limit(t.Context(), lab.Mig, 4); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- src.Migrate(context.Background(), id, m) }()
	awaitJob(t, src, id)
	restart(t, l.Hosts[0])
	if err := <-done; !errors.Is(err, fault.InDoubt) {
		t.Errorf("Migrate: %v, want in doubt", err)
	}
	if got := state(t, src, id); got != "running (booted)" {
		t.Errorf("source is %s, want running (booted)", got)
	}
	gone := within(t, 2*time.Minute)
	for state(t, dst, id) != "no domain" {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-gone.Done():
			t.Fatalf("destination is still %s", state(t, dst, id))
		}
	}
}

// What an idle driver costs.
func TestRPC_IdleCost(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	measure := func() (uint64, int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine()
	}
	const drivers = 20 // one alone drowns in the garbage collector's noise
	before, goroutines := measure()
	for range drivers {
		d := open(t, options(t, h))
		if _, err := d.Node(within(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Job(within(t, 2*time.Minute), uuid.NewString()); !errors.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
	}
	<-time.After(500 * time.Millisecond)
	after, g2 := measure()
	t.Logf("an idle driver: %d KiB, %d goroutines", (int64(after)-int64(before))/drivers>>10, (g2-goroutines)/drivers)
	if g2-goroutines > 20*drivers {
		t.Errorf("%d goroutines for %d drivers", g2-goroutines, drivers)
	}
}
