package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/pki"
)

// The packages in the machine: one, and the version after it.
const olderDeb, newerDeb = "/opt/older.deb", "/opt/newer.deb"

// built are the packages, for all tests of one run.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// packages builds one, makes the other of it, which differs in nothing but its version, and gives
// where they are, by their paths in the machine.
func packages(t *testing.T) map[string]string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "berth-packages-"); built.err == nil {
			built.err = build(built.dir)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return map[string]string{olderDeb: filepath.Join(built.dir, "berth_1.0~a_amd64.deb"), newerDeb: filepath.Join(built.dir, "newer.deb")}
}

func build(dir string) error {
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = "../.."
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, said)
		}
		return nil
	}
	tree := filepath.Join(dir, "tree")
	control := filepath.Join(tree, "DEBIAN/control")
	if err := run("go", "run", "./packaging/build", "-out", dir, "-version", "1.0~a", "-only", "deb"); err != nil {
		return err
	}
	if err := run("dpkg-deb", "--raw-extract", filepath.Join(dir, "berth_1.0~a_amd64.deb"), tree); err != nil {
		return err
	}
	text, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	if err := os.WriteFile(control, []byte(strings.Replace(string(text), "Version: 1.0~a\n", "Version: 1.0~b\n", 1)), 0o644); err != nil {
		return err
	}
	return run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, filepath.Join(dir, "newer.deb"))
}

// dpkg asks nobody, and leaves other packages' triggers, such as an index of man pages, alone.
func (m *machine) dpkg(args ...string) string {
	m.t.Helper()
	return m.run(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--no-triggers", "--force-confold"}, args...)...)
}

// install installs the older package.
func (m *machine) install() {
	m.t.Helper()
	// A build machine may forbid packages to start anything; this is not one.
	if err := os.Remove(m.path("/usr/sbin/policy-rc.d")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	m.dpkg("--install", olderDeb)
}

func installs(t *testing.T, m *machine) {
	m.install()
	for _, unit := range []string{service, "berth.socket"} {
		if state := m.property(unit, "ActiveState"); state != "active" {
			t.Errorf("%s is %s", unit, state)
		}
		if state := m.property(unit, "UnitFileState"); state != "enabled" {
			t.Errorf("%s is %s at the next boot", unit, state)
		}
	}
	if state := m.property("berth-placement.service", "ActiveState"); state != "inactive" {
		t.Errorf("a Placement that nobody has asked for is %s", state)
	}
	if groups := m.read("/etc/group"); !strings.Contains(groups, "\nberth:") {
		t.Error("there is no group berth")
	}
	if users := m.read("/etc/passwd"); !strings.Contains(users, "\nberth-placement:") {
		t.Error("there is no user berth-placement")
	}
	authority, err := pki.Init(t.TempDir(), "test", time.Now(), false)
	if err == nil {
		_, err = authority.IssueHost(m.path("/etc/berth/pki"), m.run("uname", "-n"), nil, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	m.run("systemctl", "stop", service)
	configure(m, "")
}

func upgrades(t *testing.T, m *machine) {
	upgrade(t, m)
	standInsLive(t, m)
}

func upgrade(t *testing.T, m *machine) {
	pid := m.property(service, "MainPID")
	answered := m.whileAsking(func() {
		m.dpkg("--install", newerDeb)
		m.awaitAnother(pid)
	})
	t.Logf("%d requests answered meanwhile", answered)
	if version := m.run("dpkg-query", "--show", "--showformat=${Version}", "berth"); version != "1.0~b" {
		t.Errorf("version %s is installed", version)
	}
}

func removes(t *testing.T, m *machine) {
	m.dpkg("--remove", "berth")
	if out, err := m.try("systemctl", "cat", service); err == nil {
		t.Errorf("a unit is left: %s", out)
	}
	standInsLive(t, m)
	m.dpkg("--purge", "berth")
	for _, path := range []string{"/etc/berth", "/var/lib/berth", "/var/lib/berth-placement", "/run/berth", "/etc/libvirt/hooks/qemu.d/50-berth", "/etc/systemd/system/multi-user.target.wants/" + service} {
		if _, err := os.Lstat(m.path(path)); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}
