package api_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/operation"
)

var ref = migration.Ref{Migration: "m-1", Instance: "i-1", Attempt: 2, Step: "claim"}

// everyVerb calls each verb of a host once, as the given source.
func everyVerb(h migration.Host, source string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"CheckDestination": func(ctx context.Context) error {
			a, err := operation.CheckDestination.Ask(ctx, h, ref, migration.CheckRequest{Source: migration.Description{Name: source}})
			if err == nil && len(a.Disks) != 1 {
				err = fmt.Errorf("answer %+v", a)
			}
			return err
		},
		"Claim": func(ctx context.Context) error {
			a, err := operation.Claim.Ask(ctx, h, ref, migration.ClaimRequest{Context: migration.Context{Source: source}, Lease: time.Minute})
			if err == nil && (a.Ticket != "secret" || a.Lease != time.Minute) {
				err = fmt.Errorf("answer %+v", a)
			}
			return err
		},
		"RenewClaim": func(ctx context.Context) error { return operation.RenewClaim.Ask(ctx, h, ref) },
		"AbortClaim": func(ctx context.Context) error { return operation.AbortClaim.Ask(ctx, h, ref) },
		"PreLiveMigration": func(ctx context.Context) error {
			a, err := operation.PreLiveMigration.Ask(ctx, h, ref, migration.PreLiveRequest{Source: source})
			if err == nil && !strings.Contains(a.DestinationXML, "<domain") {
				err = fmt.Errorf("answer %+v", a)
			}
			return err
		},
		"RollbackPreLiveMigration": func(ctx context.Context) error { return operation.RollbackPreLiveMigration.Ask(ctx, h, ref) },
		"AcceptToken": func(ctx context.Context) error {
			return operation.AcceptToken.Ask(ctx, h, ref, migration.Commit{Instance: "i-1", From: source, Epoch: 9})
		},
		"DestinationStatus": func(ctx context.Context) error {
			a, err := operation.DestinationStatus.Ask(ctx, h, ref)
			if err == nil && a.Claim != "arriving" {
				err = fmt.Errorf("answer %+v", a)
			}
			return err
		},
		"FinishDestination": func(ctx context.Context) error { return operation.FinishDestination.Ask(ctx, h, ref) },
	}
}

// sourceVerbs calls each verb that host-b, which conducts, asks of the source, host-a.
func sourceVerbs(h migration.Host) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Inspect": func(ctx context.Context) error {
			g, err := operation.Inspect.Ask(ctx, h, migration.Ref{Instance: "i-1"})
			if err == nil && g.XML != "<domain>&</domain>" {
				err = fmt.Errorf("answer %+v", g)
			}
			return err
		},
		"CheckSource": func(ctx context.Context) error {
			_, err := operation.CheckSource.Ask(ctx, h, ref, migration.CheckAnswer{Disks: []migration.DiskView{{Target: "vda"}}})
			return err
		},
		"RecordContext": func(ctx context.Context) error {
			return operation.RecordContext.Ask(ctx, h, ref, migration.Context{Source: "host-a", Destination: "host-d", Conductor: "host-b"})
		},
		"DropContext": func(ctx context.Context) error { return operation.DropContext.Ask(ctx, h, ref) },
		"StartStream": func(ctx context.Context) error { return operation.StartStream.Ask(ctx, h, ref, migration.Stream{}) },
		"StreamStatus": func(ctx context.Context) error {
			s, err := operation.StreamStatus.Ask(ctx, h, ref)
			if err == nil && s.Progress.MemoryTotal != 1<<40 {
				err = fmt.Errorf("answer %+v", s)
			}
			return err
		},
		"TuneStream": func(ctx context.Context) error { return operation.TuneStream.Ask(ctx, h, ref, migration.Tuning{}) },
		"Commit": func(ctx context.Context) error {
			c, err := operation.Commit.Ask(ctx, h, ref)
			if err == nil && c.Epoch != 7 {
				err = fmt.Errorf("answer %+v", c)
			}
			return err
		},
		"Reclaim":       func(ctx context.Context) error { return operation.Reclaim.Ask(ctx, h, ref) },
		"CleanUpSource": func(ctx context.Context) error { return operation.CleanUpSource.Ask(ctx, h, ref) },
	}
}

