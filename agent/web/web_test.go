package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/agent/web"
	"berth/agent/web/webtest"
	"berth/internal/pki"
	"berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what happens within a second or two where nobody else works.
const patience = 60 * time.Second

// served is a page that is shown until the test ends.
type served struct {
	address string
	mu      sync.Mutex
	moment  web.Snapshot
	looks   int
}

func (s *served) look(context.Context) web.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.moment
}

func (s *served) change(f func(*web.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moment.Guests, s.moment.Migrations = slices.Clone(s.moment.Guests), slices.Clone(s.moment.Migrations)
	f(&s.moment)
}

// serve shows Busy on a loopback address, over TLS where there is an identity.
func serve(t *testing.T, id *pki.Identity) *served {
	t.Helper()
	return serveWith(t, id, 0)
}

func serveWith(t *testing.T, id *pki.Identity, answerTime time.Duration) *served {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{address: l.Addr().String(), moment: webtest.Busy()}
	page := web.New(web.Options{Look: s.look, Runtime: &runtime.System{}, AnswerTime: answerTime})
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(l, id) }()
	t.Cleanup(func() {
		if err := page.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// browser asks, without connections that outlive the test.
func browser(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}} // who serves is not what is asked here
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func ask(t *testing.T, c *http.Client, method, url, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestPage_ShowsTheHostWithoutAScript(t *testing.T) {
	s := serve(t, nil)
	resp, text := ask(t, browser(t), http.MethodGet, "http://"+s.address+"/", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d: %s", resp.StatusCode, text)
	}
	for _, want := range []string{
		"<title>host-a.example: one thing is not well</title>",
		"refuses the connection", "start Placement, or correct", "6 parts are well", // health
		`<progress max="100" value="62" `, "host-b.example", "118 MiB/s", "pass 2", "about 32 s left", "as many guests leave", "operator:alice", // moves
		`class="berth-drawing"`, "<b>claim</b>", "4 held, 6 free", // host
		"by-hand", "runs without a claim", "MIGRATING", "SHUTOFF", // guests
		"nobody answers on host-c.example:16515", "refused", "nowhere", // history
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, never := range []string{"<script>", " style=", " onclick=", "<style", "http://www.", "https://"} {
		// The name space of the drawing is a word, and is not fetched.
		if strings.Contains(strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, ""), never) {
			t.Errorf("%q stands in the page", never)
		}
	}
}

// TestPage_ANameIsNoMarkup: not in the page, not in the drawing, not in what a page that is
// open is told.
func TestPage_ANameIsNoMarkup(t *testing.T) {
	s := serve(t, nil)
	_, text := ask(t, browser(t), http.MethodGet, "http://"+s.address+"/", "")
	told := strings.Join(slices.Collect(values(watch(t, s).next(t).Sections)), "")
	for what, text := range map[string]string{"page": text, "update": told} {
		if strings.Contains(text, "<script>") || strings.Contains(text, "<img") {
			t.Errorf("a name is markup in the %s", what)
		}
		if strings.Count(text, "&lt;script&gt;") < 2 {
			t.Errorf("the name does not stand in the %s: this test looks at nothing", what)
		}
	}
}

func values(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// A body that is promised and never comes holds no connection.
func TestPage_WhoIsRefusedFreesItsConnection(t *testing.T) {
	ca, err := pki.Init(t.TempDir(), "ours", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	for who, id := range map[string]*pki.Identity{"whoever on this machine writes": nil, "a stranger": host(t, ca, "host-a")} {
		t.Run(who, func(t *testing.T) {
			s := serveWith(t, id, 50*time.Millisecond)
			conn, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			if id != nil {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // who serves is not what is asked here
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is open still")
			}
		})
	}
}

func TestPage_OnlyReadsAndIsFenced(t *testing.T) {
	s, c := serve(t, nil), browser(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		if resp, _ := ask(t, c, method, "http://"+s.address+"/", ""); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
	}
	for path, status := range map[string]int{"/": 200, "/page.css": 200, "/page.js": 200, "/page.html": 404, "/page/": 404, "/v1/status": 404, "/../etc/passwd": 404, "/metrics": 404} {
		resp, _ := ask(t, c, http.MethodGet, "http://"+s.address+path, "")
		if resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, status)
		}
		csp := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") ||
			resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: headers %v", path, resp.Header)
		}
	}
}

// TestPage_IsNotAnsweredByAnotherName: a page of somebody else's whose name leads to this
// machine reads nothing.
func TestPage_IsNotAnsweredByAnotherName(t *testing.T) {
	s, c := serve(t, nil), browser(t)
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	for host, status := range map[string]int{
		"localhost": 200, "LOCALHOST:" + port: 200, "berth.localhost:8080": 200, "127.0.0.1:" + port: 200, "127.1.2.3": 200, "[::1]:" + port: 200,
		"evil.example": 421, "evil.example:" + port: 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "192.0.2.1": 421, "0.0.0.0": 421,
	} {
		if resp, text := ask(t, c, http.MethodGet, "http://"+s.address+"/", host); resp.StatusCode != status || status != 200 && strings.Contains(text, "host-a") {
			t.Errorf("as %s: %d, want %d", host, resp.StatusCode, status)
		}
	}
}

func host(t *testing.T, ca *pki.Authority, name string) *pki.Identity {
	t.Helper()
	dir := t.TempDir()
	if _, err := ca.IssueHost(dir, name, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	return identity(t, dir, pki.HostCertFile, pki.HostKeyFile)
}

func operator(t *testing.T, ca *pki.Authority, name string) *pki.Identity {
	t.Helper()
	dir := t.TempDir()
	if _, err := ca.IssueOperator(dir, name, time.Now()); err != nil {
		t.Fatal(err)
	}
	return identity(t, dir, pki.OperatorCertFile, pki.OperatorKeyFile)
}

func identity(t *testing.T, dir, cert, key string) *pki.Identity {
	t.Helper()
	id, err := pki.Load(pki.Paths{CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, cert), Key: filepath.Join(dir, key)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestPage_OffTheMachineForOperatorsAlone has each kind of certificate look.
func TestPage_OffTheMachineForOperatorsAlone(t *testing.T) {
	now := time.Now()
	ours, err := pki.Init(t.TempDir(), "ours", now, false)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := pki.Init(t.TempDir(), "theirs", now, false)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, host(t, ours, "host-a"))
	for _, c := range []struct {
		who    string
		with   []tls.Certificate
		status int
	}{
		{"an operator", []tls.Certificate{operator(t, ours, "alice").Certificate}, 200},
		{"nobody", nil, 403},
		{"a host", []tls.Certificate{host(t, ours, "host-b").Certificate}, 403},
		{"somebody else's operator", []tls.Certificate{operator(t, theirs, "alice").Certificate}, 403},
	} {
		for _, path := range []string{"/", "/events", "/page.js"} {
			if c.status == 200 && path == "/events" {
				continue // it stays
			}
			resp, text := ask(t, browser(t, c.with...), http.MethodGet, "https://"+s.address+path, "host-a:9180")
			if resp.StatusCode != c.status || c.status != 200 && strings.Contains(text, "database") {
				t.Errorf("%s asks for %s: %d, want %d: %s", c.who, path, resp.StatusCode, c.status, text)
			}
		}
	}
}

// TestPage_IsNotShownToOthersInPlainText: a listener that reaches beyond the machine wants
// certificates.
func TestPage_IsNotShownToOthersInPlainText(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := web.New(web.Options{Runtime: &runtime.System{}}).Serve(l, nil); err == nil || !strings.Contains(err.Error(), "no certificates") {
		t.Errorf("shown on %s: %v", l.Addr(), err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is open still")
	}
}

// update is what an open page is told.
type update struct {
	At, Title, Edition string
	Sections           map[string]string
}

// watcher is an open page.
type watcher struct{ lines *bufio.Scanner }

func watch(t *testing.T, s *served) watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := browser(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
	})
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("events: %d, %v", resp.StatusCode, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	return watcher{lines}
}

// next waits for what it is told; the client's patience bounds it.
func (w watcher) next(t *testing.T) update {
	t.Helper()
	for w.lines.Scan() {
		if data, ok := strings.CutPrefix(w.lines.Text(), "data: "); ok {
			var u update
			if err := json.Unmarshal([]byte(data), &u); err != nil {
				t.Fatal(err)
			}
			return u
		}
	}
	t.Fatalf("the events end: %v", w.lines.Err())
	return update{}
}

func TestEvents_TellOnlyWhatHasChanged(t *testing.T) {
	s := serve(t, nil)
	w := watch(t, s)
	first := w.next(t)
	if len(first.Sections) != 5 || first.Title == "" || first.Edition == "" || first.At != "2026-03-14T09:26:53Z" {
		t.Fatalf("first: %+v", first)
	}
	s.change(func(m *web.Snapshot) { m.Guests[0].State, m.Guests[0].Status = "paused", "PAUSED" })
	for {
		u := w.next(t)
		if len(u.Sections) == 0 {
			continue // still there
		}
		if text := u.Sections["guests"]; len(u.Sections) != 1 || !strings.Contains(text, "PAUSED") {
			t.Errorf("a guest was paused: %d sections, guests %q", len(u.Sections), text)
		}
		break
	}
	s.change(func(m *web.Snapshot) { m.Migrations[1].Progress.MemoryRemaining = 1 << 30 })
	for {
		if u := w.next(t); len(u.Sections) > 0 {
			if text := u.Sections["moves"]; len(u.Sections) != 1 || !strings.Contains(text, `value="87"`) {
				t.Errorf("a transfer went on: %d sections, moves %q", len(u.Sections), text)
			}
			break
		}
	}
}

// TestEvents_StayLongerThanAnAnswerMayTake: what bounds other requests does not end them.
func TestEvents_StayLongerThanAnAnswerMayTake(t *testing.T) {
	const answerTime = time.Second
	s := serveWith(t, nil, answerTime)
	w := watch(t, s)
	first := w.next(t)
	for begin, n := time.Now(), 0; time.Since(begin) < 3*answerTime; n++ {
		s.change(func(m *web.Snapshot) { m.Guests[0].Status = strings.Repeat("X", n+1) })
		if u := w.next(t); u.Edition != first.Edition {
			t.Fatalf("told by %s, before by %s", u.Edition, first.Edition)
		}
	}
}

// TestEvents_HaveAnEndToTheirRoom: who watches when all places are taken is told, and the page
// itself is shown all the same.
func TestEvents_HaveAnEndToTheirRoom(t *testing.T) {
	s := serve(t, nil)
	for range 64 {
		watch(t, s)
	}
	c := browser(t)
	if resp, _ := ask(t, c, http.MethodGet, "http://"+s.address+"/events", ""); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d", resp.StatusCode)
	}
	if resp, _ := ask(t, c, http.MethodGet, "http://"+s.address+"/", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("the page: %d", resp.StatusCode)
	}
}
