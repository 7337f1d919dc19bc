package openstack

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placement/placementtest"
	pc "berth/placementclient"
	"berth/placementclient/keystone"
)

// guarded is a Placement that Keystone guards, both over TLS, with a clouds.yaml
// for it.
type guarded struct {
	keystone  *Keystone
	placement *Placement // asks Keystone each time, so a revoked token is refused at once
	quick     *Placement // believes a token for minutes; over HTTP
	authority *Authority
	file      string
}

// startGuarded brings them up, for all of a test.
func startGuarded(t *testing.T) guarded {
	t.Helper()
	g := guarded{authority: NewAuthority(t)}
	g.keystone = StartKeystone(t, KeystoneOptions{TLS: g.authority})
	g.placement = StartPlacement(t, PlacementOptions{Keystone: g.keystone, TLS: g.authority})
	g.quick = StartPlacement(t, PlacementOptions{Keystone: g.keystone, CacheTokens: true})
	g.keystone.SetEndpoint(t, g.placement.URL)
	id, secret := g.keystone.ApplicationCredential(t, "host-1")
	scoped := func(user, password string) string {
		return fmt.Sprintf("{auth_url: %q, username: %s, password: %s, project_name: service, user_domain_id: default, project_domain_id: default}",
			g.keystone.URL, user, password)
	}
	trusted := func(words string) string { return words + fmt.Sprintf(", cacert: %q}", g.authority.CA) }
	g.file = filepath.Join(t.TempDir(), "clouds.yaml")
	must(t, os.WriteFile(g.file, []byte(strings.Join([]string{
		"clouds:",
		trusted("  password: {region_name: RegionOne, interface: internal, auth: " + scoped("agent", password)),
		trusted("  versioned: {auth: " + strings.Replace(scoped("agent", password), g.keystone.URL, g.keystone.URL+"/v3", 1)),
		trusted("  wrong: {auth: " + scoped("agent", "wrong")),
		trusted("  reader: {auth: " + scoped("reader", password)),
		trusted(fmt.Sprintf("  credential: {auth_type: v3applicationcredential, auth: {auth_url: %q, application_credential_id: %s, application_credential_secret: %s}", g.keystone.URL, id, secret)),
		trusted(fmt.Sprintf("  named: {auth: {auth_url: %q, username: agent, user_domain_id: default, application_credential_name: host-1, application_credential_secret: %s}", g.keystone.URL, secret)),
		trusted("  nowhere: {region_name: RegionThree, auth: " + scoped("agent", password)),
		"  distrusted: {auth: " + scoped("agent", password) + "}",
		fmt.Sprintf("  strange: {auth: %s, cacert: %q}", scoped("agent", password), NewAuthority(t).CA),
		"",
	}, "\n")), 0o600))
	return g
}

func (g guarded) session(t *testing.T, o keystone.Options) *keystone.Session {
	t.Helper()
	if o.Cloud != "" {
		o.CloudsFile = g.file
	}
	s, err := keystone.New(o)
	must(t, err)
	return s
}