func TestVerbs_RoundTripBetweenHosts(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	if d, err := c.Describe(t.Context()); err != nil || d.Name != "host-a" || d.LibvirtVersion != 9000000 {
		t.Fatalf("describe: %+v, %v", d, err)
	}
	verbs := everyVerb(c, "host-b")
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	for name, call := range verbs {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("%s: %v, %d calls", name, err, w.verbs.count(name))
		}
	}
	w.parties["m-1"], w.parties["conducted"] = [2]string{"host-a", "host-d"}, [2]string{"host-b"}
	w.parties["instance i-1"] = w.parties["m-1"]
	for name, call := range sourceVerbs(c) {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("%s: %v, %d calls", name, err, w.verbs.count(name))
		}
	}
	for i, r := range w.verbs.refs {
		if w.verbs.calls[i] != "Inspect" && r != ref {
			t.Errorf("%s got ref %+v", w.verbs.calls[i], r)
		}
	}
	if w.verbs.seen.Epoch != 9 {
		t.Errorf("commit %+v", w.verbs.seen)
	}
}

func TestVerbs_OnlyThePartiesOfAMigrationMayAsk(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	forbidden := func(who string, verbs map[string]func(context.Context) error) {
		t.Helper()
		for name, call := range verbs {
			if err := call(t.Context()); !errors.Is(err, fault.Forbidden) || len(fault.ReasonsOf(err)) != 1 {
				t.Errorf("%s by %s: %v, want %v with its reason", name, who, err, fault.Forbidden)
			}
		}
	}
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-c"), As: "host-c"})
	forbidden("a third host", everyVerb(c, "host-c"))
	forbidden("a third host that names the true source", everyVerb(c, "host-b"))
	forbidden("a host that no migration is recorded with", sourceVerbs(c))
	op := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")})
	forbidden("an operator", everyVerb(op, "host-b"))
	local := client(t, api.ClientOptions{Socket: w.socket})
	forbidden("the local socket", sourceVerbs(local))
	if len(w.verbs.calls) != 0 {
		t.Errorf("verbs that were run all the same: %v", w.verbs.calls)
	}
}

