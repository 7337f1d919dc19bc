package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
)

// answered is what a handler or a socket says to a probe.
func answered(t *testing.T, socket, path string) (int, string) {
	t.Helper()
	c := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := c.Get("http://agent" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestProbes_SayWhatIsTheMatter(t *testing.T) {
	var now time.Duration
	p := &probes{now: func() time.Duration { return now }}
	ask := func(path string) string {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return strconv.Itoa(w.Code) + " " + w.Body.String()
	}
	down := fault.Refuse(fault.Unavailable, "connect to 10.0.0.7", fault.Reason{Code: "libvirt_unavailable", Message: "no answer from 10.0.0.7"})
	whole := look{at: time.Minute, alive: true, parts: []readiness{{part: "start"}, {part: "libvirt"}, {part: "host", says: "disabled, takes no new guests"}}}
	broken := look{at: time.Minute, alive: true, parts: []readiness{{part: "start"}, {part: "libvirt", err: down}}}
	for _, c := range []struct {
		name          string
		last          *look
		now           time.Duration
		health, ready string // the status, and all that is said
	}{
		{"nobody has looked yet", nil, 0, "503 the agent begins\n", "503 the agent begins\n"},
		{"all well", &whole, time.Minute, "200 ok\n", "200 ready\nyes  start\nyes  libvirt\nyes  host: disabled, takes no new guests\n"},
		{"a part is missing", &broken, time.Minute, "200 ok\n", "503 not ready: berth status says more\nyes  start\nno   libvirt: libvirt_unavailable\n"},
		{
			"the look does not come to its end", &whole, time.Minute + lookPatience + time.Second,
			"503 the agent hangs: it has not come to look at itself for 21s\n", "503 the agent hangs: it has not come to look at itself for 21s\n",
		},
		{"a loop stands still", &look{at: time.Minute}, time.Minute, "503 a loop of the agent does not go on, see its log\n", "503 a loop of the agent does not go on, see its log\n"},
	} {
		p.last.Store(c.last)
		now = c.now
		for path, want := range map[string]string{api.HealthzPath: c.health, api.ReadyzPath: c.ready} {
			if got := ask(path); got != want {
				t.Errorf("%s: %s says %q, want %q", c.name, path, got, want)
			}
		}
	}
}

// TestProbes_FollowWhatTheHostCanDo: libvirt hangs and comes back, Placement goes, the agent
// goes down; the agent itself works all the while.
func TestProbes_FollowWhatTheHostCanDo(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	socket := p.options["host-a"].Config.Agent.SocketPath()
	until := func(want int, says string) {
		t.Helper()
		var status int
		var words string
		defer func() {
			if t.Failed() {
				t.Logf("the last answer: %d %s", status, words)
			}
		}()
		await(t, "readyz says "+says, func() bool {
			status, words = answered(t, socket, api.ReadyzPath)
			return status == want && strings.Contains(words, says)
		})
		await(t, "healthz says yes all the same", func() bool {
			health, _ := answered(t, socket, api.HealthzPath)
			return health == http.StatusOK
		})
	}
	until(http.StatusOK, "ready\n")
	p.fleet.Host("host-a").Hang(true)
	until(http.StatusServiceUnavailable, "no   libvirt: libvirt_unavailable")
	p.fleet.Host("host-a").Hang(false)
	until(http.StatusOK, "yes  libvirt")
	whole := p.handler.Load()
	var gone http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	p.handler.Store(&gone)
	until(http.StatusServiceUnavailable, "no   placement: placement_unavailable")
	p.handler.Store(whole)
	until(http.StatusOK, "yes  placement")
	yes := true
	if _, err := p.clients["host-a"].SetHost(t.Context(), api.SetHost{Disabled: &yes, Reason: "maintenance"}); err != nil {
		t.Fatal(err)
	}
	until(http.StatusOK, "host: disabled")
	if status, words := answered(t, socket, "/livez"); status != http.StatusNotFound {
		t.Errorf("a path that is not there: %d %s", status, words)
	}
}
