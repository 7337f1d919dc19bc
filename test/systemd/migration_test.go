package systemd

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/stream"
	"berth/test/guest"
	"berth/test/lab"
)

// moved is the guest that goes from one machine to the other.
const moved = "web-1"

// move is a live migration between two machines.
type move struct {
	from, to *machine
	streams  map[string]stream.Status // by machine, as they were when memory began to flow
	qemu     string                   // pid of the guest's at its source
}

// TestLiveMigration moves a real guest between two machines whose agents are, meanwhile, told,
// ended and replaced in every way that systemd and dpkg have.
func TestLiveMigration(t *testing.T) {
	require(t)
	lab.Require(t)
	g, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	all := hypervisors(t, g, "host-a", "host-b")
	v := &move{from: all[0], to: all[1], streams: map[string]stream.Status{}}
	for _, story := range []struct {
		name string
		tell func(*testing.T, *move)
	}{
		{"two hosts in mode manage", manages},
		{"a guest", boots},
		{"a live migration begins", begins},
		{"a reload at its source", atSource(reloads)},
		{"a restart at its source", atSource(restarts)},
		{"an upgrade at its source", atSource(upgrade)},
		{"killed at its source", atSource(killed)},
		{"the watchdog at its source", atSource(bitten)},
		{"a removal at its source", atSource(removalRefused)},
		{"killed at its destination", atDestination(killed)},
		{"an upgrade at its destination", atDestination(upgrade)},
		{"it ends well", ends},
		{"purged under its guest", purged},
	} {
		start := time.Now()
		ok := t.Run(story.name, func(t *testing.T) {
			v := &move{from: v.from.in(t), to: v.to.in(t), streams: v.streams, qemu: v.qemu}
			t.Cleanup(func() { v.lastWords(t) })
			story.tell(t, v)
			t.Logf("%.1f s", time.Since(start).Seconds())
		})
		if !ok {
			break
		}
	}
	t.Logf("%.1f s in all", time.Since(began).Seconds())
}

// lastWords shows what all who took part have said last, where something is wrong.
func (v *move) lastWords(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, m := range []*machine{v.from, v.to} {
		for _, unit := range []string{service, "berth-stream@*", "berth-placement.service", "libvirtd.service"} {
			said, _ := m.try("journalctl", "--no-pager", "--output=cat", "--unit="+unit)
			t.Logf("%s of %s:\n%s", unit, m.name, tail([]byte(said), 20))
		}
		said, _ := m.try("sh", "-c", "berth status; berth migration list; tail -n 5 /var/log/libvirt/qemu/*.log")
		t.Logf("%s says:\n%s", m.name, said)
	}
}

// manages: Placement on the one, as docs/how-to/placement.md says, and agents on both.
func manages(t *testing.T, v *move) {
	v.from.write("/etc/systemd/system/berth-placement.service.d/tls.conf", placementDropIn(t), 0o644)
	v.from.run("systemctl", "daemon-reload")
	v.from.run("systemctl", "start", "berth-placement.service")
	for _, m := range []*machine{v.from, v.to} {
		configure(m, "")
		m.write("/etc/berth/berth.toml.d/50-host.toml", "[agent]\nmode = \"manage\"\n\n[placement]\nurl = \"https://host-a:8778\"\ninterval = \"5s\"\n\n[migration]\nstall_timeout = \"1m\"\nallowed_paths = [\""+lab.CacheDir()+"\"]\n", 0o644)
		m.write("/etc/berth/flavors.d/small.toml", "name = \"small\"\nvcpus = 1\nmemory_mb = 128\ndisk_gb = 0\n", 0o644)
		m.run("systemctl", "start", service)
		m.well()
	}
}

func boots(t *testing.T, v *move) {
	g, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	v.from.write("/root/"+moved+".xml", guest.DomainXML(guest.Options{Name: moved, Guest: g, Dirty: 8, Rate: 4, Beat: 100 * time.Millisecond}), 0o644)
	v.from.berth("instance", "create", moved, "--flavor", "small", "--xml", "/root/"+moved+".xml", "--start")
	v.from.beats(moved, 3)
}

// begins: the guest writes faster than memory may go, so that it ends when it is let.
func begins(t *testing.T, v *move) {
	v.from.berth("migrate", moved, v.to.name, "--bandwidth", "1MiB/s", "--detach")
	v.until("memory flows", func(r migration.Migration) bool { return r.Progress.MemoryProcessed > 1<<20 })
	for _, m := range []*machine{v.from, v.to} {
		s, err := m.stream()
		if err != nil {
			t.Fatal(err)
		}
		v.streams[m.name] = s
	}
	v.goesOn(t)
}

// stream is the only one of a machine.
func (m *machine) stream() (stream.Status, error) {
	list, err := tells[struct{ Streams []stream.Status }](m, "stream", "list")
	if err == nil && len(list.Streams) != 1 {
		err = fmt.Errorf("%s has %d streams, want one", m.name, len(list.Streams))
	}
	if err != nil {
		return stream.Status{}, err
	}
	return list.Streams[0], nil
}

