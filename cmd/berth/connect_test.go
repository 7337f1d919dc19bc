package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
	"berth/migration"
)

// A fault anywhere in the configuration is told once, and keeps no command from the agent that
// runs; the agent's own start and config check refuse it.
func TestConnect_FaultInTheConfiguration_CommandGoesOn(t *testing.T) {
	for _, c := range []struct{ what, file, text string }{
		{"an unknown key", "berth.toml.d/50-typo.toml", "[agent]\nsoket = \"/x\"\n"},
		{"an unknown section", "berth.toml.d/50-typo.toml", "[agnet]\nmode = \"manage\"\n"},
		{"no TOML", "berth.toml.d/50-typo.toml", "[agent\n"},
		{"a value of another type", "berth.toml.d/50-typo.toml", "[placement]\ninterval = 5\n"},
		{"a value that cannot be", "berth.toml.d/50-typo.toml", "[migration]\ntransport = \"pigeon\"\n"},
		{"a link to nowhere", "berth.toml.d/50-typo.toml", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := moving()
			m.Status, m.Outcome = migration.StatusCancelled, migration.OutcomeUndone
			moves := &controlled{scripted: scripted{then: map[string][]migration.Migration{"abort": {m}}}}
			socket := serveMoves(t, moves)
			dir := t.TempDir()
			main, bad := filepath.Join(dir, "berth.toml"), filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(bad), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(main, []byte("[agent]\nsocket = \""+socket+"\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := os.WriteFile(bad, []byte(c.text), 0o600)
			if c.text == "" {
				err = os.Remove(bad)
				if err == nil {
					err = os.Symlink("/nowhere", bad)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			code := execute(t.Context(), linked(), []string{"migration", "abort", "m1", "--config", main}, strings.NewReader(""), &out, &errs)
			if code == 2 || !slices.Equal(moves.asked, []string{"abort"}) {
				t.Errorf("abort: code %d, asked %v: %s%s", code, moves.asked, &out, &errs)
			}
			if n := strings.Count(errs.String(), "warning"); n != 1 || !strings.Contains(errs.String(), "50-typo.toml") && !strings.Contains(errs.String(), "pigeon") {
				t.Errorf("%d warnings: %s", n, &errs)
			}
			for _, strict := range [][]string{{"config", "check"}, {"agent"}} {
				var out bytes.Buffer
				if code := execute(t.Context(), linked(), append(strict, "--config", main), strings.NewReader(""), &out, &out); code != 2 {
					t.Errorf("%v: code %d, want 2: %s", strict, code, &out)
				}
			}
		})
	}
	var out bytes.Buffer
	if code := execute(t.Context(), linked(), []string{"status", "--config", filepath.Join(t.TempDir(), "none.toml")}, strings.NewReader(""), &out, &out); code != 2 {
		t.Errorf("a file that --config names and that is not there: code %d: %s", code, &out)
	}
}

func TestReadable_ValuesBesideAFault_AreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.toml")
	if err := os.WriteFile(path, []byte("[agent]\nsocket = \"here/s\"\n[peers]\nhost-b = \"192.0.2.2:16515\"\n[odd]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Readable(path)
	if err == nil || c.Peers["host-b"] != "192.0.2.2:16515" || c.Agent.SocketPath() != config.Default().Agent.SocketPath() {
		t.Errorf("%+v, %v", c.Agent, err)
	}
}
