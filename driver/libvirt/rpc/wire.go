package rpc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"reflect"
	"sync"
	"sync/atomic"

	"berth/driver/libvirt"
)

// wire is the socket under the library. It tells when the connection has ended,
// gives the daemon's events to whoever subscribed (see events.go), and passes on
// nothing that the library must not see: whole packets only, answers to calls that
// wait for one. Answers and events are measured against their shapes. What
// is anything else ends the connection, with every call on it, because there is
// no telling what else of it is wrong. For the library would crash at a length
// below the header's, fill the memory at one within, hang at a second answer to
// one call, take any status but an error's for success, and let a call wait for
// ever whose answer has another's serial.
type wire struct {
	net.Conn
	once sync.Once
	done chan struct{}
	// ready is closed when the library's ConnectToURI has returned. At its end it
	// writes a field that the library's own goroutine reads when the connection
	// ends, without a lock; so between the daemon's last word of the handshake and
	// ready the end of the connection is held back.
	ready chan struct{}

	// domains and devices take events; nil until somebody subscribes.
	domains atomic.Pointer[func(libvirt.Event)]
	devices atomic.Pointer[func(libvirt.DeviceEvent)]

	mu sync.Mutex // guards what follows; nothing blocks under it
	// calls are those that wait for an answer, by serial.
	calls map[uint32]procedure
	cause error // why the connection ended; nil until it has, or when it was closed here

	// Only the library's one reader uses these.
	in     *bufio.Reader
	packet []byte // what is left of the packet that is being passed on
	opened bool   // the daemon has agreed to open

	// The place in what the library writes; it writes one packet at a time.
	head [packetMin]byte
	have int   // bytes of head seen
	left int64 // bytes of the packet still to come after its head
}

func newWire(c net.Conn) *wire {
	return &wire{
		Conn: c, done: make(chan struct{}), ready: make(chan struct{}),
		calls: map[uint32]procedure{}, in: bufio.NewReader(c),
	}
}

// libvirt's own limits (virnetprotocol.x: VIR_NET_MESSAGE_MAX is 32 MiB with
// the length), and the smallest packet, length and header.
const (
	packetMin = 28
	packetMax = 32<<20 + 4
)

// Words of a packet's head.
const (
	headLength = iota
	headProgram
	headVersion
	headProcedure
	headType
	headSerial
	headStatus
)

// Types and statuses (virNetMessageType, virNetMessageStatus).
const (
	typeCall, typeReply, typeMessage = 0, 1, 2
	statusOK, statusError            = 0, 1
)

// Close ends the connection.
func (w *wire) Close() error {
	w.once.Do(func() { close(w.done) })
	return w.Conn.Close()
}

// end notes why the connection has ended, once, and ends it.
func (w *wire) end(cause error) {
	w.once.Do(func() {
		w.mu.Lock()
		w.cause = cause
		w.mu.Unlock()
		close(w.done)
	})
	_ = w.Conn.Close() // the error is on its way already
}

// why is what ended the connection, nil where that was its owner.
func (w *wire) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// Read passes on what the daemon sends.
func (w *wire) Read(p []byte) (int, error) {
	for len(w.packet) == 0 {
		packet, err := w.next()
		if err != nil {
			w.end(err)
			if w.opened {
				<-w.ready
			}
			// An error that the library takes for the end, whatever it was.
			return 0, io.ErrUnexpectedEOF
		}
		if word(packet, headType) == typeMessage {
			w.tell(procedure{word(packet, headProgram), word(packet, headProcedure)}, packet[packetMin:])
			continue
		}
		w.packet = packet
	}
	n := copy(p, w.packet)
	w.packet = w.packet[n:]
	return n, nil
}

// next reads one packet and looks at it.
func (w *wire) next() ([]byte, error) {
	var head [packetMin]byte
	if _, err := io.ReadFull(w.in, head[:4]); err != nil {
		return nil, err
	}
	length := word(head[:], headLength)
	if length < packetMin || length > packetMax {
		return nil, fmt.Errorf("libvirt sent a packet of %d bytes", length)
	}
	if _, err := io.ReadFull(w.in, head[4:]); err != nil {
		return nil, err
	}
	shape, err := w.expect(head[:])
	if err != nil {
		return nil, err
	}
	// The memory grows with what has come, not with what was promised.
	var b bytes.Buffer
	b.Write(head[:])
	if _, err := io.CopyN(&b, w.in, int64(length)-packetMin); err != nil {
		return nil, err
	}
	packet := b.Bytes()
	call := procedure{word(packet, headProgram), word(packet, headProcedure)}
	if err := measure(packet[packetMin:], shape); err != nil {
		return nil, fmt.Errorf("libvirt's packet for procedure %s makes no sense: %w", call, err)
	}
	if word(packet, headType) == typeReply {
		if word(packet, headStatus) == statusError && word(packet[packetMin:], 0) == 0 {
			// The library takes that for success.
			return nil, fmt.Errorf("libvirt refused procedure %s with error 0", call)
		}
		const procOpen = 1
		w.opened = w.opened || call == procedure{programRemote, procOpen} && word(packet, headStatus) == statusOK
		w.mu.Lock()
		delete(w.calls, word(packet, headSerial))
		w.mu.Unlock()
	}
	return packet, nil
}

// expect says which shape a packet with this head must have.
func (w *wire) expect(head []byte) (reflect.Type, error) {
	got := procedure{word(head, headProgram), word(head, headProcedure)}
	kind, status := word(head, headType), word(head, headStatus)
	known := replies()
	if kind == typeMessage {
		known = events()
	}
	shape, ok := known[got]
	switch {
	case word(head, headVersion) != 1:
		return nil, fmt.Errorf("libvirt sent version %d of program %#x", word(head, headVersion), got.program)
	case !ok:
		return nil, fmt.Errorf("libvirt sent a packet of type %d for procedure %s, which is not known here", kind, got)
	case kind == typeMessage && status == statusOK:
		return shape, nil
	case kind != typeReply || status != statusOK && status != statusError:
		return nil, fmt.Errorf("libvirt sent a packet of type %d and status %d", kind, status)
	}
	w.mu.Lock()
	call, waits := w.calls[word(head, headSerial)]
	w.mu.Unlock()
	if !waits || call != got {
		return nil, fmt.Errorf("libvirt sent an answer that nobody waits for: procedure %s, serial %d", got, word(head, headSerial))
	}
	if status == statusError {
		return reflect.TypeFor[refusal](), nil
	}
	return shape, nil
}

// Write sends what the library says, and notes its calls before their answers can
// come.
func (w *wire) Write(p []byte) (int, error) {
	w.follow(p)
	return w.Conn.Write(p)
}

// follow keeps the place in what is written, and looks at the head of each packet.
func (w *wire) follow(p []byte) {
	for len(p) > 0 {
		if w.left > 0 {
			n := min(int64(len(p)), w.left)
			p, w.left = p[n:], w.left-n
			continue
		}
		n := copy(w.head[w.have:], p)
		p, w.have = p[n:], w.have+n
		if w.have < packetMin {
			return
		}
		h := w.head[:]
		w.have, w.left = 0, int64(word(h, headLength))-packetMin
		if word(h, headType) == typeCall {
			w.mu.Lock()
			w.calls[word(h, headSerial)] = procedure{word(h, headProgram), word(h, headProcedure)}
			w.mu.Unlock()
		}
	}
}

// word is the nth of a packet's.
func word(b []byte, n int) uint32 { return binary.BigEndian.Uint32(b[4*n:]) }
