package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
)

// Options are what a Server is made of.
type Options struct {
	Services Services
	Name     string        // this host's provider name
	Identity *pki.Identity // nil where there are no certificates: then the unix socket alone serves
	Runtime  runtime.Runtime
	Logger   *slog.Logger
	// Started lets requests through once it is closed: until then all but the
	// guard's wait. nil for no wait.
	Started <-chan struct{}
	// Closed is why nothing may be asked of this host that changes something: its
	// ledger is not known. The guard asks all the same, and whoever only reads. nil
	// for never.
	Closed func() error
	// AuditLog keeps a line of each request that is to change something, before its caller
	// is answered; it blocks on a file at most. nil for nobody.
	AuditLog func(AuditEntry)
	// Probes answers HealthzPath and ReadyzPath at once; nil for nobody.
	Probes http.Handler
	// BodyTimeout is how long a body may take to arrive; 0 for bodyPatience.
	BodyTimeout time.Duration
}

// Server is the API of one agent. Make it with NewServer.
type Server struct {
	opt  Options
	svc  Services
	http *http.Server
	// inFlight joins a host verb that was sent again to the one in progress.
	inFlight singleflight.Group
	// places bounds how many requests are worked on at once; see maxRequests.
	places   chan struct{}
	requests shares // of each caller
	watches  shares
	conns    connections
	// stopping ends event streams, for which Shutdown would wait.
	stopping context.Context
	closing  closing
}

// maxRequests is arbitrary: far above what a fleet asks of one host, far below
// what would exhaust it.
const maxRequests = 512

// bodyPatience is how long a body may take to arrive. Each holds a place, and
// callers that send nothing must not take all of them; arbitrary, MaxBody over a
// slow line.
const bodyPatience = 20 * time.Second

// answerPatience is how long an answer may take to be read by who asked. Arbitrary: a large one
// over a slow line.
const answerPatience = 10 * time.Second

// noRoute begins the answer to a path that is not there. Clients tell an older agent by
// it, so that it never changes.
const noRoute = "no route "

// NewServer makes a server; Serve starts it on a listener.
func NewServer(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.BodyTimeout == 0 {
		o.BodyTimeout = bodyPatience
	}
	stopping, stop := context.WithCancel(context.Background())
	s := &Server{
		opt: o, svc: o.Services, places: make(chan struct{}, maxRequests), stopping: stopping,
		requests: shares{each: maxShare, all: maxRequests}, watches: shares{each: maxWatchShare, all: maxWatches}, conns: connections{most: maxConnections},
	}
	mux := http.NewServeMux()
	// paths tells a path that is not there from a method that it does not take.
	paths, methods := http.NewServeMux(), map[string][]string{}
	for _, r := range table() {
		mux.Handle(r.method+" "+r.path, s.handler(r))
		if methods[r.path] == nil {
			paths.Handle(r.path, http.NotFoundHandler())
		}
		methods[r.path] = append(methods[r.path], r.method)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, path := paths.Handler(r); methods[path] != nil {
			w.Header().Set("Allow", strings.Join(methods[path], ", "))
			s.answer(w, http.StatusMethodNotAllowed, BodyOf(fault.New(fault.Invalid, "%s %s: this path takes %s", r.Method, r.URL.Path, strings.Join(methods[path], " and "))))
			return
		}
		s.refuse(w, r, fault.New(fault.NotFound, noRoute+"%s %s: see GET /v1/openapi.json", r.Method, r.URL.Path))
	})
	s.http = &http.Server{
		Handler:           s.wrap(mux),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       s.closing.context,
		ConnState: func(conn net.Conn, state http.ConnState) {
			s.closing.state(conn, state)
			s.conns.state(conn, state)
		},
		ErrorLog: slog.NewLogLogger(o.Logger.With("part", "api").Handler(), slog.LevelDebug),
	}
	s.http.RegisterOnShutdown(stop)
	return s
}

// Serve answers on a listener until Shutdown; a unix listener is the local
// socket, every other one is wrapped in TLS. It may be called for several.
func (s *Server) Serve(l net.Listener) error {
	if l.Addr().Network() != "unix" {
		if s.opt.Identity == nil {
			return errors.Join(fault.New(fault.Invalid, "serve peers on %s: there are no certificates", l.Addr()), l.Close())
		}
		l = tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{s.opt.Identity.Certificate},
			MinVersion:   tls.VersionTLS13,
			// Asked for, and judged in authenticate: a handshake that fails tells the
			// caller nothing but "bad certificate".
			ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"http/1.1"},
		})
	}
	if err := s.closing.serve(s.http, l); err != nil {
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	}
	return nil
}

// Shutdown stops listening and waits for requests in progress until ctx ends,
// then cuts them off. Who was let in before is answered.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.stop(ctx, s.opt.Runtime.Sleep)
	err := s.http.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// wrap gives each request an id, a caller, a place and a line in the log.
