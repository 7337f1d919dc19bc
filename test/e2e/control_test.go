package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/migration/converge"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// restless changes more memory in the time of a pass than any of these tests lets be sent in
// the downtime that it begins with.
var restless = guest.Options{Dirty: 24, Rate: 60}

func (w *world) bootAs(name string, o guest.Options) {
	w.Helper()
	o.Name = name
	w.boot(w.a, o)
}

// acts are what was done to a transfer, in order.
func acts(m migration.Migration) (out []string) {
	for _, c := range m.Control {
		if c.Done {
			out = append(out, string(c.Action.Do))
		}
	}
	return out
}

// TestControl_Schedule: what cannot converge with the downtime that it has does so when the
// schedule allows it more, and not before; a step that cannot help is passed over.
func TestControl_Schedule(t *testing.T) {
	w := start(t)
	w.bootAs("busy", restless)
	w.berth(w.a, "migrate", "busy", w.b.Name, "--bandwidth", "20MiB/s", "--max-downtime", "20ms", "--schedule", "2:max-downtime=40ms, 1:max-downtime=10s")
	m := w.migration(w.a, "busy", "is over", migration.Migration.Done)
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.require("what was done", acts(m), []string{"max-downtime"})
	for _, c := range m.Control {
		if c.Action.Downtime != 10*time.Second || c.Action.Message == "" || c.At.IsZero() || c.Error != "" {
			t.Errorf("a row that is not the second step, or has no reason or time: %+v", c)
		}
	}
	w.require("who said the bandwidth", m.OptionsFrom["bandwidth_bytes"], "request")
	t.Log(w.berth(w.a, "migration", "show", m.UUID))
	w.alive("busy", w.a, w.b)
	w.runsOn("busy", w.b, w.a)
}

// TestControl_Budget: what does not converge is given up when its time is over, and says why in
// words that somebody can act on. One that is asked only what it would do does nothing.
func TestControl_Budget(t *testing.T) {
	w := start(t)
	w.bootAs("never", restless)
	r := w.run(w.a, "migrate", "never", w.b.Name, "--bandwidth", "20MiB/s", "--max-downtime", "20ms", "--timeout", "12s",
		"--schedule", "1:max-downtime=10s", "--observe-schedule")
	w.require("exit code", r.Code, 8)
	m := w.migration(w.a, "never", "is over", migration.Migration.Done)
	w.require("outcome", m.Outcome, migration.OutcomeUndone)
	w.require("what was done", acts(m), []string{"abort"})
	if len(m.Control) < 2 || m.Control[0].Done || m.Control[0].Action.Do != converge.ActDowntime {
		t.Errorf("what the schedule would have done is not on record: %+v", m.Control)
	}
	if m.Error == nil || !strings.Contains(m.Error.Message, "MiB") || !strings.Contains(r.Stdout+r.Stderr, "MiB") {
		t.Errorf("the reason has no figures: %+v\n%s%s", m.Error, r.Stdout, r.Stderr)
	}
	t.Logf("%s%s", r.Stdout, r.Stderr)
	w.runsOn("never", w.a, w.b)
	w.alive("never", w.a, w.a)
}

// TestControl_WhileItRuns: its bounds are changed, and it is forced to its end.
func TestControl_WhileItRuns(t *testing.T) {
	w := start(t)
	w.bootAs("told", restless)
	w.berth(w.a, "migrate", "told", w.b.Name, "--detach", "--bandwidth", "4MiB/s", "--max-downtime", "20ms")
	m := w.migration(w.a, "told", "sends memory", flowing)
	w.berth(w.a, "migration", "set", m.UUID, "--bandwidth", "20MiB/s")
	w.berth(w.b, "migration", "force-complete", m.UUID) // passed on to whoever conducts it
	m = w.migration(w.a, "told", "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	if a := acts(m); !slices.Contains(a, string(converge.ActSuspend)) {
		t.Errorf("what was done: %v, want it suspended", a)
	}
	w.refused(3, w.a, "migration", "set", m.UUID, "--bandwidth", "1MiB/s")
	w.alive("told", w.a, w.b)
}

