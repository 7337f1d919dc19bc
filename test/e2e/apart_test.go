package e2e

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// Three hosts: host-a and host-b cannot send each other a packet, and host-c reaches
// both. What comes from one to the other has come through host-c, or not at all.

// apart is a fleet of such hosts; after silence of its conductor a source decides alone.
func apart(t *testing.T, silence string) *world {
	t.Helper()
	conducted := "[migration]\nconductor_silence = \"" + silence + "\"\n"
	w := ownWith(t, fleet.Options{
		Names: []string{"host-a", "host-b", "host-c"}, Apart: []string{"host-a", "host-b"}, Conductors: []string{"host-c"},
		Flavors: map[string]string{"grown": "name = \"grown\"\nvcpus = 2\nmemory_mb = 192\ndisk_gb = 2\n"},
		Config: map[string]string{
			"host-a": conducted, "host-b": conducted,
			"host-c": "[rights]\nshare_nothing = [\"user:root\"]\n",
		},
	})
	for from, to := range map[*lab.Host]*lab.Host{w.a: w.b, w.b: w.a} {
		if _, err := from.Exec(w.ctx, "ping", "-c1", "-W1", to.MgmtIP()); err == nil {
			t.Fatalf("%s reaches %s", from.Name, to.Name)
		}
	}
	return w
}

// TestApart is one fleet for stories that need the same.
func TestApart(t *testing.T) {
	f := apart(t, "1m").Fleet
	for name, story := range map[string]func(w *world, c *lab.Host){
		"resized by a third host and back":        (*world).apartResizedAndBack,
		"the conductor dies and comes back":       (*world).apartConductorDies,
		"an alternate takes what another refuses": (*world).apartAlternate,
		"nobody asks for it without the right":    (*world).apartWithoutRight,
	} {
		t.Run(name, func(t *testing.T) {
			w := enter(t, f)
			t.Cleanup(w.requireEmpty)
			story(w, f.Hosts[2])
		})
	}
}

// waits gives the migration of a guest by the host that conducts it, finished.
func (w *world) waits(c *lab.Host, name string) migration.Migration {
	w.Helper()
	return w.migration(c, name, "waits to be confirmed", func(m migration.Migration) bool { return m.Status == migration.StatusFinished })
}

// ended gives it when it is over.
func (w *world) ended(c *lab.Host, m migration.Migration) migration.Migration {
	w.Helper()
	return w.migration(c, m.InstanceName, "is over", func(n migration.Migration) bool { return n.UUID == m.UUID && n.Done() })
}

// recordsOf are the hosts that list a guest, and those that have a hidden record of it.
func (w *world) recordsOf(name string) (shown, hidden []string) {
	w.Helper()
	for _, h := range w.Hosts {
		for _, flags := range [][]string{nil, {"--hidden"}} {
			list := ask[api.InstanceList](w, h, append([]string{"instance", "list"}, flags...)...)
			there := slices.ContainsFunc(list.Instances, func(i api.Instance) bool { return i.Name == name })
			switch {
			case there && flags == nil:
				shown = append(shown, h.Name)
			case there && !slices.Contains(shown, h.Name):
				hidden = append(hidden, h.Name)
			}
		}
	}
	return shown, hidden
}

