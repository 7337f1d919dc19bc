package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// A refusal gives every reason in one answer, with an exit code for programs,
// and leaves the guest where it was and nothing behind on either host.
func TestRefusals_TellAllReasonsAndLeaveNothing(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "r1", Dirty: 8, Rate: 16})
	o := guest.Options{Name: "r2"}
	w.xml(w.a, &o)
	t.Cleanup(func() { w.remove("r2") })
	w.berth(w.a, "instance", "create", "r2", "--flavor", "small", "--xml", "/var/lib/libvirt/r2.xml")

	// What stands in the way on host-b in some rows.
	occupy := func() func() {
		path := w.b.Path(images + "/r1.qcow2")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("somebody's data"), 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			text, err := os.ReadFile(path)
			if err != nil || string(text) != "somebody's data" {
				t.Errorf("the file in the way is now %q, %v", text, err)
			}
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
	fill := func() func() {
		for _, n := range []string{"fill-1", "fill-2"} {
			g := guest.Options{Name: n}
			w.xml(w.b, &g)
		}
		// Guests that are not started hold their claims as well.
		free := ask[api.ClaimList](w, w.b, "claim", "list").Usage.Free.MemoryMB
		w.berth(w.b, "instance", "create", "fill-1", "--vcpus", "1", "--memory", itoa(free-64), "--xml", "/var/lib/libvirt/fill-1.xml")
		return func() { w.remove("fill-1"); w.remove("fill-2") }
	}
	name := func() func() {
		g := guest.Options{Name: "r1", UUID: "11111111-2222-4333-8444-555555555555", Disks: []guest.Disk{{Path: images + "/other.qcow2"}}}
		w.xml(w.b, &g)
		if _, err := w.b.Virsh(w.ctx, "define", "/var/lib/libvirt/r1.xml"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := w.b.Virsh(w.ctx, "undefine", "r1"); err != nil {
				t.Error(err)
			}
			for _, f := range []string{images + "/other.qcow2", "/var/lib/libvirt/r1.xml"} {
				if err := os.Remove(w.b.Path(f)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	both := func() func() {
		a, b := occupy(), fill()
		return func() { a(); b() }
	}
	for _, tt := range []struct {
		name  string
		args  []string
		code  int
		want  []string // reason codes, all of them
		setup func() func()
	}{
		{name: "no free memory on the destination", args: []string{"r1", "host-b"}, code: 3, want: []string{"memory_short"}, setup: fill},
		{name: "an occupied disk path", args: []string{"r1", "host-b"}, code: 5, want: []string{"disk_exists"}, setup: occupy},
		{name: "no memory and an occupied path", args: []string{"r1", "host-b"}, code: 3, want: []string{"disk_exists", "memory_short"}, setup: both},
		{name: "a guest of that name", args: []string{"r1", "host-b"}, code: 3, want: []string{"name_exists", "used_by_other"}, setup: name},
		{name: "a guest that does not exist", args: []string{"nobody", "host-b"}, code: 4},
		{name: "a host that does not exist", args: []string{"r1", "host-z"}, code: 4},
		{name: "the same host", args: []string{"r1", "host-a"}, code: 3, want: []string{"same_host"}},
		{name: "a stopped guest, live", args: []string{"r2", "host-b", "--live"}, code: 3, want: []string{"guest_not_running"}},
		{name: "no destination with room", args: []string{"r1"}, code: 3, setup: fill},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			sub := &world{TB: t, Fleet: w.Fleet, ctx: w.ctx, a: w.a, b: w.b}
			undo := func() {}
			if tt.setup != nil {
				undo = tt.setup()
			}
			codes, message := sub.refused(tt.code, w.a, append([]string{"migrate"}, tt.args...)...)
			slices.Sort(codes)
			t.Logf("%s %v", message, codes)
			if tt.want != nil && !slices.Equal(slices.Compact(codes), tt.want) {
				t.Errorf("reasons %v, want %v: %s", codes, tt.want, message)
			}
			undo()
			sub.livesOn("r1", w.a, w.b)
		})
	}
	w.alive("r1", w.a, w.a)
}

// TestRefusals_TheCPUThatAGuestHasDecides: with check='none' libvirt starts a guest
// though its host lacks a feature of its CPU, and QEMU leaves that out. Its document
// still asks for it, which neither host could give; the guest can move all the same.
// One whose emulator is not on the destination cannot.
func TestRefusals_TheCPUThatAGuestHasDecides(t *testing.T) {
	w := start(t)
	const emulator = "/var/lib/libvirt/qemu-of-host-a"
	if _, err := w.a.Exec(w.ctx, "ln", "-s", "/usr/bin/qemu-system-x86_64", emulator); err != nil {
		t.Fatal(err)
	}
	w.boot(w.a, guest.Options{Name: "r3", Dirty: 8, Rate: 16, CPU: "<cpu mode='custom' match='exact' check='none'>" +
		"<model fallback='forbid'>qemu64</model><feature policy='require' name='avx512f'/></cpu>", Emulator: emulator})
	codes, message := w.refused(3, w.a, "migrate", "r3", w.b.Name)
	if !slices.Equal(codes, []string{"emulator_missing", "emulator_not_allowed"}) {
		t.Errorf("reasons %v, want the emulator alone: %s", codes, message)
	}
	w.livesOn("r3", w.a, w.b)
	if _, err := w.b.Exec(w.ctx, "ln", "-s", "/usr/bin/qemu-system-x86_64", emulator); err != nil {
		t.Fatal(err)
	}
	w.berth(w.a, "migrate", "r3", w.b.Name)
	w.livesOn("r3", w.b, w.a)
}

func TestRefusals_PlacementDown(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "r4", Dirty: 8, Rate: 16})
	w.Placement().Kill()
	_, message := w.refused(6, w.a, "migrate", "r4", w.b.Name)
	t.Log(message)
	if s := w.domain(w.a, "r4"); !strings.HasPrefix(s, "running") {
		t.Errorf("the guest is %q", s)
	}
	if err := w.StartPlacement(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.livesOn("r4", w.a, w.b)
	w.berth(w.a, "migrate", "r4", w.b.Name)
	w.livesOn("r4", w.b, w.a)
	w.alive("r4", w.a, w.b)
}

func TestRefusals_PeerWithAWrongCertificate(t *testing.T) {
	w := own(t, nil)
	w.boot(w.a, guest.Options{Name: "r5", Dirty: 8, Rate: 16})
	// host-b comes back with a certificate of another authority.
	other := t.TempDir()
	if err := fleet.MakeKeys(w.ctx, w.Binary, other, []string{"host-a", "host-b"}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"ca.crt", "host.crt", "host.key"} {
		from := filepath.Join(other, "host-b", f)
		if f == "ca.crt" {
			from = filepath.Join(other, f)
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.b.Path("/etc/berth/pki/"+f), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.Agent("host-b").Kill()
	if err := w.StartAgent(w.ctx, "host-b"); err != nil {
		t.Fatal(err)
	}
	w.eventually("host-b listens", func() string {
		if _, err := w.a.Exec(w.ctx, "bash", "-c", "exec 3<>/dev/tcp/"+w.b.MgmtIP()+"/16515"); err != nil {
			return err.Error()
		}
		return ""
	})
	r := w.run(w.a, "migrate", "r5", w.b.Name)
	t.Log(r.Stderr)
	w.require("exit code", r.Code, 3)
	if message := r.Stderr; !strings.Contains(message, "certificate") {
		t.Errorf("the refusal does not speak of the certificate: %s", message)
	}
	w.require("domain on host-b", w.domain(w.b, "r5"), "")
	w.require("allocations", w.holds(w.a, "r5"), []string{"INSTANCE on host-a"})
	w.alive("r5", w.a, w.a)
}

func TestRefusals_UnreachablePeer(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "r6", Dirty: 8, Rate: 16})
	if err := w.b.Cut(w.ctx, lab.Mgmt); err != nil {
		t.Fatal(err)
	}
	_, message := w.refused(6, w.a, "migrate", "r6", w.b.Name)
	t.Log(message)
	if err := w.b.Heal(w.ctx, lab.Mgmt); err != nil {
		t.Fatal(err)
	}
	w.livesOn("r6", w.a, w.b)
	w.alive("r6", w.a, w.a)
}
