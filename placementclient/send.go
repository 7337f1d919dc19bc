package placementclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"berth/internal/fault"
	"berth/internal/pki"
)

// maxBody bounds an answer: candidates of a thousand hosts are half a MiB.
const maxBody = 64 << 20

// reply is the last answer to a request, if any.
type reply struct {
	base   string // the endpoint that was asked
	status int
	body   []byte
	// lost says that at least one copy left this process and was not answered, or
	// was answered by a 5xx that may have come after the deed.
	lost bool
}

// flight is the state of one request across its repeats; it travels in the
// request's context because retryablehttp's callbacks get nothing else.
type flight struct {
	write    bool
	attempts int
	left     bool // this attempt got a connection, so some of it may have arrived
	rep      reply
	wait     time.Duration
	renew    bool // the next attempt wants a new token
	renewed  bool
	why      string
}

type flightKey struct{}

// send makes one request with its repeats. The error is an *APIError when there
// was an answer of 400 or above.
func (c *Client) send(ctx context.Context, v Microversion, k call) (reply, error) {
	f := &flight{write: k.method != http.MethodGet}
	ctx = context.WithValue(ctx, flightKey{}, f)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { f.left = true }})

	var body any
	if k.body != nil {
		b, err := json.Marshal(k.body(v))
		if err != nil {
			return f.rep, fault.New(fault.Internal, "encode %s %s: %w", k.method, k.path, err)
		}
		body = b
	}
	base, err := c.endpoint(ctx)
	if err != nil {
		return f.rep, err
	}
	f.rep.base = base
	u := base + k.path
	if len(k.query) > 0 {
		u += "?" + k.query.Encode()
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, k.method, u, body)
	if err != nil {
		return f.rep, fault.New(fault.Invalid, "make request %s %s: %w", k.method, k.path, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "berth")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if v != 0 {
		req.Header.Set("OpenStack-API-Version", "placement "+v.String())
	}
	if err := c.setToken(ctx, req.Request, ""); err != nil {
		return f.rep, err
	}
	began := c.cfg.Runtime.Now()
	c.count.ask(began)
	resp, err := c.http.Do(req)
	if resp != nil {
		// checkRetry has read it; the connection is back already.
		_ = resp.Body.Close()
	}
	c.count.add(k, f, c.cfg.Runtime.Now().Sub(began))
	if err != nil {
		if bad, is := errors.AsType[*tls.CertificateVerificationError](err); is {
			return f.rep, &fault.Error{
				Kind: fault.Unavailable, Message: k.method + " " + base, Err: bad,
				Reasons: []fault.Reason{pki.CertificateReason(bad.Err, pki.Describe(bad.UnverifiedCertificates[0])+" of placement", "signed by an authority that this host knows")},
			}
		}
		if f.why != "" && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w (last try: %s)", err, f.why)
		}
		return f.rep, fault.New(fault.Unavailable, "%s %s: no answer after %d tries: %w", k.method, base, f.attempts, err)
	}
	c.cfg.Logger.DebugContext(ctx, "placement answered", "method", k.method, "route", k.route,
		"status", f.rep.status, "attempts", f.attempts)
	if f.rep.status < 200 || f.rep.status >= 300 {
		return f.rep, parseError(f.rep.status, f.rep.body)
	}
	return f.rep, nil
}

func (c *Client) setToken(ctx context.Context, req *http.Request, refused string) error {
	token := c.cfg.Token
	if c.cfg.TokenSource != nil {
		var err error
		if token, err = c.cfg.TokenSource.Token(ctx, refused); err != nil {
			return fmt.Errorf("get a token for placement: %w", err)
		}
	}
	if token != "" {
		req.Header.Set("X-Auth-Token", token)
	}
	return nil
}

// checkRetry reads the whole answer, so that a reply lost in its middle counts
// as lost, and says whether to send the request again. Every Placement write
// carries a generation or is idempotent by itself, so all may be repeated.
func (c *Client) checkRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	f := ctx.Value(flightKey{}).(*flight)
	f.attempts++
	left := f.left
	f.left = false
	f.rep.status, f.rep.body = 0, nil
	if err == nil {
		var b []byte
		b, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		if err == nil {
			f.rep.status, f.rep.body = resp.StatusCode, b
			c.count.answer(c.cfg.Runtime.Now())
		}
	}
	if err != nil {
		// An injected transport reports no connection; take the worse for granted
		// unless the dial itself is what failed.
		if (left || c.injected()) && !isDialError(err) {
			f.rep.lost = f.rep.lost || f.write
		}
		f.why = err.Error()
		if ctx.Err() != nil {
			return false, err
		}
		if _, bad := errors.AsType[*tls.CertificateVerificationError](err); bad {
			return false, err // will not get better by itself
		}
		f.wait = c.pause(f.attempts, nil)
		return true, nil
	}
	switch s := f.rep.status; {
	case s == http.StatusUnauthorized && c.cfg.TokenSource != nil && !f.renewed:
		f.renew, f.renewed, f.wait = true, true, 0
		f.why = "401, token renewed"
		return true, nil
	case s == http.StatusConflict:
		if parseError(s, f.rep.body).Conflict != ConflictServerRace {
			return false, nil
		}
		c.count.races.Add(1)
		f.why = "race inside placement"
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable:
		f.why = strconv.Itoa(s)
	case s >= 500 && s != http.StatusNotImplemented:
		// The deed may have been done before the answer broke.
		f.rep.lost = f.rep.lost || f.write
		f.why = strconv.Itoa(s)
	default:
		return false, nil
	}
	if ctx.Err() != nil {
		return false, nil
	}
	f.wait = c.pause(f.attempts, resp)
	return true, nil
}

// prepareRetry sleeps the pause on the injected clock and renews the token.
func (c *Client) prepareRetry(req *http.Request) error {
	ctx := req.Context()
	f := ctx.Value(flightKey{}).(*flight)
	c.cfg.Logger.WarnContext(ctx, "placement request is repeated", "method", req.Method, "path", req.URL.Path,
		"attempt", f.attempts+1, "pause", f.wait, "reason", f.why)
	c.count.retries.Add(1)
	if err := c.cfg.Runtime.Sleep(ctx, f.wait); err != nil {
		return err
	}
	if f.renew {
		f.renew = false
		return c.setToken(ctx, req, req.Header.Get("X-Auth-Token"))
	}
	return nil
}

// pause is how long to wait before the next try: what Retry-After says, else a
// random part of a bound that doubles.
func (c *Client) pause(attempts int, resp *http.Response) time.Duration {
	if resp != nil {
		if s := resp.Header.Get("Retry-After"); s != "" {
			if n, err := strconv.Atoi(s); err == nil && n >= 0 {
				return min(time.Duration(n)*time.Second, c.cfg.Timeout)
			}
			if t, err := http.ParseTime(s); err == nil {
				return min(max(t.Sub(c.cfg.Runtime.Now()), 0), c.cfg.Timeout)
			}
		}
	}
	bound := min(c.cfg.RetryWait<<min(attempts-1, 10), 20*c.cfg.RetryWait)
	return time.Duration(c.cfg.Jitter() * float64(bound))
}

// injected says whether the transport is not net/http's, and so gives no trace.
func (c *Client) injected() bool {
	_, std := c.cfg.Transport.(*http.Transport)
	return !std
}

// isDialError says whether no connection came about, so that nothing was sent.
func isDialError(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
