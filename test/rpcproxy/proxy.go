// Package rpcproxy stands between a client and a libvirtd, or between two
// libvirtds, and breaks what passes: at any chosen call, reply or event it
// delays, holds, drops, repeats, changes, or cuts the connection.
//
// It understands the framing of libvirt's remote protocol (virnetprotocol.x: a
// packet begins with its length, program, version, procedure, type, serial and
// status) and nothing of the rest. Without rules it forwards what it reads.
package rpcproxy

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy forwards whole packets between those who connect to a listener and a
// daemon.
type Proxy struct {
	listener net.Listener
	target   string // the daemon's unix socket
	wg       sync.WaitGroup
	ended    chan struct{} // closed at the end

	mu    sync.Mutex // guards what follows; nothing blocks under it
	pairs map[*pair]bool
	rules []*Rule // the first that meets a packet has it
	watch []*func(Packet)
	// accepted counts connections. refuse closes new ones at once.
	accepted int
	refuse   bool
	closed   bool
}

// pair is one connection, from its client to the daemon.
type pair struct {
	client, daemon net.Conn
	// One packet at a time is written to each side.
	toClient, toDaemon sync.Mutex
}

func (c *pair) close() { _, _ = c.client.Close(), c.daemon.Close() }

// Start is Forward until the test ends.
func Start(t testing.TB, l net.Listener, socket string) *Proxy {
	t.Helper()
	p := Forward(l, socket)
	t.Cleanup(p.Close)
	return p
}

// Forward forwards from l to the daemon's socket until Close.
func Forward(l net.Listener, socket string) *Proxy {
	p := &Proxy{listener: l, target: socket, ended: make(chan struct{}), pairs: map[*pair]bool{}}
	p.wg.Go(p.accept)
	return p
}

// Close ends the listener and every connection, and waits until nothing is
// forwarded any more. It may be called once.
func (p *Proxy) Close() {
	_ = p.listener.Close() // that it is closed is all that is wanted
	close(p.ended)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CutAll()
	p.wg.Wait()
}

// Add lets an action befall the packets that match, from now on.
func (p *Proxy) Add(m Match, a Action) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Rule{p: p, match: m, action: a, met: make(chan struct{})}
	p.rules = append(p.rules, r)
	return r
}

// Clear removes all rules.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

func (p *Proxy) removeLocked(r *Rule) {
	p.rules = slices.DeleteFunc(p.rules, func(other *Rule) bool { return other == r })
}

// Observe lets f see every packet as it comes, before any rule has it, until the
// function that it returns has returned. f must not block, nor keep or change the
// packet, nor call the proxy.
func (p *Proxy) Observe(f func(Packet)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &f
	p.watch = append(p.watch, w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watch = slices.DeleteFunc(p.watch, func(other *func(Packet)) bool { return other == w })
	}
}

// HoldReply lets the next reply to a procedure be held, and lost with its
// connection when release is closed. met is closed when the reply has come.
func (p *Proxy) HoldReply(procedure uint32) (met <-chan struct{}, release chan struct{}) {
	release = make(chan struct{})
	return p.Add(ReplyOf(procedure), Action{Hold: release, Drop: true, Cut: true}).Met(), release
}

// CutAll ends every connection that is open.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.close()
	}
}

// Refuse closes every new connection at once, or no longer.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Accepted counts the connections so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open counts the connections that are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.accepted++
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		daemon, err := net.Dial("unix", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &pair{client: client, daemon: daemon}
		p.mu.Lock()
		p.pairs[c] = true
		if p.closed {
			c.close()
		}
		p.mu.Unlock()
		p.wg.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { p.forward(c, daemon, client, &c.toDaemon) })
			both.Go(func() { p.forward(c, client, daemon, &c.toClient) })
			both.Wait()
			p.mu.Lock()
			delete(p.pairs, c)
			p.mu.Unlock()
		})
	}
}

// forward passes whole packets on until one end closes.
func (p *Proxy) forward(c *pair, to, from net.Conn, turn *sync.Mutex) {
	defer c.close()
	for {
		packet, err := readPacket(from)
		if err != nil {
			return
		}
		a := p.look(packet)
		send := func() {
			if !p.wait(a) {
				return
			}
			out := []byte(packet)
			if a.Change != nil {
				out = a.Change(packet)
			}
			if a.Twice {
				out = append(slices.Clone(out), out...)
			}
			if !a.Drop {
				turn.Lock()
				_, _ = to.Write(out) // whose end closes both connections
				turn.Unlock()
			}
			if a.Cut {
				c.close()
			}
		}
		if a.Hold != nil || a.Delay > 0 {
			p.wg.Go(send)
			continue
		}
		send()
	}
}

// look shows a packet to whoever watches, and finds what befalls it.
func (p *Proxy) look(packet Packet) Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.watch {
		(*f)(packet)
	}
	for _, r := range p.rules {
		if r.takesLocked(packet) {
			return r.action
		}
	}
	return Action{}
}

// wait holds a packet back as long as it is to be; false when the test has ended.
func (p *Proxy) wait(a Action) bool {
	if a.Hold != nil {
		select {
		case <-a.Hold:
		case <-p.ended:
			return false
		}
	}
	if a.Delay > 0 {
		select {
		case <-time.After(a.Delay):
		case <-p.ended:
			return false
		}
	}
	return true
}
