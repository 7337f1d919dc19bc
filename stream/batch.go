package stream

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// batch is the TCP connection under one TLS connection. TLS seals and opens 16 KiB
// at a time, and for each crypto/tls makes a system call of its own: at the speed
// of AES those are a large part of the work. batch reads much at once, and holds
// back what is written between hold and flush.
type batch struct {
	net.Conn

	// Only TLS's one reader uses these.
	in       []byte // read from the network
	from, to int    // what of it TLS has not taken yet
	wide     atomic.Bool

	mu   sync.Mutex // guards what follows; the network is written under it, as TLS does under its own
	held []byte
	hold bool
}

// transfer is how much is moved at a time, in each direction of a connection. CPU
// seconds a GiB, both processes together: 2.0 at 16 KiB, 1.7 at 64, 1.3 at 256, 1.2
// at 1 MiB. An open connection has four buffers of it.
const transfer = 256 << 10

func newBatch(c net.Conn) *batch { return &batch{Conn: c} }

// narrow is what a connection may hold that has not shown a ticket yet: enough for a
// certificate and its chain.
const narrow = 8 << 10

// widen has it read transfer bytes at a time from now on.
func (b *batch) widen() { b.wide.Store(true) }

// Read gives what is at hand, and reads on only when nothing is.
func (b *batch) Read(p []byte) (int, error) {
	if b.from == b.to {
		if b.in == nil {
			b.in = make([]byte, narrow)
		}
		if len(b.in) < transfer && b.wide.Load() {
			b.in = make([]byte, transfer)
		}
		n, err := b.Conn.Read(b.in)
		b.from, b.to = 0, n
		if errors.Is(err, io.EOF) {
			// crypto/tls takes an end between two records for a farewell. It is how the
			// death of the peer's process looks, and must not pass for the end of a stream.
			err = errCut
		}
		if n == 0 {
			return 0, err
		}
		// An error comes again.
	}
	n := copy(p, b.in[b.from:b.to])
	b.from += n
	return n, nil
}

// recordHead is the head of a TLS record (RFC 8446 section 5.1), recordMax what
// follows it at most.
const (
	recordHead = 5
	recordMax  = 1<<14 + 256
)

var errCut = errors.New("the connection was cut")

// ready says whether a whole record is at hand, which TLS opens without waiting.
// For the goroutine that reads.
func (b *batch) ready() bool {
	at := b.in[b.from:b.to]
	return len(at) >= recordHead && len(at) >= recordHead+int(binary.BigEndian.Uint16(at[3:]))
}

// Write sends, or holds back.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hold && len(b.held)+len(p) <= cap(b.held) {
		b.held = append(b.held, p...)
		return len(p), nil
	}
	if err := b.sendLocked(); err != nil {
		return 0, err
	}
	return b.Conn.Write(p)
}

// corked runs write and sends what it wrote at once.
func (b *batch) corked(write func() error) error {
	b.mu.Lock()
	if b.held == nil {
		b.held = make([]byte, 0, transfer+transfer/16)
	}
	b.hold = true
	b.mu.Unlock()
	err := write()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = false
	if serr := b.sendLocked(); err == nil {
		err = serr
	}
	return err
}

func (b *batch) sendLocked() error {
	if len(b.held) == 0 {
		return nil
	}
	_, err := b.Conn.Write(b.held)
	b.held = b.held[:0]
	return err
}

// tend has the kernel watch a connection: it ends when for as long as dead nobody
// answers, or what was sent is not taken. A cut that is over sooner is survived.
func tend(c *net.TCPConn, dead time.Duration) error {
	const probes = 4
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: dead / 2, Interval: dead / 2 / probes, Count: probes}); err != nil {
		return err
	}
	// Keepalive counts only where nothing is on its way; this is for what is. A
	// reader that takes nothing for as long is dead by this measure too.
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(dead.Milliseconds()))
	}); err != nil {
		return err
	}
	return serr
}
