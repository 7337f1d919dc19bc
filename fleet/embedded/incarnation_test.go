package embedded_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/placement"
)

func TestEmbedded_TellsItsIncarnation(t *testing.T) { fleettest.TestIncarnations(t, inMemory) }

// TestEmbedded_AnEmptiedOrOlderDatabase_HasANewIncarnation: hosts recognise by it that records
// which they wrote may be lost.
func TestEmbedded_AnEmptiedOrOlderDatabase_HasANewIncarnation(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "placement.db")
	var running *placement.Server
	serving := func(path string) fleet.Moment {
		t.Helper()
		running = serve(t, path)
		m, err := client(t, running).Moment(t.Context())
		if err != nil || m.Incarnation == "" {
			t.Fatalf("moment %+v, %v", m, err)
		}
		return m
	}
	stop := func() {
		t.Helper()
		if err := running.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(key string) {
		t.Helper()
		if err := client(t, running).Commit(t.Context(), nil, fleet.Change{Key: key, Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	first := serving(db)
	write("hosts/a")
	front := httptest.NewServer(running)
	backup := filepath.Join(dir, "backup.json")
	if err := placement.Backup(t.Context(), front.URL, nil, backup); err != nil {
		t.Fatal(err)
	}
	front.Close()
	stop()
	last := serving(db)
	if last.Incarnation != first.Incarnation {
		t.Errorf("a restart made another incarnation")
	}
	stop()
	old, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	serving(db)
	write("hosts/b")
	stop()

	if err := os.WriteFile(db, old, 0o600); err != nil { // put back, as a person does it
		t.Fatal(err)
	}
	copied := serving(db)
	stop()
	if copied.Incarnation == first.Incarnation {
		t.Error("a copy put back has the incarnation of before")
	}
	restored := filepath.Join(dir, "restored.db")
	if err := placement.Restore(t.Context(), backup, restored, silent); err != nil {
		t.Fatal(err)
	}
	if got := serving(restored); got.Incarnation == first.Incarnation || got.Incarnation == copied.Incarnation {
		t.Error("a restored backup has an incarnation of before")
	}
	stop()
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	if got := serving(db); got.Incarnation == first.Incarnation || got.Incarnation == copied.Incarnation {
		t.Error("an emptied database has an incarnation of before")
	}
	if inMemory := serving(""); inMemory.Incarnation == serving("").Incarnation {
		t.Error("two servers in memory have one incarnation")
	}
}
