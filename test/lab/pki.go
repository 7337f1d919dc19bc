package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// credentials are PEM: an authority's certificate, a host's, and its key.
type credentials struct{ ca, cert, key []byte }

// authority signs the hosts' certificates of one lab.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

// newAuthority makes a certificate authority that lives in memory only.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "berth lab authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{key: key, cert: cert, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// issue makes a host's certificate, good as server and as client. libvirt 9.0
// refuses certificates without keyEncipherment, for elliptic curves too.
func (a *authority) issue(h *Host) (credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return credentials{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return credentials{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: h.Name},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{h.Name, h.Name + "-mig", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(h.MgmtIP()), net.ParseIP(h.MigIP()), net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return credentials{}, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return credentials{}, err
	}
	return credentials{
		ca:   a.pem,
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}),
	}, nil
}

// readCredentials takes a host's from a folder: ca.crt, and host.crt and
// host.key in a folder named after the host, or NAME.crt and NAME.key.
func readCredentials(dir, name string) (c credentials, err error) {
	if c.ca, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		return c, err
	}
	stem := filepath.Join(dir, name, "host")
	if !exists(stem + ".crt") {
		stem = filepath.Join(dir, name)
	}
	if c.cert, err = os.ReadFile(stem + ".crt"); err != nil {
		return c, err
	}
	c.key, err = os.ReadFile(stem + ".key")
	return c, err
}

// InstallPKI gives the host an authority and a certificate, as Berth's own, as
// libvirt's and as QEMU's. dir is a folder as Options.PKI describes. libvirtd
// reads its certificates when it starts.
func (h *Host) InstallPKI(dir string) error {
	c, err := readCredentials(dir, h.Name)
	if err != nil {
		return fmt.Errorf("certificates of host %s: %w", h.Name, err)
	}
	return h.writePKI(c)
}

// writePKI lays the three out below the host's own /etc/berth and /etc/pki.
func (h *Host) writePKI(c credentials) error {
	var all []error
	put := func(path string, content []byte, mode os.FileMode) {
		path = h.Path(path)
		all = append(all, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, mode))
	}
	put("/etc/berth/pki/ca.crt", c.ca, 0o644)
	put("/etc/berth/pki/host.crt", c.cert, 0o644)
	put("/etc/berth/pki/host.key", c.key, 0o600)
	put("/etc/pki/CA/cacert.pem", c.ca, 0o644)
	put("/etc/pki/qemu/ca-cert.pem", c.ca, 0o644)
	for _, role := range []string{"server", "client"} {
		put("/etc/pki/libvirt/"+role+"cert.pem", c.cert, 0o644)
		put("/etc/pki/libvirt/private/"+role+"key.pem", c.key, 0o600)
		put("/etc/pki/qemu/"+role+"-cert.pem", c.cert, 0o644)
		key := "/etc/pki/qemu/" + role + "-key.pem"
		put(key, c.key, 0o600)
		all = append(all, os.Chown(h.Path(key), qemuUID, -1))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("certificates of host %s: %w", h.Name, err)
	}
	return nil
}
