package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
)

// ClientOptions say how to reach an agent: by Socket, or by Address with an
// Identity.
type ClientOptions struct {
	Socket  string // path of a unix socket
	Address string // host:port, over mutual TLS
	// Name is the provider's name that the server must prove to have. Empty takes
	// the host part of Address.
	Name     string
	Identity *pki.Identity
	// As is the calling host's provider name; empty for an operator.
	As      string
	Runtime runtime.Runtime // nil for the machine's own
	// Asked is told after each request when it was sent, and whether an answer began; nil for nobody. A
	// request whose caller gave it up is not told.
	Asked func(asked time.Time, answered bool)
	// Follow gives a client of another host, which has to be asked itself: see ReasonAskThere. The
	// request is sent there, once. nil gives the refusal to the caller.
	Follow func(host string) (*Client, error)
}

// Client asks one agent. It implements migration.Host; its other methods are
// the operator's. It is safe for concurrent use; Close drops idle connections.
type Client struct {
	opt  ClientOptions
	base *url.URL
	http *http.Client
	rt   runtime.Runtime
	// host is sent as ?host=: the request is meant for another host, to which
	// this agent passes it on. See Via.
	host string
}

const dialTimeout = 5 * time.Second

// NewClient makes a client. It does not connect.
func NewClient(o ClientOptions) (*Client, error) {
	c := &Client{opt: o, rt: o.Runtime}
	if c.rt == nil {
		c.rt = &runtime.System{}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Second}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: 64 << 10,
	}
	switch {
	case o.Socket != "":
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", o.Socket)
		}
		c.base = &url.URL{Scheme: "http", Host: "berth"}
	case o.Address != "" && o.Identity != nil:
		if c.opt.Name == "" {
			host, _, err := net.SplitHostPort(o.Address)
			if err != nil {
				return nil, fault.New(fault.Invalid, "address %q: want HOST:PORT", o.Address)
			}
			c.opt.Name = host
		}
		transport.DialContext = dialer.DialContext
		transport.TLSClientConfig = &tls.Config{
			Certificates: []tls.Certificate{o.Identity.Certificate},
			MinVersion:   tls.VersionTLS13,
			// verifyServer replaces Go's own check by a stricter one (no wildcards) that
			// says whom it met and whom it wanted.
			InsecureSkipVerify: true,
			VerifyConnection:   c.verifyServer,
		}
		c.base = &url.URL{Scheme: "https", Host: o.Address}
	default:
		return nil, fault.New(fault.Invalid, "reach an agent: name a socket, or an address and a certificate")
	}
	c.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Via gives a client whose requests are passed on by this agent to another host.
func (c *Client) Via(host string) *Client {
	out := *c
	out.host = host
	return &out
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// verifyServer wants a certificate of ours that names the provider expected.
func (c *Client) verifyServer(cs tls.ConnectionState) error {
	doing := "check that " + c.opt.Address + " is host " + c.opt.Name
	if len(cs.PeerCertificates) == 0 {
		return fault.New(fault.Forbidden, "%s: it presented no certificate", doing)
	}
	leaf, pool := cs.PeerCertificates[0], x509.NewCertPool()
	for _, i := range cs.PeerCertificates[1:] {
		pool.AddCert(i)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.opt.Identity.Roots, Intermediates: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fault.Refuse(fault.Forbidden, doing, pki.CertificateReason(err, pki.Describe(leaf), fmt.Sprintf("signed by this side's CA %q", c.opt.Identity.CAName)))
	}
	if !pki.Covers(leaf, c.opt.Name) {
		return fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "certificate_wrong_name", Message: "it presents the " + pki.Describe(leaf), Want: c.opt.Name, Have: pki.Describe(leaf),
			Change: "give it a certificate with " + c.opt.Name + " in its subjectAltName, or correct its address in [peers]",
		})
	}
	return nil
}

