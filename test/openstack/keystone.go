package openstack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Who may log in, all with the password `secret`: admin in project admin, with
// role admin; agent and placement in project service, with roles admin and
// service; reader in project service, with role reader.
const password = "secret"

// The regions of the catalogue. Placement's endpoints stand in RegionOne; in
// RegionTwo is one for the interface public alone, which nothing answers.
const (
	RegionOne = "RegionOne"
	RegionTwo = "RegionTwo"
)

// Keystone is OpenStack's own, running, over SQLite, with fernet tokens.
type Keystone struct {
	URL string // without a version

	dir string
	web *web
}

// KeystoneOptions say how one is run. The zero value is plain HTTP and tokens of
// an hour.
type KeystoneOptions struct {
	TLS       *Authority    // serves HTTPS with a certificate of this authority
	TokenLife time.Duration // whole seconds
}

// StartKeystone starts one that ends with the test. Its catalogue is told by
// SetEndpoint where Placement is. It does not wait until it answers.
func StartKeystone(t testing.TB, o KeystoneOptions) *Keystone {
	t.Helper()
	Require(t)
	ctx := t.Context()
	from, err := keystoneTemplate(ctx)
	must(t, err)
	dir := folder(t)
	must(t, copyTree(ctx, from, dir))
	k, err := startKeystone(dir, o)
	must(t, err)
	k.web.endWith(t)
	// Its own endpoint, for Placement's middleware looks for it in the catalogue.
	must(t, python(ctx, nil, "-c", "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\nc.execute('UPDATE endpoint SET url = ? WHERE url = ?', sys.argv[2:])\nc.commit()",
		filepath.Join(dir, "keystone.sqlite"), k.URL+"/v3", keystoneMark))
	return k
}

func startKeystone(dir string, o KeystoneOptions) (*Keystone, error) {
	if err := os.WriteFile(filepath.Join(dir, "keystone.conf"), []byte(keystoneConf(dir, o)), 0o600); err != nil {
		return nil, err
	}
	w, err := serve(application{
		name: "keystone", dir: dir, callable: "keystone.server.wsgi:initialize_public_application()", workers: 1, authority: o.TLS,
		env: []string{"OS_KEYSTONE_CONFIG_DIR=" + dir, "OS_KEYSTONE_CONFIG_FILES=keystone.conf"},
	})
	if err != nil {
		return nil, err
	}
	return &Keystone{URL: w.url, dir: dir, web: w}, nil
}

// Stop kills it; clients are refused until Start.
func (k *Keystone) Stop(t testing.TB) {
	t.Helper()
	must(t, k.web.halt())
}

// Start starts a stopped one again, on its port and with what it knew.
func (k *Keystone) Start(t testing.TB) {
	t.Helper()
	must(t, k.web.again())
}

// Wait blocks until it answers, and fails the test when it does not.
func (k *Keystone) Wait(t testing.TB) {
	t.Helper()
	must(t, k.web.wait(t.Context()))
}

// keystoneConf is keystone.conf. Hashing a password is made cheap.
func keystoneConf(dir string, o KeystoneOptions) string {
	life := cmp.Or(o.TokenLife, time.Hour)
	return strings.NewReplacer("DIR", dir, "LIFE", strconv.Itoa(int(life/time.Second))).Replace(`[DEFAULT]
log_dir =
use_stderr = true
[database]
connection = sqlite:///DIR/keystone.sqlite
sqlite_synchronous = false
[token]
provider = fernet
expiration = LIFE
[fernet_tokens]
key_repository = DIR/keys
[fernet_receipts]
key_repository = DIR/keys
[credential]
key_repository = DIR/keys
[cache]
enabled = true
backend = oslo_cache.dict
[identity]
password_hash_rounds = 4
`)
}

// keystoneTemplate gives the folder with the database and keys.
func keystoneTemplate(ctx context.Context) (string, error) {
	return template(ctx, "keystone", []string{"python3-keystone", "python3-sqlalchemy", "python3-oslo.db"},
		func(dir string) error { return fillKeystone(ctx, dir) })
}

