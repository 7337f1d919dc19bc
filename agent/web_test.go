package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/api"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/pki"
	"berth/internal/runtime"
)

// pageOf asks for the page; status 0 where nobody answers.
func pageOf(t *testing.T, network, address string) (status int, text string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://localhost/")
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// pageCondition is what berth status says of the page.
func pageCondition(t *testing.T, client *api.Client) api.Condition {
	t.Helper()
	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Conditions, func(c api.Condition) bool { return c.Name == "page" })
	if i < 0 {
		return api.Condition{}
	}
	return s.Conditions[i]
}

// TestPage_IsShownBehindASocket with what the agent knows, though no hypervisor answers.
func TestPage_IsShownBehindASocket(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	socket := filepath.Join(t.TempDir(), "web.sock")
	c.Web.Listen = "unix:" + socket
	client, _ := start(t, agentOptions(t, c))
	disable(t, client, "a disk is broken")
	var text string
	await(t, "the page, and that the guests cannot be asked for", func() bool {
		var status int
		status, text = pageOf(t, "unix", socket)
		return status == http.StatusOK && strings.Contains(text, errAbsent.Error()) && strings.Contains(text, "a disk is broken")
	})
	for _, want := range []string{"host-t", "mode <b>manage</b>", "libvirt"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	if got := pageCondition(t, client); got.Health != api.HealthOK || !strings.Contains(got.Detail, socket) {
		t.Errorf("condition %+v", got)
	}
}

// TestPage_DrawsWhatTheLedgerHas, from memory: no hypervisor is asked for it.
func TestPage_DrawsWhatTheLedgerHas(t *testing.T) {
	t.Parallel()
	a, _ := twoCells(t)
	got := a.page.look(t.Context())
	var names []string
	for _, g := range got.Host.Guests {
		names = append(names, g.Name)
	}
	if !slices.Equal(names, []string{"db", "web"}) || !got.GuestsAt.IsZero() || got.At.IsZero() || got.Status.Name != "host-t" {
		t.Errorf("drawn are %q of %+v", names, got.Status)
	}
	var svg strings.Builder
	if err := got.Host.Inline(&svg); err != nil || strings.Count(svg.String(), `data-instance="00000000-0000-4000-8000-000000000002"`) < 2 {
		t.Errorf("what web holds is not in the drawing: %v, %s", err, svg.String())
	}
}

// TestPage_ForgetsGuestsThatWereSeenLongAgo: they may have gone since.
func TestPage_ForgetsGuestsThatWereSeenLongAgo(t *testing.T) {
	t.Parallel()
	a, _ := twoCells(t)
	for age, want := range map[time.Duration]int{0: 1, time.Hour: 0} {
		a.page.guests.Store(&sighting{at: a.rt.Now().Add(-age), list: []api.Instance{{State: "running"}}})
		if got := a.page.look(t.Context()); len(got.Guests) != want || got.GuestsAt.IsZero() != (want == 0) {
			t.Errorf("of guests seen %s ago %+v are shown, want %d", age, got.Guests, want)
		}
	}
}

// TestPage_IsShownWhileTheHypervisorHangs, and the agent waits for it in its start.
func TestPage_IsShownWhileTheHypervisorHangs(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	socket := filepath.Join(t.TempDir(), "web.sock")
	c.Web.Listen = "unix:" + socket
	o := agentOptions(t, c)
	var asked atomic.Bool
	o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return hanging{asked: &asked} }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await(t, "the page of an agent that starts", func() bool {
		status, text := pageOf(t, "unix", socket)
		return asked.Load() && status == http.StatusOK && strings.Contains(text, "The agent is starting") && strings.Contains(text, "It is being asked")
	})
}

