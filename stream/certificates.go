package stream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

// certificates is this host's identity as the files have it now. A connection
// takes the newest that can be read whole; while the files are being replaced,
// and do not go together, the last good one serves.
type certificates struct {
	paths pki.Paths

	mu   sync.Mutex // guards what follows; files are read under it, which are small
	id   *pki.Identity
	seen [3]stamp
	err  error // why the files' newest content is not used
}

// stamp tells one content of a file from the next. Whoever writes in place within
// one tick of the clock and to the same size goes unnoticed; berth pki renames.
type stamp struct {
	inode uint64
	size  int64
	time  time.Time
}

// newCertificates reads the files; they must be good.
func newCertificates(p pki.Paths) (*certificates, error) {
	c := &certificates{paths: p}
	c.seen = c.look()
	var err error
	if c.id, err = pki.Load(p, time.Now()); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificates) look() (out [3]stamp) {
	for i, path := range []string{c.paths.CA, c.paths.Cert, c.paths.Key} {
		if fi, err := os.Stat(path); err == nil {
			out[i] = stamp{inode: inode(fi), size: fi.Size(), time: fi.ModTime()}
		}
	}
	return out
}

// current is the identity for a new connection.
func (c *certificates) current() *pki.Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	// What could not be used is read again each time: it may have become readable,
	// or good, without a change that is seen.
	if now := c.look(); now != c.seen || c.err != nil {
		id, err := pki.Load(c.paths, time.Now())
		if c.err = err; err == nil {
			c.id = id
		}
		c.seen = now
	}
	return c.id
}

// state is for Status.
func (c *certificates) state() (notAfter time.Time, err error) {
	id := c.current()
	c.mu.Lock()
	defer c.mu.Unlock()
	return id.Leaf.NotAfter, c.err
}

// server is the destination's side of a handshake.
func (c *certificates) server(peer string) *tls.Config {
	id := c.current()
	t := plainTLS(id)
	// Asked for here and judged below: Go's own check knows no roles.
	t.ClientAuth = tls.RequireAnyClientCert
	t.VerifyConnection = func(s tls.ConnectionState) error {
		_, leaf, err := id.VerifyClient(s.PeerCertificates, time.Now())
		if err != nil {
			return err
		}
		return mustBe(leaf, peer)
	}
	return t
}

// client is the source's side.
func (c *certificates) client(peer string) *tls.Config {
	id := c.current()
	t := plainTLS(id)
	// Go's check would take wildcards for names, and any certificate of the CA that
	// has the name for a host's; VerifyConnection takes its place.
	t.InsecureSkipVerify = true
	t.VerifyConnection = func(s tls.ConnectionState) error {
		leaf := s.PeerCertificates[0]
		pool := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			pool.AddCert(c)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{
			Roots: id.Roots, Intermediates: pool, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}); err != nil {
			return fault.Refuse(fault.Forbidden, "check the destination's certificate",
				pki.CertificateReason(err, pki.Describe(leaf), fmt.Sprintf("signed by this host's CA %q", id.CAName)))
		}
		return mustBe(leaf, peer)
	}
	return t
}

func plainTLS(id *pki.Identity) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{id.Certificate},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{protocol},
		// Each connection proves who it is: none is let in by an earlier one's word.
		SessionTicketsDisabled: true,
		// Full records from the first byte on: nobody waits for a first line here.
		DynamicRecordSizingDisabled: true,
	}
}

// protocol is this protocol's name in the handshake (ALPN). Another version of the
// frame has another name, and two that do not know each other do not connect.
const protocol = "berth-stream/1"

// mustBe asks for a host's certificate with the peer's name in it.
func mustBe(leaf *x509.Certificate, peer string) error {
	if pki.Covers(leaf, peer) {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "check the peer's certificate", fault.Reason{
		Code: "certificate_wrong_name", Message: fmt.Sprintf("the %s is not %s", pki.Describe(leaf), peer), Want: peer, Have: pki.Describe(leaf),
	})
}
