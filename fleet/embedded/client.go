package embedded

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
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"berth/fleet"
	"berth/internal/fault"
)

// Options say where the server is and how it is asked.
type Options struct {
	// URL is Placement's: http(s)://host:port[/prefix], or unix:/path.
	URL string
	// Token is sent as X-Auth-Token; empty for none.
	Token string
	// TLS has the host's certificate and whom it believes, for https; nil for the machine's
	// defaults.
	TLS *tls.Config
	// Timeout bounds one call; 0 for 10 s.
	Timeout time.Duration
	// Transport stands in for the network in tests and simulations; nil for it.
	Transport http.RoundTripper
}

// Client is a fleet.Store whose server is elsewhere. Safe for concurrent use; it keeps
// connections and the newest moment that an answer told.
type Client struct {
	base    string
	token   string
	timeout time.Duration
	http    *http.Client
	idle    func() // closes the connections that nobody uses
	told    told
}

// NewClient checks the options; it does not connect.
func NewClient(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fault.New(fault.Invalid, "fleet records at %q: %w", o.URL, err)
	}
	c := &Client{base: strings.TrimSuffix(o.URL, "/"), token: o.Token, timeout: o.Timeout, idle: func() {}}
	if c.timeout == 0 {
		c.timeout = 10 * time.Second
	}
	transport := &http.Transport{
		TLSClientConfig: o.TLS, TLSHandshakeTimeout: c.timeout, MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second,
		DialContext: (&net.Dialer{Timeout: c.timeout}).DialContext,
	}
	switch {
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		c.base = "http://placement"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: c.timeout}).DialContext(ctx, "unix", u.Path)
		}
	default:
		return nil, fault.New(fault.Invalid, "fleet records at %q: want http, https or unix", o.URL)
	}
	c.http = &http.Client{Transport: o.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if o.Transport == nil {
		c.http.Transport, c.idle = transport, transport.CloseIdleConnections
	}
	return c, nil
}

// Close ends the connections that nobody uses.
func (c *Client) Close() error {
	c.idle()
	return nil
}

// Get reads one record.
func (c *Client) Get(ctx context.Context, key string) (fleet.Record, error) {
	recs, err := c.call(ctx, "get", "get "+key, getRequest{key})
	if err != nil {
		return fleet.Record{}, err
	}
	if len(recs) != 1 || recs[0].Key != key {
		return fleet.Record{}, fault.New(fault.Internal, "get %s: the server answered with %d records", key, len(recs))
	}
	return recs[0], nil
}

// List reads records by prefix, in pages.
func (c *Client) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	return c.ListOf(ctx, prefix, "")
}

// Commit does all changes or none.
func (c *Client) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	if err := fleet.CheckCommit(when, changes); err != nil {
		return err
	}
	q := commitRequest{}
	for _, w := range when {
		q.When = append(q.When, condition(w))
	}
	for _, ch := range changes {
		q.Changes = append(q.Changes, change(ch))
	}
	_, err := c.call(ctx, "commit", "commit", q)
	return err
}

// Allowed says whether the server would let this host make changes; nil from a server that is older
// than the question.
func (c *Client) Allowed(ctx context.Context, changes ...fleet.Change) error {
	q := commitRequest{}
	for _, ch := range changes {
		q.Changes = append(q.Changes, change(ch))
	}
	_, err := c.call(ctx, "allowed", "ask whether records may be written", q)
	if errors.Is(err, fault.Invalid) {
		return nil
	}
	return err
}

var _ fleet.Permits = (*Client)(nil)

// call is an exchange of which the records alone matter.
func (c *Client) call(ctx context.Context, verb, doing string, body any) ([]fleet.Record, error) {
	a, err := c.exchange(ctx, verb, doing, body)
	if err != nil {
		return nil, err
	}
	return a.records(), nil
}

// exchange is one request. What cannot have reached the server is Unavailable; of a commit that can
// have, without the server's own answer, nobody knows.
func (c *Client) exchange(ctx context.Context, verb, doing string, body any) (a answer, err error) {
	lost := fault.Unavailable
	if verb == "commit" {
		lost = fault.InDoubt
	}
	if err := context.Cause(ctx); err != nil {
		return answer{}, fault.New(fault.Unavailable, "%s: %w", doing, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	b, err := json.Marshal(body)
	if err != nil {
		return answer{}, fault.New(fault.Internal, "%s: %w", doing, err)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+Path+verb, bytes.NewReader(b))
	if err != nil {
		return answer{}, fault.New(fault.Invalid, "%s: %w", doing, err)
	}
	q.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		q.Header.Set("X-Auth-Token", c.token)
	}
	begun := c.told.begin()
	resp, err := c.http.Do(q)
	if err != nil {
		if notSent(err) {
			lost = fault.Unavailable
		}
		return answer{}, fault.New(lost, "%s: %w", doing, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if resp.Header.Get(here) == "" {
		return answer{}, foreign(resp, doing, lost)
	}
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		return answer{}, fault.New(lost, "%s: read the answer: %w", doing, err)
	}
	c.told.note(begun, a.Store)
	if a.Error != nil {
		return answer{}, &fault.Error{Kind: a.Error.Kind, Message: a.Error.Message, Reasons: a.Error.Reasons}
	}
	return a, nil
}

// notSent reports whether the server was not reached at all.
func notSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if ok && op.Op == "dial" {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	return false
}

// foreign is an answer that is not this package's server's.
func foreign(resp *http.Response, doing string, lost fault.Kind) error {
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable:
		return fault.Refuse(fault.NotFound, doing, fault.Reason{
			Code: fleet.NoStore, Message: "the Placement of this host keeps no records of the fleet: it is not Berth's, or an older one",
			Change: "set [fleet] etcd on all hosts",
		})
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "fleet_store_refuses", Message: "the server answered " + resp.Status, Change: "correct [placement] token, or show a host's certificate",
		})
	}
	return fault.New(lost, "%s: the server answered %s", doing, resp.Status)
}
