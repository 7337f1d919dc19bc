package systemd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/agent/host/hooks"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/systemd"
)

// outcome is what became of one hook.
type outcome struct {
	Answers map[string]json.RawMessage
	Kind    fault.Kind
	Error   string
	Process hooks.Process
	Ended   bool // of a hook that was left behind
}

func endRecorded() error {
	text, err := os.ReadFile(processAt)
	if err != nil {
		return err
	}
	var p hooks.Process
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	was, err := new(hooks.Runner).End(p)
	return errors.Join(err, keep("end", outcome{Process: p, Ended: was}))
}

func runHooks(manager *systemd.Units, mode string, phases ...string) error {
	rt := new(runtime.System)
	defer rt.Wait()
	r := hooks.Runner{
		Dir: hooksDir, Manager: manager, Runtime: rt, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		Setting: func(hook string) hooks.Setting {
			if strings.HasSuffix(hook, "-late") {
				return hooks.Setting{Timeout: 10 * time.Second} // it must have begun, and said so
			}
			return hooks.Setting{Timeout: patience}
		},
	}
	for _, phase := range phases {
		var last hooks.Process
		answers, err := r.Run(context.Background(), hooks.Request{Phase: phase, Instance: "i1"}, func(_ context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
			if last = p; mode == "run" {
				return nil
			}
			text, err := json.Marshal(p)
			if err == nil {
				err = os.WriteFile(processAt, text, 0o600)
			}
			if mode == hooks.PreEvacuate {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return err
		})
		o := outcome{Answers: answers, Kind: fault.KindOf(err), Process: last}
		if err != nil {
			o.Error = err.Error()
		}
		if err := keep(phase, o); err != nil {
			return err
		}
	}
	return nil
}

// hook puts one into the machine.
func (m *machine) hook(name, script string) {
	m.write(filepath.Join(hooksDir, name), "#!/bin/sh\n"+script+"\n", 0o755)
}

func hooksRunOutside(t *testing.T, m *machine) {
	m.hook(hooks.PreLiveMigration+"/10-outside", `read -r input
touch /usr/lib/outside-was-here /etc/outside-was-here || exit 1
setsid sleep infinity >/dev/null 2>&1 & echo $! >/run/outside-child
field() { sed -n "s/^$1:[[:space:]]*//p" /proc/self/status; }
unit=$(sed -n 's/.*\///p' /proc/self/cgroup | grep -m 1 hook)
echo '{"data":{"capabilities":"'$(field CapBnd)'","seccomp":"'$(field Seccomp_filters)'","privileges":"'$(field NoNewPrivs)'","unit":"'$unit'","umask":"'$(umask)'"}}'`)
	m.hook(hooks.PreLiveMigration+"/20-input", `cat >/run/input-was; echo $BERTH_HOOK '$HOME' "$NOTIFY_SOCKET" >/run/environment-was`)
	m.hook(hooks.PostLiveMigration+"/10-again", `echo not yet >&2; exit 75`)
	m.hook(hooks.PrepResize+"/10-late", `echo waiting >&2; sleep infinity & echo $! >/run/late-child; wait`)
	m.probe("run", "success")
	o := kept[outcome](m, hooks.PreLiveMigration)
	var told struct{ Capabilities, Seccomp, Privileges, Unit string }
	if err := json.Unmarshal(o.Answers["10-outside"], &told); err != nil || o.Error != "" {
		t.Fatalf("hooks answered %s, %v; %s", o.Answers, err, o.Error)
	}
	if told.Seccomp != m.statusOf("1", "Seccomp_filters") || told.Privileges != "0" || !strings.HasPrefix(told.Unit, "berth-hook-pre_live_migration-10-outside-") {
		t.Errorf("it is in a sandbox: %+v", told)
	}
	if all := m.statusOf("1", "CapBnd"); told.Capabilities != all {
		t.Errorf("it has the capabilities %s, and process 1 %s", told.Capabilities, all)
	}
	if input := m.read("/run/input-was"); !strings.HasPrefix(input, `{"version":1,"phase":"pre_live_migration"`) || !strings.HasSuffix(input, "}\n") {
		t.Errorf("it was given %q", input)
	}
	if got, want := m.read("/run/environment-was"), "pre_live_migration/20-input $HOME \n"; got != want {
		t.Errorf("its environment: %q, want %q", got, want)
	}
	m.gone("/run/outside-child", "what a hook left running")
	if o := kept[outcome](m, hooks.PostLiveMigration); o.Kind != fault.Unavailable || !strings.Contains(o.Error, "not yet") {
		t.Errorf("a hook that asks to try again: %q, %s", o.Kind, o.Error)
	}
	if o := kept[outcome](m, hooks.PrepResize); o.Kind != fault.Internal || !strings.Contains(o.Error, "did not end within 10s") || !strings.Contains(o.Error, "waiting") {
		t.Errorf("a hook that does not end: %q, %s", o.Kind, o.Error)
	}
	m.gone("/run/late-child", "a child of a hook past its deadline")
	if left := m.hookUnits(); left != "" {
		t.Errorf("units are left: %s", left)
	}
}

// gone waits until the process whose number is in a file is no more.
func (m *machine) gone(file, what string) {
	m.t.Helper()
	pid := strings.TrimSpace(m.read(file))
	m.await("end of "+what, func() error {
		if _, err := os.Stat(m.path("/proc/" + pid)); err == nil {
			return errors.New("process " + pid + " runs")
		}
		return nil
	})
}

// hookUnits are those that the manager knows, also of hooks that failed.
func (m *machine) hookUnits() string {
	m.t.Helper()
	return m.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "berth-hook-*")
}

func hooksAreFoundAgain(t *testing.T, m *machine) {
	m.hook(hooks.PreEvacuate+"/10-never", `touch /run/never`)
	m.probe(hooks.PreEvacuate, "signal") // it dies before the hook is on record
	m.await("end of a hook that was not on record", func() error {
		if left := m.hookUnits(); left != "" {
			return errors.New(left)
		}
		return nil
	})
	if _, err := os.Stat(m.path("/run/never")); err == nil {
		t.Error("a hook has begun that was not on record")
	}
	m.probe("end", "success")
	if kept[outcome](m, "end").Ended {
		t.Error("a hook that never began was ended")
	}

	m.hook(hooks.PostEvacuate+"/10-left", `trap '' TERM; setsid sleep infinity >/dev/null 2>&1 & echo $! >/run/left-child.new; mv /run/left-child.new /run/left-child; wait`)
	m.run("systemctl", "start", "berth-probe@post_evacuate.service")
	m.await("the hook", func() error { _, err := os.Stat(m.path("/run/left-child")); return err })
	m.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "berth-probe@post_evacuate.service")
	m.await("the probe's end", func() error {
		if state := m.property("berth-probe@post_evacuate.service", "ActiveState"); state != "failed" {
			return errors.New("it is " + state)
		}
		return nil
	})
	if left := m.hookUnits(); !strings.Contains(left, "berth-hook-post_evacuate-10-left-") {
		t.Errorf("the hook has died with its agent; units %q", left)
	}
	m.probe("end", "success")
	if o := kept[outcome](m, "end"); !o.Ended || o.Process.Unit == "" {
		t.Errorf("the hook was not found again: %+v", o)
	}
	m.gone("/run/left-child", "a hook that was left behind")
	m.probe("end", "success")
	if kept[outcome](m, "end").Ended {
		t.Error("a hook was ended twice")
	}
}
