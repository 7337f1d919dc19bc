package contention

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"

	"berth/placementclient"
)

// wire carries the requests of all clients, counts what they are answered, and
// loses the answers of some writes.
type wire struct {
	to   http.RoundTripper
	lose int // one answer in so many; 0 for none

	mu        sync.Mutex // guards what follows; no request is made under it
	rand      *rand.Rand
	requests  int
	lost      int
	conflicts map[string]int // by meaning
	sent      map[string]int // copies of one swap or swap back, by migration and way
}

func (w *wire) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		_ = q.Body.Close()
		q = q.Clone(q.Context())
		q.Body = io.NopCloser(bytes.NewReader(body))
	}
	w.mu.Lock()
	w.requests++
	if way := swapOf(q, body); way != "" {
		w.sent[way]++
	}
	lose := w.lose > 0 && q.Method != http.MethodGet && w.rand.IntN(w.lose) == 0
	w.mu.Unlock()

	resp, err := w.to.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	w.mu.Lock()
	defer w.mu.Unlock()
	if resp.StatusCode == http.StatusConflict {
		w.conflicts[meaning(string(answer))]++
	}
	if lose {
		w.lost++
		return nil, io.ErrUnexpectedEOF
	}
	return resp, nil
}

// swapOf names the swap that a request is a copy of: the migration, and whether
// it takes what the instance held or gives it back.
func swapOf(q *http.Request, body []byte) string {
	if q.Method != http.MethodPost || q.URL.Path != "/allocations" {
		return ""
	}
	var set map[string]struct {
		Allocations  map[string]any `json:"allocations"`
		ConsumerType string         `json:"consumer_type"`
	}
	if json.Unmarshal(body, &set) != nil {
		return ""
	}
	for consumer, a := range set {
		if a.ConsumerType == placementclient.ConsumerMigration {
			if len(a.Allocations) == 0 {
				return consumer + " back"
			}
			return consumer
		}
	}
	return ""
}

// meaning is what a 409 says.
func meaning(body string) string {
	for _, m := range []struct{ text, meaning string }{
		{"consumer generation conflict", "a consumer changed"},
		{"changed while attempting to allocate", "a race lost inside the server"},
		{"would exceed the capacity", "no room"},
	} {
		if strings.Contains(body, m.text) {
			return m.meaning
		}
	}
	return "something else: " + body
}
