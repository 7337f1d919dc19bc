package placement

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// Server is an embedded Placement over one state.
type Server struct {
	options Options
	log     *slog.Logger
	rt      runtime.Runtime
	tls     *tls.Config
	state   *state
	routes  []route
	beside  Beside // nil for nothing

	ready chan struct{} // closed once the server listens

	mu   sync.Mutex // guards addr; nothing else happens under it
	addr string
}

// The limits of one request; arbitrary, far above what real ones need: a question may name
// thousands of aggregates, an answer may go over a slow line.
const (
	maxRequestHeader = 256 << 10
	maxRequestBody   = 16 << 20
	maxSmallBody     = 1 << 20 // of what names one provider: it is read under the write lock
	headerTimeout    = 10 * time.Second
	bodyTimeout      = 60 * time.Second
	answerTimeout    = 60 * time.Second
	workTimeout      = bodyTimeout + answerTimeout/2 // of the body and the work; then the request is given up
	backupTimeout    = 15 * time.Minute              // of the answer that is a whole database
	idleTimeout      = 120 * time.Second
	stopTimeout      = 10 * time.Second
)

// maxRequests is how many requests are worked on at once; one more is told to come again, which
// clients do. Arbitrary: far above what waits for one another in a fleet, far below what would
// exhaust this process.
const maxRequests = 1024

// New validates the options and opens the database. A database that another
// process has open is fault.Busy within a second or so; one that is cut, garbled or
// not Placement's is an error that names the file. The caller closes the server.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{options: o, log: o.Logger, rt: o.Runtime, routes: routes(), ready: make(chan struct{})}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.rt == nil {
		s.rt = &runtime.System{}
	}
	var err error
	if s.tls, _, err = o.tlsConfig(s.rt); err != nil {
		return nil, fmt.Errorf("serve placement: %w", err)
	}
	if s.state, err = openState(context.Background(), o.DB, o.Store, s.rt, s.log); err != nil {
		return nil, err
	}
	if o.Beside != nil {
		if s.beside, err = o.Beside(context.Background(), s.state.disk, s.rt, s.log); err != nil {
			return nil, errors.Join(err, s.state.close())
		}
		if b, ok := s.beside.(interface {
			AskHolders(func(ctx context.Context, instance string) ([]string, error))
		}); ok {
			b.AskHolders(s.holders)
		}
	}
	return s, nil
}

// Close closes the database; requests that still come are answered 500. It is
// safe to call after Run, and again.
func (s *Server) Close() error { return s.state.close() }

// Ready is closed once the server listens (Run).
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is the address listened on, with the port that was chosen for port 0, or
// unix:/path; empty before Ready.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Run listens and serves until ctx ends, then lets running requests finish, and
// gives nil. The database stays open: Close closes it.
func (s *Server) Run(ctx context.Context) error {
	l, addr, err := s.listen(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.addr = addr
	s.mu.Unlock()
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	server := &http.Server{
		Handler: s.bounded(maxRequests), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout + answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxRequestHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	close(s.ready)
	s.log.InfoContext(ctx, "placement listens", "address", addr, "database", s.options.DB, "auth", s.options.auth())
	done := make(chan error, 1)
	s.rt.Go("placement-http", func() { done <- server.Serve(l) })
	select {
	case err := <-done:
		return fmt.Errorf("serve placement on %s: %w", addr, err)
	case <-ctx.Done():
	}
	stop, cancel := s.rt.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close() // what did not finish in time is cut
	}
	if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve placement on %s: %w", addr, err)
	}
	return nil
}

