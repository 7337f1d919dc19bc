package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/placement"
	pc "berth/placementclient"
	"berth/placementclient/keystone"
)

// TestAgents_BehindKeystone runs whole agents against OpenStack's Placement behind
// Keystone, both over TLS, while tokens end and Placement goes and comes, and the
// same against ours: what is seen in Placement at each point is equal.
func TestAgents_BehindKeystone(t *testing.T) {
	t.Parallel()
	const life = 12 * time.Second
	authority := NewAuthority(t)
	k := StartKeystone(t, KeystoneOptions{TLS: authority, TokenLife: life})
	theirs := StartPlacement(t, PlacementOptions{Keystone: k, TLS: authority, CacheTokens: true})
	k.SetEndpoint(t, theirs.URL)
	id, secret := k.ApplicationCredential(t, "hosts")
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	must(t, os.WriteFile(file, []byte(fmt.Sprintf(
		"clouds: {c: {auth_type: v3applicationcredential, cacert: %q, auth: {auth_url: %q, application_credential_id: %s, application_credential_secret: %s}}}\n",
		authority.CA, k.URL, id, secret)), 0o600))
	session, err := keystone.New(keystone.Options{Cloud: "c", CloudsFile: file})
	must(t, err)
	operator, err := pc.New(pc.Config{Catalogue: session, TokenSource: session, TLS: session.TLS()})
	must(t, err)
	defer operator.Close()

	first, err := session.Token(t.Context(), "")
	must(t, err)
	var want, got []scene
	t.Run("both", func(t *testing.T) { // at once: much of each is waiting
		t.Run("OpenStack's", func(t *testing.T) {
			t.Parallel()
			want = story(t, startAgents(t, operator, func(c *config.Config) {
				c.Placement.URL, c.Placement.Auth, c.Placement.Token = "", config.AuthKeystone, ""
				c.Placement.Cloud, c.Placement.CloudsFile = "c", file
			}, "host-a", "host-b"), func(up bool) {
				if !up {
					theirs.Stop(t)
					return
				}
				theirs.Start(t)
				theirs.Wait(t)
			}, func(p *agents) {
				p.until("a token of the beginning has ended", func() bool {
					q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, theirs.URL+"/resource_providers", nil)
					must(t, err)
					q.Header.Set("X-Auth-Token", first)
					resp, err := theirs.web.transport().RoundTrip(q)
					must(t, err)
					_ = resp.Body.Close()
					return resp.StatusCode == http.StatusUnauthorized
				})
			})
		})
		t.Run("ours", func(t *testing.T) {
			t.Parallel()
			s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			var away atomic.Bool
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if away.Load() {
					panic(http.ErrAbortHandler) // the connection ends without an answer
				}
				s.Handler().ServeHTTP(w, r)
			}))
			t.Cleanup(front.Close)
			client, err := pc.New(pc.Config{URL: front.URL, Token: "admin"})
			must(t, err)
			t.Cleanup(client.Close)
			got = story(t, startAgents(t, client, func(c *config.Config) { c.Placement.URL = front.URL }, "host-a", "host-b"),
				func(up bool) { away.Store(!up) }, func(*agents) {})
		})
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Placement shows (-OpenStack's +ours)\n%s", d)
	}
}

// scene is what Placement shows at one point of the story, guests by their names.
type scene struct {
	At    string
	Trees map[string]standing
	Held  map[string]map[string]pc.Resources
}

// story is a guest's life: created, moved while tokens end, one deleted while
// Placement is away, nothing left.
func story(t *testing.T, p *agents, up func(bool), tokensEnd func(*agents)) []scene {
	t.Helper()
	var out []scene
	names := map[string]string{}
	see := func(at string, want map[string]string) {
		t.Helper()
		p.inSync()
		s := scene{At: at, Trees: p.trees(), Held: map[string]map[string]pc.Resources{}}
		where := map[string]string{}
		p.until(at+": the guests are counted where they are", func() bool {
			clear(s.Held)
			clear(where)
			for consumer, held := range p.held() {
				name, known := names[consumer]
				if !known {
					name = "another" // a migration's half, or a leftover
				}
				s.Held[name] = held
				for rp := range held {
					where[name] += rp
				}
			}
			return cmp.Equal(want, where)
		})
		out = append(out, s)
	}
	guest := func(host, name string) string {
		uuid := p.guest(host, name)
		names[uuid] = name
		return uuid
	}
	see("empty", map[string]string{})
	if a := out[0].Trees["host-a"]; a.Inventories[pc.ClassMemoryMB].Total == 0 || len(a.Traits) == 0 {
		t.Fatalf("host-a shows itself as %+v", a)
	}
	web, db := guest("host-a", "web"), guest("host-a", "db")
	see("two guests", map[string]string{"web": "host-a", "db": "host-a"})
	up(false)
	// The guest goes; its allocation cannot, which is told, and done later.
	if _, err := p.clients["host-a"].DeleteInstance(t.Context(), db, api.DeleteInstance{Force: true}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("delete a guest while placement is away: %v (%s)", err, fault.KindOf(err))
	}
	p.until("the agent says that placement is away", func() bool {
		h, err := p.clients["host-a"].Host(t.Context())
		must(t, err)
		return !h.Placement.InSync
	})
	up(true)
	see("one deleted while placement was away", map[string]string{"web": "host-a"})
	tokensEnd(p)
	if m := p.end("host-a", p.begin(web, "host-a", "host-b")); m.Err() != nil {
		t.Fatalf("the move: %v", m.Err())
	}
	see("moved", map[string]string{"web": "host-b"})
	_, err := p.clients["host-b"].DeleteInstance(t.Context(), web, api.DeleteInstance{Force: true})
	must(t, err)
	see("deleted", map[string]string{})
	return out
}