// where names the agent for messages.
func (c *Client) where() string {
	if c.opt.Socket != "" {
		return c.opt.Socket
	}
	if host, _, err := net.SplitHostPort(c.opt.Address); err == nil && host == c.opt.Name {
		return c.opt.Address
	}
	return c.opt.Name + ", " + c.opt.Address
}

// connectError puts a failure of the connection into a kind and words. A
// certificate that is refused keeps its kind: asking again is useless.
func (c *Client) connectError(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	reason := fault.Reason{Code: "unreachable", Message: err.Error(), Have: c.where()}
	switch {
	case errors.Is(err, syscall.ENOENT) && c.opt.Socket != "":
		reason.Message, reason.Change = "no agent listens on "+c.opt.Socket, "start it (systemctl start berth), or name another with --connect"
	case errors.Is(err, syscall.ECONNREFUSED):
		reason.Message, reason.Change = "the connection is refused: no agent listens there", "start it (systemctl start berth)"
	case errors.Is(err, syscall.EACCES) && c.opt.Socket != "":
		return fault.Refuse(fault.Forbidden, "ask the agent at "+c.where(), fault.Reason{
			Code: "socket_permission", Message: "the socket may not be opened: " + err.Error(), Change: "be root, or a member of group berth",
		})
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH) && !errors.As(err, new(*net.DNSError)):
		reason.Message, reason.Change = "there is no route to it", "check the host, the network, and its address in [peers]"
	case errors.As(err, new(*net.DNSError)):
		reason.Message, reason.Change = "its name leads to no address: "+err.Error(), "write its address into [peers], or correct the name"
	case errors.Is(err, context.DeadlineExceeded):
		reason.Code, reason.Message = "no_answer", "it did not answer in time"
	}
	if errors.As(err, new(tls.RecordHeaderError)) {
		reason.Message = "it does not speak TLS"
	}
	return fault.Refuse(fault.Unavailable, "ask the agent at "+c.where(), reason)
}

// unsentError is the failure of a request that did not leave.
type unsentError struct{ error }

// Unwrap gives what people see.
func (e unsentError) Unwrap() error { return e.error }

// sent tells whether a request that got no answer had left: an error while
// dialling means that it had not.
func sent(err error) bool {
	_, unsent := errors.AsType[unsentError](err)
	return !unsent
}

// repeat is how often a request that is safe to repeat is sent when no answer
// comes.
type repeat int

const (
	once       repeat = 1
	repeatable repeat = 4
)

// do sends a request and decodes the answer into out, where that is not nil.
func (c *Client) do(ctx context.Context, method, path string, in, out any, times repeat) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fault.New(fault.Internal, "encode the request: %w", err)
		}
	}
	lost, err := c.trying(ctx, times, func() (bool, error) { return c.attempt(ctx, method, path, body, out) })
	if lost && times == once && method != http.MethodGet && sent(err) {
		return unknown(err)
	}
	if there := c.elsewhere(err); there != nil {
		defer there.Close()
		return there.do(ctx, method, path, in, out, times)
	}
	return err
}

// elsewhere gives a client of the host that a refusal names as the one to ask; nil for none, and
// where it cannot be asked: then the refusal says what to do.
func (c *Client) elsewhere(err error) *Client {
	if c.opt.Follow == nil || !errors.Is(err, fault.Forbidden) {
		return nil
	}
	for _, r := range fault.ReasonsOf(err) {
		if r.Code != ReasonAskThere || r.Want == "" || r.Want == c.opt.Name {
			continue
		}
		if there, err := c.opt.Follow(r.Want); err == nil {
			there.opt.Follow = nil
			return there
		}
	}
	return nil
}

// trying asks, and again after a pause, while ask says that no answer came; lost says so
// of the last try.
func (c *Client) trying(ctx context.Context, times repeat, ask func() (lost bool, err error)) (lost bool, err error) {
	for try := range int(times) {
		if try > 0 {
			pause := time.Duration((0.5 + rand.Float64()) * float64(50*time.Millisecond<<(try+1)))
			if c.rt.Sleep(ctx, pause) != nil {
				return false, err
			}
		}
		if lost, err = ask(); !lost {
			return false, c.tooOld(ctx, err)
		}
		// A local agent that is not there is not waited for: systemd holds its socket
		// over a restart, and a person wants to know.
		if ctx.Err() != nil || c.opt.Socket != "" && !sent(err) {
			break
		}
	}
	return true, err
}

