package rpcproxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// packet makes one.
func packet(kind, procedure, serial uint32, payload ...byte) Packet {
	p := make(Packet, headSize, headSize+len(payload))
	p = append(p, payload...)
	for w, v := range map[Word]uint32{Length: uint32(len(p)), Program: ProgramRemote, Version: 1, Procedure: procedure, Type: kind, Serial: serial} {
		binary.BigEndian.PutUint32(p[4*w:], v)
	}
	return p
}

// echo is a daemon that answers each call with its own payload.
func echo(t *testing.T, dir string) (socket string) {
	t.Helper()
	socket = filepath.Join(dir, "daemon")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // which ends the loop below
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					p, err := readPacket(c)
					if err != nil {
						return
					}
					binary.BigEndian.PutUint32(p[4*Type:], 1)
					if _, err := c.Write(p); err != nil {
						return
					}
				}
			}()
		}
	}()
	return socket
}

// between gives a proxy before a daemon that echoes, and a way to it.
func between(t *testing.T) (*Proxy, func() net.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rpcproxy-") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a folder of the system's, emptied some day
	daemon := echo(t, dir)
	socket := filepath.Join(dir, "proxy")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return Start(t, l, daemon), func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // a second close is harmless
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func send(t *testing.T, c net.Conn, ps ...Packet) {
	t.Helper()
	for _, p := range ps {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
	}
}

func receive(t *testing.T, c net.Conn) Packet {
	t.Helper()
	p, err := readPacket(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ends(t *testing.T, c net.Conn) (before int) {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the connection does not end: %v", err)
	}
	return len(b)
}

func TestProxy_MeetsTheNthOfAProcedureInOneDirection(t *testing.T) {
	p, dial := between(t)
	c := dial()
	r := p.Add(Match{Kind: Reply, Procedure: 5, Skip: 1}, Drop)
	send(t, c, packet(0, 5, 1), packet(0, 6, 2), packet(0, 5, 3), packet(0, 5, 4))
	for _, want := range []uint32{1, 2, 4} {
		if got := receive(t, c).Head(Serial); got != want {
			t.Errorf("answer %d, want %d", got, want)
		}
	}
	<-r.Met()
	if r.Count() != 1 {
		t.Errorf("it met %d packets, want 1", r.Count())
	}
}

func TestProxy_ALateAnswerLetsOthersPass(t *testing.T) {
	p, dial := between(t)
	c := dial()
	hold := make(chan struct{})
	r := p.Add(ReplyOf(5), Action{Hold: hold})
	send(t, c, packet(0, 5, 1))
	<-r.Met()
	send(t, c, packet(0, 5, 2))
	if got := receive(t, c).Head(Serial); got != 2 {
		t.Errorf("answer %d, want 2", got)
	}
	close(hold)
	if got := receive(t, c).Head(Serial); got != 1 {
		t.Errorf("answer %d, want 1", got)
	}
}

func TestProxy_CutsBeforeAndAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		a    Action
		want int // bytes that come before the end
	}{
		"instead": {CutInstead, 0}, "after": {CutAfter, headSize + 4}, "in the middle": {Truncate(30), 30},
	} {
		p, dial := between(t)
		c := dial()
		p.Add(ReplyOf(5), tt.a)
		send(t, c, packet(0, 5, 1, 1, 2, 3, 4))
		if got := ends(t, c); got != tt.want {
			t.Errorf("%s: %d bytes came, want %d", name, got, tt.want)
		}
	}
}

func TestProxy_ChangesAndRepeats(t *testing.T) {
	p, dial := between(t)
	c := dial()
	for _, a := range []Action{Set(Status, 7), Payload(0, 9), Shorten(4), Twice, Garbage(headSize, 1)} {
		p.Add(ReplyOf(5), a)
		send(t, c, packet(0, 5, 1, 0, 0, 0, 1))
	}
	if got := receive(t, c).Head(Status); got != 7 {
		t.Errorf("status %d, want 7", got)
	}
	if got := binary.BigEndian.Uint32(receive(t, c).Payload()); got != 9 {
		t.Errorf("payload %d, want 9", got)
	}
	if got := receive(t, c); len(got) != headSize || got.Head(Length) != headSize {
		t.Errorf("%d bytes, want %d", len(got), headSize)
	}
	if a, b := receive(t, c), receive(t, c); a.Head(Serial) != b.Head(Serial) {
		t.Error("the repeated answer is another's")
	}
	garbage := make([]byte, headSize)
	if _, err := io.ReadFull(c, garbage); err != nil {
		t.Fatal(err)
	}
}

func TestProxy_RefusesAndCutsAll(t *testing.T) {
	p, dial := between(t)
	c := dial()
	send(t, c, packet(0, 5, 1))
	receive(t, c)
	p.CutAll()
	ends(t, c)
	p.Refuse(true)
	ends(t, dial())
	p.Refuse(false)
	c = dial()
	send(t, c, packet(0, 5, 2))
	receive(t, c)
	if p.Accepted() != 3 {
		t.Errorf("%d connections, want 3", p.Accepted())
	}
}
