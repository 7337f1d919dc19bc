package stream

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/pki"
)

// stranger is somebody on the network who wants to be let in.
type stranger struct {
	p       *pair
	pki     pki.Paths // none shows no certificate
	version uint16    // 0 is TLS 1.3
	id      ID
	ticket  Ticket
	channel byte
	frame   []byte // sent in place of a first frame
	changed bool   // the channel is another than the one that was proven
}

// knock gives what came back after the handshake, if anything, and why it ended.
func (s stranger) knock(t *testing.T) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", s.p.out.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.p.deadline(conn)
	conf := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}, MinVersion: s.version, MaxVersion: s.version}
	if s.pki.Cert != "" {
		id, err := tls.LoadX509KeyPair(s.pki.Cert, s.pki.Key)
		if err != nil {
			t.Fatal(err)
		}
		// Whatever the server says whom it believes: this is what is shown.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &id, nil }
	}
	c := tls.Client(conn, conf)
	if err := c.Handshake(); err != nil {
		return "", err
	}
	h, err := newHello(s.id, Memory, s.ticket.key(), c.ConnectionState())
	if err != nil {
		t.Fatal(err)
	}
	if s.channel != 0 {
		h[20] = s.channel
		proof, err := prove(s.ticket.key(), h[:helloNamed], c.ConnectionState())
		if err != nil {
			t.Fatal(err)
		}
		copy(h[helloNamed:], proof)
	}
	if s.changed {
		h[20] = byte(placeOf(Disks))
	}
	frame := s.frame
	if frame == nil {
		frame = h[:]
	}
	if _, err := c.Write(frame); err != nil {
		return "", err
	}
	if s.frame != nil {
		if err := c.CloseWrite(); err != nil {
			return "", err
		}
	}
	got, err := io.ReadAll(io.LimitReader(c, 1))
	return string(got), err
}

