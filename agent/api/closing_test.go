package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"berth/internal/runtime"
)

// TestShutdown_LosesNoRequest: over a socket that systemd holds, one server after the other, as in
// a restart, with callers all the while.
func TestShutdown_LosesNoRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	held, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	rt := new(runtime.System)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ask := func() error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
		answer, err := client.Get("http://berth/")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				if err := ask(); err != nil {
					t.Errorf("a request is lost: %v", err)
				}
			}
		})
	}
	for range 60 {
		file, err := held.File()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		s := NewServer(Options{Runtime: rt})
		answered := make(chan struct{}, 1)
		s.http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			s.closing.asked(r)
			select {
			case answered <- struct{}{}:
			default:
			}
		})
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		<-answered // it is in the middle of it
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	// Those that still ask have the last one.
	file, err := held.File()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	last := http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	served := make(chan struct{})
	go func() { defer close(served); _ = last.Serve(l) }()
	stop()
	asking.Wait()
	_ = last.Close()
	<-served
}
