package systemd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/runtime"
	"berth/systemd"
	"berth/systemd/systemdtest"
)

// manager listens where NOTIFY_SOCKET points, and gives what it was told.
func manager(t *testing.T) func() string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("nothing told: %v", err)
		}
		return string(buf[:n])
	}
}

func TestNotifier_SpeaksTheProtocol(t *testing.T) {
	told := manager(t)
	var n systemd.Notifier
	for _, tt := range []struct {
		send func() error
		want string
	}{
		{func() error { return n.Ready("serving\nREADY=0") }, "READY=1\nSTATUS=serving READY=0"},
		{func() error { return n.Status("degraded: no libvirt") }, "STATUS=degraded: no libvirt"},
		{n.Reloading, "RELOADING=1\nMONOTONIC_USEC="},
		{n.Stopping, "STOPPING=1"},
	} {
		if err := tt.send(); err != nil {
			t.Fatal(err)
		}
		if got := told(); !strings.HasPrefix(got, tt.want) {
			t.Errorf("told %q, want %q", got, tt.want)
		}
	}
}

func TestNotifier_WithoutAManagerDoesNothing(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := (systemd.Notifier{}).Ready("x"); err != nil {
		t.Error(err)
	}
}

// clock lets two periods pass and then ends.
type clock struct {
	runtime.System
	left  int
	slept []time.Duration
}

func (c *clock) Sleep(_ context.Context, d time.Duration) error {
	c.slept = append(c.slept, d)
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestWatchdog_IsSilentWhenTheLoopsStand(t *testing.T) {
	told := manager(t)
	t.Setenv("WATCHDOG_USEC", "20000000")
	t.Setenv("WATCHDOG_PID", "")
	if err := os.Unsetenv("WATCHDOG_PID"); err != nil {
		t.Fatal(err)
	}
	rt, asked := &clock{left: 2}, 0
	err := systemd.Notifier{}.Watchdog(t.Context(), rt, func() bool { asked++; return asked != 2 })
	if err != nil {
		t.Fatal(err)
	}
	// After the no it is asked again long before the manager's patience is over.
	if asked != 3 || rt.slept[0] != 10*time.Second || rt.slept[1] != time.Second {
		t.Errorf("asked %d times after %v, want 3 times after 10s and 1s", asked, rt.slept)
	}
	for range 2 {
		if got := told(); got != "WATCHDOG=1" {
			t.Errorf("told %q", got)
		}
	}
	if err := (systemd.Notifier{}).Status("end"); err != nil {
		t.Fatal(err)
	}
	if got := told(); got != "STATUS=end" {
		t.Errorf("told %q though the loops stood", got)
	}
}

func TestWatchdog_WithoutOneWaitsForItsEnd(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := (systemd.Notifier{}).Watchdog(ctx, &runtime.System{}, func() bool { t.Error("asked"); return true }); err != nil {
			t.Error(err)
		}
	})
}

// analyze is systemd-analyze, which looks at units without a manager.
func analyze(t *testing.T) string {
	t.Helper()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	return tool
}

