package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// Guests that are powered off for a move cannot prove it by heartbeats that go on. They
// tell at each boot which machine they have and what they find on their disk: every
// block that the boot before wrote last must be there.

// coldGuest is a guest that powers itself off when it is asked to.
func coldGuest(name string) guest.Options {
	return guest.Options{Name: name, Dirty: 8, Rate: 4, Devices: guest.AgentChannel}
}

// boots waits until a guest has booted n times on a host, and gives what it said then.
func (w *world) boots(h *lab.Host, name string, n int) []guest.Boot {
	w.Helper()
	deadline := time.Now().Add(patience)
	for {
		var boots []guest.Boot
		f, err := os.Open(h.Console(name))
		if err == nil {
			boots, err = guest.ParseBoots(f)
			f.Close()
		}
		if err != nil && !os.IsNotExist(err) {
			w.Fatal(err)
		}
		if len(boots) >= n {
			return boots
		}
		if time.Now().After(deadline) {
			w.Fatalf("wait for boot %d of %s on %s: %d so far", n, name, h.Name, len(boots))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// wrote waits for some heartbeats of the newest boot, so that there is something on its
// disk, and gives that boot.
func (w *world) wrote(h *lab.Host, name string) guest.Boot {
	w.Helper()
	boots := w.boots(h, name, 1)
	last := boots[len(boots)-1]
	for n := 5; ; n++ {
		beats := w.beats(h, name, n)
		if b := beats[len(beats)-1]; b.Boot == last.ID && b.N >= 5 {
			if b.Bad+b.DiskBad > 0 {
				w.Errorf("guest %s on %s says %+v", name, h.Name, b)
			}
			return last
		}
	}
}

// followed requires that a boot found on its disk what the one before had written.
func (w *world) followed(name string, before, now guest.Boot) {
	w.Helper()
	if now.Before != before.ID || now.Lost > 0 || now.Kept == 0 {
		w.Errorf("guest %s booted and found on its disk what boot %q left, %d blocks as written and %d not; want boot %q and none lost", name, now.Before, now.Kept, now.Lost, before.ID)
	}
}

// claimsOf are a guest's claims, as "HOST KIND STATE".
func (w *world) claimsOf(name string) []string {
	w.Helper()
	var out []string
	for _, h := range w.Hosts {
		for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
			if c.Name == name {
				out = append(out, h.Name+" "+c.Kind+" "+c.State)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) finished(name string) migration.Migration {
	w.Helper()
	return w.migration(w.a, name, "waits to be confirmed", func(m migration.Migration) bool { return m.Status == migration.StatusFinished })
}

func TestCold_TheGuestBootsWithItsDiskOnTheOtherHost(t *testing.T) {
	w := start(t)
	w.boot(w.a, coldGuest("c1"))
	first := w.wrote(w.a, "c1")
	began := time.Now()
	w.berth(w.a, "migrate", "c1", w.b.Name, "--cold")
	m := w.finished("c1")
	took := time.Since(began)
	second := w.wrote(w.b, "c1")
	w.followed("c1", first, second)
	w.require("state on "+w.a.Name, strings.HasPrefix(w.domain(w.a, "c1"), "shut off"), true)
	w.require("claims", w.claimsOf("c1"), []string{"host-a resize held", "host-b instance bound"})
	w.require("allocations", w.holds(w.b, "c1"), []string{"INSTANCE on host-b", "MIGRATION on host-a"})

	// What is left at the source starts by nobody's hand while the guest is elsewhere, and
	// the audit has nothing to say.
	w.refusedStart(w.a, "c1")
	w.require("audit", w.run(w.a, "audit").Code, 0)
	w.require("audit", w.run(w.b, "audit").Code, 0)

	// Asked of the host where the guest is now; its move is conducted by the other.
	w.berth(w.b, "resize", "confirm", "c1")
	w.livesOn("c1", w.b, w.a)
	m = w.migration(w.a, "c1", "is over", func(n migration.Migration) bool { return n.UUID == m.UUID && n.Done() })
	w.require("status", m.Status, migration.StatusConfirmed)
	t.Logf("moved cold in %v", took)
}

// refusedStart requires that a host does not start a guest that is another's.
func (w *world) refusedStart(h *lab.Host, name string) {
	w.Helper()
	if r := w.run(h, "instance", "start", name); r.Code == 0 {
		w.Errorf("%s started %s, whose token is elsewhere", h.Name, name)
	}
}

func TestResize_ToAnotherHostAndBack(t *testing.T) {
	w := start(t)
	w.boot(w.a, coldGuest("c2"))
	first := w.wrote(w.a, "c2")
	began := time.Now()
	w.berth(w.a, "resize", "c2", w.b.Name, "--flavor", "grown")
	m := w.finished("c2")
	t.Logf("resized to another host in %v", time.Since(began))
	grown := w.wrote(w.b, "c2")
	w.followed("c2", first, grown)
	if grown.CPUs != 2 || grown.MemoryMiB <= first.MemoryMiB || grown.DiskMiB != 2048 {
		t.Errorf("resized it has %+v, before it had %+v", grown, first)
	}
	d := ask[api.InstanceDetail](w, w.b, "instance", "show", "c2")
	w.require("flavor", d.Flavor.Name, "grown")

	w.berth(w.a, "resize", "revert", "c2")
	w.livesOn("c2", w.a, w.b)
	back := w.boots(w.a, "c2", 2)[1]
	w.followed("c2", first, back)
	if back.CPUs != first.CPUs || back.MemoryMiB != first.MemoryMiB || back.DiskMiB != first.DiskMiB {
		t.Errorf("reverted it has %+v, before it had %+v", back, first)
	}
	m = w.migration(w.a, "c2", "is over", func(n migration.Migration) bool { return n.UUID == m.UUID && n.Done() })
	w.require("status", m.Status, migration.StatusReverted)
	w.require("flavor", ask[api.InstanceDetail](w, w.a, "instance", "show", "c2").Flavor.Name, "small")
}

func TestResize_OnItsHost(t *testing.T) {
	w := start(t)
	w.boot(w.a, coldGuest("c3"))
	first := w.wrote(w.a, "c3")
	began := time.Now()
	w.berth(w.a, "resize", "c3", w.a.Name, "--flavor", "roomier")
	w.finished("c3")
	t.Logf("resized on its host in %v", time.Since(began))
	w.require("claims", w.claimsOf("c3"), []string{"host-a instance bound", "host-a resize held"})
	second := w.boots(w.a, "c3", 2)[1]
	w.followed("c3", first, second)
	if second.MemoryMiB <= first.MemoryMiB || second.DiskMiB != 2048 {
		t.Errorf("resized it has %+v, before it had %+v", second, first)
	}
	// Given back, its disk is the one that it had: what was written since is gone with it.
	w.berth(w.a, "resize", "revert", "c3")
	w.livesOn("c3", w.a, w.b)
	third := w.boots(w.a, "c3", 3)[2]
	w.followed("c3", first, third)
	w.require("memory given back", third.MemoryMiB, first.MemoryMiB)

	third = w.wrote(w.a, "c3")
	w.berth(w.a, "resize", "c3", w.a.Name, "--flavor", "roomier", "--confirm")
	w.livesOn("c3", w.a, w.b)
	w.followed("c3", third, w.boots(w.a, "c3", 4)[3])
}

// What cannot start at its destination runs again where it was, and not in error.
func TestResize_AGuestThatCannotStartThereRunsWhereItWas(t *testing.T) {
	w := start(t)
	w.boot(w.a, coldGuest("c4"))
	first := w.wrote(w.a, "c4")
	// QEMU appends to its console there, and a folder takes nothing.
	if err := os.MkdirAll(w.b.Console("c4"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := w.run(w.a, "migrate", "c4", w.b.Name, "--cold")
	w.require("exit code", r.Code, 8)
	w.livesOn("c4", w.a, w.b)
	w.followed("c4", first, w.boots(w.a, "c4", 2)[1])
	if text := r.Stdout + r.Stderr; !strings.Contains(text, "c4.console") {
		t.Errorf("the answer does not say why it could not start: %s", text)
	}
}

func TestRebuild_FromAnotherImage(t *testing.T) {
	w := start(t)
	w.boot(w.a, coldGuest("c5"))
	first := w.wrote(w.a, "c5")
	// The image is a disk that another boot has written.
	other := guest.Boot{ID: "00c5000000000001"}
	disk, err := guest.WrittenDisk(other.ID, 40, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	image := "/var/lib/libvirt/c5-image.raw"
	if err := os.WriteFile(w.a.Path(image), disk, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(w.a.Path(image)) })

	w.berth(w.a, "rebuild", "c5", "--image", image)
	m := w.migration(w.a, "c5", "is over", migration.Migration.Done)
	w.require("status", m.Status, migration.StatusDone)
	w.livesOn("c5", w.a, w.b)
	rebuilt := w.boots(w.a, "c5", 2)[1]
	w.followed("c5", other, rebuilt)
	w.require("disk", rebuilt.DiskMiB, first.DiskMiB)

	// An image that cannot be one leaves the guest as it runs.
	bad := "/var/lib/libvirt/c5-bad.qcow2"
	if err := os.WriteFile(w.a.Path(bad), []byte("no image"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(w.a.Path(bad)) })
	w.refused(2, w.a, "rebuild", "c5", "--image", bad)
	w.livesOn("c5", w.a, w.b)
	w.require("boots", len(w.boots(w.a, "c5", 2)), 2)
}

// Agents that die while a disk is shipped, and while the guest starts, cost a while and
// nothing else.
func TestCold_AgentsThatDieOnTheWay(t *testing.T) {
	w := start(t)
	o := coldGuest("c6")
	w.xml(w.a, &o)
	w.fill("c6", 192)
	w.berth(w.a, "instance", "create", "c6", "--flavor", "small", "--xml", "/var/lib/libvirt/c6.xml", "--start")
	t.Cleanup(func() { w.remove("c6") })
	first := w.wrote(w.a, "c6")
	w.berth(w.a, "migrate", "c6", w.b.Name, "--cold", "--detach")
	w.migration(w.a, "c6", "ships its disk", func(m migration.Migration) bool { return m.Progress.DiskProcessed > 0 })
	for _, h := range w.Hosts {
		w.Agent(h.Name).Kill()
	}
	for _, h := range w.Hosts {
		if err := w.StartAgent(w.ctx, h.Name); err != nil {
			t.Fatal(err)
		}
		if err := w.WaitReady(w.ctx, h.Name); err != nil {
			t.Fatal(err)
		}
	}
	back := time.Now()
	m := w.finished("c6")
	t.Logf("with its agents back, it was there after %v; the disk has %d bytes", time.Since(back), m.Progress.DiskTotal)
	w.followed("c6", first, w.wrote(w.b, "c6"))
	w.berth(w.a, "resize", "confirm", "c6")
	w.livesOn("c6", w.b, w.a)
}

// fill grows the disk file of a guest that is not there yet by MiB that it does not look at.
func (w *world) fill(name string, mib int) {
	w.Helper()
	path := filepath.Join(images, name+".qcow2")
	if _, err := w.a.Exec(w.ctx, "qemu-img", "resize", "-q", path, fmt.Sprintf("%dM", mib+64)); err != nil {
		w.Fatal(err)
	}
	if _, err := w.a.Exec(w.ctx, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -q -P 0x5a 48M %dM", mib), path); err != nil {
		w.Fatal(err)
	}
}
