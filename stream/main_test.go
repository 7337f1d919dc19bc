package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"berth/internal/pki"
	"berth/internal/runtime"
)

// This binary is also the process that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "stream-process" {
		signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err := Run(ctx, os.Args[2], RunOptions{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == "stream-agent" {
		openAndDie(os.Args[2], os.Args[3])
	}
	os.Exit(m.Run())
}

const (
	testMigration = "11111111-2222-4333-8444-555555555555"
	testGuest     = "99999999-8888-4777-8666-555555555555"
)

var testID = ID{Migration: testMigration, Attempt: 1}

// pair is both sides of one session on this machine, with their certificates and
// what they lead to.
type pair struct {
	t        testing.TB
	root     string
	ca       *pki.Authority
	src, dst *Manager
	ticket   Ticket
	out, in  Order // what the source's and the destination's process are told
	libvirt  *net.UnixListener
}

// inside starts processes as goroutines of the test: seen by the race detector,
// and cheap. own starts real ones.
func inside(t testing.TB) Starter { return goroutines{t: t} }

type goroutines struct {
	t       testing.TB
	opening time.Duration
}

func (g goroutines) Start(_ context.Context, _ ID, dir string) (*Started, error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Why it failed, its folder says.
		_ = Run(ctx, dir, RunOptions{Log: slog.New(slog.NewTextHandler(g.t.Output(), nil)), opening: g.opening})
	}()
	g.t.Cleanup(func() { cancel(); <-ended })
	return &Started{Ended: ended}, nil
}

func own(t testing.TB) Starter {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Children{Command: []string{self, "stream-process"}}
}

func newPair(t testing.TB, starter Starter) *pair {
	t.Helper()
	// Not t.TempDir: its name may be longer than a socket's address.
	root, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Chmod(root, 0o711); err != nil { // QEMU's user must pass
		t.Fatal(err)
	}
	p := &pair{t: t, root: root, ticket: NewTicket()}
	if p.ca, err = pki.Init(filepath.Join(root, "ca"), "test", time.Now(), false); err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		at  **Manager
		dir string
	}{{&p.src, "a"}, {&p.dst, "b"}} {
		if *m.at, err = NewManager(filepath.Join(root, m.dir), starter, &runtime.System{}); err != nil {
			t.Fatal(err)
		}
	}
	p.libvirt = p.listen(filepath.Join(root, "libvirt.sock"))
	common := Order{
		ID: testID, Instance: testGuest, Ticket: p.ticket, Lease: time.Minute,
		QEMU: Owner{UID: os.Geteuid(), GID: os.Getegid()},
	}
	p.in, p.out = common, common
	p.in.Role, p.in.Host, p.in.Peer, p.in.PKI = Destination, "host-b", "host-a", p.issue("host-b", "host-b")
	p.in.Listen, p.in.Libvirt, p.in.LibvirtURI = "127.0.0.1", p.libvirt.Addr().String(), "qemu:///system"
	p.in.DestinationXML, p.in.PersistentXML = guestXML, persistentXML
	p.out.Role, p.out.Host, p.out.Peer, p.out.PKI = Source, "host-a", "host-b", p.issue("host-a", "host-a")
	t.Cleanup(func() {
		for _, m := range []*Manager{p.src, p.dst} {
			ids, err := m.Find("")
			if err != nil {
				t.Error(err)
			}
			for _, id := range ids {
				if err := m.Close(context.Background(), id); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return p
}

// issue makes a host's certificate in a folder of its own.
func (p *pair) issue(folder, name string) pki.Paths {
	p.t.Helper()
	dir := filepath.Join(p.root, "pki", folder)
	if _, err := p.ca.IssueHost(dir, name, nil, time.Now()); err != nil {
		p.t.Fatal(err)
	}
	return hostFiles(dir)
}

func hostFiles(dir string) pki.Paths {
	return pki.Paths{
		CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, pki.HostCertFile), Key: filepath.Join(dir, pki.HostKeyFile),
	}
}

func (p *pair) listen(path string) *net.UnixListener {
	p.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	return l
}

// open opens both sides.
func (p *pair) open() {
	p.t.Helper()
	p.openDestination()
	if _, err := p.src.Open(p.t.Context(), p.out); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) openDestination() Status {
	p.t.Helper()
	st, err := p.dst.Open(p.t.Context(), p.in)
	if err != nil {
		p.t.Fatal(err)
	}
	p.out.Address = fmt.Sprintf("127.0.0.1:%d", st.Port)
	return st
}

// memory listens as the incoming QEMU does.
func (p *pair) memory() *net.UnixListener { return p.listen(p.dst.Paths(testID).Memory) }

// dial connects as the source's QEMU or libvirtd does.
func (p *pair) dial(path string) *net.UnixConn {
	p.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	p.deadline(c)
	return c
}

// patience is how long tests wait for what must come: it only ends those that fail, on
// however busy a machine.
const patience = 2 * time.Minute

// deadline has a test that hangs fail.
func (p *pair) deadline(c net.Conn) {
	p.t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
}

// accept takes one connection of what plays QEMU or libvirtd.
func (p *pair) accept(l *net.UnixListener) *net.UnixConn {
	p.t.Helper()
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	p.deadline(c)
	return c
}

// connected is a connection of memory, both ends.
func (p *pair) connected(l *net.UnixListener) (out, in *net.UnixConn) {
	p.t.Helper()
	out = p.dial(p.src.Paths(testID).Memory)
	return out, p.accept(l)
}

// says writes on one end and reads it on the other.
func (p *pair) says(from, to net.Conn, text string) {
	p.t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		p.t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		p.t.Fatalf("got %q, %v; want %q", got, err, text)
	}
}

// ends waits until the other side has ended the connection.
func (p *pair) ends(c net.Conn) {
	p.t.Helper()
	n, err := io.Copy(io.Discard, c)
	if n > 0 || err != nil && os.IsTimeout(err) {
		p.t.Fatalf("%d bytes came, then %v; want the end", n, err)
	}
}

func (p *pair) status(m *Manager) Status {
	p.t.Helper()
	st, err := m.Status(p.t.Context(), testID)
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

// until asks a side's process until what it says holds.
func (p *pair) until(m *Manager, what string, holds func(Status) bool) Status {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		st, err := m.Status(ctx, testID)
		if err == nil && holds(st) {
			return st
		}
		if (&runtime.System{}).Sleep(ctx, 5*time.Millisecond) != nil {
			text, _ := json.Marshal(st)
			p.t.Fatalf("never %s: %s, %v", what, text, err)
		}
	}
}

// gone waits until a side's process and folder are no more.
func (p *pair) gone(m *Manager) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		_, err := os.Stat(m.Paths(testID).Dir)
		if os.IsNotExist(err) {
			return
		}
		if (&runtime.System{}).Sleep(ctx, 5*time.Millisecond) != nil {
			p.t.Fatalf("its folder is still there: %v", err)
		}
	}
}
