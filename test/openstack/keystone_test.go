package openstack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/placement/placementtest"
	pc "berth/placementclient"
	"berth/placementclient/keystone"
)

// guarded is a Placement that Keystone guards, with a clouds.yaml for it.
type guarded struct {
	keystone  *Keystone
	placement *Placement // asks Keystone each time, so a revoked token is refused at once
	quick     *Placement // believes a token for minutes
	file      string
}

// startGuarded brings them up, for all of a test.
func startGuarded(t *testing.T) guarded {
	t.Helper()
	g := guarded{keystone: StartKeystone(t)}
	g.placement = StartPlacement(t, PlacementOptions{Keystone: g.keystone})
	g.quick = StartPlacement(t, PlacementOptions{Keystone: g.keystone, CacheTokens: true})
	g.keystone.SetEndpoint(t, g.placement.URL)
	for _, name := range []string{
		"OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_REGION_NAME", "OS_INTERFACE", "OS_CACERT", "OS_CERT", "OS_KEY", "OS_AUTH_URL",
		"OS_USERNAME", "OS_PASSWORD", "OS_PROJECT_NAME", "OS_USER_DOMAIN_ID", "OS_PROJECT_DOMAIN_ID", "OS_APPLICATION_CREDENTIAL_ID", "OS_APPLICATION_CREDENTIAL_SECRET",
	} {
		t.Setenv(name, "")
	}
	id, secret := g.keystone.ApplicationCredential(t, "host-1")
	scoped := func(user, password string) string {
		return fmt.Sprintf("{auth_url: %q, username: %s, password: %s, project_name: service, user_domain_id: default, project_domain_id: default}",
			g.keystone.URL, user, password)
	}
	g.file = filepath.Join(t.TempDir(), "clouds.yaml")
	must(t, os.WriteFile(g.file, []byte(strings.Join([]string{
		"clouds:",
		"  password: {region_name: RegionOne, interface: internal, auth: " + scoped("agent", password) + "}",
		"  versioned: {auth: " + strings.Replace(scoped("agent", password), g.keystone.URL, g.keystone.URL+"/v3", 1) + "}",
		"  wrong: {auth: " + scoped("agent", "wrong") + "}",
		"  reader: {auth: " + scoped("reader", password) + "}",
		fmt.Sprintf("  credential: {auth_type: v3applicationcredential, auth: {auth_url: %q, application_credential_id: %s, application_credential_secret: %s}}", g.keystone.URL, id, secret),
		fmt.Sprintf("  named: {auth: {auth_url: %q, username: agent, user_domain_id: default, application_credential_name: host-1, application_credential_secret: %s}}", g.keystone.URL, secret),
		"  nowhere: {region_name: RegionThree, auth: " + scoped("agent", password) + "}",
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
	c, err := pc.New(pc.Config{Catalogue: s, TokenSource: s})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestKeystone_ClientBehindIt(t *testing.T) {
	g := startGuarded(t)
	t.Run("logs in", func(t *testing.T) {
		for _, name := range []string{"password", "versioned", "credential", "named"} {
			_, err := connect(t, g.session(t, keystone.Options{Cloud: name})).Providers(t.Context(), pc.ProviderFilter{})
			if err != nil {
				t.Errorf("cloud %s: %v", name, err)
			}
		}
	})
	t.Run("by variables", func(t *testing.T) {
		t.Setenv("OS_AUTH_URL", g.keystone.URL+"/v3")
		t.Setenv("OS_USERNAME", "agent")
		t.Setenv("OS_PASSWORD", password)
		t.Setenv("OS_PROJECT_NAME", "service")
		t.Setenv("OS_USER_DOMAIN_ID", "default")
		t.Setenv("OS_PROJECT_DOMAIN_ID", "default")
		t.Setenv("OS_REGION_NAME", RegionOne)
		_, err := connect(t, g.session(t, keystone.Options{})).Providers(t.Context(), pc.ProviderFilter{})
		must(t, err)
		t.Setenv("OS_REGION_NAME", "")
		t.Setenv("OS_CLOUD", "credential")
		t.Setenv("OS_CLIENT_CONFIG_FILE", g.file)
		_, err = connect(t, g.session(t, keystone.Options{})).Providers(t.Context(), pc.ProviderFilter{})
		must(t, err)
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
		} {
			_, err := connect(t, g.session(t, c.o)).Providers(t.Context(), pc.ProviderFilter{})
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: got %v (%s), want %s with %q", c.o, err, fault.KindOf(err), c.kind, c.says)
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
	t.Run("client suite", func(t *testing.T) {
		s := g.session(t, keystone.Options{Cloud: "credential"})
		placementtest.ClientSuite(t, placementtest.Server{URL: g.quick.URL, Tokens: s})
	})
}
