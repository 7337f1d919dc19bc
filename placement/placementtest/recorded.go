package placementtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exchange is one line of the recorded traffic of OpenStack Placement 8.0.0.
type exchange struct {
	Scenario string `json:"scenario"`
	Step     int    `json:"step"`
	Why      string `json:"why"`
	Compare  string `json:"compare"` // body, or status
	Request  struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Auth    bool              `json:"auth"`
		Body    json.RawMessage   `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    any               `json:"body"`
	} `json:"response"`
}

// wordingDiffers lists the exchanges whose texts cannot be the recorded ones,
// each with the reason. Status, headers, codes and bodies are compared for all.
var wordingDiffers = map[string]string{
	"inventories/16": "the recorded text is the error of the recorded server's MariaDB",
}

// exchanges reads a file of recorded traffic, which must hold want of them.
func exchanges(t *testing.T, path string, want int) []exchange {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var out []exchange
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e exchange
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s line %d: %v", path, len(out)+1, err)
		}
		out = append(out, e)
	}
	must(t, lines.Err())
	if len(out) != want {
		t.Fatalf("%s has %d exchanges, want %d", path, len(out), want)
	}
	return out
}

// Replay sends recorded requests and compares the answers with the recorded ones.
// Each scenario begins with what fresh gives, an empty server.
func Replay(t *testing.T, path string, want int, fresh func() Server) {
	t.Helper()
	var server Server
	scenario, same := "", 0
	all := exchanges(t, path, want)
	for _, e := range all {
		if e.Scenario != scenario {
			server, scenario = fresh(), e.Scenario
		}
		if diffs := e.replay(t, server); len(diffs) > 0 {
			t.Errorf("%s/%d %s %s (%s)\n%s", e.Scenario, e.Step, e.Request.Method, e.Request.Path, e.Why, strings.Join(diffs, "\n"))
		} else {
			same++
		}
	}
	t.Logf("%d of %d exchanges are the same", same, len(all))
}

// ReplayBeside sends recorded requests to both servers, both empty at each
// scenario's begin, and compares their answers with each other.
func ReplayBeside(t *testing.T, path string, want int, fresh func() (ours, theirs Server)) {
	t.Helper()
	var ours, theirs Server
	scenario, same := "", 0
	all := exchanges(t, path, want)
	for _, e := range all {
		if e.Scenario != scenario {
			scenario = e.Scenario
			ours, theirs = fresh()
		}
		if diffs := compare(t, &e, ours, theirs); len(diffs) > 0 {
			t.Errorf("%s/%d %s %s (%s)\n%s", e.Scenario, e.Step, e.Request.Method, e.Request.Path, e.Why, strings.Join(diffs, "\n"))
		} else {
			same++
		}
	}
	t.Logf("%d of %d answers are the same", same, len(all))
}

func (e *exchange) replay(t *testing.T, s Server) (diffs []string) {
	status, header, body := e.send(t, s)
	diff := func(what string, got, want any) {
		if d := cmp.Diff(want, got); d != "" {
			diffs = append(diffs, fmt.Sprintf("  %s (-want +got)\n%s", what, d))
		}
	}
	diff("status", status, e.Response.Status)
	for _, h := range []string{"Openstack-Api-Version", "Location", "Vary", "Allow", "Cache-Control", "Content-Type"} {
		got := header.Get(h)
		if h == "Location" { // recorded without the recorded server's address
			got = strings.TrimPrefix(got, s.URL)
		}
		diff("header "+h, got, e.Response.Headers[strings.ToLower(h)])
	}
	if e.Compare == "status" {
		return diffs
	}
	_, loose := wordingDiffers[fmt.Sprintf("%s/%d", e.Scenario, e.Step)]
	diff("body", canonical(body, loose), canonical(e.Response.Body, loose))
	return diffs
}

func (e *exchange) send(t *testing.T, s Server) (int, http.Header, any) {
	t.Helper()
	var body io.Reader
	var raw struct {
		Raw *string `json:"_raw"`
	}
	switch {
	case json.Unmarshal(e.Request.Body, &raw) == nil && raw.Raw != nil:
		body = strings.NewReader(*raw.Raw)
	case len(e.Request.Body) > 0 && string(e.Request.Body) != "null":
		body = bytes.NewReader(e.Request.Body)
	}
	q, err := http.NewRequest(e.Request.Method, s.URL+e.Request.Path, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range e.Request.Headers {
		q.Header.Set(k, v)
	}
	if e.Request.Auth {
		q.Header.Set("X-Auth-Token", s.token(t))
	}
	resp, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) == 0 {
		return resp.StatusCode, resp.Header, nil
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		doc = map[string]any{"_text": string(b)}
	}
	return resp.StatusCode, resp.Header, doc
}

// canonical is a body in which the order of lists does not count, nor what
// changes from run to run; loose leaves out every text.
func canonical(v any, loose bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if k == "request_id" || loose && (k == "detail" || k == "title") {
				continue
			}
			out[k] = canonical(e, loose)
		}
		return out
	case []any:
		out := make([]any, len(v))
		keys := make(map[int]string, len(v))
		for i, e := range v {
			out[i] = canonical(e, loose)
			b, _ := json.Marshal(out[i])
			keys[i] = string(b)
		}
		order := make([]int, len(v))
		for i := range order {
			order[i] = i
		}
		sort.Slice(order, func(a, b int) bool { return keys[order[a]] < keys[order[b]] })
		sorted := make([]any, len(v))
		for i, j := range order {
			sorted[i] = out[j]
		}
		return sorted
	}
	return v
}
