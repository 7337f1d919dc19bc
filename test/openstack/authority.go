package openstack

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/pki"
)

// Authority signs the certificates of services that are reached by TLS. A nil one
// stands for plain HTTP.
type Authority struct {
	CA string // the file with its certificate

	cert, key string // of a server on loopback
	roots     *x509.CertPool
}

// NewAuthority makes one, with a certificate for every service of the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	dir := folder(t)
	a, err := pki.Init(dir, "a cloud", time.Now(), false)
	must(t, err)
	_, err = a.IssueHost(dir, "localhost", []string{"127.0.0.1"}, time.Now())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(a.Cert)
	return &Authority{
		CA: filepath.Join(dir, pki.CACertFile), cert: filepath.Join(dir, pki.HostCertFile), key: filepath.Join(dir, pki.HostKeyFile), roots: roots,
	}
}

// trust is what its services are reached with.
func (a *Authority) trust() *tls.Config {
	if a == nil {
		return nil
	}
	return &tls.Config{RootCAs: a.roots, MinVersion: tls.VersionTLS12}
}
