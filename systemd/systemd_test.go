package systemd_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/runtime"
	"berth/systemd"
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
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
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
	if asked != 3 || rt.slept[0] != 10*time.Second {
		t.Errorf("asked %d times every %v, want 3 times every 10s", asked, rt.slept)
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

func TestUnits_PassSystemdAnalyze(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
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
	for _, unit := range []string{"berth.service", "berth.socket"} {
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
	out, err := exec.Command(tool, "verify", "--man=no", "--root="+root, "berth.service", "berth.socket").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
