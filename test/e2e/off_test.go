package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
)

// lose has a host's libvirtd lose the process of an instance: its status file is cut short
// while the daemon is away, as a full /run or a crash does it.
func (w *world) lose(h *lab.Host, name string) {
	w.Helper()
	if err := h.KillLibvirtd(w.ctx); err != nil {
		w.Fatal(err)
	}
	if err := os.Truncate(h.Path("/run/libvirt/qemu/"+name+".xml"), 200); err != nil {
		w.Fatal(err)
	}
	if err := h.StartLibvirtd(w.ctx); err != nil {
		w.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.HasPrefix(w.domain(h, name), "shut off"); {
		if time.Now().After(deadline) {
			w.Fatalf("libvirt on %s calls %s %s", h.Name, name, w.domain(h, name))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// refusedFor requires that a command is refused for a reason, at once or by its move, and
// gives what it says.
func (w *world) refusedFor(code string, h *lab.Host, args ...string) string {
	w.Helper()
	r := w.run(h, append(args, "--json")...)
	if said := r.Stdout + r.Stderr; (r.Code == 3 || r.Code == 8) && strings.Contains(said, strconv.Quote(code)) {
		return said
	}
	w.Errorf("berth %s on %s: exit code %d, want a refusal with %s\n%s%s", strings.Join(args, " "), h.Name, r.Code, code, r.Stdout, r.Stderr)
	return ""
}

// TestOff_AProcessThatLibvirtdLostIsSeen: libvirtd says shut off, and QEMU runs and writes.
// Nothing moves, changes, starts or removes the instance; the remedy of the refusals ends
// the contradiction, and then all is possible.
func TestOff_AProcessThatLibvirtdLostIsSeen(t *testing.T) {
	w := start(t)
	const name = "lost1"
	w.boot(w.a, coldGuest(name))
	first := w.wrote(w.a, name)
	pid, err := w.a.QEMUPID(name)
	if err != nil {
		t.Fatal(err)
	}
	w.lose(w.a, name)
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
		t.Fatalf("QEMU did not outlive its libvirtd: %v", err)
	}

	w.exec(w.a, "qemu-img", "create", "-q", "-f", "qcow2", images+"/other.qcow2", "32M")
	defer os.Remove(w.a.Path(images + "/other.qcow2"))
	var said string
	for _, args := range [][]string{
		{"migrate", name, w.b.Name, "--cold"},
		{"resize", name, w.b.Name, "--flavor", "grown"},
		{"resize", name, w.a.Name, "--flavor", "grown"},
		{"rebuild", name, "--image", images + "/other.qcow2"},
		{"instance", "start", name},
		{"instance", "delete", name, "--disks", "--force"},
	} {
		said = w.refusedFor("qemu_runs", w.a, args...)
	}
	beats := w.beats(w.a, name, 1)
	w.beats(w.a, name, len(beats)+3) // it runs on, with its disk
	w.require("domain on "+w.b.Name, w.domain(w.b, name), "")
	w.require("claims", w.claimsOf(name), []string{"host-a instance bound"})

	kill := regexp.MustCompile(`kill \d+`).FindString(said)
	w.exec(w.a, "sh", "-c", kill)
	for deadline := time.Now().Add(patience); w.run(w.a, "migrate", name, w.b.Name, "--cold").Code != 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q did not help", kill)
		}
	}
	w.finished(name)
	w.berth(w.a, "resize", "confirm", name)
	w.berth(w.b, "instance", "start", name)
	w.followed(name, first, w.wrote(w.b, name))
	w.livesOn(name, w.b, w.a)
}

// TestOff_SavedMemoryIsNeitherLeftNorLost: libvirtd forgets why a domain is off, and keeps its
// memory in a file. No command leaves or removes that unasked; each remedy of the refusals
// runs as typed.
func TestOff_SavedMemoryIsNeitherLeftNorLost(t *testing.T) {
	w := start(t)
	const name = "saved1"
	w.boot(w.a, coldGuest(name))
	w.exec(w.a, "qemu-img", "create", "-q", "-f", "qcow2", images+"/other.qcow2", "32M")
	defer os.Remove(w.a.Path(images + "/other.qcow2"))
	refused := func(code string) (said string) {
		t.Helper()
		for _, args := range [][]string{
			{"migrate", name, w.b.Name, "--cold"},
			{"resize", name, w.b.Name, "--flavor", "grown"},
			{"resize", name, w.a.Name, "--flavor", "grown"},
			{"rebuild", name, "--image", images + "/other.qcow2"},
			{"instance", "delete", name, "--disks", "--force"},
		} {
			said = w.refusedFor(code, w.a, args...)
		}
		return said
	}
	save := func() {
		t.Helper()
		w.exec(w.a, "virsh", "managedsave", name)
		if err := w.a.KillLibvirtd(w.ctx); err != nil {
			t.Fatal(err)
		}
		if err := w.a.StartLibvirtd(w.ctx); err != nil {
			t.Fatal(err)
		}
		w.require("state", strings.TrimSpace(w.domain(w.a, name)), "shut off (unknown)")
	}
	remedy := func(said, pattern string) {
		t.Helper()
		command := regexp.MustCompile(pattern).FindString(said)
		if command == "" {
			t.Fatalf("no %s in %s", pattern, said)
		}
		w.exec(w.a, "sh", "-c", command)
	}

	beats := len(w.beats(w.a, name, 3))
	save()
	remedy(refused("saved"), `virsh start \w+`)
	if got := w.beats(w.a, name, beats+3); got[len(got)-1].Boot != got[beats-1].Boot {
		t.Error("it booted, in place of going on from its memory")
	}
	w.exec(w.a, "virsh", "snapshot-create-as", name, "snap1")
	remedy(refused("has_snapshot"), `virsh snapshot-delete \w+ --metadata \w+`)

	first := w.wrote(w.a, name)
	save()
	w.berth(w.a, "migrate", name, w.b.Name, "--cold", "--discard-saved-state")
	w.finished(name)
	w.berth(w.a, "resize", "confirm", name)
	w.berth(w.b, "instance", "start", name)
	w.followed(name, first, w.wrote(w.b, name))
	w.livesOn(name, w.b, w.a)
}

// TestOff_AnUndefineHindersNoRevert: somebody undefines what a move left while it waits to be
// confirmed.
func TestOff_AnUndefineHindersNoRevert(t *testing.T) {
	w := start(t)
	const name = "left1"
	w.boot(w.a, coldGuest(name))
	first := w.wrote(w.a, name)
	w.berth(w.a, "migrate", name, w.b.Name, "--cold")
	w.finished(name)
	second := w.wrote(w.b, name)
	w.followed(name, first, second)
	w.exec(w.a, "virsh", "undefine", name)
	w.berth(w.a, "resize", "revert", name)
	w.livesOn(name, w.a, w.b)
	boots := w.boots(w.a, name, 2)
	w.followed(name, first, boots[len(boots)-1]) // what its disk was before the move
}

// TestOff_ALeftDefinitionHindersNoWayBack: virsh migrate left the definition behind.
func TestOff_ALeftDefinitionHindersNoWayBack(t *testing.T) {
	w := guarded(t, nil)
	w.diskless(w.a, "left2")
	w.virsh(w.a, "migrate", "--live", "--p2p", "--persistent", "left2", uri(w.b))
	w.ownedBy("left2", w.b)
	w.alive("left2", w.a, w.b)
	before := w.beats(w.a, "left2", 1) // the console of both stays there is one file
	w.require("what is left on "+w.a.Name, w.domain(w.a, "left2"), "shut off (migrated)")
	w.berth(w.b, "migrate", "left2", w.a.Name)
	w.ownedBy("left2", w.a)
	after := w.beats(w.a, "left2", len(before)+3)
	if last := after[len(after)-1]; last.Boot != before[0].Boot || last.N <= before[len(before)-1].N || last.Bad > 0 {
		t.Errorf("it did not live on: %+v, and %+v on its return", before[len(before)-1], last)
	}
	w.require("domain on "+w.b.Name, w.domain(w.b, "left2"), "")
	w.remove("left2")
}

// exec runs a command on a host that must succeed.
func (w *world) exec(h *lab.Host, args ...string) string {
	w.Helper()
	out, err := h.Exec(w.ctx, args...)
	if err != nil {
		w.Fatalf("%s on %s: %v\n%s", strings.Join(args, " "), h.Name, err, out)
	}
	return out
}
