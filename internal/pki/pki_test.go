package pki_test

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

func TestInit_NeverReplacesACA(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	if _, err := pki.Init(dir, "one", now, false); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, pki.CAKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Init(dir, "two", now, false); !errors.Is(err, fault.Exists) {
		t.Errorf("a second CA in the same folder: %v, want %v", err, fault.Exists)
	}
	after, _ := os.ReadFile(filepath.Join(dir, pki.CAKeyFile))
	if string(before) != string(after) {
		t.Error("the refused Init changed the key")
	}
	if _, err := pki.Init(dir, "two", now, true); err != nil {
		t.Errorf("with force: %v", err)
	}
	a, err := pki.Open(dir)
	if err != nil || a.Cert.Subject.CommonName != "two" {
		t.Errorf("open after force: %v, %v", a, err)
	}
}

// TestLoad_KnowsTheAuthoritiesThatLastLongest: of a ca.crt with one of the same name that
// others were signed by, with the one that signed the certificate, and with that one made anew with
// the same key.
func TestLoad_KnowsTheAuthoritiesThatLastLongest(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	a, err := pki.Init(dir, "test", now, false)
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Init(t.TempDir(), "test", now.Add(-time.Hour), false)
	if err != nil {
		t.Fatal(err)
	}
	host := filepath.Join(dir, "host-a")
	if _, err := a.IssueHost(host, "host-a", nil, now); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, pki.CAKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	longer := *a.Cert
	longer.NotAfter = a.Cert.NotAfter.AddDate(10, 0, 0)
	again, err := x509.CreateCertificate(rand.Reader, &longer, &longer, a.Cert.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	paths := pki.Paths{CA: filepath.Join(host, pki.CACertFile), Cert: filepath.Join(host, pki.HostCertFile), Key: filepath.Join(host, pki.HostKeyFile)}
	for _, tt := range []struct {
		name string
		ca   [][]byte
		want time.Time
	}{
		{"alone", [][]byte{a.Cert.Raw}, a.Cert.NotAfter},
		{"behind another", [][]byte{other.Cert.Raw, a.Cert.Raw}, a.Cert.NotAfter},
		{"made anew", [][]byte{a.Cert.Raw, again}, longer.NotAfter},
		{"made anew, the other way round", [][]byte{again, a.Cert.Raw}, longer.NotAfter},
	} {
		var text []byte
		for _, raw := range tt.ca {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})...)
		}
		if err := os.WriteFile(paths.CA, text, 0o644); err != nil {
			t.Fatal(err)
		}
		id, err := pki.Load(paths, now)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if len(id.Authorities) != 1 || !id.Authorities[0].NotAfter.Equal(tt.want) {
			t.Errorf("%s: authorities %v, want one that ends at %s", tt.name, id.Authorities, tt.want)
		}
	}
}

func TestIssue_KeysAreSecretAndLibvirtAcceptsTheUsage(t *testing.T) {
	dir := t.TempDir()
	a, err := pki.Init(dir, "test", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	host := filepath.Join(dir, "host-a")
	c, err := a.IssueHost(host, "host-a", []string{"host-a.example.org", "192.0.2.1", "host-a"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if c.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment {
		t.Errorf("key usage %b lacks what libvirt 9 asks for", c.KeyUsage)
	}
	if got, want := strings.Join(pki.Names(c), " "), "host-a host-a.example.org 192.0.2.1"; got != want {
		t.Errorf("names %q, want %q", got, want)
	}
	for file, want := range map[string]os.FileMode{pki.HostKeyFile: 0o600, pki.HostCertFile: 0o644, pki.CACertFile: 0o644} {
		st, err := os.Stat(filepath.Join(host, file))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", file, st.Mode().Perm(), want)
		}
	}
	left, err := filepath.Glob(filepath.Join(host, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v %v", left, err)
	}
	if _, err := a.IssueHost(host, "no good", nil, time.Now()); !errors.Is(err, fault.Invalid) {
		t.Errorf("a name with a blank: %v, want %v", err, fault.Invalid)
	}
}

func identity(t *testing.T, a *pki.Authority, dir, name string) *pki.Identity {
	t.Helper()
	if _, err := a.IssueHost(dir, name, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.Paths{CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, pki.HostCertFile), Key: filepath.Join(dir, pki.HostKeyFile)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestVerifyClient_SaysWhyItRefuses(t *testing.T) {
	ours, err := pki.Init(t.TempDir(), "ours", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := pki.Init(t.TempDir(), "theirs", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	us := identity(t, ours, t.TempDir(), "host-a")
	friend := identity(t, ours, t.TempDir(), "host-b")
	stranger := identity(t, theirs, t.TempDir(), "host-b")
	operator, err := ours.IssueOperator(t.TempDir(), "alice", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		chain []*x509.Certificate
		now   time.Time
		role  pki.Role
		code  string
	}{
		{"a host of ours", []*x509.Certificate{friend.Leaf}, time.Now(), pki.RoleHost, ""},
		{"an operator of ours", []*x509.Certificate{operator}, time.Now(), pki.RoleOperator, ""},
		{"nobody", nil, time.Now(), pki.RoleNone, "certificate_missing"},
		{"another CA", []*x509.Certificate{stranger.Leaf}, time.Now(), pki.RoleNone, "certificate_unknown_authority"},
		{"out of date", []*x509.Certificate{friend.Leaf}, time.Now().AddDate(5, 0, 0), pki.RoleNone, "certificate_expired"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			role, _, err := us.VerifyClient(tt.chain, tt.now)
			if role != tt.role {
				t.Errorf("role %q, want %q (%v)", role, tt.role, err)
			}
			if tt.code == "" {
				return
			}
			reasons := fault.ReasonsOf(err)
			if !errors.Is(err, fault.Forbidden) || len(reasons) != 1 || reasons[0].Code != tt.code || reasons[0].Change == "" {
				t.Errorf("refusal %v with %+v, want forbidden, code %q and what to change", err, reasons, tt.code)
			}
		})
	}
}

func TestCovers_HostNamesOnly(t *testing.T) {
	a, err := pki.Init(t.TempDir(), "ours", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	host, err := a.IssueHost(t.TempDir(), "host-a", []string{"192.0.2.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	operator, err := a.IssueOperator(t.TempDir(), "host-a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cert *x509.Certificate
		name string
		want bool
	}{
		{host, "host-a", true}, {host, "HOST-A", true}, {host, "192.0.2.1", true},
		{host, "host-b", false}, {host, "192.0.2.2", false},
		{operator, "host-a", false}, // an operator called like a host is no host
	} {
		if got := pki.Covers(tt.cert, tt.name); got != tt.want {
			t.Errorf("%s covers %s: %v, want %v", pki.Describe(tt.cert), tt.name, got, tt.want)
		}
	}
}
