package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/test/guest"
)

const (
	hook     = "/etc/libvirt/hooks/qemu.d/50-berth"
	rules    = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
	metadata = "urn:berth:domain:1"
)

// startLibvirt starts a libvirt daemon on the machine, and anew one that has seen the
// hooks that are there by now. Guests go on meanwhile.
func (s *scratch) startLibvirt() {
	s.t.Helper()
	s.run(`
mkdir -p /etc/libvirt/hooks /var/log/libvirt
cat >/etc/libvirt/libvirtd.conf <<'CONF'
listen_tls = 0
auth_unix_rw = "none"
unix_sock_group = "root"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
CONF
cat >/etc/libvirt/qemu.conf <<'CONF'
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
CONF
# libvirtd does not start without Debian's user for QEMU, whoever QEMU runs as.
grep -q '^libvirt-qemu:' /etc/group || echo 'libvirt-qemu:x:64055:' >>/etc/group
grep -q '^libvirt-qemu:' /etc/passwd || echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >>/etc/passwd
ip link set lo up
if [ -s /run/libvirtd.pid ]; then
	old=$(cat /run/libvirtd.pid)
	kill "$old"
	while kill -0 "$old" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$old/status"; do sleep 0.05; done
	rm -f /run/libvirtd.pid
fi
libvirtd --daemon --pid-file /run/libvirtd.pid </dev/null >/run/libvirtd.out 2>&1
timeout 60 virsh -q -c qemu:///system uri`)
}

func (s *scratch) virsh(args string) string {
	s.t.Helper()
	return s.run("timeout 60 virsh -q -c qemu:///system " + args)
}