// fillKeystone makes the database and keys that each Keystone begins with.
func fillKeystone(ctx context.Context, dir string) (err error) {
	if err := os.Mkdir(filepath.Join(dir, "keys"), 0o700); err != nil {
		return err
	}
	for _, name := range []string{"0", "1"} { // a fernet key repository: the next key and the present one
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "keys", name), []byte(base64.URLEncoding.EncodeToString(key)), 0o600); err != nil {
			return err
		}
	}
	conf := filepath.Join(dir, "keystone.conf")
	if err := os.WriteFile(conf, []byte(keystoneConf(dir, KeystoneOptions{})), 0o600); err != nil {
		return err
	}
	manage := func(args ...string) error {
		return python(ctx, nil, append([]string{"/usr/bin/keystone-manage", "--config-file", conf}, args...)...)
	}
	if err := manage("db_sync"); err != nil {
		return err
	}
	// Keystone reads on one connection while it writes on another, which without a
	// write-ahead log ends with a database that is locked.
	if err := python(ctx, nil, "-c", "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode=WAL')", filepath.Join(dir, "keystone.sqlite")); err != nil {
		return err
	}
	if err := manage("bootstrap", "--bootstrap-username", "admin", "--bootstrap-password", password,
		"--bootstrap-project-name", "admin", "--bootstrap-role-name", "admin", "--bootstrap-service-name", "keystone",
		"--bootstrap-region-id", RegionOne, "--bootstrap-public-url", keystoneMark,
		"--bootstrap-internal-url", keystoneMark, "--bootstrap-admin-url", keystoneMark); err != nil {
		return err
	}
	k, err := startKeystone(dir, KeystoneOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.web.stop(syscall.SIGTERM)) }()
	if err := k.web.wait(ctx); err != nil {
		return err
	}
	return k.populate(ctx)
}

// populate makes users, projects and the catalogue, with an admin's token.
func (k *Keystone) populate(ctx context.Context) error {
	token, _, err := k.login(ctx, User("admin", "admin"))
	if err != nil {
		return err
	}
	var failed error
	call := func(method, path string, body any) map[string]any {
		if failed != nil {
			return nil
		}
		var out map[string]any
		out, failed = k.call(ctx, token, method, path, body)
		return out
	}
	id := func(doc map[string]any, kind string) string {
		m, _ := doc[kind].(map[string]any)
		s, _ := m["id"].(string)
		return s
	}
	project := id(call("POST", "/v3/projects", map[string]any{"project": map[string]any{"name": "service", "domain_id": "default"}}), "project")
	roles := map[string]string{"service": id(call("POST", "/v3/roles", map[string]any{"role": map[string]any{"name": "service"}}), "role")}
	list, _ := call("GET", "/v3/roles", nil)["roles"].([]any)
	for _, r := range list {
		m, _ := r.(map[string]any)
		roles[fmt.Sprint(m["name"])] = fmt.Sprint(m["id"])
	}
	for user, has := range map[string][]string{"agent": {"admin", "service"}, "placement": {"admin", "service"}, "reader": {"reader"}} {
		u := id(call("POST", "/v3/users", map[string]any{"user": map[string]any{"name": user, "password": password, "domain_id": "default"}}), "user")
		for _, role := range has {
			call("PUT", "/v3/projects/"+project+"/users/"+u+"/roles/"+roles[role], nil)
		}
	}
	call("POST", "/v3/regions", map[string]any{"region": map[string]any{"id": RegionTwo}})
	service := id(call("POST", "/v3/services", map[string]any{"service": map[string]any{"name": "placement", "type": "placement"}}), "service")
	for _, e := range []struct{ kind, region, url string }{
		{"public", RegionOne, placementMark}, {"internal", RegionOne, placementMark}, {"admin", RegionOne, placementMark},
		{"public", RegionTwo, "http://placement.invalid"},
	} {
		call("POST", "/v3/endpoints", map[string]any{"endpoint": map[string]any{
			"service_id": service, "interface": e.kind, "region_id": e.region, "url": e.url}})
	}
	return failed
}

// These stand in a template's catalogue for the URLs that are not known yet.
const (
	keystoneMark  = "http://keystone.of.this.run.invalid/v3"
	placementMark = "http://placement.of.this.run.invalid"
)

