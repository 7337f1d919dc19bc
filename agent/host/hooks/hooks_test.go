package hooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth/agent/host/hooks"
	"berth/internal/fault"
	"berth/internal/runtime"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(dies); dir != "" {
		die(dir)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// dies names the variable that makes this program an agent which dies with a hook of a
// folder begun: before that is on record, or after, by the variable's beginning.
const dies = "BERTH_TEST_DIES"

func die(how string) {
	when, dir, _ := strings.Cut(how, ":")
	r := &hooks.Runner{Dir: dir, Runtime: new(runtime.System), Logger: slog.New(slog.DiscardHandler)}
	_, err := r.Run(context.Background(), request, func(_ context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
		_ = json.NewEncoder(os.Stdout).Encode(p)
		if when == "before" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	})
	panic(err) // it should have died
}

// fixture makes hooks of a phase from their shell text.
func fixture(t *testing.T, settings map[string]hooks.Setting, scripts map[string]string) *hooks.Runner {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		path := filepath.Join(dir, hooks.PreLiveMigration, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(text, "DIR", dir)+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rt := new(runtime.System)
	t.Cleanup(rt.Wait)
	return &hooks.Runner{
		Dir: dir, Runtime: rt, Logger: slog.New(slog.DiscardHandler),
		Setting: func(hook string) hooks.Setting { return settings[filepath.Base(hook)] },
	}
}

var request = hooks.Request{
	Phase: hooks.PreLiveMigration, Migration: "m1", Instance: "i1", Source: "a", Destination: "b", DomainXML: "<domain/>",
	Context: hooks.Context{Data: map[string]json.RawMessage{"10-net": json.RawMessage(`{"port":7}`)}},
}

func TestRunner_FeedsHooksInNameOrderAndKeepsTheirData(t *testing.T) {
	r := fixture(t, nil, map[string]string{
		"20-second": `echo second >>DIR/order; echo '{"data":{"n":2}}'`,
		"10-first":  `cat >DIR/input; echo first >>DIR/order; echo '{}'`,
		"README":    `echo never >>DIR/order`,
		"30-x.bak":  `echo never >>DIR/order`,
		"40-silent": ``,
	})
	var seen []string
	data, err := r.Run(t.Context(), request, func(_ context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
		seen = append(seen, p.Hook)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]json.RawMessage{"20-second": json.RawMessage(`{"n":2}`)}
	if diff := cmp.Diff(want, data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	order, _ := os.ReadFile(filepath.Join(r.Dir, "order"))
	if got, want := string(order), "first\nsecond\n"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	if diff := cmp.Diff([]string{"pre_live_migration/10-first", "pre_live_migration/20-second", "pre_live_migration/40-silent"}, seen); diff != "" {
		t.Errorf("processes told of (-want +got):\n%s", diff)
	}
	input, _ := os.ReadFile(filepath.Join(r.Dir, "input"))
	wantInput := `{"version":1,"phase":"pre_live_migration","migration":"m1","instance":"i1","source":"a","destination":"b",` +
		`"domain_xml":"<domain/>","context":{"migration_context":null,"data":{"10-net":{"port":7}}}}` + "\n"
	if diff := cmp.Diff(wantInput, string(input)); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

func TestRunner_Failures(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		setting      hooks.Setting
		kind         fault.Kind
		text         string
	}{
		{"exit 1 fails with what it said", `echo no route >&2; exit 1`, hooks.Setting{}, fault.Internal, "no route"},
		{"exit 75 asks to try again", `exit 75`, hooks.Setting{}, fault.Unavailable, "try again"},
		{"warn fails nothing", `exit 1`, hooks.Setting{OnFailure: hooks.Warn}, "", ""},
		{"killed at its deadline with its children", `sleep 300 & sleep 300`, hooks.Setting{Timeout: 50 * time.Millisecond}, fault.Internal, "did not end within 50ms"},
		{"talks without end", `yes`, hooks.Setting{Timeout: 300 * time.Millisecond}, fault.Internal, "did not end"},
		{"talks too much", `head -c 2000000 /dev/zero`, hooks.Setting{}, fault.Internal, "more than"},
		{"answers nonsense", `echo hello`, hooks.Setting{}, fault.Internal, "neither {}"},
		{"answers an unknown field", `echo '{"dta":{}}'`, hooks.Setting{}, fault.Internal, "dta"},
		{"leaves a child with the pipe open", `sleep 300 & exit 0`, hooks.Setting{}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := fixture(t, map[string]hooks.Setting{"20-bad": tt.setting}, map[string]string{
				"10-ok": `echo '{"data":{"a":1}}'`, "20-bad": tt.script, "30-after": `touch DIR/after`,
			})
			data, err := r.Run(t.Context(), request, nil)
			if got := fault.KindOf(err); got != tt.kind {
				t.Fatalf("kind %q (%v), want %q", got, err, tt.kind)
			}
			if data["10-ok"] == nil {
				t.Error("the data of the hook that ran before is lost to the undo")
			}
			_, statErr := os.Stat(filepath.Join(r.Dir, "after"))
			if ran := statErr == nil; ran != (tt.kind == "") {
				t.Errorf("hook after the failed one ran: %v", ran)
			}
			if tt.kind == "" {
				return
			}
			if text := err.Error(); !strings.Contains(text, tt.text) || !strings.Contains(text, "pre_live_migration/20-bad") {
				t.Errorf("error %q, want it to name the hook and %q", text, tt.text)
			}
		})
	}
}

func TestRunner_RefusesWhatTheOperatorBelievesIsAHook(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-a": "", "20-b": ""})
	for name, mode := range map[string]os.FileMode{"10-a": 0o644, "20-b": 0o757} {
		if err := os.Chmod(filepath.Join(r.Dir, hooks.PreLiveMigration, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.Run(t.Context(), request, nil)
	var codes []string
	for _, reason := range fault.ReasonsOf(err) {
		codes = append(codes, reason.Code)
	}
	if diff := cmp.Diff([]string{"hook_not_executable", "hook_writable"}, codes); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestRunner_NoFolderIsNoHooks(t *testing.T) {
	rt := new(runtime.System)
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "absent"), t.TempDir()} {
		r := &hooks.Runner{Dir: dir, Runtime: rt, Logger: slog.New(slog.DiscardHandler)}
		if data, err := r.Run(t.Context(), request, nil); err != nil || len(data) > 0 {
			t.Errorf("hooks of %q: %v, %v", dir, data, err)
		}
	}
}

func TestRunner_ARecordThatFailsEndsTheHook(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-a": `cat >/dev/null; touch DIR/ran`})
	var p hooks.Process
	_, err := r.Run(t.Context(), request, func(_ context.Context, got hooks.Process, _ map[string]json.RawMessage) error {
		p = got
		return errors.New("disk full")
	})
	if !errors.Is(err, fault.Internal) {
		t.Fatalf("error %v, want internal", err)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, "ran")); err == nil {
		t.Error("the hook got as far as its effect though nobody could find it again")
	}
	if err := syscall.Kill(p.PID, 0); err == nil {
		t.Error("the hook still runs")
	}
}

// dead runs an agent that dies with a hook, and gives the hook's process.
func dead(t *testing.T, r *hooks.Runner, when string) (p hooks.Process, agent *exec.Cmd) {
	t.Helper()
	agent = exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), dies+"="+when+":"+r.Dir)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(out).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p, agent
}

// gone waits for the end of a process that an agent left behind, and buries it: this
// program adopts them (PR_SET_CHILD_SUBREAPER), since nobody says how soon init does.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 6000 {
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got == pid || errors.Is(err, syscall.ECHILD) && syscall.Kill(pid, 0) != nil {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Errorf("process %d still runs", pid)
}

func TestRunner_AHookThatIsNotOnRecordNeverBegins(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-a": `touch DIR/ran`})
	p, agent := dead(t, r, "before")
	_ = agent.Wait() // it was killed
	gone(t, p.PID)
	if _, err := os.Stat(filepath.Join(r.Dir, "ran")); err == nil {
		t.Error("the hook got as far as its effect though nobody can find it again")
	}
}

func TestEnd_FindsWhatAHookLeftBehind(t *testing.T) {
	// Its first process ends, as one does that writes to an agent that is dead.
	r := fixture(t, nil, map[string]string{"10-a": `sleep 300 & echo $! >DIR/child.new; mv DIR/child.new DIR/child; wait`})
	p, agent := dead(t, r, "after")
	var child int
	for child == 0 {
		<-time.After(10 * time.Millisecond)
		text, _ := os.ReadFile(filepath.Join(r.Dir, "child"))
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, p.PID)
	stranger := p
	stranger.Hook = "pre_live_migration/20-b"
	if was, err := r.End(stranger); was || err != nil {
		t.Errorf("End of another hook that had its number: %v, %v", was, err)
	}
	if was, err := r.End(p); !was || err != nil {
		t.Errorf("End of a hook whose child runs: %v, %v", was, err)
	}
	gone(t, child)
	if was, err := r.End(p); was || err != nil {
		t.Errorf("End once more: %v, %v", was, err)
	}
}

func TestEnd_KillsTheRecordedProcessOnly(t *testing.T) {
	r := fixture(t, nil, map[string]string{"10-a": `sleep 300`})
	var killed bool
	_, err := r.Run(t.Context(), request, func(_ context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
		stranger := p
		stranger.Start++
		if was, err := r.End(stranger); was || err != nil {
			t.Errorf("End of a stranger with the same pid: %v, %v", was, err)
		}
		var err error
		killed, err = r.End(p)
		return err
	})
	if !killed || err == nil {
		t.Errorf("killed %v, phase ended with %v", killed, err)
	}
	if was, err := r.End(hooks.Process{PID: 1 << 30, Start: 1}); was || err != nil {
		t.Errorf("End of a process long gone: %v, %v", was, err)
	}
}