func TestCertificates_WrongOnesAreRefusedWithTheReasonOnBothSides(t *testing.T) {
	ours, theirs := newCA(t, "ours"), newCA(t, "theirs")
	w := serve(t, "host-a", ours.host("host-a"))

	t.Run("a client of another CA, that would believe this server", func(t *testing.T) {
		id := *theirs.host("host-b")
		id.Roots = ours.host("x").Roots
		err := operation.RenewClaim.Ask(t.Context(), client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: &id, As: "host-b"}), ref)
		wantReason(t, err, "certificate_unknown_authority", "host-b", `"theirs"`)
	})
	t.Run("a host that calls itself another", func(t *testing.T) {
		err := operation.RenewClaim.Ask(t.Context(), client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-c"}), ref)
		wantReason(t, err, "certificate_wrong_name", "host-c", "host-b")
	})
	t.Run("a server of another CA", func(t *testing.T) {
		err := operation.RenewClaim.Ask(t.Context(), client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: theirs.host("host-b"), As: "host-b"}), ref)
		wantReason(t, err, "certificate_unknown_authority", "host-a", `"ours"`)
	})
	t.Run("a server that is another host", func(t *testing.T) {
		err := operation.RenewClaim.Ask(t.Context(), client(t, api.ClientOptions{Address: w.address, Name: "host-z", Identity: ours.host("host-b"), As: "host-b"}), ref)
		wantReason(t, err, "certificate_wrong_name", "host-a", "host-b")
	})
	t.Run("a server with an operator's certificate", func(t *testing.T) {
		imposter := serve(t, "host-a", ours.operator("host-a"))
		err := operation.RenewClaim.Ask(t.Context(), client(t, api.ClientOptions{Address: imposter.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"}), ref)
		if !errors.Is(err, fault.Forbidden) {
			t.Errorf("error %v, want %v", err, fault.Forbidden)
		}
	})
	if len(w.verbs.calls) != 0 {
		t.Errorf("verbs that were run all the same: %v", w.verbs.calls)
	}
}

func wantReason(t *testing.T, err error, code string, anyOf ...string) {
	t.Helper()
	reasons := fault.ReasonsOf(err)
	if !errors.Is(err, fault.Forbidden) || len(reasons) != 1 || reasons[0].Code != code || reasons[0].Change == "" {
		t.Fatalf("error %v (%v) with %+v, want forbidden, %s and what to change", err, fault.KindOf(err), reasons, code)
	}
	for _, s := range anyOf {
		if strings.Contains(err.Error(), s) {
			return
		}
	}
	t.Errorf("%q names none of %q", err, anyOf)
}

func TestOperator_LocalAndByCertificate(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	clients := map[string]*api.Client{
		"socket":      client(t, api.ClientOptions{Socket: w.socket}),
		"certificate": client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")}),
	}
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			if s, err := c.Status(t.Context()); err != nil || s.Name != "host-a" || !s.Ready {
				t.Errorf("status %+v, %v", s, err)
			}
			r := api.CreateInstance{FlavorName: "small"}
			r.Name, r.UUID, r.XML = "web", "u-1", "<domain/>"
			if i, err := c.CreateInstance(t.Context(), r); err != nil || i.Name != "web" || !i.Managed {
				t.Errorf("create %+v, %v", i, err)
			}
			if diff := cmp.Diff(r, w.instances.created[len(w.instances.created)-1]); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
			if i, err := c.Instance(t.Context(), "a b/c"); err != nil || i.Name != "a b/c" {
				t.Errorf("a name with a slash: %+v, %v", i, err)
			}
			if l, err := c.AllInstances(t.Context()); err != nil || len(l.Instances) != 2 || !l.Instances[1].Hidden {
				t.Errorf("with those that are hidden: %+v, %v", l, err)
			}
			if l, err := c.Instances(t.Context()); err != nil || len(l.Instances) != 1 || !strings.Contains(l.Error, "away") {
				t.Errorf("a list that is a part of the truth: %+v, %v", l, err)
			}
			m, err := c.Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-9", Options: migration.Options{Bandwidth: 1 << 20}})
			if err != nil || m.UUID != "m-9" || w.agent.started[len(w.agent.started)-1].Options.Bandwidth != 1<<20 {
				t.Errorf("migrate %+v, %v", m, err)
			}
			if l, err := c.Claims(t.Context()); err != nil || len(l.Claims) != 1 {
				t.Errorf("claims %+v, %v", l, err)
			}
		})
	}
	// A host's certificate reads; with the right relay it passes migrations on, and changes nothing else.
	w.rights.give(&fakeRights{relays: []string{"host-b"}})
	peer := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	if _, err := peer.Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-10"}); err != nil || w.agent.from[len(w.agent.from)-1] != "host-b" {
		t.Errorf("a migrate that is passed on: %v, from %v", err, w.agent.from)
	}
	if _, err := peer.DeleteInstance(t.Context(), "web", api.DeleteInstance{}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a host that deletes a guest: %v, want %v", err, fault.Forbidden)
	}
}

