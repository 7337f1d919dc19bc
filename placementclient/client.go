package placementclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// TokenSource gives the X-Auth-Token of each request. Keystone's is one; a fixed
// token is Config.Token.
type TokenSource interface {
	// Token gives a token, from a cache where it has one. refused is the token that
	// was answered 401, the only sign of a revoked one, at any time: another one is
	// wanted. It is empty for whatever there is. It may block until ctx ends.
	Token(ctx context.Context, refused string) (string, error)
}

// Catalogue finds the endpoint where Config gives none. Keystone's is one.
type Catalogue interface {
	// Endpoint gives the URL, from a cache where it has one. It may block until ctx
	// ends.
	Endpoint(ctx context.Context) (string, error)
}

// Config is what a Client is made from. Only URL, or Catalogue, is mandatory.
type Config struct {
	// URL is the endpoint, http(s)://host:port[/prefix], or unix:/path for an
	// embedded Placement that listens on a unix socket. Where it is empty Catalogue
	// is asked before each request.
	URL       string
	Catalogue Catalogue
	// Token is sent as X-Auth-Token; TokenSource, when set, is asked instead. With
	// neither no token is sent (mutual TLS).
	Token       string
	TokenSource TokenSource
	// TLS is used for https. It is ignored when Transport is set.
	TLS *tls.Config
	// Transport replaces the client's own; a simulator injects one here.
	Transport http.RoundTripper
	// MinVersion and MaxVersion bound the negotiation; zero means 1.28 and 1.39.
	MinVersion, MaxVersion Microversion
	// Timeout ends a whole call, repeats included; zero means 60 s. A shorter
	// deadline of the caller's context wins.
	Timeout time.Duration
	// AttemptTimeout ends one request; zero means 15 s.
	AttemptTimeout time.Duration
	// Retries is how often a request is repeated; zero means 5, negative means never.
	Retries int
	// RetryWait is the longest first pause; it doubles with each repeat up to
	// twenty times itself, and a random part of it is slept. Zero means 200 ms.
	RetryWait time.Duration
	// Logger gets one debug line a request and one warning a repeat; nil means none.
	Logger *slog.Logger
	// Runtime is the clock; nil means the machine's.
	Runtime runtime.Runtime
	// Jitter gives the random part, in [0,1); nil means math/rand's.
	Jitter func() float64
}

// Client speaks to one Placement. It is safe for concurrent use and owns only
// idle connections (Close).
type Client struct {
	cfg     Config
	base    string // empty where the catalogue is asked
	http    *retryablehttp.Client
	version atomic.Int32 // negotiated microversion; 0 before
	count   counters
}

// New makes a client. It does not connect: the first call negotiates.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fault.New(fault.Invalid, "placement url %q: %w", cfg.URL, err)
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = MinMicroversion
	}
	if cfg.MaxVersion == 0 {
		cfg.MaxVersion = MaxMicroversion
	}
	if cfg.MinVersion < MinMicroversion || cfg.MaxVersion > MaxMicroversion || cfg.MinVersion > cfg.MaxVersion {
		return nil, fault.New(fault.Invalid, "placement microversions %s to %s: want a range within %s to %s",
			cfg.MinVersion, cfg.MaxVersion, MinMicroversion, MaxMicroversion)
	}
	setDefault(&cfg.Timeout, 60*time.Second)
	setDefault(&cfg.AttemptTimeout, 15*time.Second)
	setDefault(&cfg.RetryWait, 200*time.Millisecond)
	if cfg.Retries == 0 {
		cfg.Retries = 5
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Runtime == nil {
		cfg.Runtime = &runtime.System{}
	}
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	c := &Client{cfg: cfg}
	transport := &http.Transport{
		TLSClientConfig:     cfg.TLS,
		MaxIdleConns:        16,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   false,
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	switch u.Scheme {
	case "":
		if cfg.URL != "" || cfg.Catalogue == nil {
			return nil, fault.New(fault.Invalid, "placement url %q: want http, https or unix", cfg.URL)
		}
		transport.DialContext = dialer.DialContext
	case "http", "https":
		if u.Host == "" {
			return nil, fault.New(fault.Invalid, "placement url %q: no host", cfg.URL)
		}
		c.base = strings.TrimRight(u.Scheme+"://"+u.Host+u.Path, "/")
		transport.DialContext = dialer.DialContext
	case "unix":
		path := u.Path
		if path == "" {
			path = u.Opaque
		}
		if path == "" || u.Host != "" {
			return nil, fault.New(fault.Invalid, "placement url %q: want unix:/path", cfg.URL)
		}
		c.base = "http://placement"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
	default:
		return nil, fault.New(fault.Invalid, "placement url %q: want http, https or unix", cfg.URL)
	}
	if cfg.Transport == nil {
		cfg.Transport = transport
	}
	c.cfg = cfg
	c.http = &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: cfg.Transport,
			Timeout:   cfg.AttemptTimeout,
			// Placement never redirects; whatever does is not Placement.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		RetryMax:     max(cfg.Retries, 0),
		CheckRetry:   c.checkRetry,
		PrepareRetry: c.prepareRetry,
		// The pause is slept in prepareRetry, on the injected clock.
		Backoff:      func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 0 },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	return c, nil
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d == 0 {
		*d = v
	}
}