func (s *Server) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.closing.asked(r)
		begin := s.opt.Runtime.Now()
		id := requestID(r)
		w.Header().Set(headerRequestID, id)
		log := s.opt.Logger.With("request", id, "method", r.Method, "path", r.URL.Path)
		// Who is refused before a row is known, a stranger too, holds no connection with a body that
		// nobody reads, nor by not reading. Each row has its own time, and what stays has none. These
		// fail only where the connection is none of net's, as in a test's recorder.
		rc := http.NewResponseController(w)
		hurry := func() {
			now := time.Now()
			_ = rc.SetReadDeadline(now.Add(s.opt.BodyTimeout))
			_ = rc.SetWriteDeadline(now.Add(s.opt.BodyTimeout + answerPatience))
		}
		hurry()
		rec := &recorder{ResponseWriter: w}
		defer rec.told() // of a caller that got no answer
		// A panic of a handler is a bug of one request, not of the agent.
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				// An answer that was passed on broke off: so must this one, or its first
				// half would look whole.
				panic(p)
			default:
				log.Error("request panicked", "panic", p, "stack", string(debug.Stack()))
				s.refuse(rec, r, fault.New(fault.Internal, "request %s: internal error, see the agent's log", id))
			}
		}()
		if s.probes(rec, r) {
			return
		}
		if s.opt.Started != nil && r.URL.Path != guardPath {
			// A read that times out meanwhile would be taken for a caller that is gone.
			_ = rc.SetReadDeadline(time.Time{})
			select {
			case <-s.opt.Started:
			case <-r.Context().Done():
				return // nobody waits for the answer any more
			}
			hurry()
		}
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
		default:
			s.refuse(w, r, fault.New(fault.Unavailable, "%d requests are being worked on already", maxRequests))
			return
		}
		who, err := s.authenticate(r)
		if err != nil {
			log.Warn("caller refused", "from", r.RemoteAddr, "error", err)
			w.Header().Set("Connection", "close") // or it could hold file descriptors without a certificate
			s.refuse(w, r, err)
			return
		}
		if r.URL.Path != guardPath { // libvirt's hook is answered whatever else is asked
			giveBack, ok := s.requests.take(who.caller.String() + " " + who.name)
			if !ok {
				s.refuse(w, r, tooMany("requests", maxShare))
				return
			}
			defer giveBack()
		}
		if err := boundedPath(r); err != nil {
			s.refuse(w, r, err)
			return
		}
		who.request = id
		next.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), identityKey{}, who)))
		level := slog.LevelDebug
		if rec.status >= 500 {
			level = slog.LevelWarn
		}
		log.Log(r.Context(), level, "request answered", "caller", who.caller.String(), "name", who.name, "status", rec.status, "duration", s.opt.Runtime.Now().Sub(begin))
	})
}

func requestID(r *http.Request) string {
	if id := r.Header.Get(headerRequestID); id != "" && len(id) <= 64 {
		clean := true
		for _, c := range []byte(id) {
			clean = clean && (c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
		}
		if clean {
			return id
		}
	}
	return rand.Text()[:16]
}

// handler serves one row of the table.
func (s *Server) handler(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := s.audit(w, r, rt)
		if refused := callerOf(r.Context()).refused(rt); refused != nil {
			s.refuse(w, r, fault.Refuse(fault.Forbidden, rt.words(), *refused))
			return
		}
		if err := s.passedOn(r, rt); err != nil {
			s.refuse(w, r, err)
			return
		}
		if rt.events != nil {
			who := callerOf(r.Context())
			giveBack, ok := s.watches.take(who.caller.String() + " " + who.name)
			if !ok {
				s.refuse(w, r, tooMany("streams of events", maxWatchShare))
				return
			}
			defer giveBack()
		}
		if to := r.URL.Query().Get("host"); to != "" && to != s.opt.Name {
			s.relay(w, r, rt, to)
			return
		}
		if s.opt.Closed != nil && rt.method != http.MethodGet && rt.path != guardPath {
			if err := s.opt.Closed(); err != nil {
				s.refuse(w, r, err)
				return
			}
		}
		if rt.events != nil {
			rt.events(s, w, r)
			return
		}
		ctx, cancel := s.opt.Runtime.WithTimeout(r.Context(), timeoutOf(r, rt.timeout))
		defer cancel()
		deadline := time.Now().Add(rt.timeout + answerPatience)
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Now().Add(s.bodyTime(rt)))
		_ = rc.SetWriteDeadline(deadline)
		// The next request on this connection has its own. The one for reading stands:
		// what the caller did not send is waited for once more after the handler, and
		// the server sets its own before the next request.
		defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
		var body any
		if rt.in != nil {
			body = reflect.New(rt.in).Interface()
			done, err := decodeBody(w, r, rt, body)
			defer done()
			rec.body = body
			if err != nil {
				s.refuse(w, r, err)
				return
			}
		}
		// From here a read that times out would be taken for a caller that is gone; but not of a body
		// that nobody reads, for which the server waits once more.
		if rt.in != nil || r.ContentLength == 0 {
			_ = rc.SetReadDeadline(deadline)
		}
		out, err := rt.serve(s, r.WithContext(ctx), body)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		if rt.frameOut {
			s.answerFrame(w, r, rt.status, out)
			return
		}
		s.answer(w, rt.status, out)
	})
}

