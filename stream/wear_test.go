package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestStream_HoldsNoMoreThanItsBuffers(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	out, in := p.connected(p.memory())
	// QEMU at the destination reads nothing: the one at the source must come to a
	// stop. The bound is the kernel's for its own buffers, tcp_wmem and tcp_rmem.
	const bound = 32 << 20
	piece := bytes.Repeat([]byte{7}, 1<<20)
	sent := 0
	for sent <= bound {
		if err := out.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := out.Write(piece)
		sent += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if sent > bound {
		t.Errorf("%d bytes were taken that nobody reads", sent)
	}
	if err := out.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, in); n != int64(sent) || err != nil {
		t.Errorf("of %d bytes came %d, %v", sent, n, err)
	}
}

func TestDestination_WaitsForAFullQueue(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	// As short as a queue can be: one connection waits, the next finds no room.
	path := p.dst.Paths(testID).Memory
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var conns []*net.UnixConn
	for range 4 {
		conns = append(conns, p.dial(p.src.Paths(testID).Memory))
	}
	p.until(p.dst, "all on their way", func(st Status) bool { return st.Of(Memory).Open == 4 })
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range conns {
		c := p.accept(l.(*net.UnixListener))
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Errorf("a connection that waited: %v", err)
		}
	}
}

func TestProcess_SurvivesItsLimitOfFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, Children{
		Command: []string{"/bin/sh", "-c", `ulimit -n 48; exec "$0" "$@"`, self, "stream-process"},
	})
	p.open()
	memory := p.memory()
	var held []net.Conn
	for range 60 {
		c, err := net.Dial("tcp", p.out.Address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		held = append(held, p.dial(p.src.Paths(testID).Memory))
	}
	p.until(p.dst, "at its limit", func(st Status) bool { return st.Refused > 0 })
	for _, c := range held {
		c.Close()
	}
	// What was opened of those that went away is still in the queue of what plays
	// QEMU; and both processes need a moment for what they held.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		out := p.dial(p.src.Paths(testID).Memory)
		if _, err := out.Write([]byte("again")); err != nil {
			continue
		}
		for {
			if err := memory.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			in, err := memory.AcceptUnix()
			if err != nil {
				break
			}
			p.deadline(in)
			got, err := io.ReadAll(io.LimitReader(in, 5))
			in.Close()
			if err == nil && string(got) == "again" {
				return
			}
		}
	}
	t.Error("no connection was let in any more")
}

func TestStream_SurvivesTheRotationOfItsCertificates(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory := p.memory()
	old, oldIn := p.connected(memory)
	p.says(old, oldIn, "before")
	first := p.status(p.dst).Certificate

	// Half a pair: a new certificate, and still the old key.
	next := filepath.Join(p.root, "next")
	if _, err := p.ca.IssueHost(next, "host-b", nil, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	p.put(hostFiles(next).Cert, p.in.PKI.Cert)
	st := p.until(p.dst, "told", func(st Status) bool { return st.CertificateError != "" })
	if !st.Certificate.Equal(first) {
		t.Errorf("half a pair is used: %v, it was %v", st.Certificate, first)
	}
	a, b := p.connected(memory)
	p.says(a, b, "by the last good pair")

	p.put(hostFiles(next).Key, p.in.PKI.Key)
	st = p.until(p.dst, "read", func(st Status) bool { return st.CertificateError == "" })
	if st.Certificate.Equal(first) {
		t.Error("the new pair is not used")
	}
	a, b = p.connected(memory)
	p.says(a, b, "by the new pair")

	// Files that are gone, for a while.
	if err := os.Rename(p.in.PKI.Key, p.in.PKI.Key+".away"); err != nil {
		t.Fatal(err)
	}
	a, b = p.connected(memory)
	p.says(a, b, "by what was read before")
	p.says(old, oldIn, "and the first one never noticed")
}

// A certificate may become good without a change of its file: by the hour.
func TestCertificates_WhatCouldNotBeUsedIsReadAgain(t *testing.T) {
	p := newPair(t, inside(t))
	c, err := newCertificates(p.in.PKI)
	if err != nil {
		t.Fatal(err)
	}
	c.err = errors.New("not valid before the hour")
	if _, err := c.state(); err != nil {
		t.Errorf("the same files, an hour later: %v", err)
	}
}

func (p *pair) put(from, to string) {
	p.t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func TestStream_TheRevokedNameIsRefusedAfterRotation(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	p.memory()
	// The source's files now name somebody else.
	dir := p.issue("other", "host-x")
	p.put(dir.Cert, p.out.PKI.Cert)
	p.put(dir.Key, p.out.PKI.Key)
	p.ends(p.dial(p.src.Paths(testID).Memory))
	p.until(p.dst, "refused", func(st Status) bool { return strings.Contains(st.LastRefusal, "is not host-a") })
}

func TestDestination_FollowsNoLinkThatQEMULeft(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory := p.dst.Paths(testID).Memory
	targets := map[string]func() error{
		"a link to libvirt": func() error { return os.Symlink(p.in.Libvirt, memory) },
		"a file":            func() error { return os.WriteFile(memory, nil, 0o600) },
		"nothing":           func() error { return nil },
	}
	if os.Geteuid() == 0 {
		targets["another user's socket"] = func() error {
			p.memory()
			return os.Chown(memory, 65534, 65534)
		}
	}
	for name, make := range targets {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		p.ends(p.dial(p.src.Paths(testID).Memory))
		if err := os.Remove(memory); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := p.libvirt.SetDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		if c, err := p.libvirt.Accept(); err == nil {
			c.Close()
			t.Errorf("%s: libvirt was reached", name)
		}
	}
	if st := p.status(p.dst); st.Refused != len(targets) {
		t.Errorf("%d were refused, want %d: %s", st.Refused, len(targets), st.LastRefusal)
	}
}

func TestTend_GivesADeadPeerUpInTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := tend(c.(*net.TCPConn), time.Minute); err != nil {
		t.Fatal(err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	if err := raw.Control(func(fd uintptr) {
		for name, o := range map[string][2]int{
			"on": {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, "idle": {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, "interval": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
			"count": {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, "user timeout": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		} {
			v, err := unix.GetsockoptInt(int(fd), o[0], o[1])
			if err != nil {
				t.Error(err)
			}
			got[name] = v
		}
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"on": 1, "idle": 30, "interval": 8, "count": 4, "user timeout": 60000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStream_ADeadlineIsForOpeningOnly(t *testing.T) {
	t.Parallel() // it waits
	const opening = 5 * time.Second
	p := newPair(t, goroutines{t: t, opening: opening})
	p.open()
	memory := p.memory()
	began := time.Now()
	out, in := p.connected(memory)
	p.says(out, in, "before")
	// Who says nothing is closed when the deadline is over.
	c, err := net.Dial("tcp", p.out.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.deadline(c)
	p.endsQuietly(c, "")
	if took := time.Since(began); took < opening {
		t.Errorf("silence was ended after %v, want %v", took, opening)
	}
	// Who was let in is not.
	p.says(out, in, "after")
	p.says(in, out, "after")
}
