package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// endless is a body that goes on for ever, and counts what was taken of it.
type endless struct {
	begin string
	n     int64
}

var block = bytes.Repeat([]byte("x"), 64<<10)

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, block)
	if e.n == 0 {
		copy(p, e.begin)
	}
	e.n += int64(n)
	return n, nil
}

// asking is a caller that a row lets in.
func asking(s *Server, rt route) identity {
	for _, c := range []caller{callerOperator, callerLocal, callerHost} {
		if rt.allow&c != 0 {
			return identity{caller: c, name: "host-b", server: s}
		}
	}
	return identity{}
}

// Every row with a body reads no more than its bound, whatever is sent, and says so; the handler
// behind it is never called (there are no services here).
func TestRoutes_EndlessBodies_AreRefusedWith413(t *testing.T) {
	s := NewServer(Options{Name: "host-a", Runtime: &runtime.System{}})
	const limit = max(MaxBody, maxFrame) + 1<<20 // a buffer of the reader's
	rows := 0
	for _, rt := range table() {
		if rt.in == nil {
			continue
		}
		rows++
		begin := `{"a":"`
		if rows%2 == 0 {
			begin = "no JSON"
		}
		body, what := &endless{begin: begin}, begin
		path := strings.NewReplacer("{", "", "}", "").Replace(rt.path)
		r := httptest.NewRequest(rt.method, path, io.NopCloser(body))
		r.Header.Set("Content-Type", "application/json")
		if rt.frameIn {
			r.Header.Set("Content-Type", frameType)
		}
		w := httptest.NewRecorder()
		s.handler(rt).ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), identityKey{}, asking(s, rt))))
		var got ErrorBody
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Errorf("%s, %s: %v", rt, what, err)
		}
		if w.Code != http.StatusRequestEntityTooLarge || got.Error.Kind != fault.Invalid || len(got.Error.Reasons) != 1 || got.Error.Reasons[0].Code != reasonTooLarge || body.n > limit {
			t.Errorf("%s, %s: %d %+v after %d bytes, want 413 %s", rt, what, w.Code, got.Error, body.n, reasonTooLarge)
		}
	}
	if rows < 70 {
		t.Errorf("only %d rows with a body were tried", rows)
	}
}

func TestBoundedValues_ManyOrDeep_AreRefused(t *testing.T) {
	for _, c := range []struct {
		what, text string
		refused    bool
	}{
		{"a request", `{"a":[1,2,{"b":"}}}"}],"c":"\"[[[["}`, false},
		{"as many as there may be", "[" + strings.Repeat("{},", maxValues/2-2) + "{}]", false},
		{"empty objects", "[" + strings.Repeat("{},", maxValues/2) + "{}]", true},
		{"numbers", "[" + strings.Repeat("1,", maxValues) + "1]", true},
		{"commas in a text", `"` + strings.Repeat(",[", maxValues) + `"`, false},
		{"deep", strings.Repeat("[", maxDepth+1), true},
		{"not too deep", strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), false},
		{"no JSON", `]]]]"\`, false},
	} {
		if err := boundedValues([]byte(c.text)); (err != nil) != c.refused || c.refused && !isTooLarge(err) {
			t.Errorf("%s: %v, want refused %v", c.what, err, c.refused)
		}
	}
}

func TestShares_NobodyTakesAllPlaces(t *testing.T) {
	s := shares{each: 2, all: 3}
	first, ok := s.take("a")
	_, again := s.take("a")
	if !ok || !again {
		t.Fatal("what a caller may have is refused")
	}
	if _, ok := s.take("a"); ok {
		t.Error("one caller has more than his share")
	}
	if _, ok := s.take("b"); !ok {
		t.Error("another caller is refused")
	}
	if _, ok := s.take("c"); ok {
		t.Error("all have more than there is")
	}
	first()
	if _, ok := s.take("c"); !ok {
		t.Error("what was given back is not given")
	}
}

// Streams of events stay open: one caller's do not keep another from watching, or from being answered.
func TestWatches_OfOneCaller_AreBounded(t *testing.T) {
	s := NewServer(Options{Name: "host-a", Runtime: &runtime.System{}})
	open := make(chan struct{})
	rt := route{method: http.MethodGet, path: "/watch", name: "watch", allow: everyone, events: func(_ *Server, w http.ResponseWriter, r *http.Request) {
		open <- struct{}{}
		<-r.Context().Done()
	}}
	ctx, end := context.WithCancel(t.Context())
	ask := func(name string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(rt.method, rt.path, nil).WithContext(context.WithValue(ctx, identityKey{}, identity{caller: callerHost, name: name, server: s}))
		s.handler(rt).ServeHTTP(w, r)
		return w
	}
	done := make(chan struct{})
	begin := func(name string) {
		go func() { ask(name); done <- struct{}{} }()
		<-open
	}
	for range maxWatchShare {
		begin("host-b")
	}
	if w := ask("host-b"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "too_many_requests") {
		t.Errorf("one more of the same caller: %d %s", w.Code, w.Body)
	}
	begin("host-c")
	end()
	for range maxWatchShare + 1 {
		<-done
	}
	if s.watches.taken != 0 {
		t.Errorf("%d streams are held by nobody", s.watches.taken)
	}
}

func TestConnections_FromOtherMachines_AreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := connections{most: 2}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Listener, server.Config.ConnState = l, c.state
	server.Start()
	defer server.Close()
	answered := func() (net.Conn, bool) {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") // to one that is closed it may fail
		n, _ := conn.Read(make([]byte, 12))
		return conn, n == 12
	}
	one, first := answered()
	two, second := answered()
	three, third := answered()
	if !first || !second || third {
		t.Errorf("answered: %v %v %v, want the first two", first, second, third)
	}
	for _, conn := range []net.Conn{one, two, three} {
		_ = conn.Close()
	}
}