// TestControl_PostCopy: the network breaks while half of the guest's memory is on its way. The
// guest goes on when it is back, and has lost nothing; an abort is refused meanwhile.
func TestControl_PostCopy(t *testing.T) {
	w := start(t)
	shared := []guest.Disk{{Path: w.SharedDir() + "/half.qcow2"}}
	w.bootAs("half", guest.Options{Dirty: 32, Rate: 60, Disks: shared})
	w.berth(w.a, "migrate", "half", w.b.Name, "--detach", "--bandwidth", "20MiB/s", "--max-downtime", "20ms", "--postcopy",
		"--postcopy-bandwidth", "2MiB/s", "--schedule", "1:post-copy")
	m := w.migration(w.a, "half", "is in post-copy", func(m migration.Migration) bool {
		return m.Status == migration.StatusPostCopy && m.Progress.Phase == "post-copy"
	})
	// A break in the moment of the switch can cost a guest (docs/decisions/0009), and soon after
	// it QEMU without KVM its answers: the guest has run there for a while.
	w.beats(w.b, "half", 20)
	began := time.Now()
	said := w.cut(w.b)
	codes, why := w.refused(3, w.a, "migration", "abort", m.UUID)
	w.Logf("an abort is refused: %v %s", codes, why)
	w.migration(w.a, "half", "has noticed", func(m migration.Migration) bool { return m.Progress.Phase == "post-copy failed" })
	w.Logf("cut %s: noticed after %v", said, time.Since(began))
	w.require("domain on the source", w.domain(w.a, "half"), "paused (post-copy failed)")
	w.Logf("domain on the destination: %s", w.domain(w.b, "half"))
	if err := w.heal(w.b); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	m = w.migration(w.a, "half", "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
	w.Logf("recovered and over %v after the network was back", time.Since(healed))
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.Logf("\n%s", w.berth(w.a, "migration", "show", m.UUID))
	w.alive("half", w.a, w.b)
	w.runsOn("half", w.b, w.a)
	w.noStream()
}

// cut takes a host off every network but the one by which Placement and the switch are reached.
func (w *world) cut(h *lab.Host) string {
	w.Helper()
	for _, l := range []lab.Link{lab.Mig, lab.Mgmt} {
		if err := h.Cut(w.ctx, l); err != nil {
			w.Fatal(err)
		}
	}
	return "both links of " + h.Name
}

func (w *world) heal(h *lab.Host) error {
	for _, l := range []lab.Link{lab.Mgmt, lab.Mig} {
		if err := h.Heal(w.ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// TestControl_Limits asks for twenty moves at once.
func TestControl_Limits(t *testing.T) {
	const guests, outbound, inbound = 20, 3, 2
	w := ownWith(t, fleet.Options{Config: map[string]string{
		"": fmt.Sprintf("[migration]\nmax_outbound = %d\nmax_inbound = %d\n[placement]\ncpu_allocation_ratio = 64.0\n", outbound, inbound),
	}})
	var names []string
	for i := range guests {
		name := fmt.Sprintf("q%02d", i+1)
		o := guest.Options{Name: name, MemoryMiB: 32, Disks: []guest.Disk{}}
		w.xml(w.a, &o)
		w.berth(w.a, "instance", "create", name, "--vcpus", "1", "--memory", "32", "--disk", "0", "--xml", "/var/lib/libvirt/"+name+".xml", "--start", "--paused") // it need not boot
		names = append(names, name)
	}
	urgent := names[guests-1]
	for _, name := range names {
		args := []string{"migrate", name, w.b.Name, "--detach"}
		if name == urgent {
			args = append(args, "--priority", "urgent")
		}
		w.berth(w.a, args...)
	}
	w.Logf("\n%s", w.berth(w.a, "migration", "list"))
	queued := 0
	for _, m := range ask[api.MigrationList](w, w.a, "migration", "list").Migrations {
		if m.Status == migration.StatusQueued {
			queued++
			if len(m.Waits) == 0 || m.Waits[0].Message == "" {
				t.Errorf("%s waits and does not say for what: %+v", m.InstanceName, m)
			}
		}
	}
	if queued == 0 {
		t.Error("none of twenty waits for its turn")
	}
	var out, in []span
	for _, name := range names {
		m := w.migration(w.a, name, "is over", migration.Migration.Done)
		w.require("outcome of "+name, m.Outcome, migration.OutcomeCompleted)
		at := span{name: name}
		for _, s := range m.Steps {
			switch s.Name {
			case migration.StepClaim:
				at.begun = s.Ended
			case migration.StepCommit:
				at.end = s.Begun
			}
		}
		out, in = append(out, at), append(in, at)
		w.require("domain of "+name, w.domain(w.b, name), "paused (user)")
	}
	atMost(t, "guests that leave", outbound, out)
	atMost(t, "guests that come", inbound, in)
	slices.SortFunc(out, func(a, b span) int { return a.begun.Compare(b.begun) })
	if i := slices.IndexFunc(out, func(s span) bool { return s.name == urgent }); i > guests/2 {
		t.Errorf("the urgent one was number %d of %d, behind those that were asked for before: %v", i+1, guests, out)
	}
	for _, h := range w.Hosts {
		w.require("audit of "+h.Name, w.run(h, "audit").Code, 0)
	}
}
