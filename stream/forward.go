package stream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// link is one open connection: a local socket and its TLS connection.
type link struct {
	channel Channel
	local   *net.UnixConn
	tls     *tls.Conn
	batch   *batch
	gate    *gate // what of the peer's libvirt calls passes; nil passes all

	sent, received atomic.Uint64
	// last is when a byte was last forwarded, since the process's start.
	last  *atomic.Int64
	begun time.Time

	once sync.Once
}

// cut ends both connections at once. Safe to repeat.
func (l *link) cut() {
	l.once.Do(func() {
		// The network's first, and below TLS: a farewell could wait for a peer that
		// takes nothing.
		l.batch.Conn.Close()
		l.local.Close()
	})
}

// run forwards until both directions have ended or one has failed, and gives why it
// failed. An end of one direction is passed on as an end of that direction.
func (l *link) run() error {
	var wg sync.WaitGroup
	var out, in error
	wg.Go(func() {
		if out = l.outward(); out != nil {
			l.cut()
		}
	})
	wg.Go(func() {
		if in = l.inward(); in != nil {
			l.cut()
		}
	})
	wg.Wait()
	l.cut()
	// Whichever failed first cut the other off.
	if out != nil && !errors.Is(out, net.ErrClosed) {
		return out
	}
	if in != nil && !errors.Is(in, net.ErrClosed) {
		return in
	}
	return nil
}

// silent is for how long the peer has acknowledged nothing (tcp(7), TCP_INFO).
func (l *link) silent() time.Duration {
	c, ok := l.batch.Conn.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	if raw.Control(func(fd uintptr) { info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil || info == nil {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}

func (l *link) moved(count *atomic.Uint64, n int) {
	count.Add(uint64(n))
	l.last.Store(int64(time.Since(l.begun)))
}

// outward forwards from the local socket to the network.
func (l *link) outward() error {
	buf := make([]byte, transfer)
	for {
		n, err := l.local.Read(buf)
		if n > 0 {
			if werr := l.batch.corked(func() error { _, err := l.tls.Write(buf[:n]); return err }); werr != nil {
				return fmt.Errorf("send to the peer: %w", werr)
			}
			l.moved(&l.sent, n)
		}
		if errors.Is(err, io.EOF) {
			if err := l.tls.CloseWrite(); err != nil {
				return fmt.Errorf("send the end to the peer: %w", err)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the local %s: %w", l.channel, err)
		}
	}
}

// inward forwards from the network to the local socket.
func (l *link) inward() error {
	buf := make([]byte, transfer)
	for {
		n, err := l.tls.Read(buf)
		// What has come already goes in one write.
		for err == nil && len(buf)-n >= recordMax && l.batch.ready() {
			var more int
			more, err = l.tls.Read(buf[n:])
			n += more
		}
		if n > 0 {
			out := buf[:n]
			var refused error
			if l.gate != nil {
				out, refused = l.gate.pass(out)
			}
			if _, werr := l.local.Write(out); werr != nil {
				return fmt.Errorf("write to the local %s: %w", l.channel, werr)
			}
			if refused != nil {
				return refused
			}
			l.moved(&l.received, n)
		}
		if errors.Is(err, io.EOF) {
			// Who has gone already needs no end.
			if err := l.local.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
				return fmt.Errorf("pass the end to the local %s: %w", l.channel, err)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive from the peer: %w", err)
		}
	}
}
