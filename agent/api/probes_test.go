package api_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/internal/pki"
	"berth/internal/runtime"
)

// TestProbes_AreAnsweredWhileTheAgentBegins, to all who may be let in: every other request
// waits for the start, which here does not end.
func TestProbes_AreAnsweredWhileTheAgentBegins(t *testing.T) {
	ours, theirs := newCA(t, "ours"), newCA(t, "theirs")
	s := api.NewServer(api.Options{
		Name: "host-a", Identity: ours.host("host-a"), Runtime: &runtime.System{}, Logger: slog.New(slog.DiscardHandler), Started: make(chan struct{}),
		Probes: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "asked "+r.URL.Path)
		}),
	})
	socket := filepath.Join(t.TempDir(), "s")
	local, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	network, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	for _, l := range []net.Listener{local, network} {
		go func() { served <- s.Serve(l) }()
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	})
	unix := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	by := func(id *pki.Identity) *http.Transport {
		c := &tls.Config{InsecureSkipVerify: true} // who is asked is not what is tested
		if id != nil {
			c.Certificates = []tls.Certificate{id.Certificate}
		}
		return &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	}
	for _, c := range []struct {
		name string
		by   *http.Transport
		url  string
		says string // empty for one who is refused
	}{
		{"the local socket", &http.Transport{DialContext: unix, DisableKeepAlives: true}, "http://agent", "asked "},
		{"an operator", by(ours.operator("alice")), "https://" + network.Addr().String(), "asked "},
		{"another host", by(ours.host("host-b")), "https://" + network.Addr().String(), ""}, // it names itself, and does not here
		{"nobody", by(nil), "https://" + network.Addr().String(), ""},
		{"an operator of others", by(theirs.operator("alice")), "https://" + network.Addr().String(), ""},
	} {
		for _, path := range []string{api.HealthzPath, api.ReadyzPath} {
			resp, err := (&http.Client{Transport: c.by}).Get(c.url + path)
			if err != nil {
				t.Fatalf("%s, %s: %v", c.name, path, err)
			}
			text, err := io.ReadAll(resp.Body)
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
			want, status := c.says+path, http.StatusServiceUnavailable
			if c.says == "" {
				want, status = `"kind":"forbidden"`, http.StatusForbidden
			}
			if err != nil || resp.StatusCode != status || !strings.Contains(string(text), want) {
				t.Errorf("%s, %s: %d %s, %v; want %d and %q", c.name, path, resp.StatusCode, text, err, status, want)
			}
		}
	}
}
