package pki_test

import (
	"crypto/x509"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

// TestReader_IsLetInAndIsNoOperator: also one that somebody has named as both.
func TestReader_IsLetInAndIsNoOperator(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	a, err := pki.Init(filepath.Join(dir, "ca"), "test", now, false)
	if err != nil {
		t.Fatal(err)
	}
	host := identity(t, a, filepath.Join(dir, "host"), "host-a")
	leaf, err := a.IssueReader(filepath.Join(dir, "carol"), "carol", now)
	if err != nil {
		t.Fatal(err)
	}
	if role, name := pki.RoleOf(leaf); role != pki.RoleReader || name != "carol" {
		t.Errorf("it is of %s %s", role, name)
	}
	role, _, err := host.VerifyClient([]*x509.Certificate{leaf}, now)
	if err != nil || role != pki.RoleReader {
		t.Errorf("it is let in as %q, %v", role, err)
	}
	if pki.Covers(leaf, "carol") || pki.Gives(leaf, pki.RightShareNothing) || pki.Gives(leaf, pki.RightConduct) {
		t.Error("it passes for a host, or gives a right")
	}
	both := &x509.Certificate{}
	for _, is := range []string{"urn:berth:operator:carol", "urn:berth:reader:carol", "urn:berth:right:share-nothing"} {
		u, err := url.Parse(is)
		if err != nil {
			t.Fatal(err)
		}
		both.URIs = append(both.URIs, u)
	}
	if role, _ := pki.RoleOf(both); role != pki.RoleReader || pki.Gives(both, pki.RightShareNothing) {
		t.Errorf("one that is named as both is of role %s", role)
	}
	if _, err := a.IssueReader(filepath.Join(dir, "no"), "../carol", now); !errors.Is(err, fault.Invalid) {
		t.Errorf("a name that is none: %v", err)
	}
}
