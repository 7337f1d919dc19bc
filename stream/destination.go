package stream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// listenNetwork takes the address of the order, and the first free port of its
// range, beginning anywhere in it: many start at once.
func (p *process) listenNetwork() (*net.TCPListener, error) {
	ports := []int{0}
	if p.o.FirstPort > 0 {
		n := p.o.LastPort - p.o.FirstPort + 1
		ports = make([]int, n)
		for i, begin := 0, rand.IntN(n); i < n; i++ {
			ports[i] = p.o.FirstPort + (begin+i)%n
		}
	}
	var last error
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(p.o.Listen, strconv.Itoa(port)))
		if err == nil {
			p.closers = append(p.closers, func() { l.Close() })
			return l.(*net.TCPListener), nil
		}
		last = err
		if !errors.Is(err, unix.EADDRINUSE) {
			break // another port changes nothing
		}
	}
	return nil, fault.New(fault.Unavailable, "listen for the source on %d ports of %q: %w", len(ports), p.o.Listen, last)
}

// serveNetwork takes connections from the network.
func (p *process) serveNetwork(l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			if p.retryAccept("network", err) {
				continue
			}
			return
		}
		p.spawn(func() {
			defer conn.Close()
			if err := p.meet(conn); err != nil {
				p.refuse(conn.RemoteAddr().String(), err)
			}
		})
	}
}

// strangersMax is how many connections may be open that are not let in yet. Beyond
// it the oldest goes: whoever knocks and says nothing keeps nobody out. Arbitrary;
// it must hold what one source opens at once.
const strangersMax = 512

// hold keeps a connection where drain finds it, until forget.
func (p *process) hold(c net.Conn) (forget func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining {
		c.Close()
		return func() {}
	}
	if len(p.waiting) >= p.strangers {
		p.waiting[0].Close()
		p.waiting = slices.Delete(p.waiting, 0, 1)
	}
	p.waiting = append(p.waiting, c)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.waiting, c); i >= 0 {
			p.waiting = slices.Delete(p.waiting, i, i+1)
		}
	}
}

// meet hears a stranger out, and lets in who has certificate and ticket.
func (p *process) meet(conn *net.TCPConn) error {
	forget := p.hold(conn)
	defer forget()
	if err := tend(conn, p.deadAfter()); err != nil {
		return err
	}
	// One deadline for everything that a stranger may take his time with.
	if err := conn.SetDeadline(time.Now().Add(p.opening)); err != nil {
		return err
	}
	b := newBatch(conn)
	secure := tls.Server(b, p.cert.server(p.o.Peer))
	if err := secure.Handshake(); err != nil {
		return err
	}
	c, err := readHello(secure, p.o.ID, p.key, secure.ConnectionState())
	if err != nil {
		return err
	}
	leave, err := p.admit(c)
	if err != nil {
		return err
	}
	defer leave()
	local, err := p.target(c)
	if err != nil {
		return fmt.Errorf("the local %s: %w", c, err)
	}
	defer local.Close()
	if err := conn.SetDeadline(time.Now().Add(p.opening)); err != nil {
		return err
	}
	if _, err := secure.Write([]byte{welcome}); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	forget()
	l := p.link(c, local, secure, b)
	if c == Control {
		if l.gate, err = newGate(p.o, p.paths, p.postCopy); err != nil {
			return err
		}
	}
	p.carry(l)
	return nil
}

// target connects to what a channel leads to on this host.
func (p *process) target(c Channel) (*net.UnixConn, error) {
	switch c {
	case Memory:
		return p.dialLocal(p.paths.Memory, true)
	case Disks:
		return p.dialLocal(p.paths.Disks, true)
	default:
		return p.dialLocal(p.o.Libvirt, false)
	}
}

// dialLocal connects to a unix socket. QEMU's user made those in its folder, and
// could have put a link to libvirtd's there: the socket is held first, looked at,
// and then connected to by what is held.
func (p *process) dialLocal(path string, qemu bool) (*net.UnixConn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fault.New(fault.Forbidden, "%s is no socket", path)
	}
	if uid := int(st.Uid); qemu && uid != p.o.QEMU.UID && uid != 0 && uid != os.Geteuid() {
		return nil, fault.New(fault.Forbidden, "%s is user %d's, QEMU runs as %d", path, uid, p.o.QEMU.UID)
	}
	held := fmt.Sprintf("/proc/self/fd/%d", fd)
	deadline := time.Now().Add(targetTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: held, Net: "unix"})
		if err == nil {
			return conn, nil
		}
		// Its queue is full: QEMU's holds as many as it expects, and no more.
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return nil, fmt.Errorf("connect to %s: %w", path, errors.Unwrap(err))
		}
		select {
		case <-p.ctx.Done():
			return nil, fault.New(fault.Unavailable, "connect to %s: the stream is over", path)
		case <-time.After(wait):
		}
	}
}