// unknown is the kind of a changing request that left and had no answer, where
// nothing makes it safe to send again.
func unknown(err error) error {
	return fault.New(fault.InDoubt, "the request was sent and its answer lost, so it may have happened: %w", err)
}

// attempt sends once. lost is true when no answer came.
func (c *Client) attempt(ctx context.Context, method, path string, body []byte, out any) (lost bool, err error) {
	return c.attemptAs(ctx, method, path, "application/json", func(data []byte) error {
		if out == nil {
			return nil
		}
		// Not strict: a newer agent may say more.
		return json.Unmarshal(data, out)
	}, body)
}

// attemptAs is attempt for a body of any media type, which is sent in parts.
func (c *Client) attemptAs(ctx context.Context, method, path, kind string, decode func([]byte) error, body ...[]byte) (lost bool, err error) {
	resp, err := c.openAs(ctx, method, path, kind, body...)
	if err != nil {
		// A certificate that is refused will be refused again.
		return fault.KindOf(err) == fault.Unavailable, err
	}
	defer resp.Body.Close()
	data, err := readAll(resp, MaxBody)
	if err != nil {
		return true, c.connectError(err)
	}
	if len(data) > MaxBody {
		return false, fault.New(fault.Internal, "ask the agent at %s: its answer is larger than %d bytes", c.where(), MaxBody)
	}
	if resp.StatusCode >= 300 {
		return false, decodeError(resp.StatusCode, data)
	}
	if err := decode(data); err != nil {
		return false, fault.New(fault.Internal, "ask the agent at %s: read its answer: %w", c.where(), err)
	}
	return false, nil
}

func (c *Client) open(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	return c.openAs(ctx, method, path, "application/json", body)
}

func (c *Client) openAs(ctx context.Context, method, path, kind string, body ...[]byte) (*http.Response, error) {
	u := *c.base
	u.Path, u.RawQuery, _ = strings.Cut(path, "?")
	if unescaped, err := url.PathUnescape(u.Path); err == nil {
		u.RawPath, u.Path = u.Path, unescaped
	}
	if c.host != "" {
		q := u.Query()
		q.Set("host", c.host)
		u.RawQuery = q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, fault.New(fault.Invalid, "make a request: %w", err)
	}
	if setBody(req, body) {
		req.Header.Set("Content-Type", kind)
	}
	if c.opt.As != "" {
		req.Header.Set(headerHost, c.opt.As)
		tellAsker(ctx, req.Header)
	}
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set(headerTimeout, time.Until(deadline).Round(time.Millisecond).String())
	}
	begun := c.rt.Now()
	resp, err := c.http.Do(req)
	if c.opt.Asked != nil && (err == nil || !errors.Is(ctx.Err(), context.Canceled)) {
		c.opt.Asked(begun, err == nil)
	}
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return nil, unsentError{c.connectError(err)}
		}
		return nil, c.connectError(err)
	}
	return resp, nil
}

// Status asks how the agent is.
func (c *Client) Status(ctx context.Context) (out Status, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/status", nil, &out, repeatable)
}

// Host asks for the host with its hardware.
func (c *Client) Host(ctx context.Context) (out HostInfo, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/host", nil, &out, repeatable)
}

// Hosts asks for the hosts that the agent knows.
func (c *Client) Hosts(ctx context.Context) ([]HostEntry, error) {
	var out HostList
	err := c.do(ctx, http.MethodGet, "/v1/hosts", nil, &out, repeatable)
	return out.Hosts, err
}

// Instances lists guests.
func (c *Client) Instances(ctx context.Context) (out InstanceList, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/instances", nil, &out, repeatable)
}

