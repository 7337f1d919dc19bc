package openstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Database says where a Placement keeps what it is told.
type Database string

// The databases.
const (
	SQLite  Database = "sqlite"
	MariaDB Database = "mariadb"
)

// PlacementOptions say how one is run. The zero value is SQLite and noauth2.
type PlacementOptions struct {
	Database Database
	// Keystone checks the tokens; nil means noauth2, where the token "admin" may do
	// everything.
	Keystone *Keystone
	// CacheTokens keeps a token's validity for the default of five minutes, so that
	// a revoked one is taken all the while. Otherwise each is checked each time.
	CacheTokens bool
	// TLS serves HTTPS with a certificate of this authority; nil means plain HTTP.
	TLS *Authority
	// Resets has it answer as uWSGI does with --http-socket: each connection is closed
	// after one answer, without being told, so that a client that keeps it is reset.
	Resets bool
	// Workers answer at the same time; zero means 1 over SQLite, which has one
	// writer, and 2 over MariaDB.
	Workers int
}

// Placement is OpenStack's own, running.
type Placement struct {
	URL string

	web *web
}

var placementPackages = []string{"python3-placement", "python3-sqlalchemy", "python3-oslo.db"}

// StartPlacement starts one that ends with the test, on an empty database. It does
// not wait until it answers: a client's first request does, or Wait.
func StartPlacement(t testing.TB, o PlacementOptions) *Placement {
	t.Helper()
	Require(t)
	if o.Database == "" {
		o.Database = SQLite
	}
	if o.Workers == 0 {
		o.Workers = map[Database]int{SQLite: 1, MariaDB: 2}[o.Database]
	}
	dir := folder(t)
	connection, err := database(t, dir, o.Database)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "placement.conf"), []byte(o.configuration(connection)), 0o600))
	w, err := serve(application{
		name: "placement-" + string(o.Database), dir: dir, callable: "placement.wsgi:init_application()", env: []string{"OS_PLACEMENT_CONFIG_DIR=" + dir},
		workers: o.Workers, authority: o.TLS, resets: o.Resets,
	})
	must(t, err)
	w.endWith(t)
	return &Placement{URL: w.url, web: w}
}

// Stop kills it; clients are refused until Start.
func (p *Placement) Stop(t testing.TB) {
	t.Helper()
	must(t, p.web.halt())
}

// Start starts a stopped one again, on its port and with what it knew.
func (p *Placement) Start(t testing.TB) {
	t.Helper()
	must(t, p.web.again())
}

// Wait blocks until it answers, and fails the test when it does not.
func (p *Placement) Wait(t testing.TB) {
	t.Helper()
	must(t, p.web.wait(t.Context()))
}

// database makes an empty one below dir and gives its connection.
func database(t testing.TB, dir string, kind Database) (string, error) {
	ctx := t.Context()
	from, err := placementTemplate(ctx, kind)
	if err != nil {
		return "", err
	}
	if err := copyTree(ctx, from, dir); err != nil {
		return "", err
	}
	if kind == SQLite {
		return "sqlite:///" + filepath.Join(dir, "placement.sqlite"), nil
	}
	m, err := startMariaDB(dir)
	if err != nil {
		return "", err
	}
	m.endWith(t)
	return m.connection("placement"), m.wait(ctx)
}

// placementTemplate gives the folder with an empty database.
func placementTemplate(ctx context.Context, kind Database) (string, error) {
	if kind == SQLite {
		return template(ctx, "placement-sqlite", placementPackages, func(dir string) error {
			return syncPlacement(ctx, dir, "sqlite:///"+filepath.Join(dir, "placement.sqlite"))
		})
	}
	return template(ctx, "placement-mariadb", append([]string{"mariadb-server-core", "python3-pymysql"}, placementPackages...), func(dir string) error {
		if err := fillMariaDB(ctx, dir); err != nil {
			return err
		}
		m, err := startMariaDB(dir)
		if err != nil {
			return err
		}
		if err = m.wait(ctx); err == nil {
			err = syncPlacement(ctx, dir, m.connection("placement"))
		}
		return errors.Join(err, m.stop(syscall.SIGTERM)) // in order, so that its files can be copied
	})
}

// syncPlacement makes the tables.
func syncPlacement(ctx context.Context, dir, connection string) error {
	conf := filepath.Join(dir, "sync.conf")
	if err := os.WriteFile(conf, []byte("[placement_database]\nconnection = "+connection+"\nmax_retries = 1\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(conf)
	return python(ctx, nil, "/usr/bin/placement-manage", "--config-file", conf, "db", "sync")
}

// configuration is placement.conf.
func (o PlacementOptions) configuration(connection string) string {
	var b strings.Builder
	strategy := "noauth2"
	if o.Keystone != nil {
		strategy = "keystone"
	}
	fmt.Fprintf(&b, `[DEFAULT]
log_dir =
use_stderr = true
[api]
auth_strategy = %s
[placement_database]
connection = %s
max_retries = 1
sqlite_synchronous = false
[oslo_policy]
enforce_scope = false
enforce_new_defaults = false
`, strategy, connection)
	if k := o.Keystone; k != nil {
		fmt.Fprintf(&b, `[keystone_authtoken]
www_authenticate_uri = %[1]s/
auth_url = %[1]s/v3
auth_type = password
username = placement
password = %[2]s
user_domain_id = default
project_name = service
project_domain_id = default
service_type = placement
http_request_max_retries = 0
`, k.URL, password)
		if a := k.web.app.authority; a != nil {
			fmt.Fprintf(&b, "cafile = %s\n", a.CA)
		}
		if !o.CacheTokens {
			b.WriteString("token_cache_time = -1\n")
		}
	}
	return b.String()
}

// folder is a new one that goes away with the test. Not t.TempDir: its names can
// be too long for a socket inside.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-openstack-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
