package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
)

// Role is what a certificate's holder may be.
type Role string

// The roles. A CA or a certificate without any name is RoleNone.
const (
	RoleHost     Role = "host"
	RoleOperator Role = "operator"
	RoleReader   Role = "reader" // may look at what an operator may, and change nothing
	RoleCA       Role = "ca"
	RoleNone     Role = "none"
)

const (
	operatorURN = "urn:berth:operator:"
	readerURN   = "urn:berth:reader:"
)

// RoleOf reads the role and the name from a certificate. The name of a host is
// its first DNS name or IP address; Names gives them all. It verifies nothing.
func RoleOf(c *x509.Certificate) (Role, string) {
	if c.IsCA {
		return RoleCA, c.Subject.CommonName
	}
	// A reader that is named as an operator too may no more than read.
	for _, is := range []struct {
		urn  string
		role Role
	}{{readerURN, RoleReader}, {operatorURN, RoleOperator}} {
		for _, u := range c.URIs {
			if name, ok := strings.CutPrefix(u.String(), is.urn); ok {
				return is.role, name
			}
		}
	}
	if names := Names(c); len(names) > 0 {
		return RoleHost, names[0]
	}
	return RoleNone, ""
}

// Names are the DNS names and IP addresses that a certificate is good for.
func Names(c *x509.Certificate) []string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// Describe is one line about a certificate, for refusals: who it names, who
// signed it.
func Describe(c *x509.Certificate) string {
	role, name := RoleOf(c)
	if role == RoleHost {
		name = strings.Join(Names(c), ", ")
	}
	if name == "" {
		name = "no name (subject " + c.Subject.String() + ")"
	}
	return fmt.Sprintf("%s certificate of %s, signed by %q", role, name, c.Issuer.CommonName)
}

// Paths are the three files of an identity.
type Paths struct{ CA, Cert, Key string }

// Identity is a certificate with its key, and the authorities it believes.
type Identity struct {
	Certificate tls.Certificate
	Leaf        *x509.Certificate
	Roots       *x509.CertPool
	// CAName is the common name of the first authority, for messages.
	CAName string
	// Authorities are those by which the certificate is good, from the one that signed it to the
	// one that is believed; where there are several ways, those of the way that lasts longest.
	Authorities []*x509.Certificate
}

// Load reads an identity and checks that it is whole: the key belongs to the
// certificate, the CA signed it, it is valid now.
func Load(p Paths, now time.Time) (*Identity, error) {
	var files [3][]byte
	var missing error // every file that cannot be read, not the first alone
	for i, path := range []string{p.CA, p.Cert, p.Key} {
		text, err := os.ReadFile(path)
		switch {
		case err == nil:
			files[i] = text
		case missing == nil:
			missing = err
		default:
			missing = fmt.Errorf("%w; %w", missing, err)
		}
	}
	if missing != nil {
		return nil, fault.New(fault.Invalid, "load certificates: %w", missing)
	}
	caPEM := files[0]
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		return nil, fault.New(fault.Invalid, "load certificates: %s holds no certificate", p.CA)
	}
	pair, err := tls.X509KeyPair(files[1], files[2])
	if err != nil {
		return nil, fault.New(fault.Invalid, "load certificates: %s and %s: %w", p.Cert, p.Key, err)
	}
	leaf := pair.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("load certificates: %s: %w", p.Cert, err)
		}
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates(pair.Certificate), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "load certificates: %s is not good under %s: %w", p.Cert, p.CA, err)
	}
	id := &Identity{Certificate: pair, Leaf: leaf, Roots: pool, Authorities: longestLived(chains)}
	if ca, err := parseCert(caPEM); err == nil {
		id.CAName = ca.Subject.CommonName
	}
	return id, nil
}

// longestLived are the authorities of the chain of which the first to end ends last.
func longestLived(chains [][]*x509.Certificate) []*x509.Certificate {
	first := func(chain []*x509.Certificate) (end time.Time) {
		for _, c := range chain[1:] {
			if end.IsZero() || c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		return end
	}
	return slices.MaxFunc(chains, func(a, b []*x509.Certificate) int { return first(a).Compare(first(b)) })[1:]
}

func intermediates(chain [][]byte) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, der := range chain[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			pool.AddCert(c)
		}
	}
	return pool
}

// VerifyClient says who a client is by the chain it presented: its role and
// leaf, or fault.Forbidden with every reason why it is nobody.
func (id *Identity) VerifyClient(chain []*x509.Certificate, now time.Time) (Role, *x509.Certificate, error) {
	const doing = "check the client's certificate"
	if len(chain) == 0 {
		return RoleNone, nil, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "certificate_missing", Message: "no client certificate was presented",
			Change: "connect with a certificate that " + id.caWords() + " signed",
		})
	}
	leaf := chain[0]
	pool := x509.NewCertPool()
	for _, c := range chain[1:] {
		pool.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: id.Roots, Intermediates: pool, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return RoleNone, nil, fault.Refuse(fault.Forbidden, doing, CertificateReason(err, Describe(leaf), "signed by "+id.caWords()))
	}
	role, _ := RoleOf(leaf)
	if role != RoleHost && role != RoleOperator && role != RoleReader {
		return RoleNone, nil, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "certificate_nameless", Message: "the " + Describe(leaf) + " names neither a host nor an operator",
			Change: "issue one: berth pki host NAME, or berth pki operator NAME",
		})
	}
	return role, leaf, nil
}

func (id *Identity) caWords() string {
	if id.CAName == "" {
		return "this host's CA"
	}
	return fmt.Sprintf("this host's CA %q", id.CAName)
}

// CertificateReason puts an error of certificate verification into a reason: who
// was met, what was wanted, what would have to change.
func CertificateReason(err error, met, wanted string) fault.Reason {
	r := fault.Reason{Code: "certificate_invalid", Message: fmt.Sprintf("the %s is not accepted: %v", met, err), Have: met, Want: wanted,
		Change: "present a certificate that is " + wanted}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		r.Code, r.Change = "certificate_expired", "renew the certificate, and compare the clocks of both hosts"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		r.Code = "certificate_unknown_authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		r.Code = "certificate_wrong_name"
	}
	return r
}

// Covers says whether a host certificate is good for a provider's name.
func Covers(c *x509.Certificate, name string) bool {
	if role, _ := RoleOf(c); role != RoleHost {
		return false
	}
	if ip := net.ParseIP(name); ip != nil {
		for _, have := range c.IPAddresses {
			if have.Equal(ip) {
				return true
			}
		}
		return false
	}
	for _, have := range c.DNSNames {
		// No wildcards: a certificate for *.example.org would be every host.
		if strings.EqualFold(have, name) {
			return true
		}
	}
	return false
}

// ReadCert reads the first certificate of a PEM file.
func ReadCert(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := parseCert(data)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read %s: %w", path, err)
	}
	return c, nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return nil, errors.New("no certificate in it")
		}
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fault.New(fault.Invalid, "read %s: no key in it", path)
	}
	if block.Type == "EC PRIVATE KEY" {
		return x509.ParseECPrivateKey(block.Bytes)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read %s: %w", path, err)
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fault.New(fault.Invalid, "read %s: want an ECDSA key, found %T", path, k)
	}
	return key, nil
}