func TestErrors_KeepKindAndReasonsAndSayThemOnce(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	_, err := c.StartInstance(t.Context(), "web")
	want := "start instance web: memory: want 4096 MiB, 1024 MiB free; vcpus: want 4, 1 free"
	if !errors.Is(err, fault.DoesNotFit) || err.Error() != want {
		t.Errorf("error %q (%v), want %q", err, fault.KindOf(err), want)
	}
	reasons := fault.ReasonsOf(err)
	if len(reasons) != 2 || reasons[0].Change != "free 3072 MiB" || reasons[1].Code != "vcpu_short" {
		t.Errorf("reasons %+v", reasons)
	}
	if _, err := c.ClaimByID(t.Context(), "x"); !errors.Is(err, fault.NotFound) {
		t.Errorf("error %v, want %v", err, fault.NotFound)
	}
	for _, kind := range []fault.Kind{fault.NotFound, fault.Exists, fault.Busy, fault.DoesNotFit, fault.GenerationConflict, fault.Unavailable,
		fault.Invalid, fault.Forbidden, fault.InDoubt, fault.Undone, fault.Internal} {
		wrapped := fmt.Errorf("outer: %w", fault.Refuse(kind, "inner", fault.Reason{Code: "c", Message: "said"}))
		back := api.BodyOf(wrapped).Err()
		if !errors.Is(back, kind) || strings.Count(back.Error(), "said") != 1 || back.Error() != "outer: inner: said" {
			t.Errorf("%s comes back as %q (%v)", kind, back, fault.KindOf(back))
		}
	}
}

// raw sends bytes as they are over the unix socket.
func raw(t *testing.T, socket, method, path, body string, header ...string) (int, api.ErrorBody) {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	return rawOver(t, tr, "http://berth", method, path, body, header...)
}

// rawTLS is raw over mutual TLS, with the headers that are given and no other.
func rawTLS(t *testing.T, address string, id *pki.Identity, method, path, body string, header ...string) (int, api.ErrorBody) {
	t.Helper()
	return rawOver(t, tlsTransport(id), "https://"+address, method, path, body, header...)
}

// tlsTransport shows a certificate, or none for nil, and does not look at the server's.
func tlsTransport(id *pki.Identity) *http.Transport {
	conf := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if id != nil {
		conf.Certificates = []tls.Certificate{id.Certificate}
	}
	return &http.Transport{TLSClientConfig: conf}
}

func rawOver(t *testing.T, tr *http.Transport, base, method, path, body string, header ...string) (int, api.ErrorBody) {
	t.Helper()
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s %s: no request id", method, path)
	}
	var out api.ErrorBody
	if err := json.Unmarshal(data, &out); err != nil && resp.StatusCode >= 300 {
		t.Errorf("%s %s: error body is not JSON: %s", method, path, data)
	}
	return resp.StatusCode, out
}