// TestPage_WaitsForItsPort: a port that is taken is told, and tried again.
func TestPage_WaitsForItsPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := settings(t, nowhere(t))
	c.Web.Listen = taken.Addr().String()
	client, _ := start(t, agentOptions(t, c))
	await(t, "that the page's port is taken", func() bool {
		got := pageCondition(t, client)
		return got.Health == api.HealthDegraded && strings.Contains(got.Detail, "not shown") && len(got.Reasons) == 1 && got.Reasons[0].Change != ""
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the page", func() bool { status, _ := pageOf(t, "tcp", c.Web.Listen); return status == http.StatusOK })
	await(t, "that the page is shown", func() bool { return pageCondition(t, client).Health == api.HealthOK })
}

// TestPage_IsNotShownToOthersWithoutCertificates, and not in plain text instead.
func TestPage_IsNotShownToOthersWithoutCertificates(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Web.Listen = ":0"
	client, _ := start(t, agentOptions(t, c))
	await(t, "that the page is not shown", func() bool {
		got := pageCondition(t, client)
		return got.Health == api.HealthDegraded && strings.Contains(got.Detail, "there are no certificates")
	})
}

// TestPage_IsOffUnlessItIsAskedFor by default.
func TestPage_IsOffUnlessItIsAskedFor(t *testing.T) {
	t.Parallel()
	client, _ := start(t, agentOptions(t, settings(t, nowhere(t))))
	if got := pageCondition(t, client); got.Name != "" {
		t.Errorf("condition %+v", got)
	}
}

// TestPage_GoesToOthersOverTLSAlone, with the host's certificate, to operators and readers.
func TestPage_GoesToOthersOverTLSAlone(t *testing.T) {
	t.Parallel()
	c, dir, now := settings(t, nowhere(t)), t.TempDir(), time.Now()
	ca, err := pki.Init(dir, "ours", now, false)
	if err != nil {
		t.Fatal(err)
	}
	host, alice, carol := filepath.Join(dir, "host"), filepath.Join(dir, "alice"), filepath.Join(dir, "carol")
	_, one := ca.IssueHost(host, "host-t", nil, now)
	_, two := ca.IssueOperator(alice, "alice", now)
	_, three := ca.IssueReader(carol, "carol", now)
	if err := errors.Join(one, two, three); err != nil {
		t.Fatal(err)
	}
	c.PKI = config.PKI{CA: filepath.Join(host, pki.CACertFile), Cert: filepath.Join(host, pki.HostCertFile), Key: filepath.Join(host, pki.HostKeyFile)}
	c.Web.Listen = ":0"
	client, _ := start(t, agentOptions(t, c))
	var address string
	await(t, "the page", func() bool {
		got := pageCondition(t, client)
		_, port, err := net.SplitHostPort(strings.TrimPrefix(got.Detail, "shown on "))
		address = net.JoinHostPort("127.0.0.1", port)
		return err == nil && got.Health == api.HealthOK && port != "0"
	})
	for name, c := range map[string]struct {
		folder, cert, key string
		status            int
	}{
		"an operator": {alice, pki.OperatorCertFile, pki.OperatorKeyFile, http.StatusOK},
		"a reader":    {carol, pki.OperatorCertFile, pki.OperatorKeyFile, http.StatusOK},
		"a host":      {host, pki.HostCertFile, pki.HostKeyFile, http.StatusForbidden},
		"nobody":      {status: http.StatusForbidden},
	} {
		use := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "host-t"}
		use.RootCAs.AddCert(ca.Cert)
		if c.folder != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(c.folder, c.cert), filepath.Join(c.folder, c.key))
			if err != nil {
				t.Fatal(err)
			}
			use.Certificates = []tls.Certificate{pair}
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: use}, Timeout: patience}).Get("https://" + address + "/")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s is answered %d, want %d", name, resp.StatusCode, c.status)
		}
	}
	if status, text := pageOf(t, "tcp", address); status == http.StatusOK || strings.Contains(text, "host-t") {
		t.Errorf("in plain text: %d, %s", status, text)
	}
}
