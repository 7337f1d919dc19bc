package streams

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

func TestTransport_OfAPair(t *testing.T) {
	both := []migration.Transport{migration.TransportLibvirtTLS, migration.TransportStream}
	streams := migration.Description{Name: "new", Transport: migration.TransportStream, Transports: both, StreamDir: "/run/berth/streams"}
	tls := migration.Description{Name: "tls", Transport: migration.TransportLibvirtTLS, Transports: both, StreamDir: "/run/berth/streams"}
	elsewhere := streams
	elsewhere.StreamDir = "/run/other/streams"
	old := migration.Description{Name: "old"}
	for _, tt := range []struct {
		name         string
		source, dest migration.Description
		want         []string
	}{
		{"two that stream", streams, streams, nil},
		{"one that takes guests by TLS sends by a stream", tls, streams, nil},
		{"and gets them by TLS", streams, tls, nil},
		{"an older agent takes guests by TLS", streams, old, nil},
		{"and cannot send by a stream", old, streams, []string{"transport_differs"}},
		{"one path for both ends", elsewhere, streams, []string{"stream_dir_differs"}},
	} {
		var got []string
		for _, r := range Differ(tt.source, tt.dest) {
			got = append(got, r.Code)
			if r.Change == "" || r.Message == "" {
				t.Errorf("%s: %+v says too little", tt.name, r)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestTransport_AHostSaysWhatItHas(t *testing.T) {
	s := New(Options{Transport: migration.TransportStream})
	var d migration.Description
	s.Describe(&d)
	if d.Transport != migration.TransportLibvirtTLS || slices.Contains(d.Transports, migration.TransportStream) {
		t.Errorf("without streams a host says %+v, want libvirt's TLS alone", d)
	}
}

// died are processes of which the one that is asked for has died.
type died struct {
	Processes
	opened []Order
	alive  bool
}

func (d *died) Renew(context.Context, string, int, time.Duration) error {
	if d.alive {
		return nil
	}
	return fault.New(fault.NotFound, "no process has it")
}

func (d *died) Open(_ context.Context, o Order) (Ends, error) {
	d.opened, d.alive = append(d.opened, o), true
	return Ends{}, nil
}

// A guest in post-copy waits for its memory at the place that its source knows.
func TestKeepPostCopy_StartsAProcessThatDiedWhereItWas(t *testing.T) {
	p := &died{}
	s := New(Options{Host: "b", Processes: p, Logger: slog.New(slog.DiscardHandler)})
	ref := migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: "11111111-1111-4111-8111-111111111111", Attempt: 1}
	for range 2 {
		if err := s.KeepPostCopy(t.Context(), ref, claims.Claim{Ticket: "secret"}, "a", migration.Prepared{StreamAddress: ":49160"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.opened) != 1 {
		t.Fatalf("opened %d times", len(p.opened))
	}
	if o := p.opened[0]; o.Port != 49160 || !o.PostCopy || o.Ticket != "secret" || o.Peer != "a" || o.Address != "" {
		t.Errorf("opened by %+v", o)
	}
	if err := s.KeepPostCopy(t.Context(), ref, claims.Claim{}, "a", migration.Prepared{}); err != nil || len(p.opened) != 1 {
		t.Errorf("where guests come by libvirt's TLS: %v, %d", err, len(p.opened))
	}
}

// heard are processes that know for how long the other side has been silent.
type heard struct {
	Processes
	silent time.Duration
	err    error
}

func (h heard) Silent(context.Context, string, int) (time.Duration, error) { return h.silent, h.err }

// No guest is let go while nobody on the other side takes its memory.
func TestHears_AnswersThatAreNotOld(t *testing.T) {
	by := migration.Stream{Prepared: migration.Prepared{StreamAddress: ":1"}}
	for _, tt := range []struct {
		name string
		p    Processes
		m    migration.Stream
		want bool
	}{
		{"a moment ago", heard{silent: 10 * time.Millisecond}, by, true},
		{"long ago", heard{silent: time.Minute}, by, false},
		{"no process", heard{err: fault.New(fault.NotFound, "there is none")}, by, false},
		{"processes that cannot tell", &died{}, by, true},
		{"libvirt's TLS", heard{silent: time.Minute}, migration.Stream{}, true},
	} {
		s := New(Options{Host: "a", Processes: tt.p, Logger: slog.New(slog.DiscardHandler)})
		if got := s.hears(t.Context(), migration.Ref{}, tt.m); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
