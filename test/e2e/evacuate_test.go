package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/watchdog/watchdogtest"
	"berth/migration"
	berths "berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// Three hosts whose records are in an etcd of three members on the switch. host-a dies in
// several ways; host-b and host-c live.

const leaseSeconds = 4

// mortal is a fleet of such hosts.
func mortal(t *testing.T, config map[string]string) *world {
	t.Helper()
	config[""] += fmt.Sprintf("[fleet]\nlease = \"%ds\"\n", leaseSeconds)
	return ownWith(t, berths.Options{
		Names: []string{"host-a", "host-b", "host-c"}, Etcd: true, Guard: true, Config: config,
		// Placement does not know of deaths that are in etcd.
		Conductors: []string{"host-b", "host-c"},
	})
}

// TestEvacuate is one fleet for stories that need the same.
func TestEvacuate(t *testing.T) {
	f := mortal(t, map[string]string{}).Fleet
	for _, story := range []struct {
		name string
		run  func(w *world, c *lab.Host)
	}{
		{"fenced, evacuated, and back", (*world).evacuatedByFence},
		{"back from a partition with its guest running", (*world).evacuatedByWord},
		{"all of etcd lost costs evacuations alone", (*world).withoutEtcd},
		{"never back, and forgotten", (*world).evacuatedForGood},
	} {
		if !t.Run(story.name, func(t *testing.T) { story.run(enter(t, f), f.Hosts[2]) }) {
			t.FailNow() // hosts are dead that the next one needs
		}
	}
}

// onShared makes a guest on host-a whose disk every host sees.
func (w *world) onShared(name string, flags ...string) guest.Boot {
	w.Helper()
	o := coldGuest(name)
	disk := filepath.Join(w.SharedDir(), name+".qcow2")
	o.Disks = []guest.Disk{{Path: disk}}
	w.boot(w.a, o, flags...)
	w.Cleanup(func() { _ = os.Remove(disk) })
	return w.wrote(w.a, name)
}

// records asks a host's agent for the fleet's records until a condition holds of its answer. A
// store that has just come back does not answer at once.
func records[T any](w *world, from *lab.Host, what string, read func(context.Context, *api.Client) (T, error), ok func(T) bool) T {
	w.Helper()
	c, err := api.NewClient(api.ClientOptions{Socket: from.Path("/run/berth/berth.sock")})
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	var got T
	w.eventually("the fleet's records have "+what, func() string {
		var err error
		if got, err = read(w.ctx, c); err == nil && ok(got) {
			return ""
		}
		return fmt.Sprintf("%+v, %v", got, err)
	})
	return got
}

// recorded waits until the fleet's records have a guest at a host.
func (w *world) recorded(from *lab.Host, name, host string) {
	w.Helper()
	records(w, from, "guest "+name+" at "+host, func(ctx context.Context, c *api.Client) (fleet.Instance, error) { return c.FleetInstance(ctx, name) },
		func(in fleet.Instance) bool { return in.Host == host && len(in.Guest) > 0 && in.Moving == "" })
}

// record waits until what the fleet's records say of a host, asked of another one, is as wanted.
func (w *world) record(from *lab.Host, host, what string, ok func(api.FleetHost) bool) api.FleetHost {
	w.Helper()
	of := func(l api.FleetHosts) (out api.FleetHost) {
		for _, h := range l.Hosts {
			if h.Name == host {
				out = h
			}
		}
		return out
	}
	return of(records(w, from, what+" of "+host, func(ctx context.Context, c *api.Client) (api.FleetHosts, error) { return c.FleetHosts(ctx) },
		func(l api.FleetHosts) bool { return ok(of(l)) }))
}

// evacuation is the migration that took a guest from host-a, by the host that conducted it.
func (w *world) evacuation(c *lab.Host, name string, status migration.Status) migration.Migration {
	w.Helper()
	return w.migration(c, name, "is "+string(status), func(m migration.Migration) bool {
		return m.MigrationType == migration.TypeEvacuation && m.Status == status
	})
}

