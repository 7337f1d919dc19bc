// Package rpcproxy stands between a client and a libvirtd, or between two
// libvirtds, and loses the reply of a chosen procedure: what is asked happens,
// and nobody hears of it.
//
// It understands the framing of libvirt's remote protocol (virnetprotocol.x: a
// packet begins with its length, program, version, procedure and type) and
// nothing of the rest.
package rpcproxy

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// Procedures of libvirt's remote protocol (remote_protocol.x) whose replies are
// worth losing.
const (
	CreateWithFlags = 196 // start a domain
	Perform3Params  = 305 // a client asks the source to migrate
	Finish3Params   = 306 // the source asks the destination to take over
)

// Proxy forwards whole packets between those who connect to a listener and a
// daemon.
type Proxy struct {
	listener net.Listener
	target   string // the daemon's unix socket
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows; nothing blocks under it
	conns map[net.Conn]bool
	// lose cuts the connection in place of a procedure's reply; 0 for none.
	lose uint32
	// met is closed when that reply has come; it is lost when release is closed.
	met, release chan struct{}
	lost         int
}

// Start forwards from l to the daemon's socket until the test ends.
func Start(t testing.TB, l net.Listener, socket string) *Proxy {
	t.Helper()
	p := &Proxy{listener: l, target: socket, conns: map[net.Conn]bool{}}
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

// LoseReply lets the next reply to a procedure be lost at once, with its
// connection.
func (p *Proxy) LoseReply(procedure uint32) {
	_, release := p.HoldReply(procedure)
	close(release)
}

// HoldReply lets the next reply to a procedure be held, and lost with its
// connection when release is closed. met is closed when the reply has come.
func (p *Proxy) HoldReply(procedure uint32) (met, release chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.met, p.release = procedure, make(chan struct{}), make(chan struct{})
	return p.met, p.release
}

// Lost counts the replies that were lost.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

func (p *Proxy) accept() {
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
func (p *Proxy) forward(to, from net.Conn, replies bool) {
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
			p.lost++
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
