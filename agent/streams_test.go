package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/claims"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/stream"
	"berth/topology"
)

// goroutines starts streams within the test.
type goroutines struct{ t *testing.T }

func (g goroutines) Start(_ context.Context, _ stream.ID, dir string) (*stream.Started, error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = stream.Run(ctx, dir, stream.RunOptions{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}) // its folder says
	}()
	g.t.Cleanup(func() { cancel(); <-ended })
	return &stream.Started{Ended: ended}, nil
}

// An agent's start ends the streams that no verb will end any more, and no other.
func TestStreams_TidyEndsWhatTheLedgerDoesNotKnow(t *testing.T) {
	ctx := t.Context()
	root, err := os.MkdirTemp("", "s") // t.TempDir's name is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	ca, err := pki.Init(filepath.Join(root, "ca"), "test", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.IssueHost(root, "host-a", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer // the handler guards it, and is done when it is read
	a := &Agent{log: slog.New(slog.NewTextHandler(&said, nil)), rt: &runtime.System{}, name: "host-a"}
	if a.tracker, err = claims.Open(ctx, claims.Options{
		Store: storetest.NewMemory(), Runtime: a.rt, Host: "host-a", Logger: a.log,
		Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 9, MemoryMB: 1024}},
	}); err != nil {
		t.Fatal(err)
	}
	s := &streams{a: a, dir: filepath.Join(root, "streams")}
	if s.m, err = stream.NewManager(s.dir, goroutines{t}, a.rt); err != nil {
		t.Fatal(err)
	}
	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	guest := func(n int) string { return id(100 + n) }
	claim := func(n int, become ...func(claims.Owner) error) {
		t.Helper()
		o := claims.Owner{Instance: guest(n), Migration: id(n), Attempt: 1, Kind: claims.KindLiveMigration}
		_, err := a.tracker.Claim(ctx, claims.Request{
			Owner: o, Resources: topology.Resources{VCPUs: 1, MemoryMB: 64},
			Context: &claims.MigrationContext{Migration: id(n), Instance: guest(n), Source: "host-b", Destination: "host-a"},
		})
		for _, f := range become {
			if err == nil {
				err = f(o)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	arrive := func(o claims.Owner) error { _, err := a.tracker.Arrive(ctx, o); return err }
	bind := func(o claims.Owner) error { _, err := a.tracker.Bind(ctx, o); return err }
	abort := func(o claims.Owner) error {
		return a.tracker.Abort(ctx, migration.Ref{Migration: o.Migration, Instance: o.Instance, Attempt: o.Attempt, Step: claims.StepClaim})
	}
	claim(1)
	claim(2, arrive)
	claim(3, arrive, bind)
	claim(4, abort)
	ref := migration.Ref{Migration: id(5), Instance: guest(5), Attempt: 1, Step: "context"}
	if err := a.tracker.RecordContext(ctx, ref, claims.MigrationContext{Migration: id(5), Instance: guest(5), Source: "host-a", Destination: "host-b"}); err != nil {
		t.Fatal(err)
	}
	kept := []int{2, 3, 5} // arriving, bound and not finished, leaving
	for n := range 6 {
		if _, err := s.m.Open(ctx, stream.Order{
			ID: stream.ID{Migration: id(n), Attempt: 1}, Instance: guest(n), Role: stream.Source, Host: "host-a", Peer: "host-b", Address: "127.0.0.1:1",
			Ticket: stream.NewTicket(), Lease: time.Minute, QEMU: stream.Owner{UID: os.Geteuid(), GID: os.Getegid()},
			PKI: pki.Paths{CA: filepath.Join(root, pki.CACertFile), Cert: filepath.Join(root, pki.HostCertFile), Key: filepath.Join(root, pki.HostKeyFile)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	dead := filepath.Join(s.dir, id(8)+"-1")
	if err := os.Mkdir(dead, 0o711); err != nil {
		t.Fatal(err)
	}
	s.sweep()
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("what a dead process left is still there: %v", err)
	}
	if err := s.tidy(ctx); err != nil {
		t.Error(err)
	}
	left, err := s.m.Find("")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		want := slices.Contains(kept, n)
		if got := slices.Contains(left, stream.ID{Migration: id(n), Attempt: 1}); got != want {
			t.Errorf("stream of migration %d: lives %v, want %v", n, got, want)
		}
	}

	// Its own log goes with its folder.
	last := stream.ID{Migration: id(5), Attempt: 1}
	c, err := net.Dial("unix", s.m.Paths(last).Control) // nobody is at the peer's address
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read from a stream whose peer is not there: %v", err)
	}
	for {
		if st, err := s.m.Status(ctx, last); err != nil {
			t.Fatal(err)
		} else if st.Refused > 0 {
			break
		}
	}
	if err := s.Close(ctx, last.Migration, last.Attempt); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "127.0.0.1:1: connect") {
		t.Errorf("why the stream refused is not in the agent's log:\n%s", said.String())
	}
}

func TestStreams_NoStartRemovesAFolderThatIsBeingMade(t *testing.T) {
	root, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	a := &Agent{log: slog.New(slog.NewTextHandler(io.Discard, nil)), rt: &runtime.System{}}
	s := &streams{a: a, dir: root}
	if s.m, err = stream.NewManager(root, goroutines{t}, a.rt); err != nil {
		t.Fatal(err)
	}
	beginning := filepath.Join(root, "00000000-0000-4000-8000-000000000001-1")
	if err := os.Mkdir(beginning, 0o711); err != nil {
		t.Fatal(err)
	}
	// A move that goes on has begun to open it, and its process does not live yet.
	if err := s.tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(beginning); err != nil {
		t.Errorf("the folder that a move has begun to make: %v", err)
	}
}