// listen opens the address. A unix socket that a dead server left is replaced;
// one that answers is refused.
func (s *Server) listen(ctx context.Context) (net.Listener, string, error) {
	var c net.ListenConfig
	path := s.options.unixPath()
	if path == "" {
		l, err := c.Listen(ctx, "tcp", s.options.Listen)
		if err != nil {
			return nil, "", fault.New(fault.Unavailable, "listen on %s: %w", s.options.Listen, err)
		}
		return l, l.Addr().String(), nil
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, "", fault.New(fault.Exists, "listen on %s: it is there and is no socket", path)
		}
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = conn.Close()
			return nil, "", fault.New(fault.Busy, "listen on %s: another server answers there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, "", fmt.Errorf("listen on %s: remove the socket of a dead server: %w", path, err)
		}
	}
	l, err := c.Listen(ctx, "unix", path)
	if err != nil {
		return nil, "", fault.New(fault.Unavailable, "listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return nil, "", fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, "unix:" + path, nil
}

// Handler is the API, for servers and tests that bring their own listener.
func (s *Server) Handler() http.Handler { return s }

// bounded has no more than so many requests worked on at once.
func (s *Server) bounded(most int) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			if q.URL.Path != backupPath && !strings.HasPrefix(q.URL.Path, BesidePath) { // which set their own
				ctx, cancel := s.rt.WithTimeout(q.Context(), workTimeout)
				defer cancel()
				q = q.WithContext(ctx)
			}
			s.ServeHTTP(w, q)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d requests are being worked on already", most), http.StatusServiceUnavailable)
		}
	})
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r := &request{http: q, id: requestID(s.newUUID()), newUUID: s.newUUID, now: s.rt.Now(), query: parseQuery(q.URL.RawQuery)}
	w.Header().Set("X-Openstack-Request-Id", r.id)
	log := &statusWriter{ResponseWriter: w}
	s.serve(log, r)
	s.log.DebugContext(q.Context(), "placement request", "method", q.Method, "path", q.URL.Path,
		"status", log.status, "microversion", r.version.String(), "request", r.id)
}

// newUUID is uuid.NewString of the server's own chance.
func (s *Server) newUUID() string {
	if s.options.Random == nil {
		return uuid.NewString()
	}
	id, err := uuid.NewRandomFromReader(s.options.Random)
	if err != nil {
		return uuid.NewString()
	}
	return id.String()
}

// statusWriter remembers the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve follows the order of the real service's layers: who, which microversion,
// is there a content type, which handler, does it exist at this microversion.
func (s *Server) serve(w http.ResponseWriter, r *request) {
	q := r.http
	root := q.URL.Path == "/" || q.URL.Path == ""
	known := true
	if r.who, known = s.identify(q); !known && !root {
		unauthorized(w, q)
		return
	}
	if q.URL.Path == backupPath {
		s.serveBackup(w, r)
		return
	}
	if s.beside != nil && strings.HasPrefix(q.URL.Path, BesidePath) {
		s.serveBeside(w, r)
		return
	}
	version, refused := wantedVersion(q.Header)
	if refused != nil {
		refused.write(w, r)
		return
	}
	r.version, r.versioned = version, true
	w.Header().Set(versionHeader, "placement "+version.String())
	w.Header().Set("Vary", "openstack-api-version")
	if q.ContentLength != 0 && q.Header.Get("Content-Type") == "" {
		refused := badRequest("content-type header required when content-length > 0")
		refused.noVary = true
		refused.write(w, r)
		return
	}
	if root {
		if q.Method != http.MethodGet {
			refused := refuse(http.StatusMethodNotAllowed, "The method specified is not allowed for this resource.")
			refused.allow = http.MethodGet
			refused.write(w, r)
			return
		}
		ok(versionsDocument()).write(w, r)
		return
	}
	m, vars, refused := find(s.routes, q)
	if refused != nil {
		refused.write(w, r)
		return
	}
	r.vars = vars
	if refused := m.precheck(r); refused != nil {
		refused.write(w, r)
		return
	}
	// The body is read before any lock is taken: a slow client holds up nobody.
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, m.bodyLimit()))
	if err != nil {
		refuse(http.StatusRequestEntityTooLarge, "the body cannot be read: %v", err).write(w, r)
		return
	}
	r.body = body
	a, err := s.run(m, r)
	if err != nil {
		refused := asRefusal(err)
		if refused.status >= http.StatusInternalServerError {
			s.log.ErrorContext(q.Context(), "placement request failed", "method", q.Method, "path", q.URL.Path, "error", err, "request", r.id)
		}
		refused.write(w, r)
		return
	}
	a.write(w, r)
}