// Close drops idle connections. The client can still be used.
func (c *Client) Close() { c.http.HTTPClient.CloseIdleConnections() }

// endpoint is what a path is put behind.
func (c *Client) endpoint(ctx context.Context) (string, error) {
	if c.base != "" {
		return c.base, nil
	}
	base, err := c.cfg.Catalogue.Endpoint(ctx)
	if err != nil {
		return "", err
	}
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fault.New(fault.Unavailable, "the catalogue's placement url %q: want http or https", base)
	}
	return strings.TrimRight(base, "/"), nil
}

// Version negotiates and gives the microversion in use: the highest that both
// sides speak. It is asked once and kept until the server answers 406.
func (c *Client) Version(ctx context.Context) (Microversion, error) {
	ctx, cancel := c.cfg.Runtime.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	v, err := c.negotiate(ctx)
	return v, wrap("negotiate placement's microversion", err)
}

func (c *Client) negotiate(ctx context.Context) (Microversion, error) {
	if v := c.version.Load(); v != 0 {
		return Microversion(v), nil
	}
	var doc struct {
		Versions []struct {
			ID         string `json:"id"`
			MinVersion string `json:"min_version"`
			MaxVersion string `json:"max_version"`
		} `json:"versions"`
	}
	rep, err := c.send(ctx, 0, call{method: http.MethodGet, route: "/", path: "/"})
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(rep.body, &doc); err != nil || len(doc.Versions) == 0 {
		return 0, fault.New(fault.Unavailable, "%s does not answer like placement: no versions document", rep.base)
	}
	for _, d := range doc.Versions {
		low, err1 := ParseMicroversion(d.MinVersion)
		high, err2 := ParseMicroversion(d.MaxVersion)
		if err1 != nil || err2 != nil {
			continue
		}
		if v := min(high, c.cfg.MaxVersion); v >= c.cfg.MinVersion && v >= low {
			c.version.Store(int32(v))
			return v, nil
		}
	}
	d := doc.Versions[0]
	return 0, fault.New(fault.Invalid, "%s speaks microversions %s to %s, want some of %s to %s",
		rep.base, d.MinVersion, d.MaxVersion, c.cfg.MinVersion, c.cfg.MaxVersion)
}

// call is one request before it has a version.
type call struct {
	method string
	route  string // the path with its variables named, for counters and logs
	path   string
	query  url.Values
	body   func(v Microversion) any // nil for none
	out    any                      // a 2xx body is decoded into it; nil for none
	// landed, for a write of which a copy was lost and a repeat refused, reads the
	// state and says whether the lost copy did what was wanted.
	landed func(ctx context.Context, e *APIError) (bool, error)
}

// do makes a whole call: deadline, version, request with repeats, and what
// became of copies that were lost. doing is for the error.
func (c *Client) do(ctx context.Context, doing string, k call) error {
	ctx, cancel := c.cfg.Runtime.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return wrap(doing, c.attempt(ctx, k))
}

func (c *Client) attempt(ctx context.Context, k call) error {
	v, err := c.negotiate(ctx)
	if err != nil {
		return err
	}
	rep, err := c.send(ctx, v, k)
	if api, ok := err.(*APIError); ok && api.Status == http.StatusNotAcceptable {
		// The server was replaced by one that speaks less (or more) than before.
		c.version.CompareAndSwap(int32(v), 0)
		again, err2 := c.negotiate(ctx)
		if err2 == nil && again != v {
			rep, err = c.send(ctx, again, k)
		}
	}
	if err != nil {
		return c.settle(ctx, k, rep, err)
	}
	if k.out != nil && len(rep.body) > 0 {
		if err := json.Unmarshal(rep.body, k.out); err != nil {
			return fault.New(fault.Unavailable, "%s %s: answer %d is not what placement gives: %w", k.method, k.path, rep.status, err)
		}
	}
	return nil
}

// settle decides what a failed request means when copies of it were lost.
func (c *Client) settle(ctx context.Context, k call, rep reply, err error) error {
	if !rep.lost || k.method == http.MethodGet {
		return err
	}
	api, answered := err.(*APIError)
	if answered && api.Status < 500 && api.Status != http.StatusTooManyRequests {
		if k.landed != nil {
			done, lookErr := k.landed(ctx, api)
			if lookErr == nil && done {
				return nil
			}
			if lookErr == nil && api.Kind() == fault.GenerationConflict {
				// The generation has moved on, so no lost copy can land any more.
				return err
			}
			if lookErr != nil {
				err = fmt.Errorf("%w; then looking failed: %v", err, lookErr)
			}
		}
		if api.Kind() == fault.Invalid {
			return err
		}
	}
	c.count.inDoubt.Add(1)
	return &fault.Error{Kind: fault.InDoubt, Message: "a copy of the request left and its outcome is unknown", Err: err}
}
