package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"go.uber.org/goleak"

	"berth/driver/libvirt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen gives a unix socket and lets serve talk to whoever connects.
func listen(t *testing.T, serve func(net.Conn)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-rpc-") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			_ = c.Close() // the other side may have
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		_ = os.RemoveAll(dir)
	})
	return socket
}

func TestDial_ToAHungDaemonEndsWithItsContext(t *testing.T) {
	// The kernel accepts on the daemon's behalf; the handshake is never answered.
	socket := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := Dial(ctx, libvirt.Target{Socket: socket, URI: "qemu:///system"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial: %v, %v, want its deadline", c, err)
	}
}

func TestDial_WithNoDaemonSaysSo(t *testing.T) {
	_, err := Dial(t.Context(), libvirt.Target{Socket: filepath.Join(t.TempDir(), "none"), URI: "qemu:///system"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Dial: %v, want that there is no socket", err)
	}
}

// A length below the header's would crash the process inside the library.
func TestDial_SurvivesADaemonThatTalksNonsense(t *testing.T) {
	for _, length := range []uint32{0, 4, 27, 1 << 31, 1<<32 - 1} {
		socket := listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1024))
			_ = binary.Write(c, binary.BigEndian, length)
			_, _ = io.Copy(io.Discard, c)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if c, err := Dial(ctx, libvirt.Target{Socket: socket, URI: "qemu:///system"}); err == nil || ctx.Err() != nil {
			t.Errorf("a packet of %d bytes: %v, %v, want an error at once", length, c, err)
		}
		cancel()
	}
}

func TestExplain_TellsRefusedLostAndNotSentApart(t *testing.T) {
	if e, ok := errors.AsType[*libvirt.Error](explain(golibvirt.Error{Code: 42, Message: "gone"})); !ok || e.Code != 42 || e.Message != "gone" {
		t.Errorf("libvirt's refusal became %v", e)
	}
	for err, want := range map[error]error{
		golibvirt.ErrInterrupted: libvirt.ErrLost, io.ErrUnexpectedEOF: libvirt.ErrLost, syscall.EINVAL: libvirt.ErrNotSent,
	} {
		if got := explain(err); !errors.Is(got, want) {
			t.Errorf("%v became %v, want %v", err, got, want)
		}
	}
}

func TestDomain_TakesUUIDsOnly(t *testing.T) {
	const id = "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11"
	d, err := domain(id)
	if err != nil || ref(d).UUID != id {
		t.Errorf("%s became %s, %v", id, ref(d).UUID, err)
	}
	for _, bad := range []string{"", "x", id[:35], id + "00", "zz" + id[2:]} {
		if e, ok := errors.AsType[*libvirt.Error](func() error { _, err := domain(bad); return err }()); !ok || e.Code != 42 {
			t.Errorf("%q is taken for a uuid", bad)
		}
	}
}

func TestValues_IntegersAreUnsigned(t *testing.T) {
	got := values([]golibvirt.TypedParam{
		{Field: "i", Value: *golibvirt.NewTypedParamValueInt(7)}, {Field: "n", Value: *golibvirt.NewTypedParamValueInt(-1)},
		{Field: "u", Value: *golibvirt.NewTypedParamValueUint(8)}, {Field: "ul", Value: *golibvirt.NewTypedParamValueUllong(9)},
		{Field: "s", Value: *golibvirt.NewTypedParamValueString("x")},
	})
	for k, want := range map[string]any{"i": uint64(7), "n": uint64(0), "u": uint64(8), "ul": uint64(9), "s": "x"} {
		if got[k] != want {
			t.Errorf("%s is %v, want %v", k, got[k], want)
		}
	}
}

// answer writes an empty, successful reply to every call on the connection;
// extra is appended to the reply of a procedure. It closes the connection right
// after the reply of the procedure last.
func answer(c net.Conn, extra map[uint32][]byte, last uint32) {
	for {
		var head [packetMin]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:])-packetMin)
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		procedure := binary.BigEndian.Uint32(head[12:])
		reply := append(head[:], extra[procedure]...)
		binary.BigEndian.PutUint32(reply, uint32(len(reply)))
		binary.BigEndian.PutUint32(reply[16:], 1) // a reply
		binary.BigEndian.PutUint32(reply[24:], 0) // ok
		if _, err := c.Write(reply); err != nil || procedure == last {
			return
		}
	}
}

// A connection that ends at any point of opening or subscribing leaves nothing
// behind; TestMain counts the goroutines.
func TestSubscribe_OnAConnectionThatEndsLeaksNothing(t *testing.T) {
	const procOpen, procAuthList, procRegister = 1, 66, 316
	none := make([]byte, 4) // no authentication; callback 0
	for _, last := range []uint32{procOpen, procAuthList, procRegister, 0} {
		socket := listen(t, func(c net.Conn) {
			answer(c, map[uint32][]byte{procAuthList: none, procRegister: none}, last)
		})
		for range 100 {
			c, err := Dial(t.Context(), libvirt.Target{Socket: socket, URI: "qemu:///system"})
			if err != nil {
				if last == 0 || last == procRegister {
					t.Fatal(err)
				}
				continue
			}
			err = c.Subscribe(func(libvirt.Event) {})
			if last == 0 && err != nil {
				t.Errorf("Subscribe: %v", err)
			}
			c.Close()
			<-c.Done()
		}
	}
}
