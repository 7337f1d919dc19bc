package driver

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Procedures of libvirt's remote protocol (remote_protocol.x) whose replies are
// cut here.
const (
	procCreateWithFlags = 196
	procPerform3Params  = 305
	procFinish3Params   = 306
)

// proxy stands between a client and a libvirtd on unix sockets and cuts a
// connection just before the reply of one chosen procedure would pass.
type proxy struct {
	Socket string

	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows; nothing blocks under it
	cut   uint32     // procedure; 0 for none
	cuts  int
	conns map[net.Conn]bool
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-proxy-") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Socket: filepath.Join(dir, "sock"), target: target, conns: map[net.Conn]bool{}}
	if p.listener, err = net.Listen("unix", p.Socket); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = p.listener.Close() // it may be closed already
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

// cutReply cuts the next connection on which procedure is answered.
func (p *proxy) cutReply(procedure uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = procedure
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *proxy) accept() {
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

// forward copies whole packets until one end closes; replies may be cut.
func (p *proxy) forward(to, from net.Conn, replies bool) {
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
		p.mu.Lock()
		cut := replies && kind == reply && procedure == p.cut
		if cut {
			p.cut = 0
			p.cuts++
		}
		p.mu.Unlock()
		if cut {
			return
		}
		if _, err := to.Write(packet); err != nil {
			return
		}
	}
}
