package openstack

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// mariadb is a MariaDB server that listens on a unix socket alone.
type mariadb struct {
	*process
	socket string
}

// settings are the same when the template is made and when it is used: the size
// of the log is part of the files. Durability is given up, as nothing is to
// outlive the test.
func settings(dir string) []string {
	return []string{
		"--no-defaults", "--user=root", "--datadir=" + filepath.Join(dir, "mysql"), "--lc-messages-dir=/usr/share/mysql",
		"--innodb-log-file-size=8M", "--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=0",
		"--skip-innodb-doublewrite", "--skip-name-resolve", "--max-connections=200",
	}
}

// startMariaDB starts a server on the data in dir/mysql.
func startMariaDB(dir string) (*mariadb, error) {
	m := &mariadb{socket: filepath.Join(dir, "mariadb.sock")}
	cmd := exec.Command("/usr/sbin/mariadbd", append(settings(dir), "--skip-networking", "--socket="+m.socket, "--pid-file="+filepath.Join(dir, "mariadb.pid"))...)
	cmd.Dir, cmd.Env = dir, environment()
	var err error
	m.process, err = start("mariadb", dir, cmd)
	return m, err
}

// wait blocks until the server takes connections. There is nothing to be told by,
// so it is tried again and again; it takes a quarter of a second.
func (m *mariadb) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", m.socket)
		if err == nil {
			// A server that is not ready yet has no socket; this one greets.
			return c.Close()
		}
		select {
		case <-m.done:
			return m.ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for mariadb: %w\n%s", err, m.words())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// connection is how SQLAlchemy spells the database called name.
func (m *mariadb) connection(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?unix_socket=" + m.socket + "&charset=utf8"
}

// fillMariaDB makes, in dir/mysql, a server's own tables (as mariadb-install-db
// does, which needs programs of the client's package) and an empty database
// called placement.
func fillMariaDB(ctx context.Context, dir string) error {
	if err := os.Mkdir(filepath.Join(dir, "mysql"), 0o700); err != nil {
		return err
	}
	var sql bytes.Buffer
	// Bootstrap wants each statement to end with its line.
	sql.WriteString("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n")
	for _, f := range []string{"mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"} {
		b, err := os.ReadFile(filepath.Join("/usr/share/mysql", f))
		if err != nil {
			return err
		}
		sql.Write(b)
	}
	sql.WriteString("CREATE DATABASE placement CHARACTER SET utf8mb3;\n")
	cmd := exec.CommandContext(ctx, "/usr/sbin/mariadbd", append(settings(dir), "--bootstrap")...)
	cmd.Stdin, cmd.Env = &sql, environment()
	return command(cmd)
}