// runsAlone requires that a guest runs on one host, with one claim, and that no other host has
// a domain of it.
func (w *world) runsAlone(name string, here *lab.Host, hosts ...*lab.Host) {
	w.Helper()
	if s := w.domain(here, name); !strings.HasPrefix(s, "running") {
		w.Errorf("%s on %s is %q, want running", name, here.Name, s)
	}
	for _, h := range hosts {
		if h != here {
			w.require("domain of "+name+" on "+h.Name, w.domain(h, name), "")
		}
	}
}

func (w *world) evacuatedByFence(c *lab.Host) {
	first := w.onShared("e1", "--autostart")
	w.boot(w.a, guest.Options{Name: "e2"}) // its disk is host-a's own
	w.recorded(c, "e1", "host-a")
	w.refused(3, c, "evacuate", "e1") // its host lives

	if err := w.a.PowerOff(); err != nil {
		w.Fatal(err)
	}
	died := time.Now()
	// A lease that is over is no proof.
	w.expired(c, "host-a")
	codes, message := w.refused(3, c, "evacuate", "e1")
	w.require("reasons of "+message+" have lease_expired", slices.Contains(codes, "not_dead") && slices.Contains(codes, "lease_expired"), true)

	done := filepath.Join(w.SharedDir(), "fenced")
	w.hook(c, "fence/10-power", "cat > "+done+"\n")
	w.berth(c, "host", "fence", "host-a", "--yes")
	told, err := os.ReadFile(done)
	if err != nil || !strings.Contains(string(told), `"host-a"`) {
		w.Errorf("the fencing hook was told %q, %v; want the host's name", told, err)
	}

	began := time.Now()
	w.berth(c, "evacuate", "e1", w.b.Name)
	w.Logf("evacuated in %v, %v after its host had died", time.Since(began), time.Since(died))
	w.followed("e1", first, w.wrote(w.b, "e1"))
	w.runsAlone("e1", w.b, w.b, c)
	w.require("claims", w.claimsAt(w.b, "e1"), []string{"host-b instance bound"})

	// A disk of the dead host's own is gone; nobody makes another without being told to.
	codes, message = w.refused(3, c, "evacuate", "e2")
	w.require("reasons of "+message, slices.Contains(codes, "disk_unreachable"), true)

	// host-a is back: first with its hook alone, then with its agent.
	if err := w.a.PowerOn(w.ctx); err != nil {
		w.Fatal(err)
	}
	if _, err := w.a.Virsh(w.ctx, "start", "e1"); err == nil {
		w.Error("with its agent down host-a has started a guest that was evacuated")
	}
	if err := cmp.Or(w.StartAgent(w.ctx, "host-a"), w.WaitReady(w.ctx, "host-a")); err != nil {
		w.Fatal(err)
	}
	w.evacuation(c, "e1", migration.StatusCompleted)
	w.runsAlone("e1", w.b, w.Hosts...)
	if _, err := os.Stat(filepath.Join(w.SharedDir(), "e1.qcow2")); err != nil {
		w.Errorf("the shared disk of the guest: %v", err)
	}
	w.require("allocations", w.holds(w.b, "e1"), []string{"INSTANCE on host-b"})
	w.require("domain of e2, which nobody took", w.domain(w.a, "e2"), "shut off (unknown)")
	w.again(w.a, "e2")
	w.agrees()
	w.berth(w.b, "migrate", "e1", c.Name) // free for whatever comes
	w.runsAlone("e1", c, w.Hosts...)
}

