package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/test/lab"
)

func powerCut(of func(*round) *lab.Host) func(*round) {
	return func(r *round) { r.must("cut the power", of(r).PowerOff()) }
}

func powerBack(of func(*round) *lab.Host) func(*round) {
	return func(r *round) {
		r.must("power on", of(r).PowerOn(r.ctx))
		startAgent(of)(r)
	}
}

func powerCuts(w *world, name string) {
	for _, b := range []breakage{
		{what: "power cut of the destination mid-stream", bytes: true, bandwidth: slow, broken: powerCut(destination), healed: powerBack(destination), want: undone},
		{what: "power cut of the source at accept_token", step: migration.StepAcceptToken, broken: powerCut(source), healed: powerBack(source), want: completed},
		{what: "power cut of the source at clean_up_source", step: migration.StepCleanUpSource, broken: powerCut(source), healed: powerBack(source), want: completed, rare: true},
		{what: "power cut of the source mid-stream", bytes: true, bandwidth: slow, broken: powerCut(source), healed: powerBack(source), want: undone, off: "shut off (unknown)", rare: true},
		{what: "power cut of the destination at finish_destination", step: migration.StepFinishDestination, broken: powerCut(destination), healed: powerBack(destination),
			want: completed, off: "shut off (unknown)"},
	} {
		w.sufferAll(name, []breakage{b})
		if b.off != "" && (!b.rare || all()) {
			for _, h := range w.Hosts {
				if w.domain(h, name) != "" {
					w.again(h, name)
				}
			}
		}
	}
}

// An operator's hook is under way when an agent dies: it is ended, and its undo
// runs.
func TestFaults_AgentsKilledDuringAHook(t *testing.T) {
	w := faults(t, "f14", nil)
	marker := "/var/lib/berth/hook.log"
	for _, h := range w.Hosts {
		for phase, script := range map[string]string{
			"pre_live_migration":                     "echo pre $$ >> " + marker + "\n[ -e /run/quick ] || sleep 600\necho through >> " + marker + "\n",
			"rollback_live_migration_at_destination": "echo rollback >> " + marker + "\n",
		} {
			dir := h.Path("/etc/berth/hooks.d/" + phase)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "10-slow"), []byte("#!/bin/sh\n"+script+"echo '{}'\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, b := range []breakage{
		{what: "kill -9 source agent during a hook", broken: killAgent(source), healed: startAgent(source), want: undone},
		{what: "kill -9 both agents during a hook", want: undone,
			broken: func(r *round) { killAgent(source)(r); killAgent(destination)(r) },
			healed: func(r *round) { startAgent(destination)(r); startAgent(source)(r) }},
		{what: "kill -9 destination agent during a hook", want: completed, broken: killAgent(destination),
			healed: func(r *round) {
				r.must("let hooks be quick", os.WriteFile(r.to.Path("/run/quick"), nil, 0o644))
				startAgent(destination)(r)
			}},
	} {
		log := w.b.Path(marker)
		if err := os.Remove(log); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		broken := b.broken
		b.broken = func(r *round) {
			for text := ""; !strings.Contains(text, "pre "); {
				pause(w, 10*time.Millisecond)
				read, _ := os.ReadFile(log)
				text = string(read)
			}
			broken(r)
		}
		w.suffer("f14", b)
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Count(string(text), "rollback"), len(b.want); b.want[0] == migration.OutcomeUndone && got != want {
			t.Errorf("%s: the undo ran %d times:\n%s", b.what, got, text)
		}
		// What was killed may still be on its way out.
		w.eventually(b.what+" has ended the hook", func() string {
			out, _ := w.b.Exec(w.ctx, "pgrep", "-f", "sleep 600")
			return out
		})
	}
}
