package host_test

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/driver"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
)

// parties says of every migration that it is from a to b.
type parties struct{}

func (parties) Parties(string, string) (api.Between, bool) {
	return api.Between{Source: "a", Destination: "b", Conductor: "a"}, true
}

// served is a host behind its API over TLS, which can be killed and started again at the
// same address.
type served struct {
	l       *lab
	id      *pki.Identity
	address string
	server  *api.Server
	ended   chan error
}

func (s *served) start() {
	s.l.t.Helper()
	ear, err := net.Listen("tcp", s.address)
	s.l.must("listen", err)
	s.address, s.ended = ear.Addr().String(), make(chan error, 1)
	s.server = api.NewServer(api.Options{
		Name: "b", Identity: s.id, Runtime: s.l.rt, Logger: slog.New(slog.DiscardHandler),
		Services: api.Services{Verbs: s.l.hosts["b"].Host, Parties: parties{}},
	})
	server, ended := s.server, s.ended
	s.l.rt.Go("serve b", func() { ended <- server.Serve(ear) })
}

// kill cuts all that is under way.
func (s *served) kill() {
	s.l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.server.Shutdown(ctx) // says only that requests were cut
	if err := <-s.ended; err != nil {
		s.l.t.Errorf("serve: %v", err)
	}
}

// pieces is a client that is told of every piece before it is sent.
type pieces struct {
	*api.Client
	before func()
}

func (p pieces) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if op.Name == operation.WriteDisk.Name {
		p.before()
	}
	return p.Client.Ask(ctx, ref, op, in)
}

func identity(t testing.TB, ca *pki.Authority, name string) *pki.Identity {
	t.Helper()
	dir := t.TempDir()
	if _, err := ca.IssueHost(dir, name, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.Paths{
		CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, pki.HostCertFile), Key: filepath.Join(dir, pki.HostKeyFile),
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// wire is the lab's host b as a conductor on a reaches it: over TLS.
type wire struct {
	l      *lab
	b      *served
	client *api.Client
	before func() // told of every piece before it is sent
}

func (l *lab) wire() *wire {
	l.t.Helper()
	ca, err := pki.Init(l.t.TempDir(), "lab", time.Now(), false)
	l.must("make a CA", err)
	w := &wire{l: l, b: &served{l: l, id: identity(l.t, ca, "b"), address: "127.0.0.1:0"}, before: func() {}}
	w.b.start()
	l.t.Cleanup(w.b.kill)
	w.client, err = api.NewClient(api.ClientOptions{Address: w.b.address, Name: "b", Identity: identity(l.t, ca, "a"), As: "a", Runtime: l.rt})
	l.must("make a client", err)
	l.t.Cleanup(w.client.Close)
	return w
}

// conductor makes one on a.
func (w *wire) conductor() *conductor.Conductor {
	return conductor.New(conductor.Config{
		Runtime: hasty{w.l.rt}, Store: w.l.hosts["a"].store, Local: "a", Placement: w.l.placement,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			if name == "b" {
				return pieces{w.client, w.before}, nil
			}
			return w.l.hosts["a"].Host, nil
		},
		PollInterval: time.Millisecond, ShutdownTimeout: -1, VerbTimeout: 5 * time.Second, UndoLater: 100 * time.Millisecond,
		Jitter: func(time.Duration) time.Duration { return 0 },
	})
}

// run has it conduct until f returns.
func (w *wire) run(c *conductor.Conductor, f func(ctx context.Context)) {
	w.l.t.Helper()
	ctx, cancel := context.WithCancel(w.l.t.Context())
	ended := make(chan error, 1)
	w.l.rt.Go("conductor", func() { ended <- c.Run(ctx) })
	waitFor(w.l.t, "the conductor", c.Running)
	f(ctx)
	cancel()
	w.l.must("conduct", <-ended)
}

// TestShip_ByAConductorOverTLS moves a guest with a chain and a sparse disk between two
// hosts that share nothing. The conductor dies while it ships, and then the destination.
func TestShip_ByAConductorOverTLS(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(base), "8M")
	a.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", a.path(disk))
	data := "/images/data.raw"
	a.sparse(t, data, 40*migration.ShipBlock+5, map[int64]string{3: "one", 7 * migration.ShipBlock: "two", 8 * migration.ShipBlock: "three", 39 * migration.ShipBlock: "four"})
	v := l.guest("a", "vm1", host.CreateDisk{Path: disk, Format: "qcow2"}, host.CreateDisk{Path: data})

	var sent atomic.Int64
	dead := make(chan struct{}) // closed when the first conductor is to die
	w := l.wire()
	w.before = func() {
		switch sent.Add(1) {
		case 3:
			close(dead)
		case 6:
			w.b.kill()
			l.restart("b")
			w.b.start()
		}
	}
	first, second := w.conductor(), w.conductor()
	var m migration.Migration
	w.run(first, func(ctx context.Context) {
		var err error
		m, err = first.Start(ctx, conductor.Request{Instance: v.UUID, Type: migration.TypeMigration, Destination: "b"})
		l.must("start", err)
		<-dead
	})
	w.run(second, func(ctx context.Context) {
		waitFor(t, "the guest at its destination", func() bool {
			var err error
			m, err = second.Get(ctx, m.UUID)
			l.must("get", err)
			return m.Status == migration.StatusFinished || m.Done()
		})
	})
	if m.Status != migration.StatusFinished {
		t.Fatalf("the move is %s: %v", m.Status, m.Err())
	}
	if p := m.Progress; p.Phase != "disk" || p.DiskTotal < 40*migration.ShipBlock || p.DiskProcessed != p.DiskTotal || p.DiskRemaining != 0 {
		t.Errorf("progress %+v", p)
	}
	// Four blocks with data, a short end, two images, the zeros between; and some twice.
	if n := sent.Load(); n < 8 || n > 40 {
		t.Errorf("%d pieces were sent", n)
	}
	c := &cold{lab: l, t: t, a: a, b: l.hosts["b"]}
	for _, path := range []string{base, disk, data} {
		c.arrived(path)
	}
	l.state("b", v.UUID, driver.Running)
}
