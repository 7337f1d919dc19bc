package shipping

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/agent/host/disks/diskstest"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const disk = "/images/vm1.raw"

var ref = migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: "11111111-1111-4111-8111-111111111111", Attempt: 1, Step: stepShip}

// port is one host with its dock, and what the test says of its guests.
type port struct {
	t     *testing.T
	name  string
	mem   *memory.Memory
	files *diskstest.Files
	*Dock
	end func()

	mu   sync.Mutex
	off  bool
	held *migration.Snapshot
	peer func() (transfer.Destination, error)
}

// rig is a with a guest that is off, whose disk is held, and b, to which it goes.
func rig(t *testing.T) (a, b *port, w *diskstest.World) {
	t.Helper()
	w = diskstest.NewWorld()
	make := func(name string) *port {
		rt := new(runtime.System)
		tracker, err := claims.Open(t.Context(), claims.Options{Store: storetest.NewMemory(), Runtime: rt, Host: name})
		if err != nil {
			t.Fatal(err)
		}
		p := &port{t: t, name: name, mem: memory.New(tracker, rt), files: w.Host(name), off: true}
		p.open()
		t.Cleanup(func() { p.end() })
		return p
	}
	a, b = make("a"), make("b")
	b.files.Put("/images/there", "raw", 1, "")
	a.files.Put(disk, "raw", 64<<20, "what the guest wrote")
	look, err := a.files.ReadBlock(disk, 0, 0, migration.ShipBlock)
	if err != nil {
		t.Fatal(err)
	}
	a.held = &migration.Snapshot{Files: []migration.SnapshotFile{{Target: "vda", Path: disk, Size: look.Size, Version: look.Version}}}
	a.peer = func() (transfer.Destination, error) { return b, nil }
	return a, b, w
}

// hasty waits no longer than it must: what waits is then asked again.
type hasty struct{ *runtime.System }

func (h hasty) Sleep(ctx context.Context, d time.Duration) error {
	return h.System.Sleep(ctx, min(d, time.Millisecond))
}

// open makes the dock, anew after a restart.
func (p *port) open() {
	ctx, cancel := context.WithCancel(context.Background())
	var group runtime.Group
	rt := hasty{new(runtime.System)}
	p.Dock = New(Config{
		Name: p.name, Memory: p.mem, Files: p.files, Guests: p, Runtime: rt, Logger: slog.New(slog.DiscardHandler), Stall: time.Minute,
		Peer: func(context.Context, string) (transfer.Destination, error) { return p.peer() },
		Go:   func(name string, f func()) bool { group.Go(rt, name, f); return true }, Context: ctx,
	})
	p.end = func() { cancel(); group.Wait(rt) }
}

func (p *port) restart() { p.end(); p.open() }

func (p *port) Off(context.Context, migration.Ref) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.off {
		return fault.New(fault.Forbidden, "it runs")
	}
	return nil
}

func (p *port) Disks(migration.Ref) ([]Disk, error) { return []Disk{{Target: "vda", Path: disk}}, nil }

func (p *port) Held(migration.Ref) (migration.Snapshot, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return migration.Snapshot{}, false, nil
	}
	return *p.held, true, nil
}

func (p *port) Place(string) (fault.Reason, bool) { return fault.Reason{}, false }
func (p *port) System(string) bool                { return false }
func (p *port) FileUsers(ctx context.Context) (*fileusers.Survey, error) {
	return fileusers.Look(ctx, fileusers.Sources{Definitions: nobody{}, Files: p.files})
}

// guest is the one that moves, with so many bytes in its disk.
func guest(bytes int64) migration.Guest {
	return migration.Guest{UUID: ref.Instance, Name: "vm1", Disks: []migration.Disk{{Target: "vda", Path: disk, Format: "raw", VirtualSize: 64 << 20, ActualSize: bytes}}}
}

// prepare makes room at b.
func (p *port) prepare(of migration.Ref) migration.SendRequest {
	p.t.Helper()
	files, err := p.Plan(p.t.Context(), of, migration.PrepRequest{Guest: guest(20), CopyDisks: []string{"vda"}})
	if err != nil {
		p.t.Fatal(err)
	}
	return migration.SendRequest{Destination: "b", Files: files}
}

func (p *port) wantKind(what string, err error, kind fault.Kind) {
	p.t.Helper()
	if fault.KindOf(err) != kind {
		p.t.Errorf("%s: %v, want %q", what, err, kind)
	}
}

// arrived checks that b has the disk, and nothing of it is made any more.
func (p *port) arrived() {
	p.t.Helper()
	if data, size, exists := p.files.Data(disk); !exists || data != "what the guest wrote" || size != 64<<20 {
		p.t.Errorf("at its destination: %q, %d bytes (there: %v)", data, size, exists)
	}
	if sealed, err := p.Sealed(ref); err != nil || !sealed {
		p.t.Errorf("sealed: %v, %v", sealed, err)
	}
}

// wire is a destination whose calls can be made to fail.
type wire struct {
	*port
	before func(verb string) error
}

func (w wire) ShippedSoFar(ctx context.Context, r migration.Ref) (migration.Shipped, error) {
	if err := w.before("ShippedSoFar"); err != nil {
		return migration.Shipped{}, err
	}
	return w.port.ShippedSoFar(ctx, r)
}

func (w wire) WriteDisk(ctx context.Context, r migration.Ref, d migration.DiskPiece) error {
	if err := w.before("WriteDisk"); err != nil {
		return err
	}
	return w.port.WriteDisk(ctx, r, d)
}

func (w wire) SealDisks(ctx context.Context, r migration.Ref, want migration.Shipped) error {
	if err := w.before("SealDisks"); err != nil {
		return err
	}
	return w.port.SealDisks(ctx, r, want)
}

func (p *port) through(before func(verb string) error) func() (transfer.Destination, error) {
	return func() (transfer.Destination, error) { return wire{p, before}, nil }
}

var errCut = errors.New("cut")

// nobody has no domains.
type nobody struct{}

func (nobody) Domains(context.Context) ([]driver.Domain, error) { return nil, nil }
func (nobody) XML(context.Context, string, driver.Document) (string, error) {
	return "", fault.New(fault.NotFound, "no domain")
}
