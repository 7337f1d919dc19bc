package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/operation"
)

func (h *fakeHost) SnapshotDisks(_ context.Context, r migration.Ref, q migration.SnapshotRequest) (migration.Snapshot, error) {
	return migration.Snapshot{Files: []migration.SnapshotFile{{Target: q.Targets[0]}}}, h.note("SnapshotDisks", r)
}
func (h *fakeHost) DropSnapshot(_ context.Context, r migration.Ref) error {
	return h.note("DropSnapshot", r)
}
func (h *fakeHost) Disconnect(_ context.Context, r migration.Ref) error {
	return h.note("Disconnect", r)
}
func (h *fakeHost) Reconnect(_ context.Context, r migration.Ref) error { return h.note("Reconnect", r) }
func (h *fakeHost) HideInstance(_ context.Context, r migration.Ref) error {
	return h.note("HideInstance", r)
}

func (h *fakeHost) CarryVolumes(_ context.Context, r migration.Ref, v migration.VolumeChanges) error {
	if len(v.Detached) != 1 {
		return fmt.Errorf("carried %+v", v)
	}
	return h.note("CarryVolumes", r)
}

func (h *fakeHost) CopyInstance(_ context.Context, r migration.Ref, i migration.InstanceCopy) error {
	if i.Epoch != 3 {
		return fmt.Errorf("copy of %+v", i)
	}
	return h.note("CopyInstance", r)
}
func (h *fakeHost) RemoveCopy(_ context.Context, r migration.Ref) error {
	return h.note("RemoveCopy", r)
}
func (h *fakeHost) ShowInstance(_ context.Context, r migration.Ref) error {
	return h.note("ShowInstance", r)
}

func (h *fakeHost) ReadVolumes(_ context.Context, r migration.Ref) (migration.VolumeChanges, error) {
	return migration.VolumeChanges{Detached: []string{"vdb"}}, h.note("ReadVolumes", r)
}

func (h *fakeHost) Reaches(_ context.Context, _ migration.Ref, q migration.ReachRequest) error {
	return h.note("Reaches "+q.Host, migration.Ref{})
}

func (h *fakeHost) SendDisks(_ context.Context, r migration.Ref, _ migration.SendRequest) error {
	return h.note("SendDisks", r)
}

// apartVerbs calls each operation of hosts that share nothing but those that ship disks.
func apartVerbs(c *api.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"SnapshotDisks": func(ctx context.Context) error {
			s, err := operation.SnapshotDisks.Ask(ctx, c, ref, migration.SnapshotRequest{Targets: []string{"vda"}})
			if err == nil && (len(s.Files) != 1 || s.Files[0].Target != "vda") {
				err = fmt.Errorf("answer %+v", s)
			}
			return err
		},
		"DropSnapshot": func(ctx context.Context) error { return operation.DropSnapshot.Ask(ctx, c, ref) },
		"Disconnect":   func(ctx context.Context) error { return operation.Disconnect.Ask(ctx, c, ref) },
		"Reconnect":    func(ctx context.Context) error { return operation.Reconnect.Ask(ctx, c, ref) },
		"HideInstance": func(ctx context.Context) error { return operation.HideInstance.Ask(ctx, c, ref) },
		"CarryVolumes": func(ctx context.Context) error {
			return operation.CarryVolumes.Ask(ctx, c, ref, migration.VolumeChanges{Detached: []string{"vdb"}})
		},
		"CopyInstance": func(ctx context.Context) error {
			return operation.CopyInstance.Ask(ctx, c, ref, migration.InstanceCopy{UUID: "i-1", Epoch: 3})
		},
		"RemoveCopy":   func(ctx context.Context) error { return operation.RemoveCopy.Ask(ctx, c, ref) },
		"ShowInstance": func(ctx context.Context) error { return operation.ShowInstance.Ask(ctx, c, ref) },
		"ReadVolumes": func(ctx context.Context) error {
			v, err := operation.ReadVolumes.Ask(ctx, c, ref)
			if err == nil && len(v.Detached) != 1 {
				err = fmt.Errorf("answer %+v", v)
			}
			return err
		},
	}
}

// foreign are certificates that claim a right of the other role, as a CA that knows
// nothing of Berth may sign.
type foreign struct {
	root           *x509.Certificate
	operator, host *pki.Identity
}

func foreignCertificates(t *testing.T, c ca) foreign {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "foreign"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err == nil {
		root, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	sign := func(names []string, uris ...string) *pki.Identity {
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(2), NotBefore: root.NotBefore, NotAfter: root.NotAfter, DNSNames: names,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		for _, u := range uris {
			leaf.URIs = append(leaf.URIs, &url.URL{Scheme: "urn", Opaque: u})
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), key)
		if err == nil {
			leaf, err = x509.ParseCertificate(der)
		}
		if err != nil {
			t.Fatal(err)
		}
		trusts := c.host("x")
		return &pki.Identity{Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, Leaf: leaf, Roots: trusts.Roots}
	}
	return foreign{
		root:     root,
		operator: sign(nil, "berth:operator:alice", "berth:right:conduct"),
		host:     sign([]string{"host-c"}, "berth:right:share-nothing"),
	}
}

// TestParty_WhoMovesOneGuestAsksNothingOfAnother: the uuid of a host's own migration is no
// way to a guest that is not on it.
func TestParty_WhoMovesOneGuestAsksNothingOfAnother(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	w.parties["guest of m-1"] = [2]string{ref.Instance}
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	if err := operation.PowerOn.Ask(t.Context(), c, ref); err != nil {
		t.Fatal(err)
	}
	other := ref
	other.Instance = "i-2"
	err := operation.PowerOn.Ask(t.Context(), c, other)
	if r := fault.ReasonsOf(err); !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != "not_its_guest" {
		t.Errorf("of another guest: %v", err)
	}
	if n := w.verbs.count("PowerOn"); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