func connect(t *testing.T, s *keystone.Session) *pc.Client {
	t.Helper()
	c, err := pc.New(pc.Config{Catalogue: s, TokenSource: s, TLS: s.TLS(), RetryWait: 20 * time.Millisecond})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// TestKeystone_ByVariables is not parallel, as the variables are the process's.
func TestKeystone_ByVariables(t *testing.T) {
	g := startGuarded(t)
	t.Setenv("OS_AUTH_URL", g.keystone.URL+"/v3")
	t.Setenv("OS_USERNAME", "agent")
	t.Setenv("OS_PASSWORD", password)
	t.Setenv("OS_PROJECT_NAME", "service")
	t.Setenv("OS_USER_DOMAIN_ID", "default")
	t.Setenv("OS_PROJECT_DOMAIN_ID", "default")
	t.Setenv("OS_REGION_NAME", RegionOne)
	t.Setenv("OS_CACERT", g.authority.CA)
	_, err := connect(t, g.session(t, keystone.Options{})).Providers(t.Context(), pc.ProviderFilter{})
	must(t, err)
	t.Setenv("OS_REGION_NAME", "")
	t.Setenv("OS_CACERT", "")
	t.Setenv("OS_CLOUD", "credential")
	t.Setenv("OS_CLIENT_CONFIG_FILE", g.file)
	_, err = connect(t, g.session(t, keystone.Options{})).Providers(t.Context(), pc.ProviderFilter{})
	must(t, err)
}

func TestKeystone_ClientBehindIt(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	t.Run("logs in", func(t *testing.T) {
		for _, name := range []string{"password", "versioned", "credential", "named"} {
			_, err := connect(t, g.session(t, keystone.Options{Cloud: name})).Providers(t.Context(), pc.ProviderFilter{})
			if err != nil {
				t.Errorf("cloud %s: %v", name, err)
			}
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for _, c := range []struct {
			o    keystone.Options
			kind fault.Kind
			says string
		}{
			{keystone.Options{Cloud: "wrong"}, fault.Forbidden, "requires authentication"},
			{keystone.Options{Cloud: "reader"}, fault.Forbidden, "Policy does not allow"},
			{keystone.Options{Cloud: "nowhere"}, fault.Unavailable, "admin in RegionOne, internal in RegionOne, public in RegionOne, public in RegionTwo"},
			{keystone.Options{Cloud: "password", Region: RegionTwo}, fault.Unavailable, "internal in RegionTwo"},
			{keystone.Options{Cloud: "distrusted"}, fault.Unavailable, "certificate signed by unknown authority"},
			{keystone.Options{Cloud: "strange"}, fault.Unavailable, "certificate signed by unknown authority"},
		} {
			_, err := connect(t, g.session(t, c.o)).Providers(t.Context(), pc.ProviderFilter{})
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: got %v (%s), want %s with %q", c.o, err, fault.KindOf(err), c.kind, c.says)
			}
			if rs := fault.ReasonsOf(err); strings.Contains(c.says, "certificate") && (len(rs) != 1 || !strings.Contains(rs[0].Change, "cacert of cloud "+c.o.Cloud)) {
				t.Errorf("%+v: reasons %+v, want one that says what to change", c.o, rs)
			}
			if err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("%+v: the error holds the password: %v", c.o, err)
			}
		}
		e, err := g.session(t, keystone.Options{Cloud: "password", Region: RegionTwo, Interface: "public"}).Endpoint(t.Context())
		if err != nil || e != "http://placement.invalid" {
			t.Errorf("public in %s is %q, %v", RegionTwo, e, err)
		}
	})
	t.Run("a token that ends in the middle", func(t *testing.T) {
		for _, name := range []string{"password", "credential"} {
			s := g.session(t, keystone.Options{Cloud: name})
			c := connect(t, s)
			p, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: uuid.NewString(), Name: "revoked-" + name})
			must(t, err)
			token, err := s.Token(t.Context(), "")
			must(t, err)
			g.keystone.Revoke(t, token)
			// Many find out at once, one of them with a write; all go on.
			var wg sync.WaitGroup
			errs := make([]error, 6)
			for i := range errs {
				wg.Go(func() {
					if i == 0 {
						_, errs[i] = c.PutInventories(t.Context(), p.UUID, pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: {Total: 4}}})
						return
					}
					_, errs[i] = c.Provider(t.Context(), p.UUID)
				})
			}
			wg.Wait()
			for _, err := range errs {
				must(t, err)
			}
			next, err := s.Token(t.Context(), "")
			must(t, err)
			if next == token {
				t.Errorf("cloud %s: the revoked token is still used", name)
			}
			if n := c.Counters().Retries; n < 1 || n > int64(len(errs)) {
				t.Errorf("cloud %s: %d repeats for %d requests", name, n, len(errs))
			}
			must(t, c.DeleteProvider(t.Context(), p.UUID))
		}
	})
	t.Run("a placement of another authority", func(t *testing.T) {
		other := httptest.NewTLSServer(http.NotFoundHandler())
		defer other.Close()
		other.Config.ErrorLog = log.New(io.Discard, "", 0)
		s := g.session(t, keystone.Options{Cloud: "password"})
		c, err := pc.New(pc.Config{URL: other.URL, TokenSource: s, TLS: s.TLS()})
		must(t, err)
		defer c.Close()
		_, err = c.Providers(t.Context(), pc.ProviderFilter{})
		reasons := fault.ReasonsOf(err)
		if fault.KindOf(err) != fault.Unavailable || len(reasons) != 1 || reasons[0].Code != "certificate_unknown_authority" || c.Counters().Retries != 0 {
			t.Errorf("got %v (%s), %d repeats; want one reason, at once", err, fault.KindOf(err), c.Counters().Retries)
		}
	})
	t.Run("a revoked token that placement remembers", func(t *testing.T) {
		s := g.session(t, keystone.Options{Cloud: "password"})
		c, err := pc.New(pc.Config{URL: g.quick.URL, TokenSource: s})
		must(t, err)
		defer c.Close()
		_, err = c.Providers(t.Context(), pc.ProviderFilter{})
		must(t, err)
		token, err := s.Token(t.Context(), "")
		must(t, err)
		g.keystone.Revoke(t, token)
		_, err = c.Providers(t.Context(), pc.ProviderFilter{})
		if next, _ := s.Token(t.Context(), ""); err != nil || next != token {
			t.Errorf("for minutes it is still taken, so nothing is to change: %v, another token: %v", err, next != token)
		}
	})
	t.Run("client suite", func(t *testing.T) {
		s := g.session(t, keystone.Options{Cloud: "credential"})
		placementtest.ClientSuite(t, placementtest.Server{URL: g.quick.URL, Tokens: s})
	})
	t.Run("keystone goes and comes", func(t *testing.T) {
		known := g.session(t, keystone.Options{Cloud: "password"})
		checked := connect(t, known)
		remembered, err := pc.New(pc.Config{URL: g.quick.URL, TokenSource: known})
		must(t, err)
		defer remembered.Close()
		for _, c := range []*pc.Client{checked, remembered} {
			_, err := c.Providers(t.Context(), pc.ProviderFilter{})
			must(t, err)
		}
		stranger := connect(t, g.session(t, keystone.Options{Cloud: "credential"}))
		g.keystone.Stop(t)
		// A token that Placement knows is as good as ever.
		_, err = remembered.Providers(t.Context(), pc.ProviderFilter{})
		must(t, err)
		// One that it must ask for is neither refused nor renewed: a login would fail too.
		if _, err = checked.Providers(t.Context(), pc.ProviderFilter{}); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "503") {
			t.Errorf("a token that cannot be checked: %v (%s)", err, fault.KindOf(err))
		}
		if _, err = stranger.Providers(t.Context(), pc.ProviderFilter{}); fault.KindOf(err) != fault.Unavailable ||
			!strings.Contains(err.Error(), "log in to keystone at "+g.keystone.URL) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("a login: %v (%s)", err, fault.KindOf(err))
		}
		g.keystone.Start(t)
		g.keystone.Wait(t)
		for _, c := range []*pc.Client{checked, remembered, stranger} {
			_, err := c.Providers(t.Context(), pc.ProviderFilter{})
			must(t, err)
		}
	})
}

