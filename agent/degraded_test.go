package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/reporter"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/topology"
)

// The rows of the table in degraded.go that no other test has.
func TestAgent_StartsDegradedRatherThanNotAtAll(t *testing.T) {
	t.Parallel()
	const was = "11111111-2222-4333-8444-555555555555"
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// records puts them into a host's database, before its agent starts.
	records := func(c config.Config, of map[string]string) {
		t.Helper()
		db, err := store.Open(filepath.Join(c.Agent.StateDir, ledgerFile), store.Options{})
		for key, value := range of {
			err = errors.Join(err, db.Put(context.Background(), store.BucketAgent, key, []byte(value)))
		}
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	uuidFile := func(c config.Config) string { return filepath.Join(c.Agent.StateDir, reporter.IdentityFile) }
	for _, row := range []struct {
		name   string
		change func(t *testing.T, c *config.Config)
		part   string // the condition that is degraded
		says   string
		refuse bool // no claim is given
		check  func(t *testing.T, c config.Config, s api.Status)
	}{
		{name: "a flavor file is wrong", part: "configuration", says: "bad.toml", change: func(_ *testing.T, c *config.Config) {
			write(filepath.Join(c.Agent.FlavorsDir, "bad.toml"), "name = \n")
			write(filepath.Join(c.Agent.FlavorsDir, "good.toml"), "name = \"good\"\nvcpus = 1\nmemory_mb = 64\n")
		}},
		{name: "whether it is disabled cannot be read", part: "configuration", says: "disabled", change: func(_ *testing.T, c *config.Config) {
			records(*c, map[string]string{keyDisabled: "no JSON"})
		}, check: func(t *testing.T, _ config.Config, s api.Status) {
			if s.Disabled == nil {
				t.Error("it takes guests")
			}
		}},
		{name: "what was reported cannot be read", part: "configuration", says: "reported", change: func(_ *testing.T, c *config.Config) {
			records(*c, map[string]string{keyReported: "no JSON"})
		}},
		{name: "the provider's uuid is gone, and the ledger has it", part: "", change: func(_ *testing.T, c *config.Config) {
			records(*c, map[string]string{keyIdentity: `{"provider_uuid":"` + was + `","host_uuid":"x"}`})
			if err := guard.MarkManaged(c.Agent.StateDir); err != nil {
				t.Fatal(err)
			}
		}, check: func(t *testing.T, c config.Config, s api.Status) {
			if id, err := os.ReadFile(uuidFile(c)); s.ProviderUUID != was || err != nil || strings.TrimSpace(string(id)) != was {
				t.Errorf("provider %s, file %q, %v; want %s", s.ProviderUUID, id, err, was)
			}
		}},
		{name: "the provider's uuid makes no sense, and nobody has it", part: "identity", says: reporter.IdentityFile, refuse: true, change: func(_ *testing.T, c *config.Config) {
			write(uuidFile(*c), "not a uuid\n")
		}, check: func(t *testing.T, c config.Config, _ api.Status) {
			if text, _ := os.ReadFile(uuidFile(c)); string(text) != "not a uuid\n" {
				t.Errorf("the file is %q now", text)
			}
		}},
		{name: "the database cannot be opened", part: "ledger", says: ledgerFile, refuse: true, change: func(t *testing.T, c *config.Config) {
			if err := os.MkdirAll(filepath.Join(c.Agent.StateDir, ledgerFile), 0o700); err != nil {
				t.Fatal(err)
			}
		}, check: func(t *testing.T, c config.Config, _ api.Status) {
			if st, err := os.Stat(filepath.Join(c.Agent.StateDir, ledgerFile)); err != nil || !st.IsDir() {
				t.Errorf("what was in its place was touched: %v, %v", st, err)
			}
		}},
		{name: "the database is of a newer Berth", part: "ledger", says: "newer", refuse: true, change: func(t *testing.T, c *config.Config) {
			records(*c, nil)
			path := filepath.Join(c.Agent.StateDir, ledgerFile)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			// bbolt keeps a value right behind its key.
			write(path, strings.ReplaceAll(string(data), "schema1", "schema9"))
		}, check: func(t *testing.T, c config.Config, _ api.Status) {
			if kept, _ := store.Kept(filepath.Join(c.Agent.StateDir, ledgerFile)); len(kept) > 0 {
				t.Errorf("it was set aside: %v", kept)
			}
		}},
		{name: "keystone's clouds file is missing", part: "placement", says: "", change: func(t *testing.T, c *config.Config) {
			c.Placement.Auth, c.Placement.Cloud, c.Placement.CloudsFile, c.Placement.URL = config.AuthKeystone, "c", filepath.Join(t.TempDir(), "clouds.yaml"), ""
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := settings(t, nowhere(t))
			if err := os.MkdirAll(c.Agent.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			row.change(t, &c)
			o := agentOptions(t, c)
			var a *Agent
			o.made = func(made *Agent) { a = made }
			client, _ := start(t, o)
			var s api.Status
			condition := func() api.Condition {
				var err error
				if s, err = client.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, part := range s.Conditions {
					if part.Name == row.part {
						return part
					}
				}
				return api.Condition{}
			}
			got := condition()
			for end := time.Now().Add(patience); row.part == "placement" && got.Health == api.HealthOK && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				got = condition()
			}
			if row.part != "" && (got.Health != api.HealthDegraded || len(got.Reasons) == 0 || got.Reasons[0].Change == "" || !strings.Contains(got.Detail, row.says)) {
				t.Errorf("%s: %+v, want degraded, with what to do, and %q in it", row.part, got, row.says)
			}
			if err := a.tracker.Check(topology.Resources{VCPUs: 1, MemoryMB: 1}); (err != nil) != row.refuse {
				t.Errorf("a claim: %v, want refused: %v", err, row.refuse)
			}
			if row.check != nil {
				row.check(t, c, s)
			}
		})
	}
}

func TestAgent_ListensForPeersOnceThePortIsFree(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, time.Hour)
	p.must(p.stop["host-a"]())
	o := p.options["host-a"]
	o.Config.Agent.Listen = taken.Addr().String()
	client, _ := start(t, o)
	p.clients["host-a"] = client
	if got := p.condition("host-a", "peers"); got.Health != api.HealthDegraded || got.Reasons[0].Code != "peers_port" {
		t.Errorf("peers: %+v, want the port named", got)
	}
	p.must(taken.Close())
	p.until("it listens", func() bool { return p.condition("host-a", "peers").Health == api.HealthOK })
}

func TestAgent_AManagedHostWhoseProviderWasTakenStartsAndWritesNothing(t *testing.T) {
	t.Parallel()
	const other = "11111111-2222-3333-4444-555555555555"
	o := agentOptions(t, settings(t, answering(t, `{"uuid":"`+other+`","name":"host-t","generation":3}`)))
	if err := Run(t.Context(), o); !errors.Is(err, fault.Forbidden) {
		t.Fatalf("a host that never managed: %v, want %v", err, fault.Forbidden)
	}
	if err := guard.MarkManaged(o.Config.Agent.StateDir); err != nil {
		t.Fatal(err)
	}
	var a *Agent
	o.made = func(made *Agent) { a = made }
	start(t, o)
	if err := a.tracker.Check(topology.Resources{VCPUs: 1, MemoryMB: 1}); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("a claim: %v, want a refusal that names the other provider", err)
	}
}
