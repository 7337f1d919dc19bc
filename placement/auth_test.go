package placement

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	pc "berth/placementclient"
)

// running runs the server until the test ends and gives its address.
func running(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// site is a CA with two hosts and an operator.
type site struct {
	dir       string
	authority *pki.Authority
	pool      *x509.CertPool
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	now := time.Now()
	a, err := pki.Init(filepath.Join(dir, "ca"), "test", now, false)
	must(t, err)
	s := &site{dir: dir, authority: a, pool: x509.NewCertPool()}
	for _, host := range []string{"host-a", "host-b", "placement"} {
		s.issue(t, host)
	}
	must(t, os.Mkdir(filepath.Join(dir, "op"), 0o700))
	_, err = a.IssueOperator(filepath.Join(dir, "op"), "alice", now)
	must(t, err)
	pem, err := os.ReadFile(filepath.Join(dir, "ca", "ca.crt"))
	must(t, err)
	s.pool.AppendCertsFromPEM(pem)
	return s
}

func (s *site) issue(t *testing.T, host string, rights ...pki.Right) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(s.dir, host), 0o700))
	_, err := s.authority.IssueHost(filepath.Join(s.dir, host), host, []string{"127.0.0.1"}, time.Now(), rights...)
	must(t, err)
}

func (s *site) client(t *testing.T, addr, who string) *pc.Client {
	t.Helper()
	name := "host"
	if who == "op" {
		name = "operator"
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.dir, who, name+".crt"), filepath.Join(s.dir, who, name+".key"))
	must(t, err)
	c, err := pc.New(pc.Config{URL: "https://" + addr, TLS: &tls.Config{RootCAs: s.pool, Certificates: []tls.Certificate{pair}}})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func (s *site) options() Options {
	return Options{Listen: "127.0.0.1:0", Auth: AuthMTLS, CA: filepath.Join(s.dir, "placement", "ca.crt"),
		Cert: filepath.Join(s.dir, "placement", "host.crt"), Key: filepath.Join(s.dir, "placement", "host.key")}
}

func TestMTLS_AHostWritesItsOwnAndAnOperatorAll(t *testing.T) {
	site := newSite(t)
	s := running(t, site.options())
	a, b, op := site.client(t, s.Addr(), "host-a"), site.client(t, s.Addr(), "host-b"), site.client(t, s.Addr(), "op")
	ctx := t.Context()
	forbidden := func(err error) {
		t.Helper()
		wantKind(t, err, fault.Forbidden, "")
	}
	inv := map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}

	// Providers: the root is called like the certificate; children hang below it.
	_, err := a.CreateProvider(ctx, pc.NewProvider{UUID: id(1), Name: "host-a"})
	must(t, err)
	_, err = a.CreateProvider(ctx, pc.NewProvider{UUID: id(11), Name: "host-a-numa0", ParentProviderUUID: id(1)})
	must(t, err)
	_, err = b.CreateProvider(ctx, pc.NewProvider{UUID: id(2), Name: "host-b"})
	must(t, err)
	_, err = a.CreateProvider(ctx, pc.NewProvider{UUID: id(3), Name: "host-c"})
	forbidden(err)
	_, err = a.CreateProvider(ctx, pc.NewProvider{UUID: id(3), Name: "host-a-numa1", ParentProviderUUID: id(2)})
	forbidden(err)
	_, err = a.RenameProvider(ctx, id(1), "host-c")
	forbidden(err)
	_, err = a.RenameProvider(ctx, id(11), "host-a-cell0")
	must(t, err)
	_, err = a.PutInventories(ctx, id(11), pc.Inventories{Inventories: inv})
	must(t, err)
	_, err = b.PutInventories(ctx, id(2), pc.Inventories{Inventories: inv})
	must(t, err)
	_, err = a.PutInventories(ctx, id(2), pc.Inventories{Generation: 1, Inventories: inv})
	forbidden(err)
	in, err := a.PutAggregates(ctx, id(1), pc.Aggregates{Aggregates: []string{id(900)}})
	must(t, err)
	_, err = b.PutAggregates(ctx, id(1), in)
	forbidden(err)
	forbidden(a.DeleteProvider(ctx, id(2)))
	must(t, a.EnsureTrait(ctx, "CUSTOM_A"))
	_, err = a.Inventories(ctx, id(2)) // everyone reads
	must(t, err)

	// Consumers: those that touch it, and in a move what they exchange.
	one := pc.Resources{pc.ClassVCPU: 1}
	must(t, a.PutAllocations(ctx, id(100), holding(id(11), one, pc.ConsumerInstance, nil)))
	forbidden(a.PutAllocations(ctx, id(101), holding(id(2), one, pc.ConsumerInstance, nil)))
	move := map[string]pc.Allocations{
		id(200): holding(id(11), one, pc.ConsumerMigration, nil),
		id(100): holding(id(2), one, pc.ConsumerInstance, pc.Generation(1)),
	}
	forbidden(site.client(t, s.Addr(), "placement").PostAllocations(ctx, move)) // a host with no part in it
	forbidden(b.PostAllocations(ctx, move))                                     // nobody takes what another host has
	forbidden(b.PutAllocations(ctx, id(100), holding(id(2), one, pc.ConsumerInstance, pc.Generation(1))))
	must(t, a.PostAllocations(ctx, move))
	forbidden(a.DeleteAllocations(ctx, id(100))) // it has gone to host-b
	back := map[string]pc.Allocations{
		id(200): {ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerMigration, ConsumerGeneration: pc.Generation(1)},
		id(100): holding(id(11), one, pc.ConsumerInstance, pc.Generation(2)),
	}
	must(t, a.PostAllocations(ctx, back)) // its half gives it the right to take the guest back
	move[id(100)] = holding(id(2), one, pc.ConsumerInstance, pc.Generation(3))
	must(t, a.PostAllocations(ctx, move))
	forbidden(b.DeleteAllocations(ctx, id(200)))
	must(t, a.DeleteAllocations(ctx, id(200)))
	// Repeated after a lost reply: it is gone, which is no matter of rights.
	wantKind(t, a.DeleteAllocations(ctx, id(200)), fault.NotFound, "")
	stranger := map[string]pc.Allocations{
		id(100): holding(id(2), one, pc.ConsumerInstance, pc.Generation(4)),
		id(300): holding(id(11), one, pc.ConsumerInstance, nil),
	}
	forbidden(a.PostAllocations(ctx, stranger)) // touching with one does not open the other

	// The operator may all of it.
	must(t, op.DeleteAllocations(ctx, id(100)))
	must(t, op.DeleteProvider(ctx, id(2)))
	_, err = op.CreateProvider(ctx, pc.NewProvider{UUID: id(3), Name: "host-c"})
	must(t, err)
}

