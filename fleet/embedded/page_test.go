package embedded_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"berth/fleet"
	"berth/fleet/embedded"
	"berth/fleet/fleettest"
)

func TestEmbedded_FindsTheRecordsOfAHost(t *testing.T) { fleettest.TestFinder(t, inMemory) }

// measured is a network that notes the largest answer.
type measured struct {
	handler  http.Handler
	requests int
	largest  int
	refuse   string // a verb that an older server does not know
}

func (m *measured) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if m.refuse != "" && strings.HasSuffix(q.URL.Path, m.refuse) {
		q.URL.Path = strings.TrimSuffix(q.URL.Path, m.refuse) + "unknown"
	}
	m.handler.ServeHTTP(w, q)
	m.requests++
	m.largest = max(m.largest, w.Body.Len())
	return w.Result(), nil
}

// TestEmbedded_ALargeList_IsBoundedByThePage: one answer had all records of the fleet, five times
// over in memory.
func TestEmbedded_ALargeList_IsBoundedByThePage(t *testing.T) {
	m := &measured{handler: serve(t, "")}
	c, err := embedded.NewClient(embedded.Options{URL: "http://placement", Token: "admin", Transport: m})
	if err != nil {
		t.Fatal(err)
	}
	const instances, hosts = 400, 40
	for i := range instances {
		value := fmt.Appendf(nil, `{"host":"host-%02d","guest":"%s"}`, i%hosts, bytes.Repeat([]byte("x"), 40<<10))
		if err := c.Commit(t.Context(), nil, fleet.Change{Key: fmt.Sprintf("instances/%04d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	m.requests, m.largest = 0, 0
	all, err := c.List(t.Context(), "instances/")
	if err != nil || len(all) != instances {
		t.Fatalf("%d records, %v", len(all), err)
	}
	if m.largest > 2<<20 {
		t.Errorf("the largest of %d answers has %d bytes", m.requests, m.largest)
	}
	m.requests = 0
	some, err := c.ListOf(t.Context(), "instances/", "host-07")
	if err != nil || len(some) != instances/hosts || m.requests != 1 {
		t.Errorf("%d records of one host in %d requests, %v", len(some), m.requests, err)
	}
	m.refuse = "page"
	if old, err := c.List(context.WithoutCancel(t.Context()), "instances/"); err != nil || len(old) != instances {
		t.Errorf("of an older server %d records, %v", len(old), err)
	}
}