// bodyTime is how long a row's body may take to arrive. A piece of a disk comes from a
// host that is known, over a line that may be slow.
func (s *Server) bodyTime(rt route) time.Duration {
	if rt.frameIn {
		return max(s.opt.BodyTimeout, rt.timeout)
	}
	return s.opt.BodyTimeout
}

// decodeBody reads a row's body: JSON, or a frame. done is called when nobody looks at it
// any more.
func decodeBody(w http.ResponseWriter, r *http.Request, rt route, body any) (done func(), err error) {
	if rt.frameIn {
		return decodeFrame(r, body)
	}
	if err := wantJSON(r); err != nil {
		return func() {}, err
	}
	return func() {}, decodeStrict(http.MaxBytesReader(w, r.Body, MaxBody), body)
}

// timeoutOf is how long the caller waits, never above the row's own bound.
func timeoutOf(r *http.Request, most time.Duration) time.Duration {
	if d, err := time.ParseDuration(r.Header.Get(headerTimeout)); err == nil && d > 0 {
		return min(d, most)
	}
	return most
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // domain XML stays readable
	if err := enc.Encode(v); err != nil {
		status = http.StatusInternalServerError
		buf.Reset()
		// Cannot fail: strings only.
		_ = enc.Encode(BodyOf(fault.New(fault.Internal, "encode the answer: %w", err)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A caller that is gone does not read an error either.
	_, _ = w.Write(buf.Bytes())
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if rec, ok := w.(*recorder); ok {
		rec.err = err
	}
	if fault.KindOf(err) == fault.Internal {
		s.opt.Logger.Error("request failed", "path", r.URL.Path, "error", err)
	}
	status := statusOf(fault.KindOf(err))
	if isTooLarge(err) {
		status = http.StatusRequestEntityTooLarge
	}
	s.answer(w, status, BodyOf(err))
}

// once runs a host verb. An equal request that comes while it runs gets the same
// answer; it goes on when its caller goes away, since half a verb is what
// nobody wants, and the caller will ask again.
func (s *Server) once(r *http.Request, name string, body any, f func(context.Context) (any, error)) (any, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fault.New(fault.Internal, "encode verb %s: %w", name, err)
	}
	sum := sha256.Sum256(text)
	deadline, bounded := r.Context().Deadline()
	out, err, _ := s.inFlight.Do(name+" "+hex.EncodeToString(sum[:]), func() (any, error) {
		ctx := context.WithoutCancel(r.Context())
		if bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		return f(ctx)
	})
	return out, err
}

// relay passes a request on to another host, with this host's own certificate.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, rt route, to string) {
	// A host asks for itself, with its own name: through another it would ask as
	// that one. And a request that was passed on is not passed on again.
	if r.Header.Get(headerRelayed) != "" || !rt.relayed || callerOf(r.Context()).caller == callerHost {
		s.refuse(w, r, fault.Refuse(fault.Forbidden, rt.words()+" on host "+to, fault.Reason{
			Code: "not_relayed", Message: "host " + s.opt.Name + " passes on what only reads, and moves; this has to be asked of " + to + " itself",
			Change: "show it an operator's certificate: --connect " + to + " --cert FILE (berth pki operator NAME makes one); or run the command on " + to,
		}))
		return
	}
	peer, err := s.svc.Peer(to)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	proxy := &httputil.ReverseProxy{
		Transport:     peer.http.Transport,
		FlushInterval: -1, // events go on at once
		ErrorLog:      s.http.ErrorLog,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(peer.base)
			q := p.Out.URL.Query()
			q.Del("host")
			p.Out.URL.RawQuery = q.Encode()
			p.Out.Header.Set(headerHost, s.opt.Name)
			p.Out.Header.Set(headerRelayed, s.opt.Name)
			tellAsker(r.Context(), p.Out.Header)
			p.Out.Header.Set(headerRequestID, w.Header().Get(headerRequestID))
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del(headerRequestID) // it stands there already
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { s.refuse(w, r, peer.connectError(err)) },
	}
	// Who is asked bounds the request. What stays open is cut only where it is not read.
	rc := http.NewResponseController(w)
	if rt.events != nil {
		if r.ContentLength == 0 {
			_ = rc.SetReadDeadline(time.Time{})
		}
		proxy.ServeHTTP(&livelyWriter{w, rc}, r)
		return
	}
	ctx, cancel := s.opt.Runtime.WithTimeout(r.Context(), rt.timeout+answerPatience)
	defer cancel()
	deadline := time.Now().Add(rt.timeout + 2*answerPatience)
	_ = rc.SetReadDeadline(deadline)
	_ = rc.SetWriteDeadline(deadline)
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }() // as in handler
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
	proxy.ServeHTTP(w, r)
}

// words is what the row does, as commands say it: "instance stop".
func (r route) words() string { return strings.ReplaceAll(r.name, "-", " ") }

// String gives the row as documents name it.
func (r route) String() string { return r.method + " " + r.path }

var _ migration.Host = (*Client)(nil)
