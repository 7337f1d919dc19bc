package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/lab"
)

// procFinish3Params is libvirt's Finish in a peer-to-peer migration
// (remote_protocol.x): the source asks the destination to take over.
const procFinish3Params = 306

// peerProxy stands between one host's libvirtd and another's, on a TCP port of
// the first. What passes may be held or lost at a chosen procedure.
type peerProxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows; nothing blocks under it
	conns map[net.Conn]bool
	// lose cuts the connection in place of a procedure's reply; 0 for none.
	lose uint32
	// met is closed when that happened, and go on when the reply may be lost.
	met, release chan struct{}
}

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
func between(t *testing.T, from, to *lab.Host, address string) *peerProxy {
	t.Helper()
	l, err := listenIn(from, address)
	if err != nil {
		t.Fatal(err)
	}
	p := &peerProxy{listener: l, target: to.LibvirtSocket(), conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close() // that it is closed is all that is wanted
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// loseReply lets the next reply to a procedure be lost with its connection. met
// is closed when the reply has come; it is lost when release is closed.
func (p *peerProxy) loseReply(procedure uint32) (met, release chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.met, p.release = procedure, make(chan struct{}), make(chan struct{})
	return p.met, p.release
}

func (p *peerProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		daemon, err := net.Dial("unix", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[daemon] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.forward(daemon, client, false) })
		p.wg.Go(func() { p.forward(client, daemon, true) })
	}
}

// forward copies whole packets until one end closes.
func (p *peerProxy) forward(to, from net.Conn, replies bool) {
	defer func() { _, _ = to.Close(), from.Close() }()
	for {
		var length [4]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return
		}
		packet := make([]byte, binary.BigEndian.Uint32(length[:]))
		copy(packet, length[:])
		if _, err := io.ReadFull(from, packet[4:]); err != nil {
			return
		}
		const reply = 1
		procedure, kind := binary.BigEndian.Uint32(packet[12:]), binary.BigEndian.Uint32(packet[16:])
		var met, release chan struct{}
		p.mu.Lock()
		if replies && kind == reply && procedure == p.lose {
			p.lose, met, release = 0, p.met, p.release
		}
		p.mu.Unlock()
		if met != nil {
			close(met)
			<-release
			return
		}
		if _, err := to.Write(packet); err != nil {
			return
		}
	}
}
