package embedded_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/fleet"
	"berth/fleet/embedded"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/placement"
	pc "berth/placementclient"
)

// fenced is an embedded Placement with the fleet's records over mutual TLS.
type fenced struct {
	t    *testing.T
	dir  string
	ca   *pki.Authority
	addr string
}

func serveTLS(t *testing.T, fencers ...string) *fenced {
	t.Helper()
	f := &fenced{t: t, dir: t.TempDir()}
	var err error
	if f.ca, err = pki.Init(filepath.Join(f.dir, "ca"), "test", time.Now(), false); err != nil {
		t.Fatal(err)
	}
	own := f.issue("server")
	s, err := placement.New(placement.Options{
		Listen: "127.0.0.1:0", Auth: placement.AuthMTLS, CA: own.CA, Cert: own.Cert, Key: own.Key, Logger: silent,
		Beside: func(ctx context.Context, db placement.Store, rt runtime.Runtime, log *slog.Logger) (placement.Beside, error) {
			b, err := embedded.Open(ctx, db, rt, log)
			if err == nil {
				b.LetFence(fencers...)
			}
			return b, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
	<-s.Ready()
	f.addr = s.Addr()
	return f
}

func (f *fenced) issue(name string, rights ...pki.Right) pki.Paths {
	f.t.Helper()
	to := filepath.Join(f.dir, name)
	if err := os.MkdirAll(to, 0o700); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.ca.IssueHost(to, name, []string{"127.0.0.1"}, time.Now(), rights...); err != nil {
		f.t.Fatal(err)
	}
	return pki.Paths{CA: filepath.Join(to, pki.CACertFile), Cert: filepath.Join(to, pki.HostCertFile), Key: filepath.Join(to, pki.HostKeyFile)}
}

func (f *fenced) config(name string, rights ...pki.Right) *tls.Config {
	f.t.Helper()
	id, err := pki.Load(f.issue(name, rights...), time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return &tls.Config{RootCAs: id.Roots, Certificates: []tls.Certificate{id.Certificate}}
}

// as gives the records as a host writes them, and its client of Placement.
func (f *fenced) as(name string, rights ...pki.Right) (*fleet.Records, *pc.Client) {
	f.t.Helper()
	c, err := embedded.NewClient(embedded.Options{URL: "https://" + f.addr, TLS: f.config(name, rights...), Timeout: time.Minute})
	if err != nil {
		f.t.Fatal(err)
	}
	p, err := pc.New(pc.Config{URL: "https://" + f.addr, TLS: f.config(name, rights...)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close(); p.Close() })
	return fleet.New(c, &runtime.System{}), p
}

func notYours(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, fault.Forbidden) || !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == permit.ReasonNotYours && r.Message != "" }) {
		t.Errorf("%s: %v, want it refused with %s", what, err, permit.ReasonNotYours)
	}
}

// TestRecords_AHostileHostTakesNothing plays host-x, which has a good certificate, over real TLS:
// host-a has an instance, and stays its holder whatever host-x writes.
func TestRecords_AHostileHostTakesNothing(t *testing.T) {
	f := serveTLS(t)
	ctx := t.Context()
	a, placementA := f.as("host-a")
	x, placementX := f.as("host-x")
	const u, p = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	good := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for name, r := range map[string]*fleet.Records{"host-a": a, "host-x": x} {
		good("write itself", r.PutHost(ctx, fleet.Host{Name: name, Boot: "1"}))
	}
	_, err := placementA.CreateProvider(ctx, pc.NewProvider{UUID: p, Name: "host-a"})
	good("report", err)
	_, err = placementA.PutInventories(ctx, p, pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: {Total: 8, MinUnit: 1, MaxUnit: 8, StepSize: 1, AllocationRatio: 1}}})
	good("report", err)
	good("count the instance", placementA.PutAllocations(ctx, u, pc.Allocations{
		ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerInstance, Allocations: map[string]pc.Resources{p: {pc.ClassVCPU: 1}},
	}))

	own := fleet.Instance{UUID: u, Name: "web", Host: "host-a", Epoch: 3}
	stolen := fleet.Instance{UUID: u, Name: "web", Host: "host-x", Epoch: 1 << 60}
	_, err = x.PutInstance(ctx, stolen)
	notYours(t, "a first record of what Placement counts on another", err)
	_, err = a.PutInstance(ctx, own)
	good("write the instance", err)
	_, err = x.PutInstance(ctx, stolen)
	notYours(t, "a higher epoch", err)
	_, err = x.DeclareDead(ctx, fleet.Death{Host: "host-a", Proof: fleet.ProofOperator, By: "operator:alice by host:host-x", Because: "not so"})
	notYours(t, "a death", err)
	notYours(t, "the same, asked before", x.MayDeclareDead(ctx, "host-a"))
	notYours(t, "a boot of another's", x.PutHost(ctx, fleet.Host{Name: "host-a", Boot: "2"}))
	if err := placementX.DeleteAllocations(ctx, u); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("another's allocations deleted: %v", err)
	}
	if in, _, err := a.Instance(ctx, u); err != nil || in.Host != "host-a" || in.Epoch != 3 {
		t.Errorf("the record is %+v, %v", in, err)
	}

	// Given, it is host-x's.
	good("hand over", a.HandOver(ctx, u, "host-a", "host-x", 4))
	good("hand over again", a.HandOver(ctx, u, "host-a", "host-x", 4))
	_, err = x.PutInstance(ctx, fleet.Instance{UUID: u, Name: "web", Host: "host-x", Epoch: 4, Guest: []byte(`{}`)})
	good("write what was given", err)
	_, err = a.PutInstance(ctx, fleet.Instance{UUID: u, Name: "web", Host: "host-a", Epoch: 9})
	notYours(t, "taken back", err)
}

