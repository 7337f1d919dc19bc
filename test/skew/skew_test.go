// Package skew runs agents of two versions beside each other, as they are in the middle of an
// upgrade: the binary of this tree, and the one before it, built from the project's own history.
package skew

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// before is the last commit of the version before this one: the tag of the last release, once
// there is one.
const before = "76425aa147c22f26b90b9ebb4d3db5ef5f8fbaae"

const patience = 2 * time.Minute

// older builds the binary of the version before into dir. In a checkout without that part of the
// history it is this tree, called by an older version: what agents of two versions say to each
// other is held then, and what the older one did otherwise is not.
func older(t *testing.T, dir string) string {
	t.Helper()
	tree, err := unpacked(t, filepath.Join(dir, "before"))
	if err != nil {
		t.Logf("the history of this checkout has not the version before (%s): %v", before, err)
		tree = filepath.Join("..", "..")
	}
	to := filepath.Join(dir, "berth-before")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-X berth/internal/version.release=0.0.1", "-o", to, "./cmd/berth")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the version before: %v\n%s", err, out)
	}
	return to
}

// unpacked writes the tree of the version before into dir.
func unpacked(t *testing.T, dir string) (string, error) {
	t.Helper()
	archive := exec.CommandContext(t.Context(), "git", "archive", before)
	archive.Dir = filepath.Join("..", "..")
	archive.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*") // of another user, in a container
	var errs bytes.Buffer
	archive.Stderr = &errs
	packed, err := archive.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, errs.String())
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	unpack.Stdin = bytes.NewReader(packed)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir, nil
}

// world is the fleet with helpers that fail the test.
type world struct {
	testing.TB
	*fleet.Fleet
	ctx           context.Context
	older, newest string
}

// runs restarts a host's agent with a binary, as an upgrade or a downgrade does.
func (w *world) runs(host, binary string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if err := w.Agent(host).Stop(ctx); err != nil {
		w.Fatalf("stop the agent on %s: %v", host, err)
	}
	h, err := w.Host(host)
	if err == nil && binary == w.newest {
		err = w.Allow(h)
	} else if err == nil {
		// The version before refuses the keys that it does not know.
		err = os.RemoveAll(h.Path("/etc/berth/berth.toml.d/30-allowed.toml"))
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Binary = binary
	defer func() { w.Binary = w.newest }()
	if err := w.StartAgent(ctx, host); err != nil {
		w.Fatal(err)
	}
	if err := w.WaitReady(ctx, host); err != nil {
		w.Fatal(err)
	}
}

// berth runs a command of the newer binary that must succeed.
func (w *world) berth(host string, args ...string) string {
	w.Helper()
	r, err := w.Berth(w.ctx, host, args...)
	if err != nil || r.Code != 0 {
		w.Fatalf("berth %s on %s: %v, exit code %d\n%s%s", strings.Join(args, " "), host, err, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// livesOn requires that the guest runs on one host alone and goes on from where it was.
func (w *world) livesOn(name string, on, not *lab.Host) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if state, err := not.Virsh(ctx, "domstate", name); err == nil && state == "running" {
		w.Errorf("%s still runs on %s", name, not.Name)
	}
	beats, err := guest.ReadConsole(on.Console(name))
	if err != nil {
		w.Fatal(err)
	}
	if _, err := guest.WaitBeat(ctx, on.Console(name), len(beats)+3); err != nil {
		w.Fatalf("%s does not go on at %s: %v", name, on.Name, err)
	}
}

// TestSkew_GuestsMoveBothWaysBetweenTwoVersions upgrades a pair of hosts one after the other: in
// between guests move both ways, live and cold; the second host is upgraded while a guest is on
// its way; and one host goes back to the version before, with its ledger.
func TestSkew_GuestsMoveBothWaysBetweenTwoVersions(t *testing.T) {
	lab.Require(t)
	dir := lab.TempDir(t)
	newest, err := fleet.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	was := older(t, dir)
	f, err := fleet.Up(t.Context(), fleet.Options{Dir: filepath.Join(dir, "fleet"), Binary: was, Older: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Down(); err != nil {
			t.Error(err)
		}
	})
	w := &world{TB: t, Fleet: f, ctx: t.Context(), older: was, newest: newest}
	a, b := f.Hosts[0], f.Hosts[1]
	disk := filepath.Join(f.SharedDir(), "web-1.qcow2")
	if _, err := a.Exec(w.ctx, "qemu-img", "create", "-q", "-f", "qcow2", disk, "32M"); err != nil {
		t.Fatal(err)
	}
	xml := guest.DomainXML(guest.Options{Name: "web-1", Guest: g, Disks: []guest.Disk{{Path: disk}}, Beat: 100 * time.Millisecond})
	if err := os.WriteFile(a.Path("/var/lib/libvirt/web-1.xml"), []byte(xml), 0o644); err != nil {
		t.Fatal(err)
	}
	w.berth("host-a", "instance", "create", "web-1", "--flavor", "small", "--xml", "/var/lib/libvirt/web-1.xml", "--start")
	w.livesOn("web-1", a, b)

	w.runs("host-a", newest)
	if list := w.berth("host-a", "host", "list"); !strings.Contains(list, "hosts run different versions") || !strings.Contains(list, "0.0.1 on host-b") {
		t.Errorf("host list does not say who runs what:\n%s", list)
	}
	w.berth("host-a", "migrate", "web-1", "host-b")
	w.livesOn("web-1", b, a)
	w.berth("host-a", "migrate", "web-1", "host-a") // asked of the newer, conducted by the older
	w.livesOn("web-1", a, b)
	w.berth("host-a", "migrate", "web-1", "host-b", "--cold", "--confirm", "--shutdown-timeout", "0s")
	w.livesOn("web-1", b, a)

	// The older one conducts, and its next agent is the newer one, which steers what the other began.
	w.berth("host-b", "migrate", "web-1", "host-a", "--bandwidth", "4MiB/s", "--detach")
	w.until("memory is sent", func(m migration.Migration) bool { return m.Progress.MemoryProcessed > 4<<20 || m.Done() })
	w.runs("host-b", newest)
	if list := w.berth("host-a", "host", "list"); strings.Contains(list, "hosts run different versions") {
		t.Errorf("after the upgrade:\n%s", list)
	}
	w.berth("host-b", "migration", "set", "web-1", "--bandwidth", "200MiB/s") // the guest writes faster than it was sent
	w.berth("host-b", "migration", "watch", "web-1")
	w.livesOn("web-1", a, b)

	// And down again.
	w.runs("host-a", was)
	w.berth("host-b", "migrate", "web-1", "host-b")
	w.livesOn("web-1", b, a)
	var report api.AuditReport
	if err := w.JSON(w.ctx, "host-b", &report, "audit", "--all"); err != nil {
		t.Fatal(err)
	}
	for _, h := range report.Hosts {
		for _, row := range h.Rows {
			t.Errorf("audit of %s: %+v", h.Host, row)
		}
	}
}

// until waits for what the record of the guest's move says.
func (w *world) until(what string, ok func(migration.Migration) bool) {
	w.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		r, err := w.Berth(w.ctx, "host-b", "migration", "show", "web-1", "--json")
		if err != nil {
			w.Fatal(err)
		}
		var m migration.Migration
		if json.Unmarshal([]byte(r.Stdout), &m) == nil && ok(m) {
			return
		}
		if time.Now().After(end) {
			w.Fatal(fmt.Errorf("it does not come to this: %s\n%s%s", what, r.Stdout, r.Stderr))
		}
	}
}