// serveBeside answers what is no part of Placement.
func (s *Server) serveBeside(w http.ResponseWriter, r *request) {
	if !r.who.operator && r.who.host == nil && (s.options.auth() == AuthMTLS || s.options.Policy != PolicyOpen) {
		refuse(http.StatusForbidden, "the fleet's records are for hosts and operators").write(w, r)
		return
	}
	s.beside.ServeHTTP(w, r.http)
}

// bodyLimit is how many bytes a body may have.
func (m *method) bodyLimit() int64 {
	if m.body != nil {
		return maxRequestBody
	}
	return maxSmallBody
}

// precheck is what is decided before a body is read.
func (m *method) precheck(r *request) *refusal {
	if r.version < m.min {
		return refuse(cmp.Or(m.below, http.StatusNotFound), "")
	}
	if m.json && mediaType(r.http) != "application/json" {
		return wrongMedia(r.http)
	}
	if m.accept && !acceptsJSON(r.http) {
		return refuse(http.StatusNotAcceptable, "Only application/json is provided")
	}
	return nil
}

func wrongMedia(q *http.Request) *refusal {
	return refuse(http.StatusUnsupportedMediaType, "The media type %s is not supported, use application/json", mediaType(q))
}

// run makes the transaction: readers together, writers one after the other.
func (s *Server) run(m *method, r *request) (a *answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("placement handler panicked", "panic", p, "stack", string(debug.Stack()))
			a, err = nil, refuse(http.StatusInternalServerError, "internal error, see the log for request %s", r.id)
		}
	}()
	if !m.write {
		read := func(b *base) {
			t := newTx(b, r.now)
			if a, err = nil, s.permit(t, r, m); err == nil {
				a, err = m.do(t, r)
			}
		}
		look, own := read, (*base)(nil)
		if m.search {
			look = func(b *base) { own = b.searchable() }
		}
		if gone := s.state.view(r.http.Context(), look); gone != nil {
			return nil, gone
		}
		if m.search { // without a lock
			read(own)
		}
		return a, err
	}
	for {
		d := s.decide(m, r)
		var failed error
		if d.leads {
			failed = s.state.commit(d.batch)
		} else {
			failed = d.batch.wait(r.http.Context(), s.rt)
		}
		switch {
		case failed == nil:
			return d.answer, d.err
		case d.wrote: // %v: a commit that was not waited for is in doubt, and no 503
			return nil, fmt.Errorf("the database could not be written: %v", failed)
		}
		// Refused because of what could not be kept: it may be possible now.
	}
}

// decision is a write as it was decided, to be answered once its batch is durable.
type decision struct {
	answer *answer
	err    error
	batch  *batch // nil for nothing to wait for
	leads  bool   // and to commit it
	wrote  bool   // the batch has something of it
}

func (s *Server) decide(m *method, r *request) (d decision) {
	if m.body != nil && r.document == nil && r.wrong == nil {
		r.document, r.wrong = extractObject(r.body, m.body.at(r.version))
	}
	if r.said = r.document; r.said == nil && r.who.host != nil {
		body, _ := parseJSON(r.body) // the handler says what is wrong with it
		r.said, _ = body.(*object)
	}
	s.state.write.Lock()
	defer s.state.write.Unlock()
	if ctxErr := r.http.Context().Err(); ctxErr != nil {
		// The client gave up while it waited; it takes this for not done.
		d.err = refuse(http.StatusServiceUnavailable, "the request was given up: %v", ctxErr)
		return d
	}
	// Writers alone change the base, so the writer reads it without mu.
	t := newTx(s.state.b, r.now)
	if d.err = s.permit(t, r, m); d.err == nil {
		d.answer, d.err = m.do(t, r)
	}
	if d.err != nil && !asRefusal(d.err).keep {
		t = newTx(s.state.b, r.now) // nothing of it stays
	}
	d.wrote = !t.empty()
	d.batch, d.leads = s.state.apply(t)
	return d
}