// SetEndpoint puts Placement's URL into the catalogue, in RegionOne.
func (k *Keystone) SetEndpoint(t testing.TB, url string) {
	t.Helper()
	token, _, err := k.login(t.Context(), User("admin", "admin"))
	must(t, err)
	doc, err := k.call(t.Context(), token, "GET", "/v3/endpoints", nil)
	must(t, err)
	list, _ := doc["endpoints"].([]any)
	service := ""
	for _, e := range list {
		if m, _ := e.(map[string]any); m["region_id"] == RegionTwo {
			service = fmt.Sprint(m["service_id"])
		}
	}
	changed := 0
	for _, e := range list {
		m, _ := e.(map[string]any)
		if m["service_id"] != service || m["region_id"] != RegionOne {
			continue
		}
		_, err := k.call(t.Context(), token, "PATCH", "/v3/endpoints/"+fmt.Sprint(m["id"]), map[string]any{"endpoint": map[string]any{"url": url}})
		must(t, err)
		changed++
	}
	if changed != 3 {
		t.Fatalf("the catalogue has %d endpoints of placement in %s, want 3: %v", changed, RegionOne, list)
	}
}

// Login is the body of POST /v3/auth/tokens.
type Login map[string]any

// User is a login by password into a project of the default domain.
func User(name, project string) Login {
	domain := map[string]any{"id": "default"}
	return Login{"auth": map[string]any{
		"identity": map[string]any{"methods": []string{"password"}, "password": map[string]any{
			"user": map[string]any{"name": name, "domain": domain, "password": password}}},
		"scope": map[string]any{"project": map[string]any{"name": project, "domain": domain}},
	}}
}

// Token logs in and gives the token.
func (k *Keystone) Token(t testing.TB, l Login) string {
	t.Helper()
	token, _, err := k.login(t.Context(), l)
	must(t, err)
	return token
}

// Revoke ends a token before its time.
func (k *Keystone) Revoke(t testing.TB, token string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, k.URL+"/v3/auth/tokens", nil)
	must(t, err)
	q.Header.Set("X-Auth-Token", k.Token(t, User("admin", "admin")))
	q.Header.Set("X-Subject-Token", token)
	resp, err := k.web.transport().RoundTrip(q)
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("revoke a token: %s", resp.Status)
	}
}

// ApplicationCredential makes one for the user agent, and gives its id and secret.
func (k *Keystone) ApplicationCredential(t testing.TB, name string) (id, secret string) {
	t.Helper()
	token, doc, err := k.login(t.Context(), User("agent", "service"))
	must(t, err)
	of, _ := doc["token"].(map[string]any)
	user, _ := of["user"].(map[string]any)
	secret = name + "-secret"
	out, err := k.call(t.Context(), token, "POST", fmt.Sprintf("/v3/users/%v/application_credentials", user["id"]),
		map[string]any{"application_credential": map[string]any{"name": name, "secret": secret,
			"roles": []any{map[string]any{"name": "admin"}, map[string]any{"name": "service"}}}})
	must(t, err)
	made, _ := out["application_credential"].(map[string]any)
	return fmt.Sprint(made["id"]), secret
}

func (k *Keystone) login(ctx context.Context, l Login) (token string, doc map[string]any, err error) {
	header, doc, err := k.send(ctx, "", http.MethodPost, "/v3/auth/tokens", l)
	return header.Get("X-Subject-Token"), doc, err
}

func (k *Keystone) call(ctx context.Context, token, method, path string, body any) (map[string]any, error) {
	_, doc, err := k.send(ctx, token, method, path, body)
	return doc, err
}

func (k *Keystone) send(ctx context.Context, token, method, path string, body any) (http.Header, map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit) // the first answer waits for the service
	defer cancel()
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, nil, err
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, k.URL+path, bytes.NewReader(b))
	if err != nil {
		return nil, nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	if token != "" {
		q.Header.Set("X-Auth-Token", token)
	}
	resp, err := k.web.transport().RoundTrip(q)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("keystone %s %s: %w", method, path, err), k.web.ended())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, nil, fmt.Errorf("keystone %s %s: %s: %s", method, path, resp.Status, text)
	}
	doc := map[string]any{}
	if len(text) > 0 {
		err = json.Unmarshal(text, &doc)
	}
	return resp.Header, doc, err
}
