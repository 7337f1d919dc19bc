package host_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"berth/agent/host"
	"berth/internal/pki"
	"berth/migration"
)

// shipBench is how large the benchmark's disks are.
const shipBench = 2 << 30

// fill makes a file of random bytes at every step'th of its blocks.
func (n *node) fill(b *testing.B, path string, step int) {
	b.Helper()
	file, err := os.Create(n.path(path))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	block, rng := make([]byte, migration.ShipBlock), rand.NewChaCha8([32]byte{7})
	for at := int64(0); at < shipBench; at += int64(step) * migration.ShipBlock {
		_, _ = rng.Read(block) // never fails
		if _, err := file.WriteAt(block, at); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(file.Truncate(shipBench), file.Sync()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkShip brings a disk of 2 GiB from one host to another over TLS on the loopback,
// full and with a sixteenth of it written: by a conductor, by cp, and by one TLS
// connection into a file that is synced, as scp would be at best.
func BenchmarkShip(b *testing.B) {
	requireQemuImg(b)
	for _, kind := range []struct {
		name string
		step int
	}{{"sparse", 16}, {"full", 1}} {
		b.Run(kind.name+"/conductor", func(b *testing.B) { benchConductor(b, kind.step) })
		b.Run(kind.name+"/cp", func(b *testing.B) {
			benchCopy(b, kind.step, func(from, to string) error {
				return errors.Join(exec.Command("cp", "--reflink=never", from, to).Run(), exec.Command("sync", to).Run())
			})
		})
		b.Run(kind.name+"/tls", func(b *testing.B) {
			benchCopy(b, kind.step, func(from, to string) error { return copyOverTLS(b, from, to) })
		})
	}
}

func benchConductor(b *testing.B, step int) {
	b.SetBytes(shipBench)
	for b.Loop() {
		b.StopTimer()
		l := newLab(b, "a", "b")
		l.hosts["a"].fill(b, disk, step)
		v := l.guest("a", "vm1", host.CreateDisk{Path: disk})
		w := l.wire()
		c := w.conductor()
		var m migration.Migration
		b.StartTimer()
		w.run(c, func(ctx context.Context) {
			var err error
			m, err = c.Start(ctx, migration.Request{Instance: v.UUID, Type: migration.TypeMigration, Destination: "b"})
			l.must("start", err)
			seen, err := c.Watch(ctx, m.UUID)
			l.must("watch", err)
			for m = range seen {
				if m.Status == migration.StatusFinished {
					break
				}
			}
		})
		b.StopTimer()
		if m.Status != migration.StatusFinished {
			b.Fatal(m.Err())
		}
		for _, s := range m.Steps {
			if s.Name == migration.StepShipDisks {
				b.ReportMetric(s.Duration.Seconds(), "s/ship")
			}
		}
		l.must("remove", errors.Join(os.Remove(l.hosts["a"].path(disk)), os.Remove(l.hosts["b"].path(disk))))
		b.StartTimer()
	}
}

func benchCopy(b *testing.B, step int, do func(from, to string) error) {
	n := &node{root: b.TempDir()}
	n.fill(b, "from", step)
	b.SetBytes(shipBench)
	for b.Loop() {
		if err := do(n.path("from"), n.path("to")); err != nil {
			b.Fatal(err)
		}
	}
}

// copyOverTLS sends a file by one connection.
func copyOverTLS(b *testing.B, from, to string) error {
	ca, err := pki.Init(b.TempDir(), "bench", time.Now(), false)
	if err != nil {
		return err
	}
	id := identity(b, ca, "b")
	ear, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{id.Certificate}, MinVersion: tls.VersionTLS13})
	if err != nil {
		return err
	}
	defer ear.Close()
	ended := make(chan error, 1)
	go func() { ended <- receive(ear, to) }()
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	conn, err := tls.Dial("tcp", ear.Addr().String(), &tls.Config{RootCAs: id.Roots, ServerName: "b"})
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{file}, make([]byte, 1<<20))
	return errors.Join(err, conn.Close(), <-ended)
}

func receive(ear net.Listener, to string) error {
	conn, err := ear.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{conn}, make([]byte, 1<<20))
	return errors.Join(err, file.Sync(), file.Close())
}