// define makes a guest known to the machine's libvirt; with what Berth writes into the
// metadata of a guest that it has made.
func (s *scratch) define(name string, berths bool) {
	s.t.Helper()
	g, err := guest.Build(s.t.Context(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	o := guest.Options{Name: name, Guest: g, Metadata: "<other:note xmlns:other='urn:example:other'>stays</other:note>"}
	if berths {
		o.Metadata += fmt.Sprintf("<berth:instance xmlns:berth='%s' name='%s' epoch='1'/>", metadata, name)
	}
	path := "/root/" + name + ".xml"
	if err := os.WriteFile(s.path(path), []byte(guest.DomainXML(o)), 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.virsh("define " + path)
}

// beats counts the heartbeats on a guest's console.
func (s *scratch) beats(name string) int {
	f, err := os.Open(s.path("/var/log/libvirt/" + name + ".console"))
	if err != nil {
		return 0
	}
	defer f.Close()
	beats, err := guest.ParseConsole(f)
	if err != nil {
		s.t.Fatal(err)
	}
	return len(beats)
}

// goesOn wants the guest to be the same process, and to do something.
func (s *scratch) goesOn(name, pid string) {
	s.t.Helper()
	if got := s.run("cat /run/libvirt/qemu/" + name + ".pid"); got != pid {
		s.t.Errorf("guest %s was process %s and is %s", name, pid, got)
	}
	was := s.beats(name)
	s.until("guest "+name+" goes on", func() bool { return s.beats(name) > was })
}

// traces are the files of the machine that have to do with Berth, less what dpkg notes of
// itself.
func (s *scratch) traces() []string {
	s.t.Helper()
	out := s.run(`find /etc /usr /lib /var /run -xdev \( -path /var/cache -o -path /var/log -o -path /usr/share/doc -o -path /var/lib/berth-lab \) -prune -o -iname '*berth*' -print; grep -rl berth /etc/systemd /etc/apparmor.d /etc/libvirt/hooks 2>/dev/null || :`)
	list := strings.Fields(out)
	slices.Sort(list)
	return slices.Compact(list)
}

func TestDeb_ComesAndGoesUnderARunningGuest(t *testing.T) {
	packages(t)
	s := newScratch(t)
	// What the machine has of libvirt's rules, and what the administrator added to them.
	s.run("mkdir -p " + filepath.Dir(rules) + " && printf '  /srv/images/** r,\\n' >" + rules)
	before := s.traces()
	s.startLibvirt()
	s.define("web-1", true)
	s.virsh("start web-1")
	s.until("guest web-1 has booted", func() bool { return s.beats("web-1") > 0 })
	pid := s.run("cat /run/libvirt/qemu/web-1.pid")

	t.Log("installed: it observes, and its hook lets everything through")
	install := func(b built) string { return "dpkg --force-confdef --force-confold -i " + b.deb() }
	s.run(install(older))
	s.want("/usr/bin/berth", hook, "/etc/berth/berth.toml", "/usr/lib/systemd/system/berth.service", "/etc/systemd/system/multi-user.target.wants/berth.service",
		"/etc/systemd/system/sockets.target.wants/berth.socket", "/usr/share/man/man1/berth.1.gz", "/usr/share/bash-completion/completions/berth")
	if got := s.run("berth version"); !strings.Contains(got, older.version) {
		t.Errorf("the version shows as %q", got)
	}
	s.run("getent group berth")
	s.run(`grep -qx 'mode = "observe"' /etc/berth/berth.toml`)
	s.run("cmp " + hook + " /usr/share/berth/libvirt-hook && test -x " + hook)
	if got := s.run("cat " + rules); got != "/srv/images/** r,\ninclude <abstractions/berth-stream>" {
		t.Errorf("the rules of guests are now %q", got)
	}
	s.goesOn("web-1", pid)
	s.startLibvirt() // which looks for hooks when it starts
	s.define("db-1", true)
	s.virsh("start db-1")
	s.virsh("destroy db-1")

	t.Log("once an agent has managed this host, the hook asks: without an agent and an owner's file, no")
	s.run("touch /var/lib/berth/managed && sed -i 's/^mode = .*/mode = \"manage\"/' /etc/berth/berth.toml")
	s.refused("timeout 60 virsh -q -c qemu:///system start db-1", "berth")

	t.Log("upgraded: what was edited stays, the hook that was not is the new one, and it asks on")
	s.run("sed -i 's/^log_level = .*/log_level = \"debug\"/' /etc/berth/berth.toml")
	s.run("for f in " + hook + " /var/lib/berth/libvirt-hook; do echo '# of an older version' >>$f; done")
	s.run(install(newer))
	s.run(`grep -qx 'log_level = "debug"' /etc/berth/berth.toml`)
	s.run("cmp " + hook + " /usr/share/berth/libvirt-hook")
	s.run("test $(grep -c berth-stream " + rules + ") = 1")
	s.refused("timeout 60 virsh -q -c qemu:///system start db-1", "berth")
	s.goesOn("web-1", pid)

	t.Log("an edited hook stays as it is, and one that was taken away stays away")
	s.run("sed -i 's|^run=.*|run=/run/elsewhere/guard|' " + hook)
	if got := s.run(install(older)); !strings.Contains(got, "was edited") {
		t.Errorf("an edited hook is not told: %s", got)
	}
	s.run("grep -qx run=/run/elsewhere/guard " + hook)
	s.run("mv " + hook + " /root/hook")
	if got := s.run(install(newer)); !strings.Contains(got, "there is no "+hook) {
		t.Errorf("a hook that is away is not told: %s", got)
	}
	s.wantNone(hook)
	s.run("mv /root/hook " + hook)

	t.Log("not removed while a guest is on its way")
	s.run("mkdir -p /run/berth/streams/6f5b1b58-1111-4222-8333-444444444444-1")
	s.refused("dpkg -r berth", "guests are moving")
	s.want("/usr/bin/berth", hook)
	s.run("rmdir /run/berth/streams/*")

	t.Log("removed: no hook and no unit, so nothing stops a guest; configuration and ledger wait")
	s.run("dpkg -r berth")
	s.wantNone(hook, "/usr/bin/berth", "/usr/lib/systemd/system/berth.service", "/usr/share/berth")
	s.want("/etc/berth/berth.toml", "/var/lib/berth/managed", "/var/lib/berth/libvirt-hook.edited")
	if got := s.run("cat " + rules); got != "/srv/images/** r," {
		t.Errorf("the rules of guests are now %q", got)
	}
	s.goesOn("web-1", pid)
	s.virsh("start db-1")

	t.Log("installed again: as it was")
	s.run(install(newer))
	s.want(hook, "/etc/systemd/system/multi-user.target.wants/berth.service")
	s.run(`grep -qx 'log_level = "debug"' /etc/berth/berth.toml`)

	t.Log("purged: nothing of it is left, in guests' metadata either; the guests have noticed nothing")
	s.run("mkdir -p /var/log/berth && touch /var/log/berth/audit.log")
	s.run("dpkg -P berth")
	s.wantNone("/var/log/berth", "/etc/logrotate.d/berth")
	if after := s.traces(); !slices.Equal(after, before) {
		t.Errorf("what is left:\n  %s\nand what was there before:\n  %s", strings.Join(after, "\n  "), strings.Join(before, "\n  "))
	}
	for _, name := range []string{"web-1", "db-1"} {
		for _, which := range []string{"", " --inactive"} {
			doc := s.virsh("dumpxml" + which + " " + name)
			if strings.Contains(doc, metadata) {
				t.Errorf("guest %s%s still has Berth's metadata", name, which)
			}
			if !strings.Contains(doc, "urn:example:other") {
				t.Errorf("guest %s%s has lost other metadata", name, which)
			}
		}
	}
	s.goesOn("web-1", pid)
	if got := s.virsh("domstate db-1"); got != "running" {
		t.Errorf("guest db-1 is %s", got)
	}
}

func TestDeb_HoldsWhatItSays(t *testing.T) {
	packages(t)
	out := command(t, "dpkg-deb", "--info", older.deb()) + "\n" + command(t, "dpkg-deb", "--contents", older.deb())
	for _, want := range []string{
		"Package: berth", "Version: " + older.version, "Architecture: amd64", "Depends: systemd (>= 249), default-dbus-system-bus | dbus-system-bus",
		"-rwxr-xr-x root/root", "./usr/bin/berth", "drwx------ root/root", "./etc/berth/pki/", "./etc/berth/berth.toml",
		"./usr/lib/systemd/system/berth.socket", "./usr/lib/systemd/system/berth-stream@.service", "./usr/lib/tmpfiles.d/berth.conf", "./usr/lib/sysusers.d/berth.conf",
		"./usr/share/man/man1/berth-migrate.1.gz", "./usr/share/man/man5/berth.toml.5.gz", "./usr/share/zsh/vendor-completions/_berth", "./usr/share/fish/vendor_completions.d/berth.fish",
		"./usr/share/doc/berth/berth.cdx.json", "./usr/share/doc/berth/notices.gz", "./usr/share/doc/berth/CHANGELOG.md", "./usr/share/doc/berth/docs/runbooks/README.md",
		"./usr/share/berth/prometheus/berth.rules.yml", "./usr/share/berth/grafana/berth.json",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the deb does not show %q", want)
		}
	}
	if got := command(t, "dpkg-deb", "-I", older.deb(), "conffiles"); got != "/etc/apparmor.d/abstractions/berth-stream\n/etc/berth/berth.toml\n/etc/logrotate.d/berth" {
		t.Errorf("files of configuration are %q", got)
	}
}

func TestDeb_LintianFindsNoError(t *testing.T) {
	packages(t)
	out := command(t, "lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", older.deb())
	if out != "" {
		t.Log(out)
	}
}