// TestKeystone_ATokenWhoseTimeIsOver has tokens of three seconds, which the session
// believes good for ever: its clock stands still. Placement's 401 alone tells.
func TestKeystone_ATokenWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	brief := StartKeystone(t, KeystoneOptions{TokenLife: 3 * time.Second})
	at := StartPlacement(t, PlacementOptions{Keystone: brief, CacheTokens: true})
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	must(t, os.WriteFile(file, []byte(fmt.Sprintf(
		"clouds: {c: {auth: {auth_url: %q, username: agent, password: %s, project_name: service, user_domain_id: default, project_domain_id: default}}}\n", brief.URL, password)), 0o600))
	s, err := keystone.New(keystone.Options{Cloud: "c", CloudsFile: file, Runtime: new(stopped)})
	must(t, err)
	c, err := pc.New(pc.Config{URL: at.URL, TokenSource: s})
	must(t, err)
	defer c.Close()
	p, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: uuid.NewString(), Name: "brief"})
	must(t, err)
	inv := pc.Inventories{Generation: p.Generation, Inventories: map[string]pc.Inventory{pc.ClassVCPU: {Total: 4}}}
	writes, tokens := 0, map[string]bool{}
	for end := time.Now().Add(startLimit); len(tokens) < 3 && time.Now().Before(end); writes++ {
		if inv, err = c.PutInventories(t.Context(), p.UUID, inv); err != nil {
			t.Fatalf("write %d, with token %d: %v", writes, len(tokens), err)
		}
		token, err := s.Token(t.Context(), "")
		must(t, err)
		tokens[token] = true
	}
	if n := c.Counters().Retries; len(tokens) < 3 || n != 2 || inv.Generation != writes {
		t.Errorf("%d writes with %d tokens and %d repeats end at generation %d; want 3 tokens, 2 repeats, each write once", writes, len(tokens), n, inv.Generation)
	}
}

// stopped is the machine's clock, but the boot clock stands still.
type stopped struct{ runtime.System }

func (*stopped) Boot() runtime.BootTime { return runtime.BootTime{ID: "boot"} }
