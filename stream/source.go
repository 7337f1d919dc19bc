package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Deadlines of opening one connection. Arbitrary: lost packets are sent again
// several times within each.
const (
	dialTimeout   = 10 * time.Second
	openTimeout   = 10 * time.Second // handshake and first frame, and each answer to them
	targetTimeout = 10 * time.Second // the destination's own target
)

// serveLocal takes the connections of one local socket.
func (p *process) serveLocal(l *net.UnixListener, c Channel) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if p.retryAccept(string(c), err) {
				continue
			}
			return
		}
		p.spawn(func() {
			defer conn.Close()
			if err := p.connect(conn, c); err != nil {
				p.refuse("local "+string(c), err)
			}
		})
	}
}

// connect gives a local connection its own to the destination.
func (p *process) connect(local *net.UnixConn, c Channel) error {
	if err := p.mayConnect(local, c); err != nil {
		return err
	}
	leave, err := p.admit(c)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.o.Address)
	if err != nil {
		return fmt.Errorf("reach the stream of %s at %s: %w", p.o.Peer, p.o.Address, err)
	}
	defer conn.Close()
	if err := tend(conn.(*net.TCPConn), p.deadAfter()); err != nil {
		return err
	}
	// The end of the process must not wait for a peer that says nothing.
	forget := p.hold(conn)
	defer forget()
	if err := conn.SetDeadline(time.Now().Add(p.opening + targetTimeout)); err != nil {
		return err
	}
	b := newBatch(conn)
	secure := tls.Client(b, p.cert.client(p.o.Peer))
	if err := p.greet(secure, c); err != nil {
		return fmt.Errorf("open %s at %s: %w", c, p.o.Address, err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	forget()
	p.carry(p.link(c, local, secure, b))
	return nil
}

// greet shows certificate and ticket, and waits to be welcome.
func (p *process) greet(secure *tls.Conn, c Channel) error {
	if err := secure.Handshake(); err != nil {
		return err
	}
	h, err := newHello(p.o.ID, c, p.key, secure.ConnectionState())
	if err != nil {
		return err
	}
	if _, err := secure.Write(h[:]); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(secure, answer[:]); err != nil {
		return fmt.Errorf("%s let nothing in, and its log says why: %w", p.o.Peer, err)
	}
	if answer[0] != welcome {
		return fault.New(fault.Invalid, "%s answered %d", p.o.Peer, answer[0])
	}
	return nil
}

func (p *process) link(c Channel, local *net.UnixConn, secure *tls.Conn, b *batch) *link {
	return &link{channel: c, local: local, tls: secure, batch: b, last: &p.last, begun: p.begun}
}

// mayConnect asks the kernel who is on the other end of a local connection
// (SO_PEERCRED): root, this process's own user, and on the data sockets QEMU's.
func (p *process) mayConnect(c *net.UnixConn, ch Channel) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if cerr != nil {
		return cerr
	}
	uid := int(cred.Uid)
	if uid == 0 || uid == os.Geteuid() || ch != Control && uid == p.o.QEMU.UID {
		return nil
	}
	return fault.New(fault.Forbidden, "user %d may not use it (process %d)", uid, cred.Pid)
}