func TestUnits_PassSystemdAnalyze(t *testing.T) {
	tool := analyze(t)
	// The units are judged as they will lie on a host: in a root of their own
	// where the binary they start exists.
	root := t.TempDir()
	put := func(path string, data []byte, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	services, err := filepath.Glob("*.service")
	if err != nil || len(services) != len(exposure) {
		t.Fatalf("services %q, %v; want those of the table of exposures", services, err)
	}
	for _, unit := range append(services, "berth.socket") {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		put("etc/systemd/system/"+unit, text, 0o644)
	}
	put("usr/bin/berth", []byte("#!/bin/sh\n"), 0o755)
	put("bin/kill", []byte("#!/bin/sh\n"), 0o755)
	for _, target := range []string{"network-online", "sysinit", "basic", "shutdown", "sockets", "multi-user"} {
		put("etc/systemd/system/"+target+".target", []byte("[Unit]\nDescription="+target+"\n"), 0o644)
	}
	out, err := exec.Command(tool, "verify", "--man=no", "--root="+root, "berth.service", "berth.socket", "berth-placement.service",
		"berth-stream@11111111-2222-4333-8444-555555555555-1.service").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// exposure is how much a service may be exposed, in tenths, by the arithmetic of
// systemd-analyze security: none may become more.
var exposure = map[string]int{
	"berth.service":           30, // root, six of its capabilities, every disk and the network
	"berth-placement.service": 13, // a port and a file
	"berth-stream@.service":   25, // root, two of its capabilities and the network
}

func TestUnits_AreConfined(t *testing.T) {
	tool := analyze(t)
	for unit, most := range exposure {
		out, err := exec.Command(tool, "security", "--offline=true", "--threshold="+strconv.Itoa(most), "--no-pager", unit).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err != nil {
			t.Errorf("systemd-analyze security of %s: %v\n%s", unit, err, out)
		}
		t.Log(lines[len(lines)-1])
	}
}

func TestUnits_AUnitWhoseProcessesAreLeftIsNotOver(t *testing.T) {
	m := systemdtest.New(t)
	if was, err := m.End(t.Context(), "x.service"); was || err != nil {
		t.Errorf("of a unit that is over: %v, %v", was, err)
	}
	m.Clings(true)
	if was, err := m.End(t.Context(), "x.service"); was || !errors.Is(err, systemd.ErrClings) {
		t.Errorf("of one whose processes do not end: %v, %v", was, err)
	}
}

func TestUnits_OutputIsEndedWithWhoAsked(t *testing.T) {
	m := systemdtest.New(t)
	began := filepath.Join(t.TempDir(), "began")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, 1)
	go func() {
		said, _, err := m.Output(ctx, systemd.Transient{Unit: "x.service", Command: []string{"/bin/sh", "-c", "echo $$ >" + began + ".new; mv " + began + ".new " + began + "; exec sleep 600"}})
		if len(said) > 0 {
			err = errors.Join(err, fmt.Errorf("it said %q", said))
		}
		ended <- err
	}()
	for {
		if _, err := os.Stat(began); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	text, err := os.ReadFile(began)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(text))); err == nil {
		t.Error("it runs still")
	}
	said, complaint, err := m.Output(t.Context(), systemd.Transient{Unit: "y.service", Command: []string{"/bin/sh", "-c", "echo $HOME-less; echo no >&2; exit 3"}, Env: []string{"HOME=x"}})
	if string(said) != "x-less\n" || string(complaint) != "no\n" || err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%q, %q, %v", said, complaint, err)
	}
}

// systemctl writes down what it was asked and answers as the file beside it says.
func TestUnits_AreStartedByName(t *testing.T) {
	dir := t.TempDir()
	tool, log := filepath.Join(dir, "systemctl"), filepath.Join(dir, "log")
	script := "#!/bin/sh\necho \"$@\" >>" + log + "\ncase \"$3\" in start) cat " + dir + "/says >&2; exit $(cat " + dir + "/code);; reset-failed) exit 1;; esac\n"
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	put("systemctl", script, 0o755)
	put("says", "", 0o644)
	put("code", "0", 0o644)
	u := systemd.Units{Systemctl: tool}
	if err := u.Start(t.Context(), "x@1.service"); err != nil {
		t.Error(err)
	}
	put("says", "Job for x@1.service failed.\nSee the journal.", 0o644)
	put("code", "1", 0o644)
	if err := u.Start(t.Context(), "x@1.service"); err == nil || !strings.Contains(err.Error(), "Job for x@1.service failed. See the journal.") {
		t.Errorf("a start that fails: %v", err)
	}
	got, err := os.ReadFile(log)
	want := strings.Repeat("--no-ask-password --quiet reset-failed -- x@1.service\n--no-ask-password --quiet start -- x@1.service\n", 2)
	if err != nil || string(got) != want {
		t.Errorf("asked %q, %v; want %q", got, err, want)
	}
	if !u.Has(t.Context(), "x@.service") {
		t.Error("a unit that the manager knows is not there")
	}
	if (systemd.Units{Systemctl: filepath.Join(dir, "nothing")}).Has(t.Context(), "x@.service") {
		t.Error("without a tool a unit is there")
	}
}
