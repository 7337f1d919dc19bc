package openstack

import (
	"context"
	"os"
	"strings"
	"testing"

	"berth/test/lab"
)

// Packages are what the services need on the machine. None of them brings a
// service of its own: the packages named keystone, placement-api and
// mariadb-server, which would make users, databases and units, are not needed.
func Packages() []string {
	return []string{"python3-placement", "python3-keystone", "python3-pymysql", "gunicorn", "uwsgi-core", "uwsgi-plugin-python3",
		"mariadb-server-core", "python3-openstackclient", "python3-osc-placement"}
}

// Prepare makes the databases that services begin with, so that the first test
// is as fast as the next. It needs the packages, and takes half a minute.
func Prepare(ctx context.Context) error {
	for _, kind := range []Database{SQLite, MariaDB} {
		if _, err := placementTemplate(ctx, kind); err != nil {
			return err
		}
	}
	_, err := keystoneTemplate(ctx)
	return err
}

// Require skips the test, with the reason, where the services cannot be started.
func Require(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("OpenStack's services are not started in short tests")
	}
	if os.Getuid() != 0 {
		t.Skip("OpenStack's services are started in process namespaces of their own, which needs root")
	}
	missing, err := lab.Missing(t.Context(), Packages()...)
	if err != nil {
		t.Skipf("OpenStack's services need Debian's package database: %v", err)
	}
	if len(missing) > 0 {
		t.Skipf("OpenStack's services need %s; `lab install -openstack` adds it", strings.Join(missing, ", "))
	}
}
