package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

// evil sets a title, clears the screen, writes over the line and turns the text round.
const evil = "\x1b]0;owned\a\x1b[2J\u009b31m\rweb-1\u202egpj\x7f"

// hostile is an agent whose every word comes from elsewhere.
type hostile struct{ api.Migrations }

func (hostile) List(context.Context) ([]migration.Migration, error) {
	return []migration.Migration{{UUID: "m1", InstanceName: evil, SourceCompute: evil, DestCompute: evil, MigrationType: migration.TypeLiveMigration}}, nil
}

func (hostile) Get(context.Context, string) (migration.Migration, error) {
	return migration.Migration{}, fault.Refuse(fault.Forbidden, "move "+evil, fault.Reason{Code: "x", Message: evil, Want: evil, Have: evil, Change: evil})
}

func (hostile) Watch(context.Context, string) (<-chan migration.Migration, error) {
	ch := make(chan migration.Migration, 1)
	ch <- migration.Migration{UUID: "m1", InstanceName: evil, SourceCompute: evil, DestCompute: evil, MigrationType: migration.TypeLiveMigration, Status: migration.StatusCompleted, Outcome: migration.OutcomeCompleted}
	close(ch)
	return ch, nil
}

func (h hostile) Start(context.Context, api.Migrate) (migration.Migration, error) {
	return migration.Migration{}, fault.New(fault.Internal, "%s", evil)
}

// wantHarmless looks for what a terminal would act on; returns are those of a line
// that is drawn over itself.
func wantHarmless(t *testing.T, what, out string, drawn bool) {
	t.Helper()
	if out == "" {
		t.Errorf("%s: nothing was printed", what)
	}
	for _, r := range out {
		if r == '\n' || r == '\t' || drawn && r == '\r' {
			continue
		}
		if unicode.IsControl(r) || r == '\u202e' || r == unicode.ReplacementChar {
			t.Errorf("%s: %q in %q", what, r, out)
			return
		}
	}
}

func TestOutput_EscapeSequencesFromElsewhere_AreWrittenOut(t *testing.T) {
	run := conduct(t, hostile{})
	for _, line := range []string{"migration list", "migration list --json", "migration show m1", "migration show m1 --json", "migration watch m1", "migration watch m1 --json", "migrate web-1 host-b", "nonsense" + evil} {
		_, out := run(strings.Split(line, " ")...)
		wantHarmless(t, line, out, false)
		if strings.HasPrefix(line, "migration list") && !strings.Contains(out, `\u001b]0;owned\u0007`) {
			t.Errorf("%s: the name is not shown: %q", line, out)
		}
		if line == "migration list --json" {
			var got any
			if err := json.Unmarshal([]byte(out), &got); err != nil || !strings.Contains(fmt.Sprint(got), evil) {
				t.Errorf("the JSON says something else: %+v, %v", got, err)
			}
		}
	}
	t.Setenv("BERTH_PROGRESS", "live")
	_, out := run("migration", "watch", "m1")
	wantHarmless(t, "a line drawn over itself", strings.ReplaceAll(out, "\r", ""), false)
	if strings.Contains(out, "\rweb-1") {
		t.Errorf("a name returns to the beginning of the line: %q", out)
	}
}

func TestLogger_EscapeSequencesFromElsewhere_AreQuoted(t *testing.T) {
	var out bytes.Buffer
	log, err := newLogger(&out, "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info(evil, "instance", evil, "error", fmt.Errorf("read: %s", evil), "any", struct{ Name string }{evil}, evil, 1)
	wantHarmless(t, "log", out.String(), false)
}
