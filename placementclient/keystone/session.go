package keystone

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
)

const (
	// serviceType is Placement's in the catalogue (the service types authority).
	serviceType = "placement"
	// loginTimeout ends one login.
	loginTimeout = 20 * time.Second
	// early is how long before its end a token is renewed: longer than a request
	// takes, and shorter than any token lives.
	early = 30 * time.Second
	// refusedPause is how long refused credentials are not tried again.
	refusedPause = 10 * time.Second
)

// Options say which cloud, and where in it.
type Options struct {
	// Cloud is an entry of clouds.yaml; empty means the one that OS_CLOUD names, else
	// what the OS_* variables say.
	Cloud string
	// CloudsFile is the file it stands in; empty means OS_CLIENT_CONFIG_FILE, else
	// the usual places.
	CloudsFile string
	// Region and Interface choose among Placement's endpoints in the catalogue; empty
	// means what the cloud or the variables say, else any region and public.
	Region, Interface string
	// Runtime is the clock; nil means the machine's.
	Runtime runtime.Runtime
}

// Session is logged in to one cloud whenever it has to be. It is safe for
// concurrent use.
type Session struct {
	cloud cloud
	rt    runtime.Runtime
	http  *http.Client

	turn chan struct{} // holds one: taken by who logs in, so that the others wait

	mu      sync.Mutex // guards what follows; nothing else happens under it
	login   login
	refused error         // Keystone's no to these credentials
	until   time.Duration // on the boot clock
}

// login is what Keystone gave at one.
type login struct {
	token   string
	ends    time.Duration // on the boot clock
	catalog []tokens.CatalogEntry
}

// New reads where and how to log in. It does not connect.
func New(o Options) (*Session, error) {
	c, err := read(o)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"public", "internal", "admin"}, c.iface) {
		return nil, fault.New(fault.Invalid, "interface %q of placement's endpoint: want public, internal or admin", c.iface)
	}
	s := &Session{cloud: c, rt: o.Runtime, turn: make(chan struct{}, 1)}
	if s.rt == nil {
		s.rt = &runtime.System{}
	}
	// Logins are hours apart: no connection is worth keeping.
	s.http = &http.Client{Timeout: loginTimeout, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tlsConfig, DisableKeepAlives: true, TLSHandshakeTimeout: 10 * time.Second,
	}}
	return s, nil
}

// TLS is what the cloud's services are reached with: its authority, and a
// certificate where it wants one.
func (s *Session) TLS() *tls.Config { return s.cloud.tlsConfig.Clone() }

// Token gives a token that is not the refused one and whose time is not nearly
// over. It blocks while it logs in.
func (s *Session) Token(ctx context.Context, refused string) (string, error) {
	l, err := s.get(ctx, refused)
	return l.token, err
}

// Endpoint gives Placement's URL in the catalogue of the last login.
func (s *Session) Endpoint(ctx context.Context) (string, error) {
	l, err := s.get(ctx, "")
	if err != nil {
		return "", err
	}
	var have []string
	for _, service := range l.catalog {
		if service.Type != serviceType {
			continue
		}
		for _, e := range service.Endpoints {
			if e.Interface == s.cloud.iface && (s.cloud.region == "" || e.RegionID == s.cloud.region || e.Region == s.cloud.region) {
				return strings.TrimRight(e.URL, "/"), nil
			}
			have = append(have, e.Interface+" in "+e.RegionID)
		}
	}
	// An operator may add it meanwhile, which only a new login tells.
	s.forget(l.token)
	where := s.cloud.iface
	if s.cloud.region != "" {
		where += " in " + s.cloud.region
	}
	found := "it has none"
	if len(have) > 0 {
		slices.Sort(have)
		found = "it has " + strings.Join(have, ", ")
	}
	return "", fault.New(fault.Unavailable, "find placement in keystone's catalogue: want an endpoint %s; %s", where, found)
}

