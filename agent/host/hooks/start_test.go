package hooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/host/hooks"
	"berth/internal/fault"
	"berth/systemd"
	"berth/systemd/systemdtest"
)

// refusing is a manager that starts nothing.
func refusing(t *testing.T) *systemd.Units {
	m := systemdtest.New(t)
	m.Refuses("Failed to connect to bus: No such file or directory")
	return &m.Units
}

func TestUnits_AreFedAndHeardAsChildrenAre(t *testing.T) {
	r := fixture(t, nil, map[string]string{
		"10-first":  `cat >DIR/input; echo "$BERTH_HOOK" >DIR/environment; echo '{"data":{"n":1}}'`,
		"20-second": `echo not yet >&2; exit 75`,
	})
	r.Manager = &systemdtest.New(t).Units
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
	r.Manager = refusing(t)
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
	r.Manager = &systemdtest.New(t).Units
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

// Processes that wait in the kernel outlive every kill: the hook may go on any time.
func TestUnits_ThatCannotBeEndedStayWithWhoeverKeepsTheirRecord(t *testing.T) {
	for _, onFailure := range []string{hooks.Fail, hooks.Warn} {
		r := fixture(t, map[string]hooks.Setting{"10-first": {OnFailure: onFailure}}, map[string]string{
			"10-first": `echo no route >&2; exit 1`, "20-second": `touch DIR/ran`,
		})
		m := systemdtest.New(t)
		r.Manager = &m.Units
		m.Clings(true)
		var p hooks.Process
		_, err := r.Run(t.Context(), request, func(_ context.Context, got hooks.Process, _ map[string]json.RawMessage) error {
			p = got
			return nil
		})
		if !errors.Is(err, hooks.ErrNotEnded) || fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "no route") || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), p.Unit) {
			t.Errorf("on_failure %s: %v", onFailure, err)
		}
		if _, err := os.Stat(filepath.Join(r.Dir, "ran")); err == nil {
			t.Errorf("on_failure %s: the next hook has run beside it", onFailure)
		}
		if was, err := r.End(p); was || !errors.Is(err, hooks.ErrNotEnded) {
			t.Errorf("End while it clings: %v, %v", was, err)
		}
		m.Clings(false)
		if was, err := r.End(p); was || err != nil {
			t.Errorf("End when it is gone: %v, %v", was, err)
		}
	}
}

// Before its gate a hook has done nothing, and the closed pipe ends it: there is no record to keep.
func TestUnits_ThatNeverBeganAreNoMatter(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-first": `touch DIR/ran`})
	m := systemdtest.New(t)
	r.Manager = &m.Units
	m.Clings(true)
	_, err := r.Run(t.Context(), request, func(context.Context, hooks.Process, map[string]json.RawMessage) error {
		return errors.New("disk full")
	})
	if !errors.Is(err, fault.Internal) || errors.Is(err, hooks.ErrNotEnded) {
		t.Errorf("a hook that is not on record: %v", err)
	}
}
