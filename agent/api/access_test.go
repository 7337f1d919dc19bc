package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
)

// refusals are the codes by which an agent says that somebody may not ask, whatever he asks for.
var refusals = []string{
	"caller", "reads_only", api.ReasonAskThere, "not_a_party", "not_its_guest", "right_missing", "host_unnamed", "tls_required",
	"certificate_missing", "certificate_invalid", "certificate_unknown_authority", "certificate_wrong_name", "certificate_nameless",
}

// TestAccess_EveryRouteAsEachVisitor asks every route of host-a over real TLS, and by the socket, as
// each visitor. host-a has on record that migration m-1 of instance i-1 goes from it to host-b and
// that host-c conducts it. host-x has a good certificate and no part in it. The hosts of the migration
// ask once more where it goes from host-b to host-a.
func TestAccess_EveryRouteAsEachVisitor(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"], w.parties["conducted"], w.parties["guest of m-1"] = [2]string{"host-a", "host-b"}, [2]string{"host-c"}, [2]string{"i-1"}
	there := serve(t, "host-a", ours.host("host-a"))
	there.parties["m-1"], there.parties["conducted"], there.parties["guest of m-1"] = [2]string{"host-b", "host-a"}, [2]string{"host-c"}, [2]string{"i-1"}
	visitors := map[api.Visitor]map[string]*pki.Identity{
		api.Unknown:   {"none": nil, "another authority": newCA(t, "theirs").operator("alice"), "another authority's host": newCA(t, "theirs").host("host-b")},
		api.Reader:    {"carol": ours.reader("carol")},
		api.OtherHost: {"host-x": ours.host("host-x")},
		api.PartyHost: {"host-b": ours.host("host-b"), "host-c": ours.host("host-c")},
		api.Operator:  {"alice": ours.operator("alice")},
	}
	if os.Getuid() == 0 {
		visitors[api.LocalRoot] = map[string]*pki.Identity{"root": nil}
	}
	replace := strings.NewReplacer("{migration}", "m-1", "{instance}", "web", "{claim}", "c-1", "{host}", "host-d", "{drained}", "host-a", "{phase}", "post-live-migration")
	for _, route := range api.Accesses() {
		for visitor, whos := range visitors {
			answered := false
			asks := map[string]*world{}
			for name := range whos {
				asks[name] = w
				if visitor == api.PartyHost {
					asks[name+" where it goes to host-a"] = there
				}
			}
			for name, w := range asks {
				name, _, _ = strings.Cut(name, " where")
				id, source := whos[name], "host-a"
				if w == there {
					source = "host-b"
				}
				kind, body := api.SampleRequest(route.Name, source)
				req, err := http.NewRequestWithContext(t.Context(), route.Method, "https://"+w.address+replace.Replace(route.Path), strings.NewReader(string(body)))
				if err != nil {
					t.Fatal(err)
				}
				tr := tlsTransport(id)
				if visitor == api.LocalRoot {
					req.URL.Scheme, req.URL.Host = "http", "berth"
					tr = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
						return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
					}}
				}
				if kind != "" {
					req.Header.Set("Content-Type", kind)
				}
				if strings.HasPrefix(name, "host-") {
					req.Header.Set("Berth-Host", name)
				}
				if visitor == api.OtherHost { // it lies
					req.Header.Set("Berth-Asker", "operator:alice")
					req.Header.Set("Berth-Relayed", "host-b")
				}
				may, why := mayAsk(t, tr, req)
				answered = answered || may
				if visitor != api.PartyHost && may != route.Answered(visitor) {
					t.Errorf("%s %s as %s (%s): %s, and the table has %q", route.Method, route.Path, visitor, name, why, route.Answers[visitor])
				}
			}
			if visitor == api.PartyHost && answered != route.Answered(visitor) {
				t.Errorf("%s %s as %s: answered %v, and the table has %q", route.Method, route.Path, visitor, answered, route.Answers[visitor])
			}
		}
	}
}

// mayAsk sends a request and reports whether it was let in: also one that failed afterwards.
func mayAsk(t *testing.T, tr *http.Transport, req *http.Request) (bool, string) {
	t.Helper()
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var body api.ErrorBody
	if resp.StatusCode < 300 || json.Unmarshal(text, &body) != nil {
		return true, resp.Status
	}
	if resp.StatusCode == http.StatusBadRequest && slices.ContainsFunc(body.Error.Reasons, func(r fault.Reason) bool {
		return r.Code == "unknown_field" || r.Code == "body" || r.Code == "source_missing"
	}) {
		t.Errorf("%s %s: the sample is no request: %s", req.Method, req.URL.Path, text)
	}
	refused := slices.ContainsFunc(body.Error.Reasons, func(r fault.Reason) bool { return slices.Contains(refusals, r.Code) })
	return !refused, fmt.Sprintf("%s %s", resp.Status, text)
}