// A third host's agent that moves a guest between two others has nothing of its own in it.
func TestMTLS_AConductorWritesTheConsumersOfOthers(t *testing.T) {
	for name, with := range map[string]func(*site, *Options){
		"by its certificate": func(s *site, _ *Options) { s.issue(t, "third", pki.RightConduct) },
		"by name":            func(s *site, o *Options) { s.issue(t, "third"); o.Conductors = []string{"other", "third"} },
	} {
		t.Run(name, func(t *testing.T) {
			site := newSite(t)
			o := site.options()
			with(site, &o)
			s := running(t, o)
			ctx := t.Context()
			inv := map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}
			for n, host := range map[int]string{1: "host-a", 2: "host-b"} {
				c := site.client(t, s.Addr(), host)
				_, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(n), Name: host})
				must(t, err)
				_, err = c.PutInventories(ctx, id(n), pc.Inventories{Inventories: inv})
				must(t, err)
			}
			one := pc.Resources{pc.ClassVCPU: 1}
			must(t, site.client(t, s.Addr(), "host-a").PutAllocations(ctx, id(100), holding(id(1), one, pc.ConsumerInstance, nil)))
			third := site.client(t, s.Addr(), "third")
			must(t, third.PostAllocations(ctx, map[string]pc.Allocations{
				id(200): holding(id(1), one, pc.ConsumerMigration, nil),
				id(100): holding(id(2), one, pc.ConsumerInstance, pc.Generation(1)),
			}))
			must(t, third.DeleteAllocations(ctx, id(200)))
			// Nothing else of theirs is its own.
			_, err := third.PutInventories(ctx, id(2), pc.Inventories{Generation: 1, Inventories: inv})
			wantKind(t, err, fault.Forbidden, "")
			wantKind(t, third.DeleteProvider(ctx, id(1)), fault.Forbidden, "")
			wantKind(t, site.client(t, s.Addr(), "placement").DeleteAllocations(ctx, id(100)), fault.Forbidden, "")
		})
	}
}

// obituary is what is served beside, as far as rights go by it.
type obituary struct {
	http.Handler
	dead atomic.Value // a host's name
}

