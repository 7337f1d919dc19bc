package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/test/guest"
)

// unmarshalLast reads the JSON document that text ends with.
func unmarshalLast(text string, into any) error {
	if i := strings.Index(text, "{"); i >= 0 {
		text = text[i:]
	}
	return json.Unmarshal([]byte(text), into)
}

func TestMove_LiveWithItsDiskUnderClaims(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "m1", Dirty: 16, Rate: 8})
	w.livesOn("m1", w.a, w.b)

	w.berth(w.a, "migrate", "m1", w.b.Name, "--detach", "--bandwidth", slow)
	w.migration(w.a, "m1", "sends memory", flowing)
	w.require("allocations during the move", w.holds(w.a, "m1"), []string{"INSTANCE on host-b", "MIGRATION on host-a"})
	var during []string
	for _, h := range w.Hosts {
		for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
			during = append(during, h.Name+" "+c.Kind+" "+c.State)
			if h == w.b && (c.Context == nil || c.Context.Source != "host-a" || c.Context.Destination != "host-b") {
				t.Errorf("the arriving claim has the context %+v", c.Context)
			}
		}
	}
	w.require("claims during the move", during, []string{"host-a instance bound", "host-b live-migration arriving"})

	w.virsh(w.a, "migrate-setspeed", "m1", "500")
	m := w.migration(w.a, "m1", "is over", migration.Migration.Done)
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.livesOn("m1", w.b, w.a)
	m1 := w.alive("m1", w.a, w.b)
	t.Log(m1)
	if m.HandoverDowntime <= 0 || m.HandoverDowntime > 30*time.Second {
		t.Errorf("commit and resume took %v", m.HandoverDowntime)
	}
	if p := m.Progress; p.MemoryProcessed == 0 || p.DiskTotal == 0 || p.Downtime <= 0 || p.Downtime > time.Minute {
		t.Errorf("a move that is over says %+v of its stream", p)
	}
	t.Logf("moved in %v; commit and resume took %v", m.UpdatedAt.Sub(m.CreatedAt), m.HandoverDowntime)

	// Asked of the host that it left, the request is passed on; the destination
	// is chosen from Placement's candidates.
	w.berth(w.a, "migrate", "m1")
	w.livesOn("m1", w.a, w.b)
	back := w.beats(w.a, "m1", m1.Source+5) // its first words there were before the moves
	if last := back[len(back)-1]; last.Boot != back[0].Boot || last.Bad+last.DiskBad != 0 || last.N <= m1.Last {
		t.Errorf("back on host-a the guest says %+v; it was at beat %d of boot %s on host-b", last, m1.Last, m1.Boot)
	}
}

func TestMove_AbortIsUndone(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "m3", Dirty: 48, Rate: 20})
	w.berth(w.a, "migrate", "m3", w.b.Name, "--detach", "--bandwidth", "6MiB/s")
	m := w.migration(w.a, "m3", "sends memory", flowing)
	w.berth(w.a, "migration", "abort", m.UUID)
	m = w.migration(w.a, "m3", "is over", migration.Migration.Done)
	w.require("status", m.Status, migration.StatusCancelled)
	w.livesOn("m3", w.a, w.b)
	w.noStream()
	w.alive("m3", w.a, w.a)
}

func TestMove_TimeoutAborts(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "m4", Dirty: 48, Rate: 40})
	r := w.run(w.a, "migrate", "m4", w.b.Name, "--bandwidth", "5MiB/s", "--timeout", "4s", "--timeout-action", "abort")
	w.require("exit code", r.Code, 8)
	w.livesOn("m4", w.a, w.b)
	w.alive("m4", w.a, w.a)
}

func TestMove_KilledDestinationAgentIsWaitedFor(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "m6", Dirty: 16, Rate: 8})
	w.berth(w.a, "migrate", "m6", w.b.Name, "--detach", "--bandwidth", slow)
	w.migration(w.a, "m6", "sends memory", flowing)
	w.Agent("host-b").Kill()
	w.virsh(w.a, "migrate-setspeed", "m6", "500")
	w.migration(w.a, "m6", "has passed the point of no return", func(m migration.Migration) bool {
		return m.Status == migration.StatusPostMigrating || m.Step == migration.StepAcceptToken
	})
	w.require("the copy without its agent", w.domain(w.b, "m6"), "paused (user)")
	if err := w.StartAgent(w.ctx, "host-b"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitReady(w.ctx, "host-b"); err != nil {
		t.Fatal(err)
	}
	m := w.migration(w.a, "m6", "is over", migration.Migration.Done)
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.livesOn("m6", w.b, w.a)
	w.alive("m6", w.a, w.b)
}

