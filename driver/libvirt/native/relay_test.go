//go:build native

package native

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"berth/driver/libvirt"
)

// A daemon that takes connections and never says a word holds neither the caller
// nor a thread of the library, nor a file.
func TestDial_ToAHungDaemonLeavesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth-native-") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c) // until its client has gone
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		_ = os.RemoveAll(dir)
	})
	attempt := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		if c, err := Dial(ctx, libvirt.Target{Socket: socket, URI: "qemu:///system"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial: %v, %v, want its deadline", c, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	count := func() (goroutines, files int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(list)
	}
	attempt() // the library's event loop runs from now on
	goroutines, files := count()
	for range 20 {
		attempt()
	}
	limit := time.After(10 * time.Second)
	for {
		g, f := count()
		if g <= goroutines && f <= files {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatalf("%d goroutines, were %d; %d files, were %d", g, goroutines, f, files)
		}
	}
}

func TestDial_WithNoDaemonSaysSo(t *testing.T) {
	_, err := Dial(t.Context(), libvirt.Target{Socket: filepath.Join(t.TempDir(), "none"), URI: "qemu:///system"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Dial: %v, want that there is no socket", err)
	}
}
