package placementtest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Beside gives ours as a server whose clients' requests are sent to theirs as
// well. The answers are compared; a difference fails t and names the request. The
// client gets the answer of ours. Both must be empty at first and be told nothing
// by others; one request is under way at a time.
func Beside(t *testing.T, ours, theirs Server) Server {
	ours.Transport = &mirror{t: t, ours: ours, theirs: theirs}
	return ours
}

type mirror struct {
	t            *testing.T
	ours, theirs Server

	mu sync.Mutex // held during a request, so that both servers see one order
}

func (m *mirror) RoundTrip(q *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		_ = q.Body.Close()
	}
	ours, first, err := m.ask(q, m.ours, body)
	if err != nil {
		return nil, err
	}
	theirs, _, err := m.ask(q, m.theirs, body)
	if err != nil {
		m.t.Errorf("%s %s: ours answered %d, the other not at all: %v", q.Method, q.URL.RequestURI(), ours.status, err)
		return nil, err
	}
	if d := differences(q.URL.RequestURI(), ours, theirs); len(d) > 0 {
		m.t.Errorf("%s %s %s %s\n%s", q.Method, q.URL.RequestURI(), q.Header.Get("OpenStack-API-Version"), body, strings.Join(d, "\n"))
	}
	return first, nil
}

// ask sends a copy of the request to one of the two.
func (m *mirror) ask(q *http.Request, s Server, body []byte) (answer, *http.Response, error) {
	copied, err := http.NewRequestWithContext(q.Context(), q.Method, s.URL+q.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return answer{}, nil, err
	}
	copied.Header = q.Header.Clone()
	if q.Header.Get("X-Auth-Token") != "" {
		copied.Header.Set("X-Auth-Token", s.token(m.t))
	}
	resp, err := http.DefaultTransport.RoundTrip(copied)
	if err != nil {
		return answer{}, nil, err
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return answer{}, nil, err
	}
	resp.Body, resp.Request = io.NopCloser(bytes.NewReader(b)), q
	a := answer{status: resp.StatusCode, header: resp.Header, base: s.URL}
	if len(b) > 0 && json.Unmarshal(b, &a.body) != nil {
		a.body = map[string]any{"_text": string(b)}
	}
	return a, resp, nil
}