func TestDestination_LetsNobodyInWithoutCertificateAndTicket(t *testing.T) {
	p := newPair(t, inside(t))
	p.openDestination()
	memory := p.memory()
	other, err := pki.Init(filepath.Join(p.root, "ca2"), "test", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(p.root, "forged")
	if _, err := other.IssueHost(forged, "host-a", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	expired := filepath.Join(p.root, "expired")
	if _, err := p.ca.IssueHost(expired, "host-a", nil, time.Now().AddDate(-20, 0, 0)); err != nil {
		t.Fatal(err)
	}
	operator := filepath.Join(p.root, "operator")
	if _, err := p.ca.IssueOperator(operator, "host-a", time.Now()); err != nil {
		t.Fatal(err)
	}
	right := stranger{p: p, pki: p.out.PKI, id: testID, ticket: p.ticket}
	for _, tt := range []struct {
		name   string
		change func(*stranger)
		why    string
	}{
		{"no certificate", func(s *stranger) { s.pki = pki.Paths{} }, "client didn't provide a certificate"},
		{"another authority's certificate", func(s *stranger) { s.pki = hostFiles(forged) }, "not accepted"},
		{"another host's certificate", func(s *stranger) { s.pki = p.issue("host-c", "host-c") }, "is not host-a"},
		{"an operator's certificate", func(s *stranger) {
			s.pki = pki.Paths{Cert: filepath.Join(operator, "operator.crt"), Key: filepath.Join(operator, "operator.key")}
		}, "is not host-a"},
		{"an expired certificate", func(s *stranger) { s.pki = hostFiles(expired) }, "expired"},
		{"an older TLS", func(s *stranger) { s.version = tls.VersionTLS12 }, "unsupported versions"},
		{"another ticket", func(s *stranger) { s.ticket = NewTicket() }, "its ticket is not this stream's"},
		{"another migration", func(s *stranger) { s.id.Migration = testGuest }, "it is for stream " + testGuest},
		{"another attempt", func(s *stranger) { s.id.Attempt = 2 }, "it is for stream " + testMigration + "-2"},
		{"a channel that was not proven", func(s *stranger) { s.changed = true }, "its ticket is not this stream's"},
		{"a channel that is not known", func(s *stranger) { s.channel = 3 }, "channel 3"},
		{"half a frame", func(s *stranger) { s.frame = make([]byte, helloSize-1) }, "no whole first frame"},
		{"a frame of zeros", func(s *stranger) { s.frame = make([]byte, helloSize) }, "it is for stream 00000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := p.status(p.dst)
			s := right
			tt.change(&s)
			got, err := s.knock(t)
			if got != "" {
				t.Errorf("it was answered %q, %v", got, err)
			}
			st := p.until(p.dst, "refused", func(st Status) bool { return st.Refused > before.Refused })
			if !strings.Contains(st.LastRefusal, tt.why) {
				t.Errorf("refused for %q, want %q", st.LastRefusal, tt.why)
			}
			if st.Open != 0 || st.Of(Memory).Total != 0 {
				t.Errorf("it was let in: %+v", st)
			}
		})
	}
	// Who has both is let in, so that the above was refused for what it says.
	if got, err := right.knock(t); got != string([]byte{welcome}) {
		t.Errorf("who has certificate and ticket got %q, %v", got, err)
	}
	p.accept(memory)
}

func TestDestination_TakesAFrameOnOneConnectionOnly(t *testing.T) {
	p := newPair(t, inside(t))
	p.openDestination()
	p.memory()
	var seen tls.ConnectionState
	conn, err := net.Dial("tcp", p.out.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.deadline(conn)
	cert, err := newCertificates(p.out.PKI)
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, cert.client("host-b"))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	seen = c.ConnectionState()
	h, err := newHello(testID, Memory, p.ticket.key(), seen)
	if err != nil {
		t.Fatal(err)
	}
	s := stranger{p: p, pki: p.out.PKI, id: testID, ticket: p.ticket, frame: h[:]}
	if got, _ := s.knock(t); got != "" {
		t.Errorf("a frame of another connection was answered %q", got)
	}
	p.until(p.dst, "refused", func(st Status) bool { return strings.Contains(st.LastRefusal, "its ticket is not this stream's") })
}

func TestDestination_GarbageAndSilenceKeepNobodyOut(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory := p.memory()
	for _, text := range []string{"", "GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70000), "\x00\x00\x00\x1c\x20\x00\x80\x86"} {
		c, err := net.Dial("tcp", p.out.Address)
		if err != nil {
			t.Fatal(err)
		}
		p.deadline(c)
		go func() { _, _ = io.WriteString(c, text); _ = c.(*net.TCPConn).CloseWrite() }() // may be cut off before its end
		p.endsQuietly(c, text)
		c.Close()
	}
	// Many who say nothing, and do not go.
	var first net.Conn
	for i := range strangersMax + 8 {
		c, err := net.Dial("tcp", p.out.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			first = c
			p.deadline(c)
		}
	}
	out, in := p.connected(memory)
	p.says(out, in, "still here")
	// The oldest went, well before its time.
	p.endsQuietly(first, "")
}

// endsQuietly waits for the end, and wants nothing but a TLS alert before it.
func (p *pair) endsQuietly(c net.Conn, sent string) {
	p.t.Helper()
	got, err := io.ReadAll(io.LimitReader(c, 1<<10))
	if netErr, ok := err.(net.Error); ok && netErr.Timeout() {
		p.t.Errorf("after %.20q it was not closed", sent)
	}
	if len(got) > 7 || len(got) > 0 && got[0] != 21 {
		p.t.Errorf("after %.20q it was answered %q", sent, got)
	}
}

func TestDestination_AnExpiredTicketGetsNothing(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory := p.memory()
	s := stranger{p: p, pki: p.out.PKI, id: testID, ticket: p.ticket}
	if got, err := s.knock(t); got == "" {
		t.Fatalf("within its lease the ticket got nothing: %v", err)
	}
	p.accept(memory).Close()
	p.until(p.dst, "closed", func(st Status) bool { return st.Open == 0 })
	if _, err := p.dst.Renew(t.Context(), testID, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	// Before the process has looked at its lease, and after it has ended.
	c := p.dial(p.src.Paths(testID).Memory)
	p.ends(c)
	p.gone(p.dst)
	p.ends(p.dial(p.src.Paths(testID).Memory))
	if c, err := net.Dial("tcp", p.out.Address); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
}

func TestProcess_WhatIsOpenKeepsTheTicketGood(t *testing.T) {
	now := time.Duration(0)
	p := &process{lease: time.Minute, most: 100, boot: func() time.Duration { return now }, cancel: func() {}}
	leave, err := p.admit(Control)
	if err != nil {
		t.Fatal(err)
	}
	now = time.Hour
	p.expire()
	if p.over != "" {
		t.Errorf("with a connection open it ended: %s", p.over)
	}
	leaveMemory, err := p.admit(Memory)
	if err != nil {
		t.Fatalf("with a connection open, after the lease: %v", err)
	}
	leave()
	leaveMemory()
	p.renew(time.Minute)
	p.expire()
	if p.over != "" {
		t.Errorf("with its lease renewed it ended: %s", p.over)
	}
	now += time.Minute
	if _, err := p.admit(Memory); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with nothing open, after the lease: %v", err)
	}
	p.renew(time.Hour)
	if _, err := p.admit(Memory); err == nil {
		t.Error("a process that is over came back to life")
	}
}

func TestProcess_EndsWithItsLease(t *testing.T) {
	ended := false
	p := &process{lease: time.Minute, boot: func() time.Duration { return time.Minute }, cancel: func() { ended = true }}
	p.expire()
	if !ended {
		t.Error("its lease is over, and it goes on")
	}
}

func TestProcess_BoundsItsConnections(t *testing.T) {
	p := &process{lease: time.Minute, most: openMax[0] + 1, boot: func() time.Duration { return 0 }}
	for i := range openMax[0] {
		if _, err := p.admit(Control); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if _, err := p.admit(Control); err == nil {
		t.Error("one more than the channel may have was let in")
	}
	if _, err := p.admit(Memory); err != nil {
		t.Errorf("another channel: %v", err)
	}
	if _, err := p.admit(Disks); err == nil {
		t.Error("one more than there are descriptors for was let in")
	}
	for files, want := range map[uint64][2]int{48: {6, 6}, 1024: {250, 250}, 4096: {512, 1186}, 1 << 40: {512, 349346}, 3: {1, 1}} {
		if strangers, most := shares(files); strangers != want[0] || most != want[1] {
			t.Errorf("of %d files %d are for strangers and %d for connections, want %v", files, strangers, most, want)
		}
	}
}

func TestSource_SendsNothingToAnImpostor(t *testing.T) {
	for _, tt := range []struct {
		name string
		pki  func(p *pair) pki.Paths
		why  string
	}{
		{"another host", func(p *pair) pki.Paths { return p.issue("host-c", "host-c") }, "is not host-b"},
		{"another authority", func(p *pair) pki.Paths {
			ca, err := pki.Init(filepath.Join(p.root, "ca2"), "test", time.Now(), false)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(p.root, "forged")
			if _, err := ca.IssueHost(dir, "host-b", nil, time.Now()); err != nil {
				t.Fatal(err)
			}
			return hostFiles(dir)
		}, "not accepted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, inside(t))
			id, err := newCertificates(tt.pki(p))
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p.out.Address = l.Addr().String()
			if _, err := p.src.Open(t.Context(), p.out); err != nil {
				t.Fatal(err)
			}
			c := p.dial(p.src.Paths(testID).Memory)
			if _, err := c.Write([]byte("the guest's memory")); err != nil {
				t.Fatal(err)
			}
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conf := id.server("host-a")
			s := tls.Server(conn, conf)
			got, err := io.ReadAll(s)
			if len(got) > 0 || err == nil {
				t.Errorf("the impostor got %q, %v", got, err)
			}
			st := p.until(p.src, "refused", func(st Status) bool { return st.Refused > 0 })
			if !strings.Contains(st.LastRefusal, tt.why) {
				t.Errorf("refused for %q, want %q", st.LastRefusal, tt.why)
			}
			p.ends(c)
		})
	}
}

func TestQuiet_BoundsTheLines(t *testing.T) {
	var q quiet
	said := 0
	for range 1000 {
		if say, _ := q.may(time.Second); say {
			said++
		}
	}
	if say, unsaid := q.may(11 * time.Second); !say || unsaid != 990 || said != 10 {
		t.Errorf("said %d, then %v with %d unsaid; want 10, then one with 990", said, say, unsaid)
	}
}

func TestOrder_RefusesWithEveryReason(t *testing.T) {
	err := Order{ID: ID{Migration: "x", Attempt: 0}, Role: Destination, FirstPort: 9, LastPort: 3, Listen: "host"}.check()
	for _, want := range []string{"no migration's uuid", "peer's name", "a ticket", "a lease", "paths of CA", "libvirt's socket", "URI", "listen on", "ports 9 to 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if s := fmt.Sprintf("%v %s", NewTicket(), Order{Ticket: NewTicket()}.Ticket); strings.Count(s, "(a ticket)") != 2 {
		t.Errorf("a ticket prints as %s", s)
	}
}
