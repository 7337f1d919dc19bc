// Package pkitest makes the certificates of a host, as good or as old as a test wants them.
package pkitest

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/pki"
)

// Papers are the files of a host, and two authorities that may sign them.
type Papers struct {
	Now           time.Time
	Before, After *pki.Authority // the one that signed first, and one that is made later
	Dir           string         // of the host's own files
	Paths         pki.Paths      // those files

	t    testing.TB
	host string
}

// New makes the authorities of a host, the first of which ends so long after now; each lives ten
// years. Nothing is signed yet.
func New(t testing.TB, host string, left time.Duration) *Papers {
	t.Helper()
	p := &Papers{t: t, host: host, Now: time.Now(), Dir: t.TempDir()}
	p.Before, p.After = p.authority("old", left), p.authority("new", 6*365*24*time.Hour)
	p.Paths = pki.Paths{CA: filepath.Join(p.Dir, pki.CACertFile), Cert: filepath.Join(p.Dir, pki.HostCertFile), Key: filepath.Join(p.Dir, pki.HostKeyFile)}
	return p
}

func (p *Papers) authority(name string, left time.Duration) *pki.Authority {
	p.t.Helper()
	a, err := pki.Init(filepath.Join(p.t.TempDir(), name), name, p.Now.Add(left-10*365*24*time.Hour), false)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// Issue has an authority sign the host's certificate so long before now.
func (p *Papers) Issue(by *pki.Authority, ago time.Duration) {
	p.t.Helper()
	if _, err := by.IssueHost(p.Dir, p.host, nil, p.Now.Add(-ago)); err != nil {
		p.t.Fatal(err)
	}
}

// Both puts the two authorities into the host's ca.crt, the old one first.
func (p *Papers) Both() {
	p.t.Helper()
	var text []byte
	for _, a := range []*pki.Authority{p.Before, p.After} {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})...)
	}
	if err := os.WriteFile(p.Paths.CA, text, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// Load reads the files as a host does that began so long before now.
func (p *Papers) Load(ago time.Duration) *pki.Identity {
	p.t.Helper()
	id, err := pki.Load(p.Paths, p.Now.Add(-ago))
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}
