package placement

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/internal/fault"
	"berth/internal/runtime"
	pc "berth/placementclient"
)

// lossy carries requests to a handler as a bad network would.
type lossy struct {
	h    http.Handler
	fate func() string
	late []func() // copies of lost requests that are still under way
}

func (l *lossy) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		_ = q.Body.Close()
	}
	deliver := func() *http.Response {
		r := httptest.NewRequestWithContext(context.Background(), q.Method, q.URL.String(), bytes.NewReader(body))
		r.Header = q.Header.Clone()
		w := httptest.NewRecorder()
		l.h.ServeHTTP(w, r)
		resp := w.Result()
		resp.Request = q
		return resp
	}
	if q.Method == http.MethodGet {
		return deliver(), nil
	}
	switch l.fate() {
	case "no connection":
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	case "reply lost":
		deliver()
		return nil, io.ErrUnexpectedEOF
	case "request lost":
		return nil, io.ErrUnexpectedEOF
	case "request late":
		l.late = append(l.late, func() { deliver() })
		return nil, io.ErrUnexpectedEOF
	case "bad gateway":
		deliver()
		return &http.Response{StatusCode: http.StatusBadGateway, Body: http.NoBody, Header: http.Header{}, Request: q}, nil
	}
	return deliver(), nil
}

// hurried is the machine's clock without pauses.
type hurried struct{ runtime.System }

func (*hurried) Sleep(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }

// TestClient_SaysTheTruthOverABadNetwork: success means done, a definite failure
// means not done and never will be, and after fault.InDoubt a write with the
// generation then read settles it.
func TestClient_SaysTheTruthOverABadNetwork(t *testing.T) {
	doubts := 0
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(Options{Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		net := &lossy{h: s.Handler()}
		fates := rapid.SampledFrom([]string{"fine", "no connection", "reply lost", "request lost", "request late", "bad gateway"})
		calm := true
		net.fate = func() string {
			if calm {
				return "fine"
			}
			return fates.Draw(t, "fate")
		}
		c, err := pc.New(pc.Config{URL: "http://placement", Token: "admin", Transport: net, Retries: 2, Runtime: &hurried{}})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		for i := range 2 {
			if _, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(i), Name: id(i)}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.PutInventories(ctx, id(i), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(4)}}); err != nil {
				t.Fatal(err)
			}
		}
		read := func() pc.Allocations {
			a, err := c.Allocations(ctx, id(100))
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		for range 4 {
			before := read()
			want := holding(id(rapid.IntRange(0, 1).Draw(t, "provider")),
				pc.Resources{pc.ClassVCPU: rapid.Int64Range(1, 5).Draw(t, "vcpu")}, pc.ConsumerInstance, before.ConsumerGeneration)
			calm = false
			err := c.PostAllocations(ctx, map[string]pc.Allocations{id(100): want})
			calm = true
			if fault.KindOf(err) == fault.InDoubt {
				doubts++
				// The rule for doubt: read, then write with what was read.
				settle := before
				now := read()
				settle.ConsumerGeneration = now.ConsumerGeneration
				settle.ProjectID, settle.UserID, settle.ConsumerType = "p", "u", pc.ConsumerInstance
				if len(settle.Allocations) == 0 {
					settle.Allocations = map[string]pc.Resources{id(0): {pc.ClassVCPU: 1}}
				}
				if err := c.PutAllocations(ctx, id(100), settle); err != nil {
					t.Fatal(err)
				}
				before = read()
				err = fault.New(fault.Undone, "settled")
			}
			arrive := func() {
				for _, f := range net.late {
					f()
				}
				net.late = nil
			}
			arrive()
			after := read()
			switch kind := fault.KindOf(err); kind {
			case "":
				if !after.SameResources(want) {
					t.Fatalf("success, but it holds %v and not %v", after.Allocations, want.Allocations)
				}
			case fault.Unavailable, fault.DoesNotFit, fault.Undone:
				if !after.SameResources(before) || after.Exists() != before.Exists() {
					t.Fatalf("%s (%v), but it holds %v and not %v", kind, err, after.Allocations, before.Allocations)
				}
			default:
				t.Fatalf("unexpected %s: %v", kind, err)
			}
		}
	})
	if doubts == 0 {
		t.Error("no write was ever in doubt: the network was not bad enough")
	}
}
