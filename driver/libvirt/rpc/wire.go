package rpc

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
)

// wire is the socket under the library: it tells when the connection has ended,
// and ends it at a packet whose length makes no sense, with which the library
// would crash the process (a length below the header's) or fill the memory.
type wire struct {
	net.Conn
	once sync.Once
	done chan struct{}
	// ready is closed when the library's ConnectToURI has returned. At its end it
	// writes a field that the library's own goroutine reads when the connection
	// ends, without a lock; so between the daemon's last word of the handshake and
	// ready the end of the connection is held back.
	ready chan struct{}

	// ended is closed when the library's reader has been told of the end: it
	// routes nothing any more.
	ended chan struct{}

	// The reader's place in the stream; only the library's one reader uses it.
	head   [packetMin]byte
	have   int   // bytes of head read
	left   int64 // bytes of the packet still to come after its head
	opened bool  // the daemon has agreed to open
}

// libvirt's own limits (virnetprotocol.x: VIR_NET_MESSAGE_MAX is 32 MiB with
// the length), and the smallest packet, length and header.
const (
	packetMin = 28
	packetMax = 32<<20 + 4
)

// Close ends the connection.
func (w *wire) Close() error {
	w.once.Do(func() { close(w.done) })
	return w.Conn.Close()
}

// Read passes on what the daemon sends.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err == nil {
		err = w.follow(p[:n])
	}
	if err != nil {
		w.once.Do(func() { close(w.done) })
		_ = w.Conn.Close() // the error is on its way already
		if w.opened {
			<-w.ready
		}
		select {
		case <-w.ended: // told before; only the one reader comes here
		default:
			close(w.ended)
		}
		return 0, err
	}
	return n, nil
}

// follow keeps the place in the stream and looks at the head of each packet.
func (w *wire) follow(p []byte) error {
	for len(p) > 0 {
		if w.left > 0 {
			n := min(int64(len(p)), w.left)
			p, w.left = p[n:], w.left-n
			continue
		}
		n := copy(w.head[w.have:], p)
		p, w.have = p[n:], w.have+n
		if w.have < 4 {
			return nil
		}
		length := w.word(0)
		if length < packetMin || length > packetMax {
			return fmt.Errorf("libvirt sent a packet of %d bytes", length)
		}
		if w.have < packetMin {
			return nil
		}
		w.have, w.left = 0, int64(length)-packetMin
		const program, procOpen, reply, ok = 0x20008086, 1, 1, 0 // virnetprotocol.x, remote_protocol.x
		if w.word(1) == program && w.word(3) == procOpen && w.word(4) == reply && w.word(6) == ok {
			w.opened = true
		}
	}
	return nil
}

// word is the nth of the head: length, program, version, procedure, type,
// serial, status.
func (w *wire) word(n int) uint32 { return binary.BigEndian.Uint32(w.head[4*n:]) }
