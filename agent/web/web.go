package web

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"berth/agent/drawing"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
)

// Options are what a page is made of.
type Options struct {
	Look    func(ctx context.Context) Snapshot // from memory; is called by one at a time
	Runtime runtime.Runtime
	Logger  *slog.Logger
	// AnswerTime bounds a request that does not stay, and each word to one that does; 0 for
	// answerTime.
	AnswerTime time.Duration
}

// Server serves the page. Make it with New.
type Server struct {
	opt  Options
	http *http.Server
	// places bounds the requests that are answered at once, watchers those that stay.
	places, watchers chan struct{}
	stopping         context.Context
	scene            scene
}

// How many requests are answered at once, and how many of them may stay to see what changes.
// Both arbitrary: more than people look at one host, and little memory.
const (
	mostRequests = 128
	mostWatchers = 64
)

// answerTime bounds a request that does not stay: all that it shows is in memory. Arbitrary.
const answerTime = 10 * time.Second

//go:embed page
var files embed.FS

// asset is a file that the page needs, as it is.
type asset struct{ name, kind string }

var assets = []asset{{"page.css", "text/css; charset=utf-8"}, {"page.js", "text/javascript; charset=utf-8"}, {"icon.svg", "image/svg+xml"}}

// text is what is served of it: the style has the drawing's with it.
func (a asset) text() []byte {
	text, err := files.ReadFile("page/" + a.name)
	if err != nil {
		panic(err) // a binary without its own file
	}
	if a.name == "page.css" {
		text = append(text, drawing.CSS...)
	}
	return text
}

// New makes a page; Serve shows it.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.AnswerTime == 0 {
		o.AnswerTime = answerTime
	}
	stopping, stop := context.WithCancel(context.Background())
	s := &Server{opt: o, places: make(chan struct{}, mostRequests), watchers: make(chan struct{}, mostWatchers), stopping: stopping}
	s.scene = scene{look: o.Look, rt: o.Runtime}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /events", s.events)
	for _, a := range assets {
		text := a.text()
		mux.HandleFunc("GET /"+a.name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", a.kind)
			_, _ = w.Write(text) // who is gone reads no error either
		})
	}
	s.http = &http.Server{
		Handler:           s.wrap(mux),
		ReadHeaderTimeout: answerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, networkKey{}, c.LocalAddr())
		},
		ErrorLog: slog.NewLogLogger(o.Logger.With("part", "page").Handler(), slog.LevelDebug),
	}
	s.http.RegisterOnShutdown(stop)
	return s
}

type networkKey struct{}

// Serve shows the page on a listener until Close. With an identity it goes over TLS, and to
// operators alone; without one the listener must be a unix socket or on the loopback address.
func (s *Server) Serve(l net.Listener, id *pki.Identity) error {
	switch {
	case id != nil:
		l = tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{id.Certificate},
			MinVersion:   tls.VersionTLS13,
			// Asked for, and judged in letIn: a handshake that fails tells nobody why. The
			// authorities are told so that a browser offers a certificate of theirs.
			ClientAuth: tls.RequestClientCert,
			ClientCAs:  id.Roots,
			NextProtos: []string{"http/1.1"},
		})
		s.http.Handler = s.operators(id, s.http.Handler)
	case l.Addr().Network() != "unix" && !loopback(l.Addr().String()):
		return errors.Join(fault.New(fault.Invalid, "show the page on %s: it goes to other machines, and there are no certificates", l.Addr()), l.Close())
	}
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("show the page on %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends it at once: what it showed is asked for again.
func (s *Server) Close() error { return s.http.Close() }

// policy is what a browser may do with the page: run and show this server's files, ask this
// server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// wrap gives each request its bounds and its answer's headers.
func (s *Server) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		rc, until := http.NewResponseController(w), time.Now().Add(s.opt.AnswerTime)
		// These fail only where the connection is none of net's, as in a test's recorder.
		_ = rc.SetReadDeadline(until) // of a body that nobody has asked for
		_ = rc.SetWriteDeadline(until)
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
		default:
			http.Error(w, "too many look at once", http.StatusServiceUnavailable)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page only reads: use the berth command to change something", http.StatusMethodNotAllowed)
			return
		}
		if !sameMachine(r) {
			// A name that leads here and is not the machine's own is how a page of somebody
			// else's would read this one (DNS rebinding).
			http.Error(w, "ask for this page as localhost or by the loopback address", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameMachine holds the name that a browser asks for against the loopback address that it has
// reached. What came by TLS has shown a certificate, and by a unix socket comes no browser by
// itself.
func sameMachine(r *http.Request) bool {
	at, _ := r.Context().Value(networkKey{}).(net.Addr)
	if r.TLS != nil || at == nil || at.Network() == "unix" {
		return true
	}
	return loopback(r.Host)
}

// loopback reports whether an address, its port left out or not, is the machine's own.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, 6.3
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// operators lets nobody else in.
func (s *Server) operators(id *pki.Identity, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc, until := http.NewResponseController(w), time.Now().Add(s.opt.AnswerTime)
		_ = rc.SetReadDeadline(until) // of a body that nobody asked for
		_ = rc.SetWriteDeadline(until)
		role, leaf, err := id.VerifyClient(r.TLS.PeerCertificates, s.opt.Runtime.Now())
		if err == nil && role != pki.RoleOperator && role != pki.RoleReader {
			err = fault.Refuse(fault.Forbidden, "show the page", fault.Reason{
				Code: "certificate_role", Message: "this page is for operators and readers, and that is a " + pki.Describe(leaf), Have: string(role),
				Change: "come with an operator's or a reader's certificate: berth pki operator NAME --read-only makes one",
			})
		}
		if err != nil {
			s.opt.Logger.Warn("caller of the page refused", "from", r.RemoteAddr, "error", err)
			w.Header().Set("X-Content-Type-Options", "nosniff")
			words := err.Error()
			for _, reason := range fault.ReasonsOf(err) {
				words += "\n\nTo do: " + reason.Change
			}
			http.Error(w, words+"\n\nA browser takes a certificate with its key as one file: openssl pkcs12 -export -in operator.crt -inkey operator.key -out operator.p12", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// edition is the sum of everything that a page which is open has been given, so that it is
// loaded again when another agent answers.
var edition = func() string {
	sum := sha256.New()
	for _, a := range append([]asset{{name: "page.html"}}, assets...) {
		sum.Write(a.text())
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}()

// page writes the whole.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	p, err := s.scene.now(r.Context())
	if err == nil {
		var text []byte
		if text, err = p.whole(); err == nil {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(text) // who is gone reads no error either
			return
		}
	}
	s.opt.Logger.Error("the page could not be written", "error", err)
	http.Error(w, "the page could not be written: see the agent's log", http.StatusInternalServerError)
}
