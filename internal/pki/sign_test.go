package pki_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

// authority signs certificates of any kind and key, as a site's own might.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := ecKey(t)
	return &authority{t, certify(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: began.Add(-10 * year), NotAfter: began.Add(20 * year),
	}, nil, key, key), key}
}

const year = 365 * 24 * time.Hour

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func certify(t *testing.T, template, parent *x509.Certificate, key crypto.Signer, by crypto.Signer) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(1)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ecKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// identity is of a host, good for a year from began.
func (a *authority) identity(name string, key crypto.Signer, change ...func(*x509.Certificate)) *pki.Identity {
	a.t.Helper()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: began, NotAfter: began.Add(year), DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	for _, f := range change {
		f(c)
	}
	leaf := certify(a.t, c, a.cert, key, a.key)
	return &pki.Identity{Certificate: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}, Leaf: leaf, Roots: a.roots()}
}

func (a *authority) roots(others ...*authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, x := range append(others, a) {
		pool.AddCert(x.cert)
	}
	return pool
}

func TestSeal_EveryKindOfKeyAndNobodyElses(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// 2048 bits are the least that Go's TLS takes.
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	record, at := []byte("the record"), began.Add(year/2)
	source, reader := ours.identity("host-a", ecKey(t)), ours.identity("host-b", ecKey(t))
	sign := func(id *pki.Identity, at time.Time) pki.Signature {
		t.Helper()
		s, err := id.Sign("commit", record, at)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := sign(source, at)
	changed := func(f func(*pki.Signature)) pki.Signature {
		s := good
		s.Value = append([]byte(nil), good.Value...)
		f(&s)
		return s
	}
	operator := func(c *x509.Certificate) {
		c.DNSNames, c.URIs = nil, []*url.URL{{Scheme: "urn", Opaque: "berth:operator:host-a"}}
	}
	both := func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "urn", Opaque: "berth:operator:host-a"}} }
	old := *reader
	old.Roots = theirs.roots(ours) // a site that changes its CA believes both for a while
	middle := newMiddle(t, ours)

	for _, c := range []struct {
		name string
		s    pki.Signature
		by   *pki.Identity // who checks; nil for reader
		at   time.Time     // by the reader's clock; zero for at
		want string        // reason; empty for a good one
	}{
		{name: "good", s: good},
		{name: "made with RSA", s: sign(ours.identity("host-a", rsaKey), at)},
		{name: "made with Ed25519", s: sign(ours.identity("host-a", ed), at)},
		{name: "made with P-384", s: sign(ours.identity("host-a", wide), at)},
		{name: "below an intermediate CA", s: sign(middle, at)},
		{name: "by a certificate that was replaced since", s: sign(ours.identity("host-a", ecKey(t)), at)},
		{name: "by one that has run out since", s: good, at: began.Add(2 * year)},
		{name: "read where several CAs are believed", s: good, by: &old},
		{name: "a reader whose clock is behind", s: good, at: at.Add(-30 * time.Minute)},
		{name: "of another spelling of its name", s: sign(ours.identity("HOST-A", ecKey(t)), at)},

		{name: "none", want: "seal_missing"},
		{name: "of a time to come", s: good, at: at.Add(-2 * time.Hour), want: "seal_from_the_future"},
		{name: "by one that had run out then", s: sign(source, began.Add(2*year)), at: began.Add(3 * year), want: "certificate_expired"},
		{name: "by one that was not valid yet", s: sign(source, began.Add(-time.Hour)), want: "certificate_expired"},
		{name: "moved to another time", s: changed(func(s *pki.Signature) { s.At = s.At.Add(time.Nanosecond) }), want: "seal_broken"},
		{name: "forged", s: changed(func(s *pki.Signature) { s.Value[len(s.Value)-1] ^= 1 }), want: "seal_broken"},
		{name: "not a signature at all", s: changed(func(s *pki.Signature) { s.Value = []byte{1} }), want: "seal_broken"},
		{name: "another host's, with its own certificate", s: sign(ours.identity("host-c", ecKey(t)), at), want: "certificate_wrong_name"},
		{name: "another host's, with the true one's certificate", want: "seal_broken", s: changed(func(s *pki.Signature) {
			s.Value = sign(ours.identity("host-c", ecKey(t)), at).Value
		})},
		{name: "of a wildcard", s: sign(ours.identity("*", ecKey(t), func(c *x509.Certificate) { c.DNSNames = []string{"*.example.org"} }), at), want: "certificate_wrong_name"},
		{name: "an operator's of that name", s: sign(ours.identity("host-a", ecKey(t), operator), at), want: "certificate_wrong_name"},
		{name: "an operator's that is also called like a host", s: sign(ours.identity("host-a", ecKey(t), both), at), want: "certificate_wrong_name"},
		{name: "of another CA", s: sign(theirs.identity("host-a", ecKey(t)), at), want: "certificate_unknown_authority"},
		{name: "a server's alone", want: "certificate_invalid", s: sign(ours.identity("host-a", ecKey(t), func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), at)},
		{name: "a certificate that cannot be read", s: changed(func(s *pki.Signature) { s.Chain = [][]byte{{1}} }), want: "seal_invalid"},
		{name: "more certificates than anybody has", s: changed(func(s *pki.Signature) { s.Chain = slices.Repeat(s.Chain[:1], 9) }), want: "seal_invalid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			by, now := c.by, c.at
			if by == nil {
				by = reader
			}
			if now.IsZero() {
				now = at
			}
			err := by.Verify("commit", record, c.s, "host-a", now)
			if c.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			r := fault.ReasonsOf(err)
			if !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != c.want || r[0].Change == "" {
				t.Errorf("%v (%+v), want it refused as %s, with what to do", err, r, c.want)
			}
		})
	}
	if err := reader.Verify("commit", []byte("the recorD"), good, "host-a", at); err == nil {
		t.Error("another record by the same seal")
	}
	if err := reader.Verify("something else", record, good, "host-a", at); err == nil {
		t.Error("the same record as one of another kind")
	}
	if err := reader.Verify("comm", append([]byte("it"), record...), good, "host-a", at); err == nil {
		t.Error("a record of which the kind took a part")
	}
}

// newMiddle is an identity below a CA below a.
func newMiddle(t *testing.T, a *authority) *pki.Identity {
	t.Helper()
	key := ecKey(t)
	ca := certify(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "middle"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: began, NotAfter: began.Add(5 * year),
	}, a.cert, key, a.key)
	id := (&authority{t, ca, key}).identity("host-a", ecKey(t))
	id.Certificate.Certificate = append(id.Certificate.Certificate, ca.Raw)
	return id
}
