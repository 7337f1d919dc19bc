package systemd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/pki"
	"berth/test/guest"
	"berth/test/lab"
)

// address is a hypervisor's on the one network that they have.
func address(index int) string { return fmt.Sprintf("10.79.0.%d", index) }

// hypervisors boots machines that have libvirt, as its package sets it up, and QEMU, and what a
// guest boots from; each knows the others by name, and Berth is installed, with certificates of
// one authority and not yet configured.
func hypervisors(t *testing.T, g guest.Guest, names ...string) []*machine {
	t.Helper()
	files := packages(t)
	qemu, err := lab.QEMUFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(files, qemu)
	files[g.Kernel], files[g.Initrd], files["/opt/libvirt"] = g.Kernel, g.Initrd, lab.LibvirtSystem()
	authority, err := pki.Init(t.TempDir(), "test", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	hosts := "127.0.0.1 localhost\n"
	for i, name := range names {
		hosts += address(i+1) + " " + name + "\n"
	}
	var all []*machine
	for i, name := range names {
		start := time.Now()
		m := boot(t, name, files)
		m.write("/etc/hosts", hosts, 0o644)
		m.write("/etc/hostname", name+"\n", 0o644)
		m.run("hostname", name)
		m.wire(all, i+1)
		// The package's own folders are symbolic links here.
		m.run("sh", "-c", "tar -C /opt/libvirt -c . | tar -C / -x --keep-directory-symlink --no-same-owner")
		m.run("systemd-sysusers", "--inline", "g kvm -", "g libvirt -", `u libvirt-qemu 64055 "Libvirt Qemu" /var/lib/libvirt`)
		// By the machine's board they are one host.
		m.write("/etc/libvirt/libvirtd.conf", m.read("/etc/libvirt/libvirtd.conf")+fmt.Sprintf("\nhost_uuid = \"6c1d4f5e-0000-4000-8000-%012d\"\n", i+1), 0o644)
		// What the container holds of control groups of the kernel's first kind is read-only.
		m.write("/etc/libvirt/qemu.conf", m.read("/etc/libvirt/qemu.conf")+"\ncgroup_controllers = [ ]\n", 0o600)
		m.install()
		m.run("systemctl", "stop", service)
		if _, err := authority.IssueHost(m.path("/etc/berth/pki"), name, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		m.run("systemctl", "start", "libvirtd.service")
		all = append(all, m)
		t.Logf("%s is up after %.1f s", name, time.Since(start).Seconds())
	}
	return all
}

// wire joins a machine to those that are there. The first has the bridge; no link of any is ever
// seen outside.
func (m *machine) wire(others []*machine, index int) {
	m.t.Helper()
	if len(others) == 0 {
		m.run("ip", "link", "add", "net0", "type", "bridge", "forward_delay", "0")
	} else {
		port := fmt.Sprintf("port%d", index)
		add := exec.Command("nsenter", "--target", strconv.Itoa(others[0].init), "--net", "--",
			"ip", "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", strconv.Itoa(m.init))
		if out, err := add.CombinedOutput(); err != nil {
			m.t.Fatalf("%v: %s", err, out)
		}
		others[0].run("ip", "link", "set", port, "master", "net0", "up")
	}
	m.run("ip", "addr", "add", address(index)+"/24", "dev", "net0")
	m.run("ip", "link", "set", "net0", "up")
}

// berth runs a command of the operator's.
func (m *machine) berth(args ...string) string {
	m.t.Helper()
	return m.run(append([]string{"berth"}, args...)...)
}

// tells reads what a command of the operator's says as JSON.
func tells[T any](m *machine, args ...string) (T, error) {
	var v T
	out, err := m.try(append(append([]string{"berth"}, args...), "--json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	return v, err
}

// well waits until the agent says so.
func (m *machine) well() {
	m.t.Helper()
	m.await("all is well on "+m.name, func() error { _, err := m.try("berth", "status"); return err })
}

// console is what a guest has written in the machine.
func (m *machine) console(name string) string {
	return m.path("/var/log/libvirt/" + name + ".console")
}

// beats waits for more heartbeats of a guest than it had, and gives them all.
func (m *machine) beats(name string, more int) []guest.Beat {
	m.t.Helper()
	before, err := guest.ReadConsole(m.console(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	now := before
	m.await("heartbeats of "+name, func() error {
		if now, err = guest.ReadConsole(m.console(name)); err == nil && len(now) < len(before)+more {
			err = fmt.Errorf("%d more", len(now)-len(before))
		}
		return err
	})
	return now
}

// placementDropIn is the one by which docs/how-to/placement.md has Placement serve hosts over the network.
func placementDropIn(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/how-to/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "```ini\n[Service]\nLoadCredential=")
	dropIn, _, ends := strings.Cut(after, "```")
	if !found || !ends {
		t.Fatal("docs/how-to/placement.md has no drop-in for Placement's certificates")
	}
	return "[Service]\nLoadCredential=" + dropIn
}
