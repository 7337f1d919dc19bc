package contention_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth/placement"
	"berth/test/contention"
)

// embedded is the URL of a Placement of ours, in memory for an empty db.
func embedded(t *testing.T, db string) string {
	t.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0", DB: db, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return h.URL
}

func TestRun_EmbeddedPlacementKeepsEveryAllocation(t *testing.T) {
	o := contention.Options{Seed: rand.Uint64(), Agents: 32, Hosts: 6, Room: 4, Moves: 5, Lose: 40}
	t.Logf("seed %d: %v", o.Seed, contention.Run(t, embedded(t, t.TempDir()+"/placement.db"), nil, o))
}

// hears is a test that fails by itself, to be read.
type hears struct {
	*testing.T
	mu   sync.Mutex
	said []string
}

func (h *hears) Error(args ...any) { h.Errorf("%s", fmt.Sprint(args...)) }

func (h *hears) Errorf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, fmt.Sprintf(format, args...))
}

func (h *hears) Failed() bool { return false }

// wrong makes a server wrong: f gives another answer or other bytes to send.
type wrong struct {
	f func(q *http.Request, body []byte) (*http.Response, []byte)
}

func (w wrong) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
	}
	resp, sent := w.f(q, body)
	if resp != nil {
		return resp, nil
	}
	q = q.Clone(q.Context())
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
	return http.DefaultTransport.RoundTrip(q)
}

func done(q *http.Request) *http.Response {
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: q}
}

// What it is there to find it finds.
func TestRun_FindsAServerThatIsWrong(t *testing.T) {
	var once atomic.Bool
	for name, c := range map[string]struct {
		f    func(q *http.Request, body []byte) (*http.Response, []byte)
		want string
	}{
		"a provider has more room than it says": {func(q *http.Request, body []byte) (*http.Response, []byte) {
			if q.Method == http.MethodPut && strings.HasSuffix(q.URL.Path, "/inventories") {
				body = bytes.ReplaceAll(body, []byte(`"total":`), []byte(`"total":9`))
			}
			return nil, body
		}, "over its capacity"},
		"a delete is lost": {func(q *http.Request, body []byte) (*http.Response, []byte) {
			if q.Method == http.MethodDelete && once.CompareAndSwap(false, true) {
				return done(q), nil
			}
			return nil, body
		}, "ended completed and holds"},
		"a swap back is done half": {func(q *http.Request, body []byte) (*http.Response, []byte) {
			var set map[string]struct {
				Allocations map[string]any `json:"allocations"`
			}
			var sent map[string]json.RawMessage
			if q.Method != http.MethodPost || q.URL.Path != "/allocations" || json.Unmarshal(body, &set) != nil || json.Unmarshal(body, &sent) != nil {
				return nil, body
			}
			back := false
			for _, one := range set {
				back = back || len(one.Allocations) == 0
			}
			for consumer, one := range set {
				if back && len(one.Allocations) > 0 && once.CompareAndSwap(false, true) {
					delete(sent, consumer)
					body, _ = json.Marshal(sent) // of what was JSON
				}
			}
			return nil, body
		}, "holds"},
	} {
		t.Run(name, func(t *testing.T) {
			once.Store(false)
			h := &hears{T: t}
			contention.Run(h, embedded(t, ""), wrong{c.f}, contention.Options{Seed: 1, Agents: 12, Hosts: 2, Room: 2, Moves: 3})
			for _, s := range h.said {
				if strings.Contains(s, c.want) {
					t.Logf("found: %.300s", s)
					return
				}
			}
			t.Errorf("nothing that it said has %q: %q", c.want, h.said)
		})
	}
}
