package placement

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// One request too many is told to come again, and is served when another is over.
func TestServer_WorksOnSoManyRequestsAtOnce(t *testing.T) {
	h := httptest.NewServer(memory(t).bounded(1))
	defer h.Close()
	// The one place is held by a request that does not come to its end.
	var slow net.Conn
	hold := func() {
		var err error
		slow, err = net.Dial("tcp", h.Listener.Addr().String())
		must(t, err)
		_, err = fmt.Fprint(slow, "POST /resource_providers HTTP/1.1\r\nHost: p\r\nX-Auth-Token: admin\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		must(t, err)
	}
	hold()
	defer func() { _ = slow.Close() }()
	until := func(want int) http.Header {
		for end := time.Now().Add(time.Minute); ; {
			time.Sleep(5 * time.Millisecond)
			resp, err := h.Client().Get(h.URL + "/")
			must(t, err)
			must(t, resp.Body.Close())
			if resp.StatusCode == want {
				return resp.Header
			}
			if time.Now().After(end) {
				t.Fatalf("answered %d, want %d", resp.StatusCode, want)
			}
			if want == http.StatusServiceUnavailable { // it came while this one was asked, and was refused
				must(t, slow.Close())
				hold()
			}
		}
	}
	if got := until(http.StatusServiceUnavailable).Get("Retry-After"); got != "1" {
		t.Errorf("it is told to come again after %q", got)
	}
	must(t, slow.Close())
	until(http.StatusOK)
}

func TestServer_HeadersAreBounded(t *testing.T) {
	s := running(t, Options{Listen: "127.0.0.1:0"})
	ask := func(size int) (int, error) {
		resp, err := http.Get("http://" + s.Addr() + "/?x=" + strings.Repeat("x", size))
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := ask(maxRequestHeader / 2); err != nil || status != http.StatusOK {
		t.Errorf("a long question: %d, %v", status, err)
	}
	// The server hangs up in the middle of it, which may be all that is seen.
	if status, err := ask(2 * maxRequestHeader); err == nil && status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("an endless one: %d", status)
	}
}