func (w *world) evacuatedByWord(c *lab.Host) {
	first := w.onShared("e3")
	w.recorded(c, "e3", "host-a")
	// host-a lives, and nobody hears of it. An operator takes it for dead: he is wrong.
	if err := w.a.Cut(w.ctx, lab.Mgmt); err != nil {
		w.Fatal(err)
	}
	w.expired(c, "host-a")
	w.berth(c, "host", "declare-dead", "host-a", "--reason", "it does not answer")
	// The lock that QEMU has on the image keeps the copy from starting beside it, here.
	r := w.run(c, "evacuate", "e3", c.Name)
	w.Logf("evacuated while its source runs: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	w.require("domain on host-c", strings.HasPrefix(w.domain(c, "e3"), "shut off"), true)
	w.require("domain on host-a", w.domain(w.a, "e3"), "running (booted)")
	if err := w.a.Heal(w.ctx, lab.Mgmt); err != nil {
		w.Fatal(err)
	}
	w.evacuation(c, "e3", migration.StatusCompleted)
	w.require("domain on host-a, which was wrong to run it", w.domain(w.a, "e3"), "")
	w.berth(c, "instance", "start", "e3")
	w.followed("e3", first, w.wrote(c, "e3"))
	w.runsAlone("e3", c, w.Hosts...)
	w.require("allocations", w.holds(c, "e3"), []string{"INSTANCE on host-c"})
	w.agrees()
}

func (w *world) withoutEtcd(c *lab.Host) {
	began := time.Now()
	w.onShared("e4")
	w.Logf("with etcd a guest was made and booted in %v", time.Since(began))
	w.recorded(c, "e4", "host-a")
	for i := range 3 {
		w.Member(i).Kill()
	}
	n, gone := len(w.beats(w.a, "e4", 1)), time.Now()
	w.boot(w.b, guest.Options{Name: "e5"}) // claims go on
	booted := time.Now()
	w.berth(w.b, "migrate", "e5", c.Name) // and moves
	w.Logf("without etcd a guest was made and booted in %v, and moved in %v", booted.Sub(gone), time.Since(booted))
	w.runsAlone("e5", c, w.b, c)
	w.refused(6, c, "evacuate", "e4")
	w.beats(w.a, "e4", n+10)
	for i := range 3 {
		if err := w.StartMember(i); err != nil {
			w.Fatal(err)
		}
	}
	w.recorded(c, "e5", "host-c")
	w.agrees()
}

func (w *world) evacuatedForGood(c *lab.Host) {
	w.onShared("e6")
	w.recorded(c, "e6", "host-a")
	if err := w.a.PowerOff(); err != nil {
		w.Fatal(err)
	}
	w.berth(c, "host", "declare-dead", "host-a", "--reason", "it burnt", "--force")
	w.refused(3, c, "host", "forget", "host-a")
	w.berth(c, "evacuate", "--host", "host-a", "--yes")
	w.evacuation(c, "e6", migration.StatusDone)
	w.berth(c, "host", "forget", "host-a")
	m := w.evacuation(c, "e6", migration.StatusCompleted)
	i := slices.IndexFunc(w.Hosts, func(h *lab.Host) bool { return h.Name == m.DestCompute }) // whichever had most room
	d := ask[api.InstanceDetail](w, w.Hosts[i], "instance", "show", "e6")
	for _, a := range d.Allocations {
		if strings.HasPrefix(a.Provider, "host-a") {
			w.Errorf("Placement still counts on host-a: %+v", a)
		}
	}
	w.remove("e6")
}

// expired waits until a host's lease is over.
func (w *world) expired(from *lab.Host, host string) {
	w.Helper()
	w.record(from, host, "the end of the lease", func(h api.FleetHost) bool { return h.Lease == api.LeaseExpired })
}

// claimsAt are a guest's claims on one host.
func (w *world) claimsAt(h *lab.Host, name string) []string {
	w.Helper()
	var out []string
	for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
		if c.Name == name {
			out = append(out, h.Name+" "+c.Kind+" "+c.State)
		}
	}
	return out
}

