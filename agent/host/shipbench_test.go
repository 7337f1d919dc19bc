package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/agent/host/shipping"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/operation/operationtest"
	"berth/migration/transfer"
)

const (
	benchSize = 2 << 30 // of the disk
	benchDisk = "/images/vm1.raw"
)

// benchWays are how the same file goes from one folder to another, and for how long.
var benchWays = []struct {
	name string
	run  func(b *bench) time.Duration
}{
	{"straight", (*bench).straight},
	{"relay", (*bench).relay},
	{"scp", (*bench).scp},
	{"tls", (*bench).tls},
	{"cp", (*bench).cp},
}

// BenchmarkShip brings a disk of 2 GiB over the loopback, full and with a sixteenth of it
// written: straight from one agent to another, by a third one, by scp, by one TLS
// connection without any check, and by cp. All but scp end with a sync of the file; what
// that would cost it is told besides. The ways take turns in one run, so that their ratios
// mean something on a machine that does other things too; the processor time of each, with
// sshd's, means more there. -benchtime 3x repeats them, and TMPDIR says on which disk.
func BenchmarkShip(b *testing.B) {
	for _, kind := range []struct {
		name string
		step int
	}{{"full", 1}, {"sparse", 16}} {
		b.Run(kind.name, func(b *testing.B) {
			x := newBench(b, kind.step)
			sums, cpu := map[string]time.Duration{}, map[string]time.Duration{}
			rounds := 0
			for b.Loop() {
				rounds++
				for _, w := range benchWays {
					used := x.processorTime()
					sums[w.name] += w.run(x)
					cpu[w.name] += x.processorTime() - used
				}
			}
			for name, sum := range sums {
				if sum > 0 {
					b.ReportMetric(sum.Seconds()/float64(rounds), "s/"+name)
				}
			}
			for name, sum := range cpu {
				b.ReportMetric(sum.Seconds()/float64(rounds), "cpu-s/"+name)
			}
			if x.synced > 0 {
				b.ReportMetric(x.synced.Seconds()/float64(rounds), "s/scp's-sync")
			}
			if scp := sums["scp"]; scp > 0 {
				b.ReportMetric(float64(sums["straight"])/float64(scp), "straight/scp")
				b.ReportMetric(float64(sums["relay"])/float64(scp), "relay/scp")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processorTime is what this process and those that it has started have used, as far as
// they have ended; and sshd's, which ends last.
func (x *bench) processorTime() time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		x.must("read the processor time", syscall.Getrusage(who, &u))
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	if x.daemon > 0 {
		// proc(5): utime, stime, cutime and cstime are the 14th field and what follows, in
		// hundredths of a second; the second has no blank here.
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", x.daemon))
		x.must("read sshd's processor time", err)
		for _, f := range strings.Fields(string(text))[13:17] {
			n, err := strconv.ParseInt(f, 10, 64)
			x.must("read sshd's processor time", err)
			sum += n * int64(10*time.Millisecond)
		}
	}
	return time.Duration(sum)
}

// bench is two hosts, a with a disk, and what else there is to bring it.
type bench struct {
	*testing.B
	ca    *pki.Authority
	rt    *runtime.System
	dirs  map[string]string // by host
	docks map[string]*shipping.Dock
	dial  map[string]string // address, by host
	ids   map[string]*pki.Identity
	tries int
	// the source's client of the destination, and the conductor's of both
	toB, fromA, toBByC *api.Client
	ssh                func(from, to string) error // nil where there is none
	daemon             int                         // process of sshd; 0 likewise
	synced             time.Duration
}

// endpoint is as much of a host as ships disks.
type endpoint struct {
	migration.Host
	*shipping.Dock
}

func (e endpoint) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	return operationtest.Ask(ctx, e.Dock, ref, op, in)
}

// Parties says of every migration that c conducts it from a to b.
func (endpoint) Parties(string, string) (api.Between, bool) {
	return api.Between{Source: "a", Destination: "b", Conductor: "c"}, true
}

// heldDisk is a guest that is off, and whose disk is held.
type heldDisk struct{ files disks.Files }

func (heldDisk) Off(context.Context, migration.Ref) error { return nil }
func (heldDisk) Disks(migration.Ref) ([]shipping.Disk, error) {
	return []shipping.Disk{{Target: "vda", Path: benchDisk, Variables: true}}, nil
}
func (o heldDisk) Held(migration.Ref) (migration.Snapshot, bool, error) {
	look, err := o.files.ReadBlock(benchDisk, 0, 0, migration.ShipBlock)
	return migration.Snapshot{Files: []migration.SnapshotFile{{Target: "vda", Path: benchDisk, Size: look.Size, Version: look.Version}}}, true, err
}
func (heldDisk) Place(string) (fault.Reason, bool) { return fault.Reason{}, false }
func (heldDisk) System(string) bool                { return false }
func (o heldDisk) FileUsers(ctx context.Context) (*fileusers.Survey, error) {
	return fileusers.Look(ctx, fileusers.Sources{Definitions: nobody{}, Files: o.files})
}

func (x *bench) must(what string, err error) {
	x.Helper()
	if err != nil {
		x.Fatalf("%s: %v", what, err)
	}
}

func newBench(b *testing.B, step int) *bench {
	x := &bench{B: b, rt: new(runtime.System), dirs: map[string]string{}, docks: map[string]*shipping.Dock{}, dial: map[string]string{}, ids: map[string]*pki.Identity{}}
	var err error
	x.ca, err = pki.Init(b.TempDir(), "bench", time.Now(), false)
	x.must("make a CA", err)
	for _, name := range []string{"a", "b", "c"} {
		dir := b.TempDir()
		_, err := x.ca.IssueHost(dir, name, nil, time.Now())
		x.must("issue a certificate", err)
		x.ids[name], err = pki.Load(pki.Paths{
			CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, pki.HostCertFile), Key: filepath.Join(dir, pki.HostKeyFile),
		}, time.Now())
		x.must("read a certificate", err)
	}
	x.serve("a")
	x.serve("b")
	x.toB, x.fromA, x.toBByC = x.client("a", "b"), x.client("c", "a"), x.client("c", "b")
	x.fill(step)
	x.ssh = x.sshd()
	return x
}

// serve makes a host's dock, and its agent's port.
func (x *bench) serve(name string) {
	dir := x.TempDir()
	x.must("make a folder", os.Mkdir(filepath.Join(dir, "images"), 0o755))
	tracker, err := claims.Open(x.Context(), claims.Options{Store: storetest.NewMemory(), Runtime: x.rt, Host: name})
	x.must("open a ledger", err)
	files := disks.Files{Root: dir}
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	dock := shipping.New(shipping.Config{
		Name: name, Memory: memory.New(tracker, x.rt), Files: files, Guests: heldDisk{files}, Runtime: x.rt, Logger: log, Context: ctx,
		Go: func(name string, f func()) bool { x.rt.Go(name, f); return true },
		Peer: func(context.Context, string) (transfer.Destination, error) {
			return operation.Disks{Host: x.toB}, nil
		},
	})
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	x.must("listen", err)
	server := api.NewServer(api.Options{
		Name: name, Identity: x.ids[name], Runtime: x.rt, Logger: log,
		Services: api.Services{Verbs: endpoint{Dock: dock}, Parties: endpoint{}},
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ear) }()
	x.Cleanup(func() {
		cancel()
		_ = server.Shutdown(ctx) // says only that requests were cut
		x.must("serve", <-ended)
	})
	x.dirs[name], x.docks[name], x.dial[name] = dir, dock, ear.Addr().String()
}

// client makes one host's of another.
func (x *bench) client(from, to string) *api.Client {
	c, err := api.NewClient(api.ClientOptions{Address: x.dial[to], Name: to, Identity: x.ids[from], As: from, Runtime: x.rt})
	x.must("make a client", err)
	x.Cleanup(c.Close)
	return c
}

// fill makes a file of random bytes at every step'th of its blocks.
func (x *bench) fill(step int) {
	x.Helper()
	file, err := os.Create(filepath.Join(x.dirs["a"], benchDisk))
	x.must("make the disk", err)
	defer file.Close()
	block, rng := make([]byte, migration.ShipBlock), rand.NewChaCha8([32]byte{7})
	for at := int64(0); at < benchSize; at += int64(step) * migration.ShipBlock {
		_, _ = rng.Read(block) // never fails
		_, err := file.WriteAt(block, at)
		x.must("fill the disk", err)
	}
	x.must("end the disk", errors.Join(file.Truncate(benchSize), file.Sync()))
}

// prepared makes room at b for one more attempt, and takes away what it made.
func (x *bench) prepared(ship func(ref migration.Ref, files []migration.ShipFile) error) time.Duration {
	x.tries++
	ref := migration.Ref{Migration: fmt.Sprintf("22222222-2222-4222-8222-%012d", x.tries), Instance: "11111111-1111-4111-8111-111111111111", Attempt: 1, Step: "ship"}
	files, err := x.docks["b"].Plan(x.Context(), ref, migration.PrepRequest{
		Guest: migration.Guest{Disks: []migration.Disk{{Target: "vda", Path: benchDisk, Format: "raw"}}}, CopyDisks: []string{"vda"},
	})
	x.must("prepare", err)
	began := time.Now()
	x.must("ship", ship(ref, files))
	took := time.Since(began)
	x.must("undo", x.docks["b"].Undo(x.Context(), ref))
	return took
}

func (x *bench) straight() time.Duration {
	return x.prepared(func(ref migration.Ref, files []migration.ShipFile) error {
		return x.docks["a"].Send(x.Context(), ref, migration.SendRequest{Destination: "b", Files: files})
	})
}

func (x *bench) relay() time.Duration {
	return x.prepared(func(ref migration.Ref, files []migration.ShipFile) error {
		_, err := transfer.Copy(x.Context(), transfer.Job{
			Ref: ref, Files: files, From: operation.Disks{Host: x.fromA}, To: operation.Disks{Host: x.toBByC}, Stall: time.Minute, Runtime: x.rt, Logger: slog.New(slog.DiscardHandler),
		})
		return err
	})
}

// nobody has no domains.
type nobody struct{}

func (nobody) Domains(context.Context) ([]driver.Domain, error) { return nil, nil }
func (nobody) XML(context.Context, string, driver.Document) (string, error) {
	return "", fault.New(fault.NotFound, "no domain")
}