func (o *obituary) Backup() map[string]json.RawMessage { return nil }
func (o *obituary) Dead(host string) bool              { return o.dead.Load() == host }

// Whoever conducts an evacuation has no part in it but that.
func TestMTLS_WhatADeadHostHadIsEverybodys(t *testing.T) {
	site := newSite(t)
	site.issue(t, "third")
	o := site.options()
	var deaths obituary
	o.Beside = func(context.Context, Store, runtime.Runtime, *slog.Logger) (Beside, error) { return &deaths, nil }
	s := running(t, o)
	ctx := t.Context()
	inv := map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}
	for n, host := range map[int]string{1: "host-a", 2: "host-b"} {
		c := site.client(t, s.Addr(), host)
		_, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(n), Name: host})
		must(t, err)
		_, err = c.PutInventories(ctx, id(n), pc.Inventories{Inventories: inv})
		must(t, err)
	}
	one := pc.Resources{pc.ClassVCPU: 1}
	must(t, site.client(t, s.Addr(), "host-a").PutAllocations(ctx, id(100), holding(id(1), one, pc.ConsumerInstance, nil)))
	must(t, site.client(t, s.Addr(), "host-b").PutAllocations(ctx, id(101), holding(id(2), one, pc.ConsumerInstance, nil)))
	third := site.client(t, s.Addr(), "third")
	evacuation := map[string]pc.Allocations{
		id(200): holding(id(1), one, pc.ConsumerMigration, nil),
		id(100): holding(id(2), one, pc.ConsumerInstance, pc.Generation(1)),
	}
	wantKind(t, third.PostAllocations(ctx, evacuation), fault.Forbidden, "")
	deaths.dead.Store("host-a")
	must(t, third.PostAllocations(ctx, evacuation))
	// What it has not, and what lives, is not.
	wantKind(t, third.DeleteAllocations(ctx, id(100)), fault.Forbidden, "")
	wantKind(t, third.DeleteAllocations(ctx, id(101)), fault.Forbidden, "")
	_, err := third.PutInventories(ctx, id(1), pc.Inventories{Generation: 1, Inventories: inv})
	wantKind(t, err, fault.Forbidden, "")
	wantKind(t, third.DeleteProvider(ctx, id(2)), fault.Forbidden, "")
	must(t, third.DeleteAllocations(ctx, id(200)))
	must(t, third.DeleteProvider(ctx, id(1)))
}

func TestMTLS_NoCertificateNoAnswer(t *testing.T) {
	site := newSite(t)
	s := running(t, site.options())
	for name, cfg := range map[string]*tls.Config{
		"no client certificate": {RootCAs: site.pool},
		"another CA":            {RootCAs: newSite(t).pool},
	} {
		c, err := pc.New(pc.Config{URL: "https://" + s.Addr(), TLS: cfg, Retries: -1})
		must(t, err)
		if _, err := c.Version(t.Context()); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: got %v", name, err)
		}
		c.Close()
	}
}

func TestNone_OnlyAdminMay(t *testing.T) {
	h := serve(t, memory(t))
	for token, want := range map[string]fault.Kind{"": fault.Forbidden, "bob": fault.Forbidden, "bob:project": fault.Forbidden, "admin": "", "admin:x": ""} {
		c, err := pc.New(pc.Config{URL: h.URL, Token: token})
		must(t, err)
		if _, err := c.Providers(t.Context(), pc.ProviderFilter{}); fault.KindOf(err) != want {
			t.Errorf("token %q: got %v, want %q", token, err, want)
		}
		c.Close()
	}
}