// agrees requires that every host's audit agrees.
func (w *world) agrees() {
	w.Helper()
	for _, h := range w.Hosts {
		if r := w.run(h, "audit"); r.Code != 0 {
			w.Errorf("audit of %s: exit code %d\n%s%s", h.Name, r.Code, r.Stdout, r.Stderr)
		}
	}
}

// hook gives a host an operator's program.
func (w *world) hook(h *lab.Host, name, script string) {
	w.Helper()
	path := h.Path("/etc/berth/hooks.d/" + name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"echo '{}'\n"), 0o755); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.Remove(path) })
}

// A host that fences itself: cut off it is reset before its lease is over, and what it ran
// may then run elsewhere without anybody's word. The loss of all of etcd resets nobody.
func TestEvacuate_AHostThatFencesItself(t *testing.T) {
	dog := filepath.Join(lab.TempDir(t), "watchdog")
	var dead atomic.Pointer[time.Time]
	var w *world
	standin, err := watchdogtest.Listen(dog, func() {
		now := time.Now()
		dead.Store(&now)
		if err := w.a.PowerOff(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standin.Close() })
	w = ownWith(t, berths.Options{Names: []string{"host-a", "host-b"}, Etcd: true, Config: map[string]string{
		"host-a": fmt.Sprintf("[fleet]\nlease = \"20s\"\nself_fence = %q\nself_fence_timeout = \"2s\"\n", dog),
	}})
	first := w.onShared("e7")
	w.recorded(w.b, "e7", "host-a")

	for i := range 3 {
		w.Member(i).Kill()
	}
	for gone := time.Now(); time.Since(gone) < 24*time.Second; pause(w, 500*time.Millisecond) {
		if dead.Load() != nil {
			t.Fatalf("host-a was reset %v after all of etcd was lost", time.Since(gone))
		}
	}
	for i := range 3 {
		if err := w.StartMember(i); err != nil {
			t.Fatal(err)
		}
	}
	w.leased(w.b, "host-a")
	w.record(w.b, "host-a", "that it asks host-b before it runs on without a lease", func(h api.FleetHost) bool { return slices.Contains(h.Witnesses, "host-b") })

	if err := w.a.Cut(w.ctx, lab.Mgmt); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	w.expired(w.b, "host-a")
	over := time.Now()
	if at := dead.Load(); at == nil || at.After(over) {
		t.Fatalf("host-a was cut off at %v, its lease seen over at %v, and its watchdog reset it at %v", cut, over, at)
	}
	t.Logf("reset %v after it was cut off; its lease was seen over %v later", dead.Load().Sub(cut), over.Sub(*dead.Load()))
	// A lease may end early; so it has to be seen over for its whole length.
	for deadline := time.Now().Add(patience); ; pause(w, time.Second) {
		r := w.run(w.b, "evacuate", "e7")
		if r.Code == 0 {
			break
		}
		if r.Code != 5 || time.Now().After(deadline) {
			t.Fatalf("berth evacuate e7: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	t.Logf("evacuated %v after it was cut off", time.Since(cut))
	w.followed("e7", first, w.wrote(w.b, "e7"))
	w.record(w.b, "host-a", "a death by its watchdog", func(h api.FleetHost) bool { return h.Death != nil && h.Death.Proof == fleet.ProofSelfFence })
	if err := cmp.Or(w.a.PowerOn(w.ctx), w.a.Heal(w.ctx, lab.Mgmt), w.StartAgent(w.ctx, "host-a"), w.WaitReady(w.ctx, "host-a")); err != nil {
		t.Fatal(err)
	}
	w.evacuation(w.b, "e7", migration.StatusCompleted)
	w.runsAlone("e7", w.b, w.Hosts...)
	w.agrees()
	w.remove("e7")
}

// leased waits until a host has a lease.
func (w *world) leased(from *lab.Host, host string) {
	w.Helper()
	w.record(from, host, "a lease", func(h api.FleetHost) bool { return h.Lease == api.LeaseHeld })
}