// until waits for what the record of the move says, by whichever agent answers.
func (v *move) until(what string, ok func(migration.Migration) bool) migration.Migration {
	v.from.t.Helper()
	var r migration.Migration
	v.from.await(what, func() error {
		var err error
		if r, err = tells[migration.Migration](v.from, "migration", "show", moved); err == nil && !ok(r) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	return r
}

// atSource has the story of one machine told at the move's source, and looks at the move after.
func atSource(story func(*testing.T, *machine)) func(*testing.T, *move) {
	return func(t *testing.T, v *move) { story(t, v.from); v.goesOn(t) }
}

// atDestination is atSource for the other.
func atDestination(story func(*testing.T, *machine)) func(*testing.T, *move) {
	return func(t *testing.T, v *move) { story(t, v.to); v.goesOn(t) }
}

// goesOn requires that nothing of the move was touched: units and processes of its streams are
// those that were there when it began, memory flows through them, and the guest runs.
func (v *move) goesOn(t *testing.T) {
	t.Helper()
	for _, m := range []*machine{v.from, v.to} {
		was := v.streams[m.name]
		unit := "berth-stream@" + was.ID.String() + ".service"
		if state, pid := m.property(unit, "ActiveState"), m.property(unit, "MainPID"); state != "active" || pid != fmt.Sprint(was.PID) {
			t.Errorf("%s of %s is %s with process %s, and had %d", unit, m.name, state, pid, was.PID)
		}
		m.await("memory through the stream of "+m.name, func() error {
			now, err := m.stream()
			if err != nil {
				return err
			}
			if a, b := now.Of(stream.Memory), was.Of(stream.Memory); now.PID != was.PID || a.Sent+a.Received <= b.Sent+b.Received {
				return fmt.Errorf("%+v, and was %+v", now, was)
			}
			v.streams[m.name] = now
			return nil
		})
	}
	if pid := strings.TrimSpace(v.from.read("/run/libvirt/qemu/" + moved + ".pid")); v.qemu == "" {
		v.qemu = pid
	} else if pid != v.qemu {
		t.Errorf("the guest's QEMU was %s and is %s", v.qemu, pid)
	}
	v.from.beats(moved, 3)
	v.until("it goes on", func(r migration.Migration) bool { return !r.Done() })
}

// ends: the move is let end, and the guest is on the other host alone.
func ends(t *testing.T, v *move) {
	v.from.berth("migration", "set", moved, "--bandwidth", "200MiB/s")
	r := v.until("its end", migration.Migration.Done)
	if r.Outcome != migration.OutcomeCompleted {
		t.Fatalf("the migration has ended: %s, %v", r.Outcome, r.Error)
	}
	source, err := guest.ReadConsole(v.from.console(moved))
	if err != nil {
		t.Fatal(err)
	}
	proof, err := guest.Continuity(source, v.to.beats(moved, 10))
	if err != nil {
		t.Error(err)
	}
	t.Log(proof)
	for _, m := range []*machine{v.from, v.to} {
		m.well()
		m.await("end of the streams' units", func() error {
			if left := m.run("systemctl", "list-units", "--plain", "--no-legend", "berth-stream@*"); left != "" {
				return errors.New(left)
			}
			return nil
		})
		if left, err := filepath.Glob(m.path("/run/berth/streams") + "/*"); err != nil || len(left) > 0 {
			t.Errorf("left of streams on %s: %v, %v", m.name, left, err)
		}
	}
	if out := v.from.run("virsh", "-q", "-c", "qemu:///system", "list", "--all"); out != "" {
		t.Errorf("left at the source: %s", out)
	}
	var claims []string
	for _, m := range []*machine{v.from, v.to} {
		list, err := tells[api.ClaimList](m, "claim", "list")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Claims {
			claims = append(claims, m.name+" "+c.Kind+" "+c.State)
		}
	}
	if got, want := fmt.Sprint(claims), "[host-b instance bound]"; got != want {
		t.Errorf("claims %s, want %s", got, want)
	}
	detail, err := tells[api.InstanceDetail](v.to, "instance", "show", moved)
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, a := range detail.Allocations {
		host, _, _ := strings.Cut(a.Provider, "_")
		held = append(held, a.ConsumerType+" on "+host)
	}
	if got, want := fmt.Sprint(held), "[INSTANCE on host-b]"; got != want {
		t.Errorf("allocations %s %s, want %s", got, detail.AllocationsError, want)
	}
	v.to.await("an audit that finds nothing", func() error { _, err := v.to.try("berth", "audit", "--all"); return err })
}

// removalRefused: no agent would be left to give the guest to one of its hosts.
func removalRefused(t *testing.T, m *machine) {
	if out, err := m.try("dpkg", "--no-triggers", "--remove", "berth"); err == nil || !strings.Contains(err.Error(), "guests are moving from or to this host") {
		t.Errorf("the package is removed: %s, %v", out, err)
	}
	if state := m.run("dpkg-query", "--show", "--showformat=${db:Status-Status}", "berth"); state != "installed" {
		t.Errorf("the package is %s", state)
	}
	m.await("the agent", func() error { return m.ask("/v1/claims") })
}

// purged: the guest stays, of Berth nothing does.
func purged(t *testing.T, v *move) {
	const ours = "urn:berth:"
	dump := func() string { return v.to.run("virsh", "-c", "qemu:///system", "dumpxml", moved) }
	if xml := dump(); !strings.Contains(xml, ours) {
		t.Errorf("the guest's document says nothing of Berth: %s", xml)
	}
	before := v.to.beats(moved, 1)
	for _, m := range []*machine{v.from, v.to} {
		m.dpkg("--purge", "berth")
		if units := m.run("systemctl", "list-units", "--plain", "--no-legend", "berth*"); units != "" {
			t.Errorf("left on %s: %s", m.name, units)
		}
	}
	if xml := dump(); strings.Contains(xml, ours) {
		t.Errorf("the guest's document still says: %s", xml)
	}
	after := v.to.beats(moved, 5)
	if _, err := guest.Healthy(after[len(before)-1:]); err != nil {
		t.Error(err)
	}
}
