package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host/external"
	"berth/claims"
	"berth/internal/runtime"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// narrow is a host with room for one vCPU.
const narrow = "[host]\nreserved_vcpus = 1\n[placement]\ncpu_allocation_ratio = 1.0\n"

// guarded is a fleet whose libvirt daemons call the hook.
func guarded(t *testing.T, config map[string]string) *world {
	t.Helper()
	// Guests move by virsh too.
	w := ownWith(t, fleet.Options{Config: config, Listen: true})
	for _, h := range w.Hosts {
		w.says(h, "guard not active")
		w.installHook(h)
		// libvirt looks for hooks when it starts, and nothing restarts it by itself.
		w.says(h, "guard not active")
		if err := h.StopLibvirtd(w.ctx); err != nil {
			t.Fatal(err)
		}
		if err := h.StartLibvirtd(w.ctx); err != nil {
			t.Fatal(err)
		}
		w.eventually("libvirt answers on "+h.Name, func() string {
			for _, c := range ask[api.Status](w, h, "status").Conditions {
				if c.Name == "libvirt" && c.Health == api.HealthOK {
					return ""
				}
			}
			return "not yet"
		})
	}
	return w
}

// installHook puts the hook as it is shipped into a host's own /etc/libvirt,
// with this test's binary.
func (w *world) installHook(h *lab.Host) {
	w.Helper()
	text, err := os.ReadFile("../../packaging/hooks/qemu.d/50-berth")
	if err != nil {
		w.Fatal(err)
	}
	const line = "\nberth=/usr/bin/berth\n"
	if !strings.Contains(string(text), line) {
		w.Fatalf("the hook has no line %q", line)
	}
	path := h.Path("/etc/libvirt/hooks/qemu.d/50-berth")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), line, "\nberth="+w.Binary+"\n", 1)), 0o755); err != nil {
		w.Fatal(err)
	}
}

func (w *world) guardStatus(h *lab.Host) api.Condition {
	w.Helper()
	for _, c := range ask[api.Status](w, h, "status").Conditions {
		if c.Name == "guard" {
			return c
		}
	}
	w.Fatalf("the status of %s says nothing about the guard", h.Name)
	return api.Condition{}
}

func (w *world) says(h *lab.Host, words string) {
	w.Helper()
	if c := w.guardStatus(h); !strings.Contains(c.Detail, words) {
		w.Errorf("status of %s: guard %q, want %q in it", h.Name, c.Detail, words)
	}
}

// eventually waits until f has nothing to complain of.
func (w *world) eventually(what string, f func() string) {
	w.Helper()
	deadline := time.Now().Add(patience)
	for {
		wrong := f()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: %s", what, wrong)
		}
		select {
		case <-w.ctx.Done():
			w.Fatalf("%s: %s", what, wrong)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ownedBy waits until a guest's token is on one host, with one bound claim and
// one allocation, and nothing held elsewhere.
func (w *world) ownedBy(name string, here *lab.Host) api.InstanceDetail {
	w.Helper()
	var d api.InstanceDetail
	w.eventually(name+" is "+here.Name+"'s", func() string {
		r := w.run(here, "instance", "show", name, "--json")
		if r.Code != 0 {
			return r.Stderr
		}
		d = api.InstanceDetail{}
		if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
			return err.Error()
		}
		if !d.Managed || d.Token.State != claims.TokenHere || d.Claim == nil || d.Claim.State != claims.Bound || d.Claim.Owner.Kind != claims.KindInstance {
			return r.Stdout + w.guardStatus(here).Detail
		}
		if len(d.Allocations) != 1 || d.Allocations[0].Provider != here.Name {
			return r.Stdout
		}
		return ""
	})
	for _, h := range w.Hosts {
		for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
			if c.Instance == d.UUID && h != here {
				w.Errorf("%s still holds %s for %s", h.Name, c.Resources, name)
			}
		}
	}
	return d
}

// virshRefused runs a virsh command that the guard must refuse, with words.
func (w *world) virshRefused(h *lab.Host, words string, args ...string) {
	w.Helper()
	out, err := h.Virsh(w.ctx, args...)
	if err == nil {
		w.Errorf("virsh %s on %s succeeded: %s", strings.Join(args, " "), h.Name, out)
		return
	}
	if !strings.Contains(err.Error(), words) {
		w.Errorf("virsh %s on %s: %v, want %q in it", strings.Join(args, " "), h.Name, err, words)
	}
}

