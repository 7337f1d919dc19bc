package placement

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// endless is a body that goes on for ever, and counts what was taken of it.
type endless int64

var blanks = bytes.Repeat([]byte(" "), 64<<10)

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, blanks)
	*e += endless(n)
	return n, nil
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

// What is read under the write lock costs as much as it is long: it took the square of that.
func TestProviderTraits_ManyUnknown_CostAsMuchAsTheyAre(t *testing.T) {
	s := memory(t)
	if w := answerWith(s, "POST", "/resource_providers", asAdmin, `{"uuid":"`+id(1)+`","name":"a"}`); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	var names []string
	for i := range 60000 { // 1.8 thousand million comparisons before
		names = append(names, fmt.Sprintf(`"CUSTOM_%06d"`, i))
	}
	began := time.Now()
	w := answerWith(s, "PUT", "/resource_providers/"+id(1)+"/traits", asAdmin, `{"resource_provider_generation":0,"traits":[`+strings.Join(names, ",")+`]}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "No such trait CUSTOM_000000, CUSTOM_000001") {
		t.Errorf("%d %.300s", w.Code, w.Body)
	}
	if took := time.Since(began); took > 5*time.Second { // it takes 0.1 s
		t.Errorf("took %s", took)
	}
}

func TestCustomTraitsAndClasses_AreBounded(t *testing.T) {
	s := memory(t)
	for i := range maxCustom {
		name := fmt.Sprintf("CUSTOM_%d", i)
		s.state.b.traits[name] = &custom{Name: name, Seq: int64(i)}
		s.state.b.classes[name] = &custom{Name: name, Seq: int64(i)}
	}
	for _, path := range []string{"/traits/CUSTOM_MORE", "/resource_classes/CUSTOM_MORE"} {
		if w := answerWith(s, "PUT", path, asAdmin, ""); w.Code != 400 || !strings.Contains(w.Body.String(), "delete those that nobody uses") {
			t.Errorf("%s: %d %.300s", path, w.Code, w.Body)
		}
	}
	if w := answerWith(s, "POST", "/resource_classes", asAdmin, `{"name":"CUSTOM_MORE"}`); w.Code != 400 {
		t.Errorf("another class: %d %.300s", w.Code, w.Body)
	}
	for _, path := range []string{"/traits/CUSTOM_7", "/resource_classes/CUSTOM_7"} {
		if w := answerWith(s, "PUT", path, asAdmin, ""); w.Code != 204 {
			t.Errorf("%s, which is there: %d %.300s", path, w.Code, w.Body)
		}
	}
}

func TestCandidates_ClassesOfAGroup_AreBounded(t *testing.T) {
	var ask []string
	for i := range maxClasses + 1 {
		ask = append(ask, fmt.Sprintf("CUSTOM_%d:1", i))
	}
	if w := answerWith(memory(t), "GET", "/allocation_candidates?resources="+strings.Join(ask, ","), asAdmin, ""); w.Code != 400 || !strings.Contains(w.Body.String(), "256 resource classes") {
		t.Errorf("%d %.300s", w.Code, w.Body)
	}
}
