package embedded_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/fleet"
	"berth/fleet/embedded"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/placement"
)

var silent = slog.New(slog.DiscardHandler)

// serve is an embedded Placement with the fleet's records; db is empty for memory.
func serve(t *testing.T, db string) *placement.Server {
	t.Helper()
	s, err := placement.New(placement.Options{
		Listen: "127.0.0.1:0", DB: db, Logger: silent,
		Beside: func(ctx context.Context, db placement.Store, rt runtime.Runtime, log *slog.Logger) (placement.Beside, error) {
			return embedded.Open(ctx, db, rt, log)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // again, for some
	return s
}

// inProcess is a network without sockets.
type inProcess struct{ handler http.Handler }

func (n inProcess) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	n.handler.ServeHTTP(w, q)
	return w.Result(), nil
}

func client(t *testing.T, h http.Handler) *embedded.Client {
	t.Helper()
	c, err := embedded.NewClient(embedded.Options{URL: "http://placement", Token: "admin", Transport: inProcess{h}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func inMemory(t *testing.T) func() fleet.Store {
	s := serve(t, "")
	return func() fleet.Store { return client(t, s) }
}

func TestEmbedded_IsAStore(t *testing.T) { fleettest.TestStore(t, inMemory) }

func TestEmbedded_KeepsRecords(t *testing.T) { fleettest.TestRecords(t, inMemory, false) }

func TestEmbedded_WhatWasCommittedSurvivesARestartAndABackup(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	db := filepath.Join(dir, "placement.db")
	s := serve(t, db)
	c := client(t, s)
	if err := c.Commit(ctx, nil, fleet.Change{Key: "hosts/a", Value: []byte("1")}, fleet.Change{Key: "gone", Value: []byte("1")}, fleet.Change{Key: "deaths/b", Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(ctx, nil, fleet.Change{Key: "gone"}); err != nil {
		t.Fatal(err)
	}
	before, err := c.List(ctx, "")
	if err != nil || len(before) != 2 {
		t.Fatalf("there is %v, %v", before, err)
	}
	front := httptest.NewServer(s)
	defer front.Close()
	backup := filepath.Join(dir, "backup.json")
	if err := placement.Backup(ctx, front.URL, nil, backup); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = serve(t, db)
	after, err := client(t, s).List(ctx, "")
	if err != nil || len(after) != 2 || after[0].Revision != before[0].Revision || string(after[1].Value) != "1" {
		t.Errorf("after a restart there is %v, %v; before %v", after, err, before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(dir, "restored.db")
	if err := placement.Restore(ctx, backup, restored, silent); err != nil {
		t.Fatal(err)
	}
	c = client(t, serve(t, restored))
	got, err := c.List(ctx, "")
	if err != nil || len(got) != 1 || got[0].Key != "hosts/a" {
		t.Errorf("after a restore there is %v, %v: a death of before is no proof", got, err)
	}
	if err := c.Commit(ctx, nil, fleet.Change{Key: "gone", Value: []byte("2")}); err != nil {
		t.Fatal(err)
	}
	again, err := c.Get(ctx, "gone")
	if err != nil || again.Revision <= before[0].Revision {
		t.Errorf("written anew after a restore: %+v, %v; before the backup the last was %d", again, err, before[0].Revision)
	}
}

// failing is a database whose disk is full, from some moment on.
type failing struct{ err error }

func (failing) List(context.Context, string) (map[string][]byte, error) { return nil, nil }

func (f *failing) Enqueue(...store.Mutation) *store.Pending {
	p, settle := store.NewPending(nil)
	settle(f.err)
	return p
}

func TestServer_AWriteThatFailedIsInDoubtAndNotSeen(t *testing.T) {
	db := &failing{}
	s, err := embedded.Open(t.Context(), db, &runtime.System{}, silent)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(key string) error { return s.Commit(t.Context(), nil, fleet.Change{Key: key, Value: []byte("1")}) }
	if err := commit("a"); err != nil {
		t.Fatal(err)
	}
	db.err = errors.New("no space left on device")
	if err := commit("b"); !errors.Is(err, fault.InDoubt) {
		t.Errorf("a write that failed: %v", err)
	}
	db.err = nil
	if got, err := s.List(t.Context(), ""); err != nil || len(got) != 1 {
		t.Errorf("there is %v, %v", got, err)
	}
	if err := commit("c"); err != nil {
		t.Errorf("after one that failed: %v", err)
	}
}

func TestClient_TellsWhoAnswers(t *testing.T) {
	plain, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	answers := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	for name, tt := range map[string]struct {
		by          http.Handler
		get, commit fault.Kind
		code        string
	}{
		"a Placement that keeps none": {plain, fault.NotFound, fault.NotFound, "no_fleet_store"},
		"OpenStack's":                 {answers(404, "<html>Not Found</html>"), fault.NotFound, fault.NotFound, "no_fleet_store"},
		"one with Keystone":           {answers(401, ""), fault.Forbidden, fault.Forbidden, "fleet_store_refuses"},
		"a proxy without a server":    {answers(502, ""), fault.Unavailable, fault.InDoubt, ""},
	} {
		c := client(t, tt.by)
		_, got := c.Get(t.Context(), "hosts/a")
		did := c.Commit(t.Context(), nil, fleet.Change{Key: "a", Value: []byte("1")})
		if fault.KindOf(got) != tt.get || fault.KindOf(did) != tt.commit {
			t.Errorf("%s: get %v, commit %v", name, got, did)
		}
		if reasons := fault.ReasonsOf(got); tt.code != "" && (len(reasons) != 1 || reasons[0].Code != tt.code) {
			t.Errorf("%s: reasons %v", name, reasons)
		}
		// The protocol does not take a missing store for a missing record.
		if _, err := fleet.New(c, &runtime.System{}).Return(t.Context(), "a", "boot"); err == nil {
			t.Errorf("%s: a host returned", name)
		}
	}
	refused, err := embedded.NewClient(embedded.Options{URL: "http://127.0.0.1:1", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	if err := refused.Commit(t.Context(), nil, fleet.Change{Key: "a", Value: []byte("1")}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a commit that nobody got: %v", err)
	}
	hang := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer slow.Close()
	defer close(hang)
	late, err := embedded.NewClient(embedded.Options{URL: slow.URL, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := late.Commit(t.Context(), nil, fleet.Change{Key: "a", Value: []byte("1")}); !errors.Is(err, fault.InDoubt) {
		t.Errorf("a commit without an answer: %v", err)
	}
	for _, url := range []string{"", "placement:8778", "ftp://x", "unix:x"} {
		if _, err := embedded.NewClient(embedded.Options{URL: url}); !errors.Is(err, fault.Invalid) {
			t.Errorf("url %q: %v", url, err)
		}
	}
}

func TestServer_BodiesThatAreTooLarge_AreRefusedWith413(t *testing.T) {
	s := serve(t, "")
	for _, verb := range []string{"get", "list", "page", "commit", "allowed", "renew"} {
		q := httptest.NewRequest(http.MethodPost, embedded.Path+verb, strings.NewReader(`{"key":"`+strings.Repeat("x", 5<<20)+`"}`))
		q.Header.Set("X-Auth-Token", "admin")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		if w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d %.200s", verb, w.Code, w.Body)
		}
	}
}

func TestServer_TakesTokensAsPlacementDoes(t *testing.T) {
	s := serve(t, "")
	for token, want := range map[string]int{"": http.StatusUnauthorized, "somebody": http.StatusForbidden, "admin": http.StatusNotFound} {
		q := httptest.NewRequest(http.MethodPost, embedded.Path+"get", strings.NewReader(`{"key":"hosts/a"}`))
		if token != "" {
			q.Header.Set("X-Auth-Token", token)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		if w.Code != want {
			t.Errorf("with token %q: %d, want %d: %s", token, w.Code, want, w.Body)
		}
	}
	for _, q := range []*http.Request{
		httptest.NewRequest(http.MethodGet, embedded.Path+"get", nil), httptest.NewRequest(http.MethodPost, embedded.Path+"drop", strings.NewReader("{}")),
		httptest.NewRequest(http.MethodPost, embedded.Path+"commit", strings.NewReader("[")),
	} {
		q.Header.Set("X-Auth-Token", "admin")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s %s: %d %s", q.Method, q.URL, w.Code, w.Body)
		}
	}
}

func TestServer_WithCertificatesHostsAndOperatorsAreLetIn(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	a, err := pki.Init(filepath.Join(dir, "ca"), "test", now, false)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, operator bool) pki.Paths {
		t.Helper()
		to := filepath.Join(dir, name)
		p := pki.Paths{CA: filepath.Join(dir, "ca", "ca.crt"), Cert: filepath.Join(to, "host.crt"), Key: filepath.Join(to, "host.key")}
		if operator {
			p.Cert, p.Key = filepath.Join(to, "operator.crt"), filepath.Join(to, "operator.key")
			_, err = a.IssueOperator(to, name, now)
		} else {
			_, err = a.IssueHost(to, name, []string{"127.0.0.1"}, now)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	own := issue("server", false)
	s, err := placement.New(placement.Options{
		Listen: "127.0.0.1:0", Auth: placement.AuthMTLS, CA: own.CA, Cert: own.Cert, Key: own.Key, Logger: silent,
		Beside: func(ctx context.Context, db placement.Store, rt runtime.Runtime, log *slog.Logger) (placement.Beside, error) {
			return embedded.Open(ctx, db, rt, log)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	}()
	<-s.Ready()
	ask := func(who *pki.Paths) error {
		config := &tls.Config{}
		id, err := pki.Load(own, now)
		if err != nil {
			t.Fatal(err)
		}
		config.RootCAs = id.Roots
		if who != nil {
			pair, err := tls.LoadX509KeyPair(who.Cert, who.Key)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		c, err := embedded.NewClient(embedded.Options{URL: "https://" + s.Addr(), TLS: config, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Commit(t.Context(), nil, fleet.Change{Key: "hosts/host-a", Value: []byte("1")})
	}
	host, operator := issue("host-a", false), issue("alice", true)
	if err := ask(&host); err != nil {
		t.Errorf("a host: %v", err)
	}
	if err := ask(&operator); err != nil {
		t.Errorf("an operator: %v", err)
	}
	if err := ask(nil); err == nil {
		t.Error("without a certificate it was committed")
	}
}