// AllInstances lists guests with those that are not shown, since another host's record of
// them is.
func (c *Client) AllInstances(ctx context.Context) (out InstanceList, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/instances?hidden=true", nil, &out, repeatable)
}

// Instance shows one guest.
func (c *Client) Instance(ctx context.Context, ref string) (out InstanceDetail, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/instances/"+url.PathEscape(ref), nil, &out, repeatable)
}

// CreateInstance makes a guest. fault.InDoubt when its answer was lost.
func (c *Client) CreateInstance(ctx context.Context, r CreateInstance) (out Instance, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/instances", r, &out, once)
}

// AdoptInstances takes domains under claims; safe to repeat.
func (c *Client) AdoptInstances(ctx context.Context, r AdoptInstances) (out AdoptedList, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/instances/adopt", r, &out, repeatable)
}

// StartInstance starts a guest; safe to repeat.
func (c *Client) StartInstance(ctx context.Context, ref string) (out Instance, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(ref)+"/start", StartInstance{}, &out, repeatable)
}

// StartConfirmed starts a guest by the caller's word that it is this host's; safe to repeat.
func (c *Client) StartConfirmed(ctx context.Context, ref, because string) (out Instance, err error) {
	in := StartInstance{ConfirmOwnership: true, Because: because}
	return out, c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(ref)+"/start", in, &out, repeatable)
}

// StopInstance powers a guest off; safe to repeat.
func (c *Client) StopInstance(ctx context.Context, ref string, r StopInstance) (out Instance, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(ref)+"/stop", r, &out, repeatable)
}

// DeleteInstance removes an instance, and tells which files stay. fault.InDoubt when its
// answer was lost.
func (c *Client) DeleteInstance(ctx context.Context, ref string, r DeleteInstance) (out Deleted, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(ref)+"/delete", r, &out, once)
}

// Claims lists what is held, with the host's usage.
func (c *Client) Claims(ctx context.Context) (out ClaimList, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/claims", nil, &out, repeatable)
}

// ClaimByID shows one claim, by its own uuid or its instance's.
func (c *Client) ClaimByID(ctx context.Context, ref string) (out Claim, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/claims/"+url.PathEscape(ref), nil, &out, repeatable)
}

// ExplainClaim tells what a claim holds, by its own uuid or its instance's name
// or uuid.
func (c *Client) ExplainClaim(ctx context.Context, ref string) (out Explanation, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/claims/"+url.PathEscape(ref)+"/explanation", nil, &out, repeatable)
}

// Migrate asks for a guest to be moved or changed. It is safe to repeat where r names the
// migration's uuid, and is then repeated.
func (c *Client) Migrate(ctx context.Context, r Migrate) (out migration.Migration, err error) {
	times := once
	if r.Migration != "" {
		times = repeatable
	}
	return out, c.do(ctx, http.MethodPost, "/v1/migrations", r, &out, times)
}

// Migrations lists moves, newest first.
func (c *Client) Migrations(ctx context.Context) ([]migration.Migration, error) {
	var out MigrationList
	err := c.do(ctx, http.MethodGet, "/v1/migrations", nil, &out, repeatable)
	return out.Migrations, err
}

// Migration shows one move.
func (c *Client) Migration(ctx context.Context, uuid string) (out migration.Migration, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/migrations/"+url.PathEscape(uuid), nil, &out, repeatable)
}

// AbortMigration gives a move up; safe to repeat.
func (c *Client) AbortMigration(ctx context.Context, uuid string) (out migration.Migration, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/migrations/"+url.PathEscape(uuid)+"/abort", nothing{}, &out, repeatable)
}

// WatchMigration calls each with the record now and at every change, until the
// migration is over, each returns an error, or ctx ends. A stream that breaks is
// opened anew for as long as patience lasts without a record: an agent that
// restarts is no reason to stop watching.
func (c *Client) WatchMigration(ctx context.Context, uuid string, patience time.Duration, each func(migration.Migration) error) error {
	return watch(ctx, c, "/v1/migrations/"+url.PathEscape(uuid)+"/watch", "migration", "migration "+uuid, patience, each)
}