func TestOptions_Validate(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want []string // codes
	}{
		{Options{Listen: "127.0.0.1:8778"}, nil},
		{Options{Listen: "localhost:8778"}, nil},
		{Options{Listen: "[::1]:8778"}, nil},
		{Options{Listen: "unix:/run/berth/placement.sock"}, nil},
		{Options{Listen: "0.0.0.0:8778", Auth: AuthNone, Insecure: true}, nil},
		{Options{Listen: "0.0.0.0:8778", Cert: "c", Key: "k", CA: "ca"}, nil},
		{Options{Listen: "127.0.0.1:0", Cert: "c", Key: "k"}, nil},
		{Options{}, []string{"listen_address", "auth_mtls_files", "auth_mtls_files", "auth_mtls_files"}},
		{Options{Listen: "127.0.0.1"}, []string{"listen_address", "auth_mtls_files", "auth_mtls_files", "auth_mtls_files"}},
		{Options{Listen: "unix:placement.sock"}, []string{"listen_address"}},
		{Options{Listen: "0.0.0.0:8778", Auth: AuthNone}, []string{"auth_none_off_loopback"}},
		{Options{Listen: ":8778", Auth: AuthNone}, []string{"auth_none_off_loopback"}},
		{Options{Listen: "0.0.0.0:8778"}, []string{"auth_mtls_files", "auth_mtls_files", "auth_mtls_files"}},
		{Options{Listen: "0.0.0.0:8778", Insecure: true}, []string{"auth_mtls_files", "auth_mtls_files", "auth_mtls_files"}},
		{Options{Listen: "unix:/x", Auth: AuthMTLS, Cert: "c", Key: "k", CA: "ca"}, []string{"auth_mtls_on_socket"}},
		{Options{Listen: "127.0.0.1:0", Auth: "ldap"}, []string{"auth"}},
		{Options{Listen: "127.0.0.1:0", Cert: "c"}, []string{"tls_files"}},
		{Options{Listen: "127.0.0.1:0", Policy: PolicyScoped}, nil},
		{Options{Listen: "127.0.0.1:0", Policy: "closed"}, []string{"policy"}},
		{Options{Listen: "0.0.0.0:8778", Cert: "c", Key: "k", CA: "ca", Policy: PolicyDefault}, nil},
		{Options{Listen: "0.0.0.0:8778", Cert: "c", Key: "k", CA: "ca", Policy: PolicyOpen}, []string{"policy_of_certificates"}},
	} {
		err := c.o.Validate()
		var got []string
		for _, r := range fault.ReasonsOf(err) {
			got = append(got, r.Code)
		}
		if d := cmp.Diff(c.want, got); d != "" || err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v (-want +got)\n%s", c.o, err, d)
		}
	}
}

func TestRun_OnAUnixSocketAndOverADeadOnesPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close()) // the socket of a server that died
	s := running(t, Options{Listen: "unix:" + path})
	same(t, "unix:"+path, s.Addr())
	c := client(t, "unix:"+path, 39)
	_, err = c.CreateProvider(t.Context(), pc.NewProvider{UUID: id(1), Name: "a"})
	must(t, err)

	second, err := New(Options{Listen: "unix:" + path})
	must(t, err)
	if err := second.Run(t.Context()); fault.KindOf(err) != fault.Busy {
		t.Errorf("a second server on the socket: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	third, err := New(Options{Listen: "unix:" + file})
	must(t, err)
	if err := third.Run(t.Context()); fault.KindOf(err) != fault.Exists {
		t.Errorf("a server on a plain file: %v", err)
	}
}

func TestServer_ABrokenRequestIsRefusedInPlacementsShape(t *testing.T) {
	h := serve(t, memory(t))
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/resource_providers", `{"name": "a"} x`, 400},
		{"POST", "/resource_providers", strings.Repeat("[", 100000), 400},
		{"POST", "/resource_providers", `[]`, 400},
		{"POST", "/resource_providers", "\xff", 400},
		{"PUT", "/resource_providers/x/traits", `{"traits":[1],"resource_provider_generation":0}`, 400},
		{"PUT", "/allocations/x", `{}`, 400},
		{"PUT", "/allocations/" + id(1), `{"allocations":{"` + id(2) + `":{"resources":{"VCPU":99999999999999999999}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X"}`, 400},
		{"GET", "/allocation_candidates?resources=VCPU", "", 400},
		{"GET", "/allocation_candidates?resources=VCPU:0", "", 400},
		{"GET", "/allocation_candidates?resources=VCPU:1&limit=x", "", 400},
		{"GET", "/allocation_candidates?required=CUSTOM_X", "", 400},
		{"GET", "/resource_providers?member_of=x", "", 400},
		{"GET", "/usages", "", 400},
		{"GET", "/resource_providers/", "", 404},
		{"POST", "/reshaper", `{"inventories":{},"allocations":{}}`, 400},
	} {
		q, err := http.NewRequest(c.method, h.URL+c.path, strings.NewReader(c.body))
		must(t, err)
		q.Header.Set("X-Auth-Token", "admin")
		q.Header.Set("OpenStack-API-Version", "placement latest")
		if c.body != "" {
			q.Header.Set("Content-Type", "application/json")
		}
		resp, err := http.DefaultClient.Do(q)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %.60q: %d %s, want %d", c.method, c.path, c.body, resp.StatusCode, resp.Header.Get("Content-Type"), c.want)
		}
	}
}
