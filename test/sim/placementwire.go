package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"berth/agent/counted"
	"berth/agent/host"
	"berth/internal/runtime"
	"berth/internal/runtime/simruntime"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/placement"
	"berth/placementclient"
)

// service is the embedded Placement: a process of its own over a store.
type service struct {
	w       *world
	mem     *storetest.Memory
	process *simruntime.Process
	server  *placement.Server
	lives   int
	asked   []*exchange
	begun   bool // the world runs
	away    bool // nobody reaches it

	admin  *placementclient.Client // of who looks, and changes nothing once the world runs
	others *placementclient.Client // of other writers
}

func newService(w *world) (*service, error) {
	s := &service{w: w, mem: storetest.NewMemory()}
	client := func(transport roundTrip) (*placementclient.Client, error) {
		return placementclient.New(placementclient.Config{
			URL: placementURL, Token: "admin", Transport: transport, Runtime: w.outside, AttemptTimeout: -1, Jitter: w.rng.Float64,
		})
	}
	var err error
	if s.admin, err = client(s.look); err != nil {
		return nil, err
	}
	if s.others, err = client(s.serve); err != nil {
		return nil, err
	}
	return s, s.start()
}

const placementURL = "http://127.0.0.1:8778"

// start starts it on what its store has.
func (s *service) start() error {
	s.lives++
	s.process = s.w.sim.Process(fmt.Sprint("placement#", s.lives), "placement")
	var err error
	s.server, err = placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: discard, Runtime: s.process, Random: random{s.w.rng}, Store: s.mem})
	if s.begun {
		s.mem.Live(s.process, s.commits)
	}
	return err
}

// live has requests come by the wire from now on.
func (s *service) live() {
	s.begun = true
	s.mem.Live(s.process, s.commits)
}

// reopen is for who looks when all is over: he finds what is durable.
func (s *service) reopen() {
	s.begun, s.away = false, false
	s.mem = s.mem.Crash()
	if err := s.start(); err != nil {
		s.w.violate("placement does not start again: %v", err)
	}
}

// kill ends the process, and starts it again after a while.
func (s *service) kill(d time.Duration) {
	if s.process.Dead() {
		return
	}
	s.w.fault("placement", "killed")
	s.process.Kill()
	s.mem = s.mem.Crash()
	for _, x := range s.asked {
		x.end(io.ErrUnexpectedEOF)
	}
	s.asked = nil
	s.w.later(d, "start placement", func() {
		if err := s.start(); err != nil {
			s.w.violate("placement does not start again: %v", err)
		}
	})
}

// commits is asked at every point of a commit of its store.
func (s *service) commits(at storetest.Point, _ []store.Mutation) storetest.Outcome {
	if s.w.chaos == nil || at == storetest.BeforeAnswer {
		return storetest.Commit
	}
	return s.w.chaos.placementCommits(at)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// serve is a request of somebody who is no agent.
func (s *service) serve(q *http.Request) (*http.Response, error) { return s.answer(s.w.outside, q) }

// idle says that nothing is on its way: then look does not wait.
func (s *service) idle() bool { return len(s.asked) == 0 && !s.process.Dead() }

// look has the server answer here and now.
func (s *service) look(q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody // as a server's request always has one
	}
	r := httptest.NewRecorder()
	s.server.ServeHTTP(r, q)
	return r.Result(), nil
}

// answer has the server answer a request, for one who waits on rt.
func (s *service) answer(rt runtime.Runtime, q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody // as a server's request always has one
	}
	if !s.begun {
		return s.look(q)
	}
	if s.process.Dead() {
		return nil, fmt.Errorf("dial %s: connection refused", placementURL)
	}
	x := &exchange{done: make(chan struct{})}
	s.asked = append(s.asked, x)
	r, server := httptest.NewRecorder(), s.server
	s.process.Go(q.Method, func() {
		server.ServeHTTP(r, q)
		if i := slices.Index(s.asked, x); i >= 0 {
			s.asked = slices.Delete(s.asked, i, i+1)
		}
		x.end(nil)
	})
	if err := runtime.Await(q.Context(), rt, x.done); err != nil {
		return nil, err
	}
	if x.err != nil {
		return nil, x.err
	}
	return r.Result(), nil
}

// newClient is the real client of one life of an agent, with its transport on the
// wire.
func (a *agent) newClient() (*placementclient.Client, error) {
	return placementclient.New(placementclient.Config{
		URL: placementURL, Token: "admin", Transport: roundTrip(a.request), Runtime: a.rt, Jitter: a.rng.Float64,
		// Not net/http's own deadline, which is the machine's time.
		AttemptTimeout: -1, Retries: 2,
	})
}

// request is one request on its way to Placement.
func (a *agent) request(q *http.Request) (*http.Response, error) {
	w := a.w
	var body []byte
	if q.Body != nil {
		body, _ = io.ReadAll(q.Body) // of memory
		_ = q.Body.Close()
	}
	what := "placement " + q.Method + " " + q.URL.Path
	how := w.before(a, ofPlacement, what)
	lost := func() (*http.Response, error) {
		_ = a.rt.Sleep(q.Context(), silence)
		return nil, io.ErrUnexpectedEOF
	}
	send := func(rt runtime.Runtime) (*http.Response, error) {
		again := q.Clone(context.WithoutCancel(q.Context()))
		again.Body = io.NopCloser(bytes.NewReader(body))
		return w.placement.answer(rt, again)
	}
	instead, then := w.spoilRequest(a, q)
	switch {
	case instead != nil:
		return instead, nil
	case w.placement.away, a.m.alone:
		_ = a.rt.Sleep(q.Context(), latency)
		return nil, fmt.Errorf("dial %s: connection refused", placementURL)
	case how == requestLost:
		return lost()
	case how == requestLate, how == twice:
		w.late(what, func() {
			if w.placement.away || a.m.alone {
				return
			}
			if r, err := send(w.outside); err == nil {
				w.trace.note(w.sim.Elapsed(), "placement", "late", what, r.Status)
			}
		})
		if how == requestLate {
			return lost()
		}
	case how == refused:
		return answer(q, http.StatusServiceUnavailable, `{"errors":[{"status":503,"title":"Service Unavailable","detail":"The server is not there now."}]}`), nil
	case how == raced && q.Method != http.MethodGet:
		return answer(q, http.StatusConflict, `{"errors":[{"status":409,"title":"Conflict","code":"placement.concurrent_update",`+
			`"detail":"Unable to allocate inventory: a resource provider was changed while attempting to allocate."}]}`), nil
	}
	r, err := send(a.rt)
	if err == nil {
		w.trace.note(w.sim.Elapsed(), a.m.name, what, r.Status)
	}
	if then != nil {
		if spoiled := then(); spoiled != nil {
			return nil, spoiled
		}
	}
	w.after(a, ofPlacement, what)
	if how == answerLost {
		return lost()
	}
	return r, err
}

func answer(q *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: q,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// allocations are the host's own, as one life of its agent writes them.
func (a *agent) allocations() host.Placement {
	c := counted.Allocations{Client: a.client, Tree: a.standing}
	if a.w.mutant != nil && a.w.mutant.HalfStays {
		return keepsHalf{c}
	}
	return c
}

// keepsHalf is of the mutant that does not give up what a source keeps in Placement.
type keepsHalf struct{ counted.Allocations }

func (keepsHalf) SettleNobody(context.Context, string, string) error { return nil }

// SettleThere settles the instance alone: the move that it names has no consumer.
func (k keepsHalf) SettleThere(ctx context.Context, instance, _ string) error {
	return k.Allocations.SettleThere(ctx, instance, id("99999999", 1))
}
