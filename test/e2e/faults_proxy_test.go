package e2e

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/lab"
	"berth/test/rpcproxy"
)

// listenIn opens a listener in a host's network.
func listenIn(h *lab.Host, address string) (net.Listener, error) {
	type answer struct {
		l   net.Listener
		err error
	}
	done := make(chan answer)
	go func() {
		// Locked and never unlocked: the thread ends with the goroutine, so that
		// nobody else runs in that network.
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", h.InitPID()))
		if err != nil {
			done <- answer{nil, err}
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- answer{nil, err}
			return
		}
		l, err := net.Listen("tcp", address)
		done <- answer{l, err}
	}()
	a := <-done
	return a.l, a.err
}

// between starts a proxy on which from reaches to's libvirtd at address.
func between(t *testing.T, from, to *lab.Host, address string) *rpcproxy.Proxy {
	t.Helper()
	l, err := listenIn(from, address)
	if err != nil {
		t.Fatal(err)
	}
	return rpcproxy.Start(t, l, to.LibvirtSocket())
}