func TestMove_PausedGuestArrivesPaused(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "m7", Dirty: 8, Rate: 16})
	if _, err := w.a.Virsh(w.ctx, "suspend", "m7"); err != nil {
		t.Fatal(err)
	}
	w.berth(w.a, "migrate", "m7", w.b.Name)
	w.require("state", w.domain(w.b, "m7"), "paused (user)")
	if _, err := w.b.Virsh(w.ctx, "resume", "m7"); err != nil {
		t.Fatal(err)
	}
	w.livesOn("m7", w.b, w.a)
	w.alive("m7", w.a, w.b)
}

func TestMove_SharedDiskIsRecognisedAndNotCopied(t *testing.T) {
	w := start(t)
	disk := filepath.Join(w.SharedDir(), "m8.qcow2")
	w.boot(w.a, guest.Options{Name: "m8", Dirty: 8, Rate: 16, Disks: []guest.Disk{{Path: disk}}})
	w.berth(w.a, "migrate", "m8", w.b.Name)
	m := w.migration(w.a, "m8", "is over", migration.Migration.Done)
	if m.Progress.DiskTotal != 0 {
		t.Errorf("%d bytes of a shared disk were copied", m.Progress.DiskTotal)
	}
	if _, err := os.Stat(w.b.Path(disk)); err != nil {
		t.Errorf("the shared disk: %v", err)
	}
	proof := w.alive("m8", w.a, w.b)
	if proof.Blocks == 0 {
		t.Error("the guest wrote no disk")
	}
	t.Cleanup(func() { os.Remove(disk) })
}

func TestMove_HooksRunAndAreUndone(t *testing.T) {
	w := start(t)
	marker := w.b.Path("/var/lib/berth/hook.log")
	for phase, text := range map[string]string{
		"pre_live_migration": `{"data":{"port":"p7"}}`, "rollback_live_migration_at_destination": `{}`,
	} {
		dir := w.b.Path("/etc/berth/hooks.d/" + phase)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\n{ printf '" + phase + " '; cat; echo; } >> /var/lib/berth/hook.log\necho '" + text + "'\n"
		if err := os.WriteFile(filepath.Join(dir, "10-network"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	t.Cleanup(func() { os.Remove(marker) })
	w.boot(w.a, guest.Options{Name: "m9", Dirty: 48, Rate: 20})
	w.berth(w.a, "migrate", "m9", w.b.Name, "--detach", "--bandwidth", "6MiB/s")
	m := w.migration(w.a, "m9", "sends memory", flowing)
	w.berth(w.a, "migration", "abort", m.UUID)
	w.migration(w.a, "m9", "is over", migration.Migration.Done)
	log, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.FieldsFunc(string(log), func(c rune) bool { return c == '\n' })
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "pre_live_migration ") || !strings.HasPrefix(lines[1], "rollback_live_migration_at_destination ") {
		t.Fatalf("hooks ran as:\n%s", log)
	}
	if !strings.Contains(lines[1], `"port":"p7"`) || !strings.Contains(lines[1], m.UUID) {
		t.Errorf("the undo was not given the hook's data and the migration: %s", lines[1])
	}
	w.livesOn("m9", w.a, w.b)
}

func TestAdopt_RunningGuestMovesAfterwards(t *testing.T) {
	w := start(t)
	o := guest.Options{Name: "foreign", Dirty: 16, Rate: 24}
	w.xml(w.a, &o)
	t.Cleanup(func() { w.remove("foreign") })
	w.virsh(w.a, "define", "/var/lib/libvirt/foreign.xml")
	list := ask[api.InstanceList](w, w.a, "instance", "list").Instances
	i := slices.IndexFunc(list, func(in api.Instance) bool { return in.Name == "foreign" })
	if i < 0 || list[i].Managed {
		t.Fatalf("an unmanaged guest is listed as %+v", list)
	}
	if codes, _ := w.refused(3, w.a, "migrate", "foreign", w.b.Name); len(codes) == 0 {
		t.Error("a move of an unmanaged guest was refused with no reason")
	}
	w.virsh(w.a, "start", "foreign")
	before := w.beats(w.a, "foreign", 3)
	w.berth(w.a, "instance", "adopt", "foreign")
	w.livesOn("foreign", w.a, w.b)
	w.berth(w.a, "instance", "adopt", "--all") // safe to repeat
	if after := w.beats(w.a, "foreign", len(before)+2); after[len(after)-1].Boot != before[0].Boot {
		t.Error("adoption rebooted the guest")
	}
	w.berth(w.a, "migrate", "foreign", w.b.Name)
	w.livesOn("foreign", w.b, w.a)
	w.alive("foreign", w.a, w.b)
}
