package pki_test

import (
	"crypto/x509"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/pki"
)

func TestRights_CountOnlyInACertificateOfTheirRole(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	a, err := pki.Init(dir, "test", now, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		issue func(dir string) (*x509.Certificate, error)
		want  []pki.Right // what it claims
		gives pki.Right   // the only one that counts; empty for none
		fails bool
	}{
		{name: "operator without", issue: func(d string) (*x509.Certificate, error) { return a.IssueOperator(d, "alice", now) }},
		{name: "operator with share-nothing, said twice", want: []pki.Right{pki.RightShareNothing}, gives: pki.RightShareNothing,
			issue: func(d string) (*x509.Certificate, error) {
				return a.IssueOperator(d, "alice", now, pki.RightShareNothing, pki.RightShareNothing)
			}},
		{name: "host without", issue: func(d string) (*x509.Certificate, error) { return a.IssueHost(d, "host-c", nil, now) }},
		{name: "host with conduct", want: []pki.Right{pki.RightConduct}, gives: pki.RightConduct,
			issue: func(d string) (*x509.Certificate, error) { return a.IssueHost(d, "host-c", nil, now, pki.RightConduct) }},
		{name: "operator with a host's right", fails: true,
			issue: func(d string) (*x509.Certificate, error) { return a.IssueOperator(d, "alice", now, pki.RightConduct) }},
		{name: "host with an operator's right", fails: true,
			issue: func(d string) (*x509.Certificate, error) {
				return a.IssueHost(d, "host-c", nil, now, pki.RightShareNothing)
			}},
		{name: "a right that there is not", fails: true,
			issue: func(d string) (*x509.Certificate, error) { return a.IssueHost(d, "host-c", nil, now, "everything") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "out")
			cert, err := c.issue(at)
			if c.fails {
				r := fault.ReasonsOf(err)
				if !errors.Is(err, fault.Invalid) || len(r) != 1 || r[0].Code != "right" || r[0].Change == "" {
					t.Errorf("%v (%+v), want it refused with what to say", err, r)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, pki.RightsOf(cert)); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
			for _, r := range []pki.Right{pki.RightShareNothing, pki.RightConduct, "everything"} {
				if got := pki.Gives(cert, r); got != (r == c.gives) {
					t.Errorf("gives %s: %v", r, got)
				}
			}
		})
	}
}

// TestRights_OfAnotherRoleCountNotWhoeverSigned: berth pki signs no such certificate, and
// any CA may be the fleet's.
func TestRights_OfAnotherRoleCountNotWhoeverSigned(t *testing.T) {
	id := newAuthority(t, "ours").identity("host-c", ecKey(t), func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "urn", Opaque: "berth:right:share-nothing"}, {Scheme: "urn", Opaque: "berth:right:conduct"}}
	})
	leaf, err := x509.ParseCertificate(id.Certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(pki.RightsOf(leaf)) != 2 || !pki.Gives(leaf, pki.RightConduct) || pki.Gives(leaf, pki.RightShareNothing) {
		t.Errorf("a host's certificate claims %v, and gives conduct: %v, share-nothing: %v", pki.RightsOf(leaf), pki.Gives(leaf, pki.RightConduct), pki.Gives(leaf, pki.RightShareNothing))
	}
}
