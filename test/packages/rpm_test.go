package packages

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// command runs a program on this machine, and fails the test when it fails.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestRPM_HoldsWhatItSays(t *testing.T) {
	packages(t)
	listed := strings.Fields(command(t, "rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:perms}\n]", older.rpm()))
	for path, mode := range map[string]string{
		"/usr/bin/berth": "-rwxr-xr-x", "/etc/berth/berth.toml": "-rw-r-----", "/etc/berth/pki": "drwx------", "/usr/share/berth/libvirt-hook": "-rwxr-xr-x",
		"/usr/lib/systemd/system/berth.service": "-rw-r--r--", "/usr/share/zsh/site-functions/_berth": "-rw-r--r--", "/usr/share/licenses/berth/LICENSE": "-rw-r--r--",
		"/usr/share/doc/berth/CHANGELOG.md": "-rw-r--r--", "/usr/share/doc/berth/docs/runbooks/README.md": "-rw-r--r--",
		"/usr/share/berth/prometheus/berth.rules.yml": "-rw-r--r--", "/usr/share/berth/grafana/berth.json": "-rw-r--r--",
	} {
		if i := slices.Index(listed, path); i < 0 || listed[i+1] != mode {
			t.Errorf("the rpm does not list %s as %s", path, mode)
		}
	}
	for _, path := range []string{"/usr/bin", "/etc", "/usr/lib/systemd/system", hook} {
		if slices.Contains(listed, path) {
			t.Errorf("the rpm claims %s, which is not its own", path)
		}
	}
	if got := command(t, "rpm", "-qpc", older.rpm()); got != "/etc/berth/berth.toml\n/etc/logrotate.d/berth" {
		t.Errorf("files of configuration are %q", got)
	}
	info := command(t, "rpm", "-qp", "--qf", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{BUILDHOST}", older.rpm())
	if want := "berth " + older.version + " 1 x86_64 Apache-2.0 localhost"; info != want {
		t.Errorf("the rpm is %q, want %q", info, want)
	}
}

func TestRPM_ComesAndGoes(t *testing.T) {
	packages(t)
	s := newScratch(t)
	before := s.traces()
	// A database of packages that knows none: what berth needs is here from debs.
	rpm := "rpm --force-debian --nodeps "
	s.run(rpm + "-i " + older.rpm())
	s.want("/usr/bin/berth", hook, "/etc/berth/pki", "/usr/lib/systemd/system/berth.service")
	s.run("getent group berth && berth version && cmp " + hook + " /usr/share/berth/libvirt-hook")

	s.run("for f in " + hook + " /var/lib/berth/libvirt-hook; do echo '# of an older version' >>$f; done")
	s.run("systemctl --quiet enable berth.service berth.socket")
	s.run(rpm + "-U " + newer.rpm())
	s.want("/etc/systemd/system/multi-user.target.wants/berth.service")
	s.run("cmp " + hook + " /usr/share/berth/libvirt-hook")
	if got := s.run("rpm -q --qf %{VERSION} berth"); got != newer.version {
		t.Errorf("installed is %s, want %s", got, newer.version)
	}

	s.run("mkdir -p /run/berth/streams/6f5b1b58-1111-4222-8333-444444444444-1")
	s.refused(rpm+"-e berth", "guests are moving")
	s.want("/usr/bin/berth", hook)
	s.run("rmdir /run/berth/streams/*")

	s.run("touch /var/lib/berth/managed && sed -i 's/^log_level = .*/log_level = \"debug\"/' /etc/berth/berth.toml")
	s.run(rpm + "-e berth")
	s.wantNone(hook, "/usr/bin/berth", "/etc/systemd/system/multi-user.target.wants/berth.service", "/etc/systemd/system/sockets.target.wants/berth.socket")
	// An rpm keeps what was edited, and what it did not bring.
	s.want("/etc/berth/berth.toml.rpmsave", "/var/lib/berth/managed")
	s.run("rm -rf /etc/berth /var/lib/berth /run/berth")
	if after := s.traces(); !slices.Equal(after, before) {
		t.Errorf("what is left:\n  %s\nand what was there before:\n  %s", strings.Join(after, "\n  "), strings.Join(before, "\n  "))
	}
}
