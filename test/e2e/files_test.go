package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"berth/migration"
	"berth/test/guest"
)

// TestMove_FilesThatAreTakenAway: what libvirt does on a host that is done with a guest, where it
// does not know that the other one uses the file too, comes before the guest's end there.
func TestMove_FilesThatAreTakenAway(t *testing.T) {
	w := start(t)
	disk := filepath.Join(w.SharedDir(), "taken.qcow2")
	w.boot(w.a, guest.Options{Name: "taken", Disks: []guest.Disk{{Path: disk}}})
	t.Cleanup(func() { _ = os.Remove(disk) })
	w.berth(w.a, "migrate", "taken", w.b.Name, "--detach", "--bandwidth", "12MiB/s")
	m := w.migration(w.a, "taken", "sends memory", flowing)
	if err := os.Chown(disk, 0, 0); err != nil {
		t.Fatal(err)
	}
	m = w.migration(w.a, "taken", "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.runsOn("taken", w.b, w.a)
	w.alive("taken", w.a, w.b)
}
