package agent

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/reporter"
	"berth/internal/config"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
)

var (
	updateShapes    = flag.Bool("update-shapes", false, "write the shapes of this schema's records")
	updateSnapshots = flag.Bool("update-snapshots", false, "write databases of this schema")
)

func TestShape_OfTheAgentsRecords(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *updateShapes, map[string]any{
		keyIdentity: identity{}, keyDisabled: api.Disabled{}, keyReported: reporter.Remembered{}, keyRebuild: rebuildRecord{},
	})
}

// snapshots are databases of two hosts in the middle of a move: what a program of that
// schema wrote.
func snapshots(t *testing.T) {
	p := newPair(t, time.Hour)
	p.kernel = "/proc/version" // a name that every machine has
	made, came := p.guest("host-a", "made"), p.guest("host-b", "came")
	gone, back := p.guest("host-a", "gone"), p.guest("host-a", "back")
	for _, m := range [][3]string{{came, "host-b", "host-a"}, {gone, "host-a", "host-b"}} {
		if m := p.finish(m[1], p.move(m[0], m[1], m[2])); m.Err() != nil {
			t.Fatal(m.Err())
		}
	}
	id := p.move(back, "host-a", "host-b")
	_, err := p.clients["host-a"].AbortMigration(t.Context(), id)
	p.must(err)
	p.until("it is undone", func() bool {
		p.fleet.Advance(time.Microsecond)
		m, err := p.clients["host-a"].Migration(p.Context(), id)
		p.must(err)
		return m.Outcome == migration.OutcomeUndone
	})
	p.move(made, "host-a", "host-b")
	disabled := true
	_, err = p.clients["host-b"].SetHost(t.Context(), api.SetHost{Disabled: &disabled, Reason: "a snapshot"})
	p.must(err)
	for name, file := range map[string]string{"host-a": "schema-1-source.db", "host-b": "schema-1-destination.db"} {
		p.must(p.stop[name]())
		saved, err := store.Salvage(filepath.Join(p.options[name].Config.Agent.StateDir, ledgerFile))
		p.must(err)
		path := filepath.Join("testdata", file)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		// The same records, in a file without what earlier commits left behind.
		_, err = store.SetAside(path, time.Now(), saved.Records)
		p.must(err)
	}
}

// Old data opens: every record of a database that an earlier program wrote is read.
func TestRecords_OfEverySchemaAreRead(t *testing.T) {
	t.Parallel()
	if *updateSnapshots {
		snapshots(t)
	}
	for file, want := range map[string]struct {
		name              string
		instances, claims int
		disabled          bool
	}{
		"schema-1-source.db":      {"host-a", 3, 3, false},
		"schema-1-destination.db": {"host-b", 1, 2, true},
	} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			c := settings(t, nowhere(t))
			c.Agent.Name, c.Agent.Mode = want.name, config.Observe
			if err := os.MkdirAll(c.Agent.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(c.Agent.StateDir, ledgerFile)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			saved, err := store.Salvage(path)
			if err != nil || !saved.Complete() {
				t.Fatalf("the snapshot is not whole: %+v, %v", saved.Faults, err)
			}
			buckets := map[string]int{}
			for _, r := range saved.Records {
				buckets[r.Bucket]++
			}
			for _, bucket := range []string{"claims", "instances", "halves", "verbs", "agent"} {
				if buckets[bucket] == 0 {
					t.Errorf("the snapshot has no record of %s: %v", bucket, buckets)
				}
			}
			client, _ := start(t, agentOptions(t, c))
			s, err := client.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range s.Conditions {
				if (part.Name == "ledger" || part.Name == "configuration") && part.Health != api.HealthOK {
					t.Errorf("%s: %+v", part.Name, part)
				}
			}
			list, err := client.Migrations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(s.Instances, s.Claims, s.Disabled != nil)
			if got != fmt.Sprint(want.instances, want.claims, want.disabled) || len(list) < buckets["migrations"] {
				t.Errorf("instances, claims, disabled: %s, migrations %d; want %+v of %v", got, len(list), want, buckets)
			}
		})
	}
}