func (w *world) apartResizedAndBack(c *lab.Host) {
	w.boot(w.a, coldGuest("s1"))
	first := w.wrote(w.a, "s1")

	// Without the third host there is no way, and the refusal says which one there is.
	if _, message := w.refused(6, w.a, "resize", "s1", w.b.Name, "--flavor", "grown"); !strings.Contains(message, w.b.Name) {
		w.Errorf("the refusal names no host: %s", message)
	}
	w.livesOn("s1", w.a, w.b)

	plan := ask[migration.Plan](w, c, "plan", "s1", w.b.Name, "--flavor", "grown", "--share-nothing")
	i := slices.IndexFunc(plan.Hosts, func(h migration.PlanHost) bool { return h.Name == w.b.Name })
	if i < 0 || plan.Hosts[i].Way != migration.WayRelay || plan.Hosts[i].WayReason == "" || plan.Chosen != w.b.Name {
		w.Errorf("the plan does not go to %s by a relay: %+v", w.b.Name, plan)
	}

	began := time.Now()
	w.berth(c, "resize", "s1", w.b.Name, "--flavor", "grown", "--share-nothing")
	m := w.waits(c, "s1")
	w.Logf("resized to a host that shares nothing in %v", time.Since(began))
	w.require("conductor", m.Conductor, c.Name)
	w.require("way", m.Way, migration.WayRelay)
	grown := w.wrote(w.b, "s1")
	w.followed("s1", first, grown)
	if grown.CPUs != 2 || grown.MemoryMiB <= first.MemoryMiB || grown.DiskMiB != 2048 {
		w.Errorf("resized it has %+v, before it had %+v", grown, first)
	}
	w.require("claims", w.claimsOf("s1"), []string{"host-a resize held", "host-b instance bound"})
	w.require("allocations", w.holds(w.b, "s1"), []string{"INSTANCE on host-b", "MIGRATION on host-a"})
	shown, hidden := w.recordsOf("s1")
	w.require("shown on", shown, []string{w.b.Name})
	w.require("hidden on", hidden, []string{w.a.Name})
	w.refusedStart(w.a, "s1")
	for _, h := range w.Hosts {
		w.require("audit of "+h.Name, w.run(h, "audit").Code, 0)
	}

	// A volume that was attached meanwhile comes back with the guest.
	volume := filepath.Join(w.SharedDir(), "s1-volume.raw")
	if err := os.WriteFile(volume, make([]byte, 1<<20), 0o666); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.Remove(volume) })
	if _, err := w.b.Virsh(w.ctx, "attach-disk", "s1", volume, "vdz", "--persistent", "--subdriver", "raw"); err != nil {
		w.Fatal(err)
	}
	w.berth(c, "resize", "revert", "s1")
	w.ended(c, m)
	w.livesOn("s1", w.a, w.b)
	back := w.boots(w.a, "s1", 2)[1]
	w.followed("s1", first, back)
	w.require("memory given back", back.MemoryMiB, first.MemoryMiB)
	if xml, err := w.a.Virsh(w.ctx, "dumpxml", "--inactive", "s1"); err != nil || !strings.Contains(xml, volume) {
		w.Errorf("the guest is back without the volume that it was given meanwhile: %v\n%s", err, xml)
	}
	shown, hidden = w.recordsOf("s1")
	w.require("shown on", shown, []string{w.a.Name})
	w.require("hidden on", hidden, []string(nil))
}

// The one who conducts dies while the disk is on its way, and again when the guest has
// been handed over; nobody else can say what became of it.
func (w *world) apartConductorDies(c *lab.Host) {
	o := coldGuest("s2")
	w.xml(w.a, &o)
	w.fill("s2", 96)
	w.berth(w.a, "instance", "create", "s2", "--flavor", "small", "--xml", "/var/lib/libvirt/s2.xml", "--start")
	w.Cleanup(func() { w.remove("s2") })
	first := w.wrote(w.a, "s2")
	w.berth(c, "migrate", "s2", w.b.Name, "--cold", "--share-nothing", "--detach", "--bandwidth", "40MiB/s")
	w.migration(c, "s2", "ships its disk", func(m migration.Migration) bool { return m.Progress.DiskProcessed > 0 })
	w.restart(c)
	w.migration(c, "s2", "is handed over", func(m migration.Migration) bool {
		return slices.ContainsFunc(m.Steps, func(s migration.StepRecord) bool { return s.Name == migration.StepAcceptHanded })
	})
	w.restart(c)
	m := w.waits(c, "s2")
	w.followed("s2", first, w.wrote(w.b, "s2"))
	w.berth(c, "resize", "confirm", "s2")
	w.require("status", w.ended(c, m).Status, migration.StatusConfirmed)
	w.livesOn("s2", w.b, w.a)
	shown, hidden := w.recordsOf("s2")
	w.require("shown on", shown, []string{w.b.Name})
	w.require("hidden on", hidden, []string(nil))
}

