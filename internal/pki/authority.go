package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"berth/internal/fault"
)

// The names of the files, in a CA's folder and in a host's or operator's.
const (
	CACertFile       = "ca.crt"
	CAKeyFile        = "ca.key"
	HostCertFile     = "host.crt"
	HostKeyFile      = "host.key"
	OperatorCertFile = "operator.crt"
	OperatorKeyFile  = "operator.key"
)

// How long certificates live. Two years is arbitrary: long enough that nobody
// renews in the middle of a project, short enough that renewal is practised.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 2 * 365 * 24 * time.Hour
	// skew lets a certificate be used at once by a host whose clock is behind.
	skew = time.Hour
)

// Authority is a CA that can sign: its certificate and key.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Init makes a CA in dir and writes ca.crt and ca.key. A folder that has either
// file already is refused as fault.Exists unless force is set: every certificate
// signed by the old one would be worthless.
func Init(dir, name string, now time.Time, force bool) (*Authority, error) {
	if !force {
		for _, f := range []string{CACertFile, CAKeyFile} {
			path := filepath.Join(dir, f)
			if _, err := os.Lstat(path); err == nil {
				return nil, fault.Refuse(fault.Exists, "make a certificate authority", fault.Reason{
					Code: "ca_exists", Message: path + " is there already",
					Change: "use it, choose another folder, or say --force (every certificate it signed becomes worthless)",
				})
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("make a certificate authority: %w", err)
			}
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: []string{"Berth"}},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // signs hosts and operators, never another CA
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA's certificate: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the CA's folder: %w", err)
	}
	// The key first: a certificate whose key was lost is the worse half.
	if err := writeKey(filepath.Join(dir, CAKeyFile), key); err != nil {
		return nil, err
	}
	if err := writeCert(filepath.Join(dir, CACertFile), der); err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the CA's certificate: %w", err)
	}
	return &Authority{Cert: cert, key: key}, nil
}

// Open reads the CA of dir. fault.NotFound says that there is none.
func Open(dir string) (*Authority, error) {
	cert, err := ReadCert(filepath.Join(dir, CACertFile))
	if err != nil {
		return nil, openError(dir, err)
	}
	key, err := readKey(filepath.Join(dir, CAKeyFile))
	if err != nil {
		return nil, openError(dir, err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fault.New(fault.Invalid, "open the CA in %s: %s does not belong to %s", dir, CAKeyFile, CACertFile)
	}
	return &Authority{Cert: cert, key: key}, nil
}

func openError(dir string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Refuse(fault.NotFound, "open the CA in "+dir, fault.Reason{
			Code: "no_ca", Message: err.Error(), Change: "make one: berth pki init " + dir,
		})
	}
	return fmt.Errorf("open the CA in %s: %w", dir, err)
}

var leafName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// IssueHost signs a certificate for the host whose provider is called name, good
// for the extra names and IP addresses too, and writes ca.crt, host.crt and
// host.key into dir. What is there is replaced: a renewed certificate is normal. It claims
// the rights given, and no others: also those that the old one had are given anew.
func (a *Authority) IssueHost(dir, name string, sans []string, now time.Time, rights ...Right) (*x509.Certificate, error) {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"Berth"}, OrganizationalUnit: []string{"host"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	seen := map[string]bool{}
	for _, san := range append([]string{name}, sans...) {
		if seen[san] {
			continue
		}
		seen[san] = true
		if ip := net.ParseIP(san); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
			continue
		}
		if !leafName.MatchString(san) {
			return nil, fault.New(fault.Invalid, "sign a host certificate: %q is neither a host name nor an IP address", san)
		}
		t.DNSNames = append(t.DNSNames, san)
	}
	if err := addRights(t, RoleHost, rights); err != nil {
		return nil, err
	}
	return a.issue(dir, HostCertFile, HostKeyFile, t, now)
}

// IssueOperator signs a certificate for a person or tool and writes ca.crt,
// operator.crt and operator.key into dir. It claims the rights given, and no others.
func (a *Authority) IssueOperator(dir, name string, now time.Time, rights ...Right) (*x509.Certificate, error) {
	return a.issuePerson(dir, RoleOperator, operatorURN, name, now, rights)
}

// IssueReader is IssueOperator for one who may look and change nothing. An agent or an
// embedded Placement that knows no readers refuses the certificate.
func (a *Authority) IssueReader(dir, name string, now time.Time) (*x509.Certificate, error) {
	return a.issuePerson(dir, RoleReader, readerURN, name, now, nil)
}

func (a *Authority) issuePerson(dir string, role Role, urn, name string, now time.Time, rights []Right) (*x509.Certificate, error) {
	if !leafName.MatchString(name) {
		return nil, fault.New(fault.Invalid, "sign an operator certificate: name %q: want letters, digits, dots, dashes or underscores", name)
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"Berth"}, OrganizationalUnit: []string{string(role)}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "urn", Opaque: strings.TrimPrefix(urn, "urn:") + name}},
	}
	if err := addRights(t, role, rights); err != nil {
		return nil, err
	}
	return a.issue(dir, OperatorCertFile, OperatorKeyFile, t, now)
}

func (a *Authority) issue(dir, certFile, keyFile string, t *x509.Certificate, now time.Time) (*x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", t.Subject.CommonName, err)
	}
	if t.SerialNumber, err = serialNumber(); err != nil {
		return nil, err
	}
	t.NotBefore = now.Add(-skew)
	t.NotAfter = now.Add(leafLife)
	if t.NotAfter.After(a.Cert.NotAfter) {
		t.NotAfter = a.Cert.NotAfter // a leaf that outlives its CA only looks alive
	}
	t.BasicConstraintsValid = true
	t.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	der, err := x509.CreateCertificate(rand.Reader, t, a.Cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", t.Subject.CommonName, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of %s: %w", t.Subject.CommonName, err)
	}
	if err := writeKey(filepath.Join(dir, keyFile), key); err != nil {
		return nil, err
	}
	if err := writeCert(filepath.Join(dir, certFile), der); err != nil {
		return nil, err
	}
	if err := writeCert(filepath.Join(dir, CACertFile), a.Cert.Raw); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// serialNumber is 159 random bits: RFC 5280 allows 20 octets, positive.
func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 159))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	// PKCS #8 is the one form that OpenSSL, GnuTLS and Go all read.
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeAtomic(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func writeCert(path string, der []byte) error {
	return writeAtomic(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// writeAtomic gives the file its mode before it gets its name, so that a key is
// never readable by others, not even for a moment.
func writeAtomic(path string, data []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}
