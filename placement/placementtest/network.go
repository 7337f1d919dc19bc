package placementtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
	pc "berth/placementclient"
)

// lossy carries requests to a server as a bad network would.
type lossy struct {
	to   http.RoundTripper
	fate func() string
	late []func() // copies of lost requests that are still under way
}

// fates are what may become of a request.
var fates = []string{"fine", "no connection", "reply lost", "request lost", "request late", "bad gateway"}

func (l *lossy) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		_ = q.Body.Close()
	}
	// A copy under way does not end with the one who sent it.
	deliver := func() (*http.Response, error) {
		r := q.Clone(context.WithoutCancel(q.Context()))
		r.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := l.to.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		resp.Body, resp.Request = io.NopCloser(bytes.NewReader(b)), q
		return resp, err
	}
	if q.Method == http.MethodGet {
		return deliver()
	}
	switch l.fate() {
	case "no connection":
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	case "reply lost":
		if _, err := deliver(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	case "request lost":
		return nil, io.ErrUnexpectedEOF
	case "request late":
		l.late = append(l.late, func() { _, _ = deliver() }) // whatever it is answered, nobody hears it
		return nil, io.ErrUnexpectedEOF
	case "bad gateway":
		if _, err := deliver(); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: http.StatusBadGateway, Body: http.NoBody, Header: http.Header{}, Request: q}, nil
	}
	return deliver()
}

// hurried is the machine's clock without pauses.
type hurried struct{ runtime.System }

func (*hurried) Sleep(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }

// Reporter is a test of whatever kind.
type Reporter interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// BadNetwork lets the client make a few writes over a network that loses requests
// and answers, as pick (a number below n) chooses. Success means done, a definite
// failure means not done and never will be, and after fault.InDoubt, of which it
// counts the times, a write with the generation then read settles it.
func BadNetwork(t Reporter, s Server, pick func(n int) int) (doubts int) {
	network := &lossy{to: s.Transport}
	if network.to == nil {
		network.to = http.DefaultTransport
	}
	calm := true
	network.fate = func() string {
		if calm {
			return "fine"
		}
		return fates[pick(len(fates))]
	}
	c, err := pc.New(pc.Config{URL: s.URL, Token: "admin", TokenSource: s.Tokens, Transport: network, Retries: 2, Runtime: &hurried{},
		Timeout: patience, AttemptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	// Names of its own, since a real server keeps what earlier rounds left.
	rps, consumer := []string{uuid.NewString(), uuid.NewString()}, uuid.NewString()
	for i := range 2 {
		if _, err := c.CreateProvider(ctx, pc.NewProvider{UUID: rps[i], Name: rps[i]}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutInventories(ctx, rps[i], pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(4)}}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() pc.Allocations {
		a, err := c.Allocations(ctx, consumer)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for range 4 {
		before := read()
		want := holding(rps[pick(2)],
			pc.Resources{pc.ClassVCPU: int64(1 + pick(5))}, pc.ConsumerInstance, before.ConsumerGeneration)
		calm = false
		err := c.PostAllocations(ctx, map[string]pc.Allocations{consumer: want})
		calm = true
		if fault.KindOf(err) == fault.InDoubt {
			doubts++
			// The rule for doubt: read, then write with what was read.
			settle := before
			now := read()
			settle.ConsumerGeneration = now.ConsumerGeneration
			settle.ProjectID, settle.UserID, settle.ConsumerType = "p", "u", pc.ConsumerInstance
			if len(settle.Allocations) == 0 {
				settle.Allocations = map[string]pc.Resources{rps[0]: {pc.ClassVCPU: 1}}
			}
			if err := c.PutAllocations(ctx, consumer, settle); err != nil {
				t.Fatal(err)
			}
			before = read()
			err = fault.New(fault.Undone, "settled")
		}
		arrive := func() {
			for _, f := range network.late {
				f()
			}
			network.late = nil
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
	return doubts
}