// A conductor that never comes back: the source decides alone, and the guest runs.
func TestApart_AConductorThatStaysAwayCostsAWhile(t *testing.T) {
	w := apart(t, "8s") // above the three seconds in which the kernel finds no route from host-a to host-b
	c := w.Hosts[2]
	o := coldGuest("s3")
	w.xml(w.a, &o)
	w.fill("s3", 96)
	w.berth(w.a, "instance", "create", "s3", "--flavor", "small", "--xml", "/var/lib/libvirt/s3.xml", "--start")
	t.Cleanup(func() { w.remove("s3") })
	first := w.wrote(w.a, "s3")
	w.berth(c, "migrate", "s3", w.b.Name, "--cold", "--share-nothing", "--detach", "--bandwidth", "5MiB/s")
	m := w.migration(c, "s3", "ships its disk", func(m migration.Migration) bool { return m.Progress.DiskProcessed > 0 })
	w.Agent(c.Name).Kill()
	away := time.Now()
	w.followed("s3", first, w.boots(w.a, "s3", 2)[1])
	t.Logf("the guest ran again %v after its conductor was away", time.Since(away))

	// Back at last it finds that it was too late, and leaves nothing.
	if err := cmp.Or(w.StartAgent(w.ctx, c.Name), w.WaitReady(w.ctx, c.Name)); err != nil {
		t.Fatal(err)
	}
	m = w.ended(c, m)
	w.require("outcome", m.Outcome, migration.OutcomeUndone)
	w.livesOn("s3", w.a, w.b)
	w.require("boots", len(w.boots(w.a, "s3", 2)), 2)
	for _, h := range w.Hosts {
		w.require("audit of "+h.Name, w.run(h, "audit").Code, 0)
	}
}

// One destination that refuses is followed by the next, also where it does so late.
func (w *world) apartAlternate(c *lab.Host) {
	w.setApart(false)
	defer w.setApart(true)
	hook := w.b.Path("/etc/berth/hooks.d/prep_resize/10-refuses")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho not on a Sunday >&2\nexit 1\n"), 0o755); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(hook)) })
	w.boot(w.a, coldGuest("s4"))
	first := w.wrote(w.a, "s4")
	w.berth(w.a, "migrate", "s4", w.b.Name, "--cold", "--alternate", c.Name, "--confirm")
	w.followed("s4", first, w.wrote(c, "s4"))
	w.livesOn("s4", c, w.a)
	m := w.migration(w.a, "s4", "is over", migration.Migration.Done)
	if len(m.Refusals) != 1 || m.Refusals[0].DestCompute != w.b.Name || !strings.Contains(m.Refusals[0].Message, "10-refuses") {
		w.Errorf("it went to %s by refusals %+v, want one of %s by its hook", m.DestCompute, m.Refusals, w.b.Name)
	}
}

// Who has no right asks for nothing, and is told what it takes.
func (w *world) apartWithoutRight(*lab.Host) {
	w.boot(w.a, guest.Options{Name: "s5"})
	codes, message := w.refused(3, w.a, "migrate", "s5", w.b.Name, "--cold", "--share-nothing")
	w.require("reasons of "+message, codes, []string{"right_missing"})
	w.livesOn("s5", w.a, w.b)
}

// setApart keeps the two hosts from reaching each other, or lets them.
func (w *world) setApart(apart bool) {
	w.Helper()
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := h.SetApart(w.ctx, apart); err != nil {
			w.Fatal(err)
		}
	}
}

// restart kills a host's agent and starts it again.
func (w *world) restart(h *lab.Host) {
	w.Helper()
	w.Agent(h.Name).Kill()
	if err := cmp.Or(w.StartAgent(w.ctx, h.Name), w.WaitReady(w.ctx, h.Name)); err != nil {
		w.Fatal(err)
	}
}