// dropIn adds to a host's configuration; the hook reads it at each call.
func (w *world) dropIn(h *lab.Host, text string) {
	w.Helper()
	path := h.Path("/etc/berth/berth.toml.d/70-guard.toml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

func uri(h *lab.Host) string { return "qemu+tls://" + h.Name + "/system" }

// diskless boots a managed guest that any virsh can move.
func (w *world) diskless(h *lab.Host, name string, size ...string) {
	w.Helper()
	o := guest.Options{Name: name, Disks: []guest.Disk{}}
	if name == "wide" {
		o.VCPUs = 2
	}
	w.xml(h, &o)
	if len(size) == 0 {
		size = []string{"--flavor", "small"}
	}
	w.berth(h, append([]string{"instance", "create", name, "--xml", "/var/lib/libvirt/" + name + ".xml", "--start"}, size...)...)
	w.beats(h, name, 3)
}

func TestGuard_ForeignMigrations(t *testing.T) {
	w := guarded(t, map[string]string{"host-b": narrow})
	w.diskless(w.a, "wanderer")
	w.says(w.a, "active, last called")

	t.Run("claimed on arrival", func(t *testing.T) {
		w.virsh(w.a, "migrate", "--live", "--p2p", "--persistent", "wanderer", uri(w.b))
		d := w.ownedBy("wanderer", w.b)
		w.alive("wanderer", w.a, w.b)
		w.says(w.b, "active, last called")
		if d.Token.Epoch != 2 {
			t.Errorf("token %+v, want epoch 2", d.Token)
		}
		for _, what := range [][]string{{"dumpxml", "wanderer"}, {"dumpxml", "--inactive", "wanderer"}} {
			if text := w.virsh(w.b, what...); !strings.Contains(text, `epoch="2"`) {
				t.Errorf("virsh %v has no metadata of epoch 2:\n%s", what, text)
			}
		}
		w.require("what is left on the source", w.domain(w.a, "wanderer"), "shut off (migrated)")
	})
	t.Run("not started where the token is not", func(t *testing.T) {
		w.virshRefused(w.a, "its ownership token went to host-b", "start", "wanderer")
		w.virsh(w.a, "undefine", "wanderer")
		w.eventually("the source forgets it", func() string {
			for _, i := range ask[api.InstanceList](w, w.a, "instance", "list").Instances {
				if i.Name == "wanderer" {
					return "still listed"
				}
			}
			return ""
		})
	})
	t.Run("Berth's own migration passes", func(t *testing.T) {
		w.berth(w.b, "migrate", "wanderer", "host-a")
		w.ownedBy("wanderer", w.a)
		w.require("domain on host-b", w.domain(w.b, "wanderer"), "")
	})
	t.Run("one that came shut off is not started beside its owner", func(t *testing.T) {
		w.diskless(w.b, "still")
		w.virsh(w.b, "destroy", "still")
		w.virsh(w.b, "migrate", "--offline", "--persistent", "still", uri(w.a))
		w.virshRefused(w.a, "its definition came here by an offline migration", "start", "still")
		w.virsh(w.b, "start", "still")
		w.beats(w.b, "still", 3)
		w.require("what came", strings.HasPrefix(w.domain(w.a, "still"), "shut off"), true)
		w.virsh(w.a, "undefine", "still")
		w.remove("still")
	})
	t.Run("refused before memory moves", func(t *testing.T) {
		w.diskless(w.a, "wide", "--vcpus", "2", "--memory", "128")
		w.virshRefused(w.a, "vcpus", "migrate", "--live", "--p2p", "--persistent", "wide", uri(w.b))
		w.require("the source", w.domain(w.a, "wide"), "running (booted)")
		w.require("the destination", w.domain(w.b, "wide"), "")
		w.require("claims on host-b", len(ask[api.ClaimList](w, w.b, "claim", "list").Claims), 0)
		w.remove("wide")
	})
	t.Run("a stream that breaks leaves no claim", func(t *testing.T) {
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := w.a.Virsh(ctx, "migrate", "--live", "--p2p", "--persistent", "--bandwidth", "1", "wanderer", uri(w.b))
			ended <- err
		}()
		w.eventually("it arrives", func() string {
			if s := w.domain(w.b, "wanderer"); s != "paused (migrating)" {
				return "it is " + strconv.Quote(s)
			}
			return ""
		})
		w.require("claims on host-b", len(ask[api.ClaimList](w, w.b, "claim", "list").Claims), 1)
		w.virsh(w.a, "domjobabort", "wanderer")
		if err := <-ended; err == nil {
			t.Error("the migration succeeded though it was aborted")
		}
		w.eventually("its claim ends", func() string {
			if n := len(ask[api.ClaimList](w, w.b, "claim", "list").Claims); n > 0 {
				return itoa(int64(n)) + " claims"
			}
			return ""
		})
		w.ownedBy("wanderer", w.a)
	})
	t.Run("a tool claims ahead", func(t *testing.T) {
		w.remove("wanderer")
		w.diskless(w.a, "caravan")
		w.toolMoves(t, "caravan", w.a, w.b)
	})
}

// toolMoves does what a tool of somebody's own does around its migration.
func (w *world) toolMoves(t *testing.T, name string, from, to *lab.Host) {
	t.Helper()
	id := uuid.NewString()
	instance := w.virsh(from, "domuuid", name)
	source := from.Path("/var/lib/libvirt/" + name + ".migratable.xml")
	if err := os.WriteFile(source, []byte(w.virsh(from, "dumpxml", "--migratable", name)), 0o600); err != nil {
		t.Fatal(err)
	}
	pre := func(id string) (external.HookAnswer, int) {
		t.Helper()
		cmd, err := to.Command(w.ctx, w.Binary, "external", "pre-live-migration", "--migration", id, "--instance", instance, "--source", from.Name)
		if err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(source)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		var out strings.Builder
		cmd.Stdin, cmd.Stdout = in, &out
		_ = to.Run(cmd) // the exit code says it
		var a external.HookAnswer
		if cmd.ProcessState.ExitCode() == 0 {
			if err := json.Unmarshal([]byte(out.String()), &a); err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
		}
		return a, cmd.ProcessState.ExitCode()
	}
	// One that is given up: its claim goes, and it cannot come back late.
	if _, code := pre(id); code != 0 {
		t.Fatalf("pre-live-migration: exit code %d", code)
	}
	w.berth(to, "external", "rollback-live-migration-at-destination", "--migration", id)
	w.berth(to, "external", "rollback-live-migration-at-destination", "--migration", id)
	if _, code := pre(id); code != 3 {
		t.Errorf("pre-live-migration after its rollback: exit code %d, want 3", code)
	}
	never := uuid.NewString()
	w.berth(to, "external", "rollback-live-migration-at-destination", "--migration", never)
	if _, code := pre(never); code != 3 {
		t.Errorf("pre-live-migration after the rollback that overtook it: exit code %d, want 3", code)
	}
	w.require("claims on "+to.Name, len(ask[api.ClaimList](w, to, "claim", "list").Claims), 0)

	id = uuid.NewString()
	a, code := pre(id)
	again, code2 := pre(id)
	if code != 0 || code2 != 0 || a.Claim == "" || a.Claim != again.Claim || a.DestinationXML == "" || a.ExpiresAt == nil || a.MigrateURI == "" {
		t.Fatalf("pre-live-migration twice: %d %+v, %d %+v", code, a, code2, again)
	}
	if _, code := pre(uuid.NewString()); code == 0 {
		t.Error("a second migration of the guest was given a claim")
	}
	document := from.Path("/var/lib/libvirt/" + name + ".destination.xml")
	if err := os.WriteFile(document, []byte(a.DestinationXML), 0o600); err != nil {
		t.Fatal(err)
	}
	w.virsh(from, "migrate", "--live", "--p2p", "--persistent", "--undefinesource", "--migrateuri", a.MigrateURI,
		"--xml", "/var/lib/libvirt/"+name+".destination.xml", name, uri(to))
	w.eventually("the tool is told that it has come", func() string {
		r := w.run(to, "external", "post-live-migration-at-destination", "--migration", id)
		if r.Code != 0 {
			return r.Stderr
		}
		return ""
	})
	w.berth(to, "external", "post-live-migration-at-destination", "--migration", id)
	w.berth(from, "external", "post-live-migration", "--migration", id)
	w.berth(from, "external", "post-live-migration", "--migration", id)
	w.ownedBy(name, to)
	w.alive(name, from, to)
	w.require("domain on "+from.Name, w.domain(from, name), "")
	if code := w.run(to, "external", "rollback-live-migration-at-destination", "--migration", id).Code; code != 3 {
		t.Errorf("rollback after the guest has come: exit code %d, want 3", code)
	}
	w.eventually("the source forgets it", func() string {
		if r := w.run(from, "instance", "show", name); r.Code == 0 {
			return r.Stdout
		}
		return ""
	})
}

// TestGuard_RepinsOnArrival: the CPU that is dedicated on one host is shared on the
// other, and a hand-typed virsh migrate carries the pins of the host it left.
func TestGuard_RepinsOnArrival(t *testing.T) {
	w := guarded(t, map[string]string{
		"host-a": "[host]\ndedicated_cpus = \"0\"\nshared_cpus = \"1\"\n",
		"host-b": "[host]\ndedicated_cpus = \"1\"\nshared_cpus = \"0\"\n",
	})
	pinned := []string{"--vcpus", "1", "--memory", "128", "--extra-spec", "hw:cpu_policy=dedicated"}
	on := func(h *lab.Host, name, cpu string) {
		t.Helper()
		if c := ask[api.InstanceDetail](w, h, "instance", "show", name).Claim; c == nil || len(c.Assignment.Cells) != 1 || c.Assignment.Cells[0].Pinned().String() != cpu {
			t.Errorf("claim of %s on %s: %+v, want CPU %s", name, h.Name, c, cpu)
		}
		for witness, got := range map[string]pins{"libvirt": w.libvirtPins(h, name), "the definition": w.definedPins(h, name), "the kernel": w.actualPins(h, name)} {
			w.require("vCPU 0 of "+name+" on "+h.Name+" by "+witness, got.VCPUs[0], cpu)
		}
		t.Logf("%s on %s: claim, virsh vcpupin, dumpxml --inactive and /proc/PID/task/*/status say CPU %s", name, h.Name, cpu)
	}
	w.diskless(w.a, "anchor", pinned...)
	on(w.a, "anchor", "0")
	w.virsh(w.a, "migrate", "--live", "--p2p", "--persistent", "--undefinesource", "anchor", uri(w.b))
	w.ownedBy("anchor", w.b)
	on(w.b, "anchor", "1")
	w.alive("anchor", w.a, w.b)

	// Nobody gets a CPU that somebody has.
	w.eventually("host-a forgets it", func() string {
		if n := len(ask[api.ClaimList](w, w.a, "claim", "list").Claims); n > 0 {
			return itoa(int64(n)) + " claims"
		}
		return ""
	})
	w.diskless(w.a, "second", pinned...)
	_, err := w.a.Virsh(w.ctx, "migrate", "--live", "--p2p", "--persistent", "second", uri(w.b))
	if err == nil || !strings.Contains(err.Error(), "may not arrive here") {
		t.Errorf("a second pinned guest: %v, want a refusal", err)
	}
	t.Logf("virsh migrate of a second one: %v", err)
	w.require("the second guest", w.domain(w.a, "second"), "running (booted)")
	w.require("its copy", w.domain(w.b, "second"), "")
}

func TestGuard_AgentDown(t *testing.T) {
	w := guarded(t, map[string]string{"host-b": narrow})
	w.diskless(w.a, "keeper")
	w.virsh(w.a, "destroy", "keeper")
	instance := w.virsh(w.a, "domuuid", "keeper")
	o := guest.Options{Name: "stranger", Disks: []guest.Disk{}}
	w.xml(w.a, &o)
	w.virsh(w.a, "define", "/var/lib/libvirt/stranger.xml")

	w.Agent("host-a").Kill()
	owner := w.a.Path("/run/berth/guard/owners/" + instance)
	good, err := os.ReadFile(owner)
	if err != nil {
		t.Fatal(err)
	}
	put := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(owner, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.virsh(w.a, "start", "keeper") // its file says that the token is here
	w.virsh(w.a, "destroy", "keeper")
	put([]byte(strings.Replace(string(good), (&runtime.System{}).Boot().ID, uuid.NewString(), 1)))
	w.virshRefused(w.a, "of an earlier boot", "start", "keeper")
	put([]byte("{"))
	w.virshRefused(w.a, "cannot be read", "start", "keeper")
	if err := os.Remove(owner); err != nil {
		t.Fatal(err)
	}
	w.virshRefused(w.a, "there is no owner file", "start", "keeper")
	w.virsh(w.a, "start", "stranger")

	// An arrival that nothing announced: by [guard] arrivals.
	w.diskless(w.b, "visitor")
	w.virshRefused(w.b, "no claim on this host waits for this guest", "migrate", "--live", "--p2p", "--persistent", "visitor", uri(w.a))
	w.dropIn(w.a, "[guard]\narrivals = \"allow\"\n")
	w.virsh(w.b, "migrate", "--live", "--p2p", "--persistent", "visitor", uri(w.a))
	w.require("the visitor", w.domain(w.a, "visitor"), "running (migrated)")
	// Its token is on host-b still, since nobody has asked for it.
	w.eventually("host-b sees that it has left", func() string {
		text, err := os.ReadFile(w.b.Path("/run/berth/guard/owners/" + w.virsh(w.b, "domuuid", "visitor")))
		if err != nil || !strings.Contains(string(text), `"left"`) {
			return string(text)
		}
		return ""
	})
	w.virshRefused(w.b, "so it runs on another host", "start", "visitor")
	if r := w.run(w.b, "instance", "start", "visitor"); r.Code != 3 {
		t.Errorf("berth instance start of a guest that has left: exit %d, %s", r.Code, r.Stderr)
	}

	// The agent takes all of them in hand.
	if err := w.StartAgent(w.ctx, "host-a"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitReady(w.ctx, "host-a"); err != nil {
		t.Fatal(err)
	}
	w.ownedBy("visitor", w.a)
	w.ownedBy("stranger", w.a)
	w.ownedBy("keeper", w.a)
	w.virsh(w.a, "start", "keeper")
	w.virsh(w.a, "reboot", "keeper", "--mode", "acpi")

	// In mode observe nothing asks and nothing is refused.
	if err := w.Agent("host-b").Stop(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.dropIn(w.b, "[agent]\nmode = \"observe\"\n")
	if err := w.StartAgent(w.ctx, "host-b"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitReady(w.ctx, "host-b"); err != nil {
		t.Fatal(err)
	}
	w.says(w.b, "mode observe")
	w.virsh(w.b, "start", "visitor", "--paused") // what virsh left there, though its token is on host-a
	w.virsh(w.b, "destroy", "visitor")
	if r := w.run(w.b, "external", "pre-live-migration", "--migration", uuid.NewString(), "--instance", instance, "--source", "host-a"); r.Code == 0 {
		t.Errorf("a claim in mode observe: %s", r.Stdout)
	}
}

// TestGuard_HostThatWasNeverManaged: the hook alone changes nothing.
func TestGuard_HostThatWasNeverManaged(t *testing.T) {
	w := ownWith(t, fleet.Options{Listen: true, Config: map[string]string{"host-b": "[agent]\nmode = \"observe\"\n"}})
	w.installHook(w.b)
	if err := w.b.StopLibvirtd(w.ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.b.StartLibvirtd(w.ctx); err != nil {
		t.Fatal(err)
	}
	if guard.Managed(w.b.Path("/var/lib/berth")) {
		t.Fatal("an agent in mode observe left the marker of mode manage")
	}
	w.diskless(w.a, "tourist")
	for _, alive := range []bool{true, false} {
		if !alive {
			w.Agent("host-b").Kill()
		}
		w.virsh(w.a, "migrate", "--live", "--p2p", "tourist", uri(w.b))
		w.require("the tourist", w.domain(w.b, "tourist"), "running (migrated)")
		w.virsh(w.b, "destroy", "tourist")
		if alive {
			// Where it came from it is managed, and still is; no hook asks there.
			w.virsh(w.a, "start", "tourist")
			w.beats(w.a, "tourist", 3)
		}
	}
}