// known is the last login if it will do, or Keystone's no if that is fresh.
func (s *Session) known(refused string) (login, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.rt.Boot().Since
	if s.login.token != "" && s.login.token != refused && now < s.login.ends {
		return s.login, true, nil
	}
	if s.refused != nil && now < s.until {
		return login{}, true, s.refused
	}
	return login{}, false, nil
}

func (s *Session) forget(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.login.token == token {
		s.login = login{}
	}
}

// get gives the last login, or a new one.
func (s *Session) get(ctx context.Context, refused string) (login, error) {
	if l, ok, err := s.known(refused); ok {
		return l, err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return login{}, fault.New(fault.Unavailable, "log in to keystone at %s: %w", s.cloud.auth.IdentityEndpoint, context.Cause(ctx))
	}
	// Somebody may have logged in while this one waited.
	if l, ok, err := s.known(refused); ok {
		return l, err
	}
	l, err := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.login, s.refused = l, nil
	} else if fault.KindOf(err) == fault.Forbidden {
		s.refused, s.until = err, s.rt.Boot().Since+refusedPause
	}
	return l, err
}

// ask logs in.
func (s *Session) ask(ctx context.Context) (login, error) {
	auth := s.cloud.auth // gophercloud fills it in
	began := s.rt.Boot().Since
	provider, err := openstack.NewClient(auth.IdentityEndpoint)
	if err != nil {
		return login{}, s.failed(err)
	}
	provider.HTTPClient = *s.http
	provider.UserAgent.Prepend("berth")
	identity, err := openstack.NewIdentityV3(provider, gophercloud.EndpointOpts{})
	if err != nil {
		return login{}, s.failed(err)
	}
	result := tokens.Create(ctx, identity, &auth)
	token, err := result.ExtractToken()
	if err != nil {
		return login{}, s.failed(err)
	}
	var times struct {
		IssuedAt time.Time `json:"issued_at"`
	}
	catalog, err := result.ExtractServiceCatalog()
	if err == nil {
		err = result.ExtractInto(&times)
	}
	if err != nil {
		return login{}, s.failed(err)
	}
	// Its life counts from when it was asked for, as the two machines' clocks need not
	// agree.
	life := token.ExpiresAt.Sub(times.IssuedAt)
	return login{token: token.ID, ends: began + max(life-early, life/2), catalog: catalog.Entries}, nil
}

// failed says what a failed login means.
func (s *Session) failed(err error) error {
	doing := fmt.Sprintf("log in to keystone at %s with %s", s.cloud.auth.IdentityEndpoint, s.cloud.from)
	code, answered := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if !answered {
		if bad, is := errors.AsType[*tls.CertificateVerificationError](err); is {
			r := pki.CertificateReason(bad.Err, pki.Describe(bad.UnverifiedCertificates[0])+" of keystone", "signed by an authority that this host knows")
			r.Change = "set cacert of " + s.cloud.from + ", or OS_CACERT, to the file of the CA that signed it"
			return &fault.Error{Kind: fault.Unavailable, Message: doing, Reasons: []fault.Reason{r}, Err: bad}
		}
		if _, sent := errors.AsType[interface {
			error
			Timeout() bool
		}](err); sent {
			return fault.New(fault.Unavailable, "%s: %w", doing, err)
		}
		return fault.New(fault.Invalid, "%s: %w", doing, err) // it could not even be asked
	}
	var doc struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	said := ""
	if json.Unmarshal(code.Body, &doc) == nil && doc.Error.Message != "" {
		said = ": " + doc.Error.Message
	}
	kind := fault.Invalid
	switch {
	case code.Actual == http.StatusUnauthorized || code.Actual == http.StatusForbidden:
		kind = fault.Forbidden
	case code.Actual == http.StatusTooManyRequests || code.Actual >= 500:
		kind = fault.Unavailable
	}
	return fault.New(kind, "%s: it answered %d%s", doing, code.Actual, said)
}
