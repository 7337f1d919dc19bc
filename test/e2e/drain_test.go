package e2e

import (
	"fmt"
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

// crowd makes running guests on host-a, each with a disk that all hosts see.
func (w *world) crowd(n int, o guest.Options) (names []string) {
	w.Helper()
	for i := range n {
		o.Name = fmt.Sprintf("d%02d", i+1)
		o.Disks = []guest.Disk{{Path: filepath.Join(w.SharedDir(), o.Name+".qcow2")}}
		o := o
		w.xml(w.a, &o)
		w.berth(w.a, "instance", "create", o.Name, "--flavor", "small", "--xml", "/var/lib/libvirt/"+o.Name+".xml", "--start")
		name := o.Name
		w.Cleanup(func() { w.remove(name) })
		names = append(names, o.Name)
	}
	for _, name := range names {
		w.beats(w.a, name, 3)
	}
	return names
}

// drained is what a drain of host-a has come to.
func (w *world) drained() api.Drain {
	w.Helper()
	return ask[api.Drain](w, w.a, "host", "drain-status")
}

// span is how long a guest's claim on the host that it came to was one of a move.
type span struct {
	name       string
	begun, end time.Time
}

// atMost requires that never more than limit of the spans overlap.
func atMost(t *testing.T, what string, limit int, spans []span) {
	t.Helper()
	for _, one := range spans {
		n := 0
		for _, other := range spans {
			if !other.begun.After(one.begun) && one.begun.Before(other.end) {
				n++
			}
		}
		if n > limit {
			t.Errorf("%s: %d at once when %s began, want %d at most: %v", what, n, one.name, limit, spans)
		}
	}
}

// A host is emptied: what can go goes, some at once and none over a limit; what cannot is
// named before and left behind, and nobody new comes.
func TestDrain(t *testing.T) {
	w := ownWith(t, fleet.Options{
		Names: []string{"host-a", "host-b", "host-c"},
		Config: map[string]string{
			"host-a": "[host]\ndedicated_cpus = \"0\"\nshared_cpus = \"1\"\n[migration]\nmax_outbound = 2\n[drain]\nattempts = 1\n",
			"host-b": "[migration]\nmax_inbound = 1\n",
			"host-c": "[migration]\nmax_inbound = 1\n",
		},
		Flavors: map[string]string{"pinned": "name = \"pinned\"\nvcpus = 1\nmemory_mb = 128\ndisk_gb = 1\n[extra_specs]\n\"hw:cpu_policy\" = \"dedicated\"\n"},
	})
	names := w.crowd(3, guest.Options{})
	o := guest.Options{Name: "anchored", Disks: []guest.Disk{{Path: filepath.Join(w.SharedDir(), "anchored.qcow2")}}}
	w.xml(w.a, &o)
	w.berth(w.a, "instance", "create", "anchored", "--flavor", "pinned", "--xml", "/var/lib/libvirt/anchored.xml", "--start")
	t.Cleanup(func() { w.remove("anchored") })
	o = guest.Options{Name: "resting", Disks: []guest.Disk{{Path: filepath.Join(w.SharedDir(), "resting.qcow2")}}}
	w.xml(w.a, &o)
	w.berth(w.a, "instance", "create", "resting", "--flavor", "small", "--xml", "/var/lib/libvirt/resting.xml")
	t.Cleanup(func() { w.remove("resting") })

	plan := ask[api.DrainPlan](w, w.a, "host", "drain", "--plan", "--first", "d03")
	how := map[string]string{}
	for _, g := range plan.Guests {
		how[g.Name] = string(g.How)
		if g.To == "" {
			how[g.Name] = fmt.Sprint("nowhere, ", len(g.Blockers) > 0)
		}
	}
	w.require("plan", how, map[string]string{"anchored": "nowhere, true", "d01": "live", "d02": "live", "d03": "live", "resting": "cold"})
	if len(plan.Guests) > 0 && plan.Guests[0].Name != "d03" {
		t.Errorf("%s goes first, want d03", plan.Guests[0].Name)
	}

	r := w.run(w.a, "host", "drain", "--yes", "--first", "d03")
	if r.Code != 8 || !strings.Contains(r.Stdout+r.Stderr, "anchored") {
		t.Errorf("a drain that leaves a guest behind: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	d := w.drained()
	w.require("state", d.State, api.DrainIncomplete)
	into := map[string][]span{}
	var out []span
	for _, g := range d.Guests {
		want := api.DrainedMoved
		if g.Name == "anchored" {
			want = api.DrainedFailed
		}
		w.require("state of "+g.Name, g.State, want)
		if g.State != api.DrainedMoved {
			continue
		}
		at := span{name: g.Name}
		for _, s := range ask[migration.Migration](w, w.a, "migration", "show", g.Migration).Steps {
			switch s.Name {
			case migration.StepClaim:
				at.begun = s.Ended
			case migration.StepCommit, migration.StepHandOver:
				at.end = s.Ended
			}
		}
		into[g.To], out = append(into[g.To], at), append(out, at)
	}
	atMost(t, "guests that leave", 2, out)
	for host, came := range into {
		atMost(t, "guests that come to "+host, 1, came)
	}
	if len(into) != 2 {
		t.Errorf("all guests went to one host: %v", into)
	}
	for _, name := range names {
		i := slices.IndexFunc(d.Guests, func(g api.DrainedGuest) bool { return g.Name == name })
		h, err := w.Host(d.Guests[i].To)
		if err != nil {
			t.Fatal(err)
		}
		w.alive(name, w.a, h)
		w.require("domain on host-a", w.domain(w.a, name), "")
	}
	host := ask[api.HostInfo](w, w.a, "host", "show")
	if host.Disabled == nil {
		t.Error("host-a takes new guests after it was drained")
	}
	for _, h := range w.Hosts {
		w.require("audit of "+h.Name, w.run(h, "audit").Code, 0)
	}
	w.berth(w.a, "host", "set", "--enable")
}

// Its agent dies in the midst, and the next one goes on; an abort ends it, and gives the
// host back as it was.
func TestDrain_AgentKilledAndAborted(t *testing.T) {
	w := start(t)
	names := w.crowd(3, guest.Options{Dirty: 4, Rate: 1})
	link := func(mibps int) {
		if err := w.a.Limit(w.ctx, lab.Mig, mibps); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { link(0) })
	link(12)
	w.berth(w.a, "host", "drain", "--yes", "--detach", "--to", w.b.Name)
	w.awaitDrain("has moved one", func(d api.Drain) bool {
		return slices.ContainsFunc(d.Guests, func(g api.DrainedGuest) bool { return g.State == api.DrainedMoved })
	})
	link(1) // the others shall not have gone before it is told
	w.restart(w.a)
	w.berth(w.a, "host", "drain-abort")
	link(0)
	d := w.awaitDrain("is over", func(d api.Drain) bool { return d.State.Over() })
	w.require("state", d.State, api.DrainAborted)
	if host := ask[api.HostInfo](w, w.a, "host", "show"); host.Disabled != nil {
		t.Errorf("host-a is disabled after the drain was aborted: %+v", host.Disabled)
	}
	for _, name := range names {
		i := slices.IndexFunc(d.Guests, func(g api.DrainedGuest) bool { return g.Name == name })
		here, there := w.a, w.b
		if d.Guests[i].State == api.DrainedMoved {
			here, there = w.b, w.a
		}
		w.runsOn(name, here, there)
	}
}

// awaitDrain waits for what a condition holds for.
func (w *world) awaitDrain(what string, ok func(api.Drain) bool) api.Drain {
	w.Helper()
	var d api.Drain
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(w, 100*time.Millisecond) {
		if d = w.drained(); ok(d) {
			return d
		}
	}
	w.Fatalf("wait until the drain of host-a %s: last seen %+v", what, d)
	return d
}

// runsOn requires that a guest runs on one host and that the other has nothing of it.
func (w *world) runsOn(name string, here, there *lab.Host) {
	w.Helper()
	w.require("domain of "+name+" on "+here.Name, strings.HasPrefix(w.domain(here, name), "running"), true)
	w.require("domain of "+name+" on "+there.Name, w.domain(there, name), "")
}