func TestRequests_AreStrictAndBounded(t *testing.T) {
	w := serve(t, "host-a", nil)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		kind                     fault.Kind
		says                     string
	}{
		{"unknown field", "POST", "/v1/migrations", `{"instance":"web","dest":"b"}`, 400, fault.Invalid, `unknown field "dest"`},
		{"wrong type", "POST", "/v1/migrations", `{"instance":7}`, 400, fault.Invalid, `field "instance"`},
		{"two values", "POST", "/v1/migrations", `{"instance":"a"}{"instance":"b"}`, 400, fault.Invalid, "follows"},
		{"empty", "POST", "/v1/migrations", ``, 400, fault.Invalid, "empty"},
		{"garbage", "POST", "/v1/migrations", `{"instance":`, 400, fault.Invalid, "not JSON"},
		{"too large", "POST", "/v1/instances", `{"xml":"` + strings.Repeat("x", api.MaxBody) + `"}`, 413, fault.Invalid, "larger"},
		{"a name that nothing has", "GET", "/v1/instances/" + strings.Repeat("x", 500), ``, 400, fault.Invalid, "500 bytes"},
		{"a name of many parts", "GET", "/v1/instances/" + strings.Repeat("x%2F", 2000), ``, 400, fault.Invalid, "path of 40"},
		{"no route, at length", "GET", "/v1/" + strings.Repeat("x/", 2000), ``, 400, fault.Invalid, "path of 40"},
		{"one with an end behind it", "PUT", "/v1/migrations/" + strings.Repeat("x", 500) + "/hooks/prep-resize", `{}`, 400, fault.Invalid, "500 bytes"},
		{"a host that is none", "GET", "/v1/status?host=" + strings.Repeat("x", 5000), ``, 400, fault.Invalid, "5000 bytes"},
		{"a guest that is none", "POST", "/v1/migrations", `{"instance":"` + strings.Repeat("x", 5000) + `"}`, 400, fault.Invalid, "5000 bytes"},
		{"a destination that is none", "POST", "/v1/migrations", `{"instance":"web","dest_compute":"` + strings.Repeat("x", 5000) + `"}`, 400, fault.Invalid, "5000 bytes"},
		{"a plan for none", "POST", "/v1/plan", `{"instance":"` + strings.Repeat("x", 5000) + `"}`, 400, fault.Invalid, "5000 bytes"},
		{"a tool's guest that is none", "PUT", "/v1/migrations/m/hooks/prep-resize", `{"instance":"` + strings.Repeat("x", 5000) + `"}`, 400, fault.Invalid, "5000 bytes"},
		{"method that the path has not", "DELETE", "/v1/instances", ``, 405, fault.Invalid, "GET and POST"},
		{"no such route", "GET", "/v2/status", ``, 404, fault.NotFound, "/v2/status"},
		{"no such host", "GET", "/v1/status?host=host-z", ``, 404, fault.NotFound, "host-z"},
		{"not passed on", "POST", "/v1/instances?host=host-z", `{}`, 403, fault.Forbidden, "has to be asked of host-z itself"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body := raw(t, w.socket, tt.method, tt.path, tt.body)
			all := body.Err().Error()
			if status != tt.status || body.Error.Kind != tt.kind || !strings.Contains(all, tt.says) {
				t.Errorf("%d %s %q, want %d %s with %q", status, body.Error.Kind, all, tt.status, tt.kind, tt.says)
			}
			if len(all) > 1000 {
				t.Errorf("%d bytes of error", len(all))
			}
		})
	}
	// What a web page can make a browser send without asking first.
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"} {
		status, body := raw(t, w.socket, "POST", "/v1/migrations", `{"instance":"web"}`, "Content-Type", kind)
		if status != 400 || len(body.Error.Reasons) != 1 || body.Error.Reasons[0].Code != "content_type" {
			t.Errorf("content type %q: %d %+v, want 400 for it", kind, status, body)
		}
	}
	if len(w.agent.started)+len(w.instances.created) != 0 {
		t.Error("a refused request was served")
	}
}

func TestRequests_ABodyThatDoesNotArriveFreesItsConnection(t *testing.T) {
	w := serveWith(t, "host-a", nil, 30*time.Millisecond)
	conn, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "POST /v1/migrations HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	// To the end: the server says why, and hangs up.
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), " 400 ") || !strings.Contains(string(answer), "body_late") {
		t.Errorf("%q, %v; want 400 body_late and the connection's end", answer, err)
	}
}

// Who is refused before a row of the table is reached, and has promised a body that never comes,
// holds no connection: anybody who reaches the port may try.
func TestRequests_WhoIsRefusedFreesItsConnection(t *testing.T) {
	ours := newCA(t, "ours")
	w := serveWith(t, "host-a", ours.host("host-a"), 30*time.Millisecond)
	local := func() (net.Conn, error) { return net.Dial("unix", w.socket) }
	stranger := func() (net.Conn, error) {
		return tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true})
	}
	for _, tt := range []struct {
		name, line string
		dial       func() (net.Conn, error)
		want       string
	}{
		{"no certificate", "POST /v1/migrations", stranger, " 403 "},
		{"no such path", "POST /v1/nothing", local, " 404 "},
		{"no such method", "PATCH /v1/migrations", local, " 405 "},
		{"a body where none is taken", "GET /v1/migrations", local, " 200 "},
		{"a probe", "GET /healthz", stranger, " 403 "},
		{"nothing to watch", "GET /v1/migrations/nothing/watch", local, " 404 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := tt.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, tt.line+" HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.Contains(string(answer), tt.want) {
				t.Errorf("%q, %v; want%sand the connection's end", answer, err, tt.want)
			}
		})
	}
}

// joins reports whether a request waits for another's answer. Nobody tells but its stack.
func joins() bool {
	all := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.Contains(stack, "sync.(*WaitGroup).Wait") && strings.Contains(stack, "singleflight.(*Group).Do(") {
			return true
		}
	}
	return false
}

