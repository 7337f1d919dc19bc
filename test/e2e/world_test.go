// Package e2e moves real guests between real hosts with the real binary, and
// looks at both hosts, at Placement and at the guest's own words afterwards.
// No test takes libvirt's word for a guest's health.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// One fleet serves all tests of the package: bringing it up is cheap, but
// building the binary and the guest is not. Tests that need another
// configuration bring up their own with own.
var shared struct {
	once sync.Once
	dir  string
	bin  string
	f    *fleet.Fleet
	g    guest.Guest
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.f != nil {
		if err := shared.f.Down(); err != nil {
			fmt.Fprintln(os.Stderr, "take the fleet down:", err)
			code = 1
		}
	}
	if shared.dir != "" {
		if err := os.RemoveAll(shared.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

func build(t testing.TB) {
	t.Helper()
	lab.Require(t)
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "berth-e2e-"); shared.err != nil {
			return
		}
		// Open to QEMU, which is another user.
		if shared.err = os.Chmod(shared.dir, 0o755); shared.err != nil {
			return
		}
		if shared.bin, shared.err = fleet.Build(context.Background(), shared.dir); shared.err != nil {
			return
		}
		shared.g, shared.err = guest.Build(context.Background(), "")
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

// patience is how long a condition is waited for that comes true by itself, on a machine
// that is busy with much else; testMost bounds a test, and what it leaves to take away.
const (
	patience = 2 * time.Minute
	testMost = 10 * time.Minute
)

// world is a fleet with helpers that fail the test.
type world struct {
	testing.TB
	*fleet.Fleet
	ctx  context.Context
	a, b *lab.Host
}

// start gives the shared fleet, and requires at the end of the test that
// nothing is left on it.
func start(t *testing.T) *world {
	t.Helper()
	build(t)
	if shared.f == nil {
		f, err := fleet.Up(t.Context(), fleet.Options{Dir: filepath.Join(shared.dir, "fleet"), Binary: shared.bin, Flavors: map[string]string{
			"grown":   "name = \"grown\"\nvcpus = 2\nmemory_mb = 192\ndisk_gb = 2\n",
			"roomier": "name = \"roomier\"\nvcpus = 1\nmemory_mb = 160\ndisk_gb = 2\n",
		}})
		if err != nil {
			t.Fatal(err)
		}
		shared.f = f
	}
	w := enter(t, shared.f)
	// Agents that a test killed are back for the next one.
	t.Cleanup(w.requireEmpty)
	return w
}

// own is a fleet for one test.
func own(t *testing.T, config map[string]string) *world {
	t.Helper()
	return ownWith(t, fleet.Options{Config: config})
}

// ownWith is own with all that a fleet can be told; folder and binary are set
// here.
func ownWith(t *testing.T, o fleet.Options) *world {
	t.Helper()
	build(t)
	o.Dir, o.Binary = filepath.Join(lab.TempDir(t), "fleet"), cmp.Or(o.Binary, shared.bin)
	f, err := fleet.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Down(); err != nil {
			t.Error(err)
		}
	})
	return enter(t, f)
}

func enter(t *testing.T, f *fleet.Fleet) *world {
	ctx, cancel := context.WithTimeout(context.Background(), testMost)
	t.Cleanup(cancel)
	w := &world{TB: t, Fleet: f, ctx: ctx, a: f.Hosts[0], b: f.Hosts[1]}
	t.Cleanup(w.logs)
	return w
}

// logs shows the daemons' last words when the test failed.
func (w *world) logs() {
	if !w.Failed() {
		return
	}
	files, _ := filepath.Glob(filepath.Join(w.Dir, "*-agent.log"))
	for _, f := range append(files, filepath.Join(w.Dir, "switch-placement.log")) {
		text, _ := os.ReadFile(f)
		if len(text) > 6000 {
			text = text[len(text)-6000:]
		}
		w.Logf("--- the end of %s\n%s", filepath.Base(f), text)
	}
}

// berth runs a command that must succeed.
func (w *world) berth(host *lab.Host, args ...string) string {
	w.Helper()
	r := w.run(host, args...)
	if r.Code != 0 {
		w.Fatalf("berth %s on %s: exit code %d\n%s%s", strings.Join(args, " "), host.Name, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

func (w *world) run(host *lab.Host, args ...string) fleet.Result {
	w.Helper()
	r, err := w.Berth(w.ctx, host.Name, args...)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func ask[T any](w *world, host *lab.Host, args ...string) T {
	w.Helper()
	var v T
	if err := w.JSON(w.ctx, host.Name, &v, args...); err != nil {
		w.Fatal(err)
	}
	return v
}

// refused runs a command that must be refused with this exit code, and gives
// the reasons' codes.
func (w *world) refused(code int, host *lab.Host, args ...string) (codes []string, message string) {
	w.Helper()
	r := w.run(host, append(args, "--json")...)
	if r.Code != code {
		w.Fatalf("berth %s on %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), host.Name, r.Code, code, r.Stdout, r.Stderr)
	}
	body := decodeError(w, r)
	for _, reason := range body.Reasons {
		codes = append(codes, reason.Code)
	}
	return codes, body.Message
}

const images = "/var/lib/libvirt/images"

// boot makes a guest with a local disk on a host and waits for its heartbeat.
func (w *world) boot(h *lab.Host, o guest.Options, flags ...string) {
	w.Helper()
	w.xml(h, &o)
	w.berth(h, append([]string{"instance", "create", o.Name, "--flavor", "small", "--xml", "/var/lib/libvirt/" + o.Name + ".xml", "--start"}, flags...)...)
	w.beats(h, o.Name, 3)
	name := o.Name
	w.Cleanup(func() { w.remove(name) })
}

// xml writes the guest's domain and disk on a host.
func (w *world) xml(h *lab.Host, o *guest.Options) {
	w.Helper()
	o.Guest = shared.g
	if o.Beat == 0 {
		o.Beat = 100 * time.Millisecond
	}
	if o.Dirty == 0 && o.Rate == 0 {
		o.Dirty, o.Rate = 8, 16 // alive waits for two rounds of all its memory: a second
	}
	if o.Disks == nil {
		o.Disks = []guest.Disk{{Path: images + "/" + o.Name + ".qcow2"}}
	}
	for _, d := range o.Disks {
		if err := os.MkdirAll(h.Path(filepath.Dir(d.Path)), 0o755); err != nil {
			w.Fatal(err)
		}
		if _, err := h.Exec(w.ctx, "qemu-img", "create", "-q", "-f", "qcow2", d.Path, "32M"); err != nil {
			w.Fatal(err)
		}
	}
	if err := os.WriteFile(h.Path("/var/lib/libvirt/"+o.Name+".xml"), []byte(guest.DomainXML(*o)), 0o644); err != nil {
		w.Fatal(err)
	}
}

// remove deletes a guest wherever it is, with its files.
func (w *world) remove(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, h := range w.Hosts {
		if r, err := w.Berth(ctx, h.Name, "instance", "show", name); err == nil && r.Code == 0 {
			for _, args := range [][]string{{"instance", "stop", name, "--force"}, {"instance", "delete", name}} {
				if r, err := w.Berth(ctx, h.Name, args...); err != nil || r.Code != 0 {
					w.Errorf("berth %s on %s: %v, exit code %d: %s", strings.Join(args, " "), h.Name, err, r.Code, r.Stderr)
				}
			}
		}
		for _, f := range []string{images + "/" + name + ".qcow2", "/var/lib/libvirt/" + name + ".xml", "/var/log/libvirt/" + name + ".console"} {
			if err := os.Remove(h.Path(f)); err != nil && !os.IsNotExist(err) {
				w.Error(err)
			}
		}
	}
}

func (w *world) beats(h *lab.Host, name string, n int) []guest.Beat {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	beats, err := guest.WaitBeat(ctx, h.Console(name), n)
	if err != nil {
		w.Fatalf("wait for %d heartbeats of %s on %s: %v", n, name, h.Name, err)
	}
	return beats
}

// alive requires that the guest went from one host to another, or stayed when
// they are the same, without reboot or loss, and has since written and checked
// all its memory again.
func (w *world) alive(name string, from, to *lab.Host) guest.Proof {
	w.Helper()
	var source []guest.Beat
	if from != to {
		var err error
		if source, err = guest.ReadConsole(from.Console(name)); err != nil {
			w.Fatal(err)
		}
	}
	beats := w.beats(to, name, 1)
	for passes := beats[len(beats)-1].Passes; beats[len(beats)-1].Passes < passes+2; {
		beats = w.beats(to, name, len(beats)+1)
	}
	proof, err := guest.Healthy(beats)
	if from != to {
		proof, err = guest.Continuity(source, beats)
	}
	if err != nil {
		w.Fatalf("guest %s from %s to %s: %v", name, from.Name, to.Name, err)
	}
	return proof
}

// domain is virsh's word for a guest's state, or "" when there is none.
func (w *world) domain(h *lab.Host, name string) string {
	w.Helper()
	out, err := h.Virsh(w.ctx, "list", "--all", "--name")
	if err != nil {
		w.Fatal(err)
	}
	if !slices.Contains(strings.Fields(out), name) {
		return ""
	}
	state, err := h.Virsh(w.ctx, "domstate", "--reason", name)
	if err != nil {
		if out, lerr := h.Virsh(w.ctx, "list", "--all", "--name"); lerr == nil && !slices.Contains(strings.Fields(out), name) {
			return "" // gone between the two looks
		}
		w.Fatal(err)
	}
	return state
}

// holds is what Placement has for a guest and its move, by host whatever the
// shape of its tree: "INSTANCE on host-b".
func (w *world) holds(h *lab.Host, name string) []string {
	w.Helper()
	d := ask[api.InstanceDetail](w, h, "instance", "show", name)
	if d.AllocationsError != "" { // unreadable is not nothing
		w.Fatalf("%s cannot read what Placement holds for %s: %s", h.Name, name, d.AllocationsError)
	}
	var out []string
	for _, a := range d.Allocations {
		host, _, _ := strings.Cut(a.Provider, "_")
		out = append(out, a.ConsumerType+" on "+host)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (w *world) require(what string, got, want any) {
	w.Helper()
	if g, n := fmt.Sprint(got), fmt.Sprint(want); g != n {
		w.Errorf("%s: %s, want %s", what, g, n)
	}
}

// livesOn requires that a guest is on one host alone: one running domain, one
// bound claim, one allocation, one disk, and nothing of it on the other.
func (w *world) livesOn(name string, here, there *lab.Host) {
	w.Helper()
	if s := w.domain(here, name); !strings.HasPrefix(s, "running") {
		w.Errorf("%s on %s is %q, want running", name, here.Name, s)
	}
	w.require("domain on "+there.Name, w.domain(there, name), "")
	var claims []string
	for _, h := range w.Hosts {
		for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
			if c.Name == name {
				claims = append(claims, h.Name+" "+c.Kind+" "+c.State)
			}
		}
	}
	w.require("claims", claims, []string{here.Name + " instance bound"})
	w.require("allocations", w.holds(here, name), []string{"INSTANCE on " + here.Name})
	for _, h := range []*lab.Host{here, there} {
		_, err := os.Stat(h.Path(images + "/" + name + ".qcow2"))
		if _, other := os.Stat(h.Path(images + "/" + name + ".xml")); other == nil {
			w.Errorf("stray file on %s", h.Name)
		}
		w.require("disk on "+h.Name, err == nil, h == here)
	}
}

// requireEmpty requires that both hosts hold nothing any more.
func (w *world) requireEmpty() {
	if w.Failed() {
		return // what is wrong has been said
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w.noStream()
	for _, h := range w.Hosts {
		var l api.ClaimList
		if err := w.JSON(ctx, h.Name, &l, "claim", "list"); err != nil || len(l.Claims) > 0 {
			w.Errorf("claims left on %s: %v %v", h.Name, l.Claims, err)
		}
		if !l.Usage.Used.IsZero() {
			w.Errorf("%s still uses %v", h.Name, l.Usage.Used)
		}
		if out, err := h.Virsh(ctx, "list", "--all", "--name"); err != nil || out != "" {
			w.Errorf("domains left on %s: %q %v", h.Name, out, err)
		}
		if files, _ := filepath.Glob(h.Path(images) + "/*"); len(files) > 0 {
			w.Errorf("disks left on %s: %v", h.Name, files)
		}
		var host api.HostInfo
		if err := w.JSON(ctx, h.Name, &host, "host", "show"); err != nil || len(host.Providers) == 0 {
			w.Errorf("providers of %s: %v %v %s", h.Name, host.Providers, err, host.ProvidersError)
		}
		for _, p := range host.Providers {
			for class, n := range p.Usages {
				if n != 0 {
					w.Errorf("Placement still counts %d %s on %s", n, class, p.Name)
				}
			}
		}
	}
}

// migration waits for the migration of a guest that a condition holds for.
func (w *world) migration(h *lab.Host, name, what string, ok func(migration.Migration) bool) migration.Migration {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	for {
		l := ask[api.MigrationList](w, h, "migration", "list")
		for _, m := range l.Migrations {
			if m.InstanceName == name && ok(m) {
				return m
			}
		}
		select {
		case <-ctx.Done():
			w.Fatalf("wait until migration of %s %s: last seen %+v", name, what, l.Migrations)
		case <-time.After(100 * time.Millisecond): // each look is a process
		}
	}
}

func flowing(m migration.Migration) bool { return !m.Done() && m.Progress.MemoryProcessed > 4<<20 }

func decodeError(w *world, r fleet.Result) api.ErrorDetail {
	w.Helper()
	var body api.ErrorBody
	for _, text := range []string{r.Stdout, r.Stderr} {
		if err := unmarshalLast(text, &body); err == nil && body.Error.Kind != "" {
			return body.Error
		}
	}
	w.Fatalf("no error body in the answer:\n%s%s", r.Stdout, r.Stderr)
	return api.ErrorDetail{Kind: fault.Internal}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
