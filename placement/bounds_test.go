package placement

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// endless is a body that goes on for ever, and counts what was taken of it.
type endless int64

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	*e += endless(len(p))
	return len(p), nil
}

// Every route and method reads no more of a body than its bound, and says so.
func TestRoutes_EndlessBodies_AreRefusedWith413(t *testing.T) {
	s := memory(t)
	tried := 0
	for _, rt := range s.routes {
		for _, m := range rt.methods {
			method := m.verb
			if method != http.MethodPost && method != http.MethodPut {
				continue
			}
			tried++
			var body endless
			path := strings.NewReplacer("{uuid}", id(1), "{", "", "}", "").Replace(rt.path)
			q := httptest.NewRequest(method, path, io.NopCloser(&body))
			for k, v := range asAdmin {
				q.Header.Set(k, v)
			}
			q.Header.Set("Content-Type", "application/json")
			q.Header.Set("OpenStack-API-Version", "placement 1.39")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, q)
			if w.Code != http.StatusRequestEntityTooLarge || int64(body) > m.bodyLimit()+1<<20 {
				t.Errorf("%s %s: %d after %d bytes: %.200s", method, path, w.Code, body, w.Body)
			}
		}
	}
	if tried < 12 {
		t.Errorf("only %d were tried", tried)
	}
}