func TestVerbs_ARepeatJoinsTheOneInProgressAndOutlivesItsCaller(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.verbs.gate, w.verbs.enter = make(chan struct{}), make(chan struct{}, 4)
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})

	// The first caller goes away in the middle of the verb.
	first, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := operation.RenewClaim.Ask(first, c, ref); !errors.Is(err, fault.Unavailable) {
			t.Errorf("the caller that went away: %v, want %v", err, fault.Unavailable)
		}
	})
	<-w.verbs.enter
	leave()
	wg.Wait()
	// The second asks the same, and gets the answer of the one in progress.
	answered := make(chan error, 1)
	go func() { answered <- operation.RenewClaim.Ask(t.Context(), c, ref) }()
	for end := time.Now().Add(time.Minute); !joins() && len(w.verbs.enter) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the second does not come")
		}
	}
	if len(w.verbs.enter) > 0 {
		t.Error("the verb runs twice at once")
	}
	close(w.verbs.gate)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if n := w.verbs.count("RenewClaim"); n != 1 {
		t.Errorf("it ran %d times, want once", n)
	}
}

// flaky cuts the connection of the first n requests after they were served.
func flaky(t *testing.T, to string, n int) (address string, count func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			seen++
			cut := seen <= n
			mu.Unlock()
			wg.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				var both sync.WaitGroup
				both.Go(func() {
					_, _ = io.Copy(out, in)
					out.Close()
				})
				if cut {
					// The handshake's answer passes; what follows it is lost.
					_, _ = io.CopyN(in, out, 2500)
					in.Close()
				} else {
					_, _ = io.Copy(in, out)
					in.Close()
				}
				both.Wait()
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String(), func() int { mu.Lock(); defer mu.Unlock(); return seen }
}

func TestClient_RepeatsAVerbWhoseAnswerWasLost(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	addr, connections := flaky(t, w.address, 2)
	c := client(t, api.ClientOptions{Address: addr, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	t.Cleanup(c.Close)
	a, err := operation.PreLiveMigration.Ask(t.Context(), c, ref, migration.PreLiveRequest{Source: "host-b", Guest: migration.Guest{XML: strings.Repeat("<x/>", 50000)}})
	if err != nil || !strings.Contains(a.DestinationXML, "host-b") {
		t.Errorf("answer %+v, %v", a, err)
	}
	if connections() < 3 {
		t.Errorf("%d connections: nothing was lost", connections())
	}
	c.Close()
}

func TestClient_NobodyThere(t *testing.T) {
	ours := newCA(t, "ours")
	// A port that is held, and at which nobody listens: one that was let go is another's soon.
	held, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	if err := unix.Bind(held, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(held)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
	for name, o := range map[string]api.ClientOptions{
		"socket": {Socket: t.TempDir() + "/absent"},
		"peer":   {Address: addr, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, o)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := operation.RenewClaim.Ask(ctx, c, ref); !errors.Is(err, fault.Unavailable) || len(fault.ReasonsOf(err)) != 1 {
				t.Errorf("verb: %v, want %v with its reason", err, fault.Unavailable)
			}
			// Nothing was sent, so nothing is in doubt.
			if _, err := c.DeleteInstance(ctx, "web", api.DeleteInstance{}); !errors.Is(err, fault.Unavailable) {
				t.Errorf("delete: %v, want %v", err, fault.Unavailable)
			}
		})
	}
}

func TestClient_ALostAnswerOfWhatCannotBeRepeatedIsInDoubt(t *testing.T) {
	socket := t.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			conn.Close()
		}
	})
	defer wg.Wait()
	defer l.Close()
	c := client(t, api.ClientOptions{Socket: socket})
	if _, err := c.DeleteInstance(t.Context(), "web", api.DeleteInstance{}); !errors.Is(err, fault.InDoubt) {
		t.Errorf("delete: %v (%v), want %v", err, fault.KindOf(err), fault.InDoubt)
	}
}
