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

	// The reader's place in the stream; only the library's one reader uses it.
	prefix [4]byte
	have   int   // bytes of prefix read
	left   int64 // bytes of the packet still to come after its prefix
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
		return 0, err
	}
	return n, nil
}

// follow keeps the place in the stream and looks at each length.
func (w *wire) follow(p []byte) error {
	for len(p) > 0 {
		if w.left > 0 {
			n := min(int64(len(p)), w.left)
			p, w.left = p[n:], w.left-n
			continue
		}
		n := copy(w.prefix[w.have:], p)
		p, w.have = p[n:], w.have+n
		if w.have < len(w.prefix) {
			return nil
		}
		length := binary.BigEndian.Uint32(w.prefix[:])
		if length < packetMin || length > packetMax {
			return fmt.Errorf("libvirt sent a packet of %d bytes", length)
		}
		w.have, w.left = 0, int64(length)-int64(len(w.prefix))
	}
	return nil
}