// TestRecords_WhoFencesDeclaresDead: by a certificate, or by the server's list. The dead host takes
// its death away itself, and what was taken over stands.
func TestRecords_WhoFencesDeclaresDead(t *testing.T) {
	for name, c := range map[string]struct {
		rights  []pki.Right
		fencers []string
	}{"by its certificate": {rights: []pki.Right{pki.RightFence}}, "by the server's list": {fencers: []string{"other", "host-f"}}} {
		t.Run(name, func(t *testing.T) {
			f := serveTLS(t, c.fencers...)
			ctx := t.Context()
			d, _ := f.as("host-d")
			fencer, _ := f.as("host-f", c.rights...)
			x, _ := f.as("host-x")
			const u = "11111111-1111-4111-8111-111111111111"
			err := d.PutHost(ctx, fleet.Host{Name: "host-d", Boot: "1"})
			if err == nil {
				_, err = d.PutInstance(ctx, fleet.Instance{UUID: u, Host: "host-d", Epoch: 1})
			}
			if err == nil {
				err = fencer.MayDeclareDead(ctx, "host-d")
			}
			if err == nil {
				_, err = fencer.DeclareDead(ctx, fleet.Death{Host: "host-d", Proof: fleet.ProofFenced})
			}
			if err != nil {
				t.Fatal(err)
			}
			_, record, err := x.Instance(ctx, u)
			if err != nil {
				t.Fatal(err)
			}
			_, death, err := x.Dead(ctx, "host-d")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.TakeOver(ctx, fleet.TakeOver{Instance: u, Migration: "m", Attempt: 1, Source: "host-d", To: "host-x", Epoch: 1, Record: record, Death: death}); err != nil {
				t.Errorf("evacuate: %v", err)
			}
			if _, err := x.Return(ctx, "host-d", "2"); !errors.Is(err, fault.Forbidden) {
				t.Errorf("another host returns in its place: %v", err)
			}
			if was, err := d.Return(ctx, "host-d", "2"); err != nil || was == nil {
				t.Errorf("return: %+v, %v", was, err)
			}
			if _, err := d.PutInstance(ctx, fleet.Instance{UUID: u, Host: "host-d", Epoch: 7}); err == nil {
				t.Error("what was taken over was taken back")
			}
			if err := d.CleanedUp(ctx, fleet.Evacuated{Source: "host-d", Migration: "m"}); err != nil {
				t.Errorf("clean up: %v", err)
			}
		})
	}
}
