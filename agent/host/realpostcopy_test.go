package host_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/options"
	"berth/stream"
	"berth/test/guest"
	testlab "berth/test/lab"
	"berth/topology"
)

// beStream is a stream's process within a real host; see realStreams.
func beStream(dir string) int {
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := stream.Run(ctx, dir, stream.RunOptions{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// realStreams are a real host's: its processes run in it, and are asked from outside.
type realStreams struct {
	h *testlab.Host
	m *stream.Manager
	d func() driver.Driver
}

const realStreamDir = "/run/berth/streams"

func newRealStreams(t *testing.T, h *testlab.Host, rt runtime.Runtime) *realStreams {
	t.Helper()
	if err := os.MkdirAll(h.Path(filepath.Dir(realStreamDir)), 0o755); err != nil {
		t.Fatal(err)
	}
	// The host's folder as seen from here may be longer than a socket's address.
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	if err := os.Chmod(short, 0o711); err != nil { // QEMU's user must pass
		t.Fatal(err)
	}
	if err := os.Symlink(h.Path(filepath.Dir(realStreamDir)), filepath.Join(short, "h")); err != nil {
		t.Fatal(err)
	}
	s := &realStreams{h: h}
	if s.m, err = stream.NewManager(filepath.Join(short, "h", filepath.Base(realStreamDir)), s, rt); err != nil {
		t.Fatal(err)
	}
	return s
}

// Start implements stream.Starter.
func (s *realStreams) Start(_ context.Context, id stream.ID, dir string) (*stream.Started, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd, err := s.h.Command(context.Background(), self, "stream-process", filepath.Join(realStreamDir, filepath.Base(dir)))
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := s.h.Start(cmd); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended, its folder says
	}()
	return &stream.Started{Ended: ended}, nil
}

func (s *realStreams) Dir() string { return realStreamDir }

func (s *realStreams) Open(ctx context.Context, o host.StreamOrder) (host.StreamEnds, error) {
	node, err := s.d().Node(ctx)
	if err != nil || node.GuestUser == nil {
		return host.StreamEnds{}, fault.New(fault.Unavailable, "nobody says whom QEMU runs as: %v", err)
	}
	id := stream.ID{Migration: o.Migration, Attempt: o.Attempt}
	paths := stream.PathsOf(realStreamDir, id)
	order := stream.Order{
		ID: id, Instance: o.Instance, Host: s.h.Name, Peer: o.Peer, Ticket: stream.Ticket(o.Ticket), Lease: o.Lease, PostCopy: o.PostCopy,
		PKI:  pki.Paths{CA: "/etc/berth/pki/ca.crt", Cert: "/etc/berth/pki/host.crt", Key: "/etc/berth/pki/host.key"},
		QEMU: stream.Owner{UID: node.GuestUser.UID, GID: node.GuestUser.GID},
	}
	ends := host.StreamEnds{LibvirtURI: "qemu:///system", MigrateURI: paths.MigrateURI(), DisksURI: paths.DisksURI()}
	if o.Address != "" {
		order.Role, order.Address = stream.Source, o.Address
		ends.LibvirtURI = paths.LibvirtURI(o.LibvirtURI)
	} else {
		order.Role, order.Listen, order.FirstPort, order.LastPort = stream.Destination, s.h.MigIP(), o.Port, o.Port
		order.Libvirt, order.LibvirtURI = "/run/libvirt/libvirt-sock", "qemu:///system"
		order.DestinationXML, order.PersistentXML = o.DestinationXML, o.PersistentXML
	}
	st, err := s.m.Open(ctx, order)
	ends.Address = net.JoinHostPort(s.h.MigIP(), strconv.Itoa(st.Port))
	return ends, err
}

func (s *realStreams) Renew(ctx context.Context, migration string, attempt int, lease time.Duration) error {
	_, err := s.m.Renew(ctx, stream.ID{Migration: migration, Attempt: attempt}, lease)
	return err
}

func (s *realStreams) Silent(ctx context.Context, migration string, attempt int) (time.Duration, error) {
	st, err := s.m.Status(ctx, stream.ID{Migration: migration, Attempt: attempt})
	return st.Silent, err
}

func (s *realStreams) Close(ctx context.Context, migration string, attempt int) error {
	return s.m.Close(ctx, stream.ID{Migration: migration, Attempt: attempt})
}

// beats counts a console's, 0 where there is none yet.
func beats(console string) int {
	list, err := guest.ReadConsole(console)
	if err != nil {
		return 0
	}
	return len(list)
}

// TestReal_PostCopyOutlivesItsNetwork sends a guest that writes faster than its memory goes, by
// real streams; it is forced to complete, its link is cut while half of it is on either side,
// and healed. It has run once all the time, and its memory is what it wrote.
func TestReal_PostCopyOutlivesItsNetwork(t *testing.T) {
	l := testlab.Start(t, testlab.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
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
		streams := newRealStreams(t, h, rt)
		hosts[h.Name], trackers[h.Name], stores[h.Name] = realHost(t, rt, h, p, func(o *host.Options) {
			o.Streams, o.Transport = streams, migration.TransportStream
			d := o.Driver
			streams.d = func() driver.Driver { return d }
		})
	}
	from, to := l.Hosts[0], l.Hosts[1]
	o := guest.Options{Name: "g1", Guest: g, Beat: 100 * time.Millisecond, Dirty: 48, Rate: 24}
	v, err := hosts[from.Name].Create(ctx, host.CreateRequest{
		Name: "g1", Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128},
		Kernel: g.Kernel, Initrd: g.Initrd, Cmdline: o.Cmdline(), Machine: guest.Machine, VirtType: "qemu",
		SerialFile: "/var/log/libvirt/g1.console", Start: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WaitBeat(ctx, from.Console("g1"), 30); err != nil {
		t.Fatal(err)
	}
	c := conductor.New(conductor.Config{
		Runtime: rt, Store: stores[from.Name], Local: from.Name, Placement: p, Logger: slog.New(slog.NewTextHandler(logTo{t}, nil)),
		Hosts: func(_ context.Context, name string) (migration.Host, error) { return hosts[name], nil },
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
		m, err = c.LiveMigrate(run, conductor.Request{Instance: v.UUID, Destination: to.Name, Options: migration.Options{
			Bandwidth: 8 << 20, PostCopy: options.On, PostCopyBandwidth: 2 << 20,
		}})
		if err != nil && !strings.Contains(err.Error(), "the conductor does not run") {
			t.Fatal(err)
		}
		return err == nil
	})
	watch, err := c.Watch(run, m.UUID)
	if err != nil {
		t.Fatal(err)
	}
	forced, cut, healed, fast := false, false, false, false
	for m = range watch {
		switch phase := m.Progress.Phase; {
		case !forced && m.Step == migration.StepStream && phase == "memory" && m.Progress.MemoryProcessed > 0:
			if err := c.ForceComplete(run, m.UUID, "the test"); err != nil {
				t.Fatal(err)
			}
			forced = true
		case !cut && m.Step == migration.StepFollowPostCopy && phase == "post-copy" && beats(to.Console("g1")) >= 12:
			// Not before: what the guest's kernel needs all the time has come; see package
			// streams for what a break costs before.
			if err := from.Cut(ctx, testlab.Mig); err != nil {
				t.Fatal(err)
			}
			cut = true
		case cut && !healed && phase == "post-copy failed":
			t.Logf("broken: %+v", m.Progress)
			if err := from.Heal(ctx, testlab.Mig); err != nil {
				t.Fatal(err)
			}
			healed = true
		case healed && !fast && phase == "post-copy":
			// It may be over, or broken once more, by now.
			fast = c.Tune(run, m.UUID, migration.Tuning{Bandwidth: 64 << 20}, "the test") == nil
		}
		if m.Done() {
			break
		}
	}
	if m.Status != migration.StatusCompleted || !healed {
		t.Fatalf("migration %s, forced %v, cut %v, healed %v: %+v", m.Status, forced, cut, healed, m.Error)
	}
	if _, err := guest.WaitBeat(ctx, to.Console("g1"), beats(to.Console("g1"))+20); err != nil {
		t.Fatal(err)
	}
	a, err := guest.ReadConsole(from.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := guest.ReadConsole(to.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	proof, err := guest.Continuity(a, b)
	if t.Logf("the guest says: %v", proof); err != nil {
		t.Error(err)
	}
	if n := len(trackers[from.Name].List()); n != 0 {
		t.Errorf("%d claims left at the source", n)
	}
	for _, h := range l.Hosts {
		if left, err := filepath.Glob(h.Path(realStreamDir) + "/*"); err != nil || len(left) > 0 {
			t.Errorf("left of streams on %s: %v, %v", h.Name, left, err)
		}
	}
}
