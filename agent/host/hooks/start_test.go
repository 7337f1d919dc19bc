package hooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/agent/host/hooks"
	"berth/internal/fault"
	"berth/systemd"
)

// asTool makes this program systemd-run, when it is called by that name: what the manager would
// start it starts itself. A folder of the name "refuses" is that of a manager that does not.
func asTool() (code int, is bool) {
	if filepath.Base(os.Args[0]) != "systemd-run" {
		return 0, false
	}
	if strings.Contains(os.Args[0], "/refuses/") {
		fmt.Fprintln(os.Stderr, "Failed to connect to bus: No such file or directory")
		return 1, true
	}
	i := slices.Index(os.Args, "--")
	command := os.Args[i+1:]
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "$$", "$")
	}
	cmd := exec.Command(command[0], command[1:]...)
	for _, arg := range os.Args[:i] {
		if set, found := strings.CutPrefix(arg, "--setenv="); found {
			cmd.Env = append(cmd.Env, set)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if exit, ok := errors.AsType[*exec.ExitError](cmd.Run()); ok {
		return exit.ExitCode(), true
	}
	return 0, true
}

// manager is one whose units are children of this test, or one that refuses.
func manager(t *testing.T, name string) *systemd.Units {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tools := systemd.Units{SystemdRun: filepath.Join(dir, "systemd-run"), Systemctl: filepath.Join(dir, "systemctl")}
	if err := os.Symlink(self, tools.SystemdRun); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tools.Systemctl, []byte("#!/bin/sh\necho inactive\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &tools
}

func TestUnits_AreFedAndHeardAsChildrenAre(t *testing.T) {
	r := fixture(t, nil, map[string]string{
		"10-first":  `cat >DIR/input; echo "$BERTH_HOOK" >DIR/environment; echo '{"data":{"n":1}}'`,
		"20-second": `echo not yet >&2; exit 75`,
	})
	r.Manager = manager(t, "serves")
	var seen []hooks.Process
	data, err := r.Run(t.Context(), request, func(_ context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
		seen = append(seen, p)
		return nil
	})
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("a hook that asks to try again: %v", err)
	}
	if string(data["10-first"]) != `{"n":1}` {
		t.Errorf("answers %s", data)
	}
	input, _ := os.ReadFile(filepath.Join(r.Dir, "input"))
	if !strings.HasPrefix(string(input), `{"version":1`) || !strings.HasSuffix(string(input), "}\n") {
		t.Errorf("it was given %q", input)
	}
	if environment, _ := os.ReadFile(filepath.Join(r.Dir, "environment")); string(environment) != "pre_live_migration/10-first\n" {
		t.Errorf("its name in its environment: %q", environment)
	}
	if len(seen) != 2 || seen[0].PID != 0 || !strings.HasPrefix(seen[0].Unit, "berth-hook-pre_live_migration-10-first-") || seen[0].Unit == seen[1].Unit {
		t.Errorf("on record: %+v", seen)
	}
}

func TestUnits_ThatCannotBeStartedAreAskedForAgain(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-first": `touch DIR/ran`})
	r.Manager = manager(t, "refuses")
	_, err := r.Run(t.Context(), request, func(context.Context, hooks.Process, map[string]json.RawMessage) error {
		t.Error("a hook is on record that was not started")
		return nil
	})
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "Failed to connect to bus") {
		t.Errorf("without a manager: %v", err)
	}
}

func TestUnits_ThatAreNotOnRecordNeverBegin(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-first": `touch DIR/ran`})
	r.Manager = manager(t, "serves")
	_, err := r.Run(t.Context(), request, func(context.Context, hooks.Process, map[string]json.RawMessage) error {
		return errors.New("disk full")
	})
	if !errors.Is(err, fault.Internal) || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a hook that is not on record: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, "ran")); err == nil {
		t.Error("it has begun")
	}
}
