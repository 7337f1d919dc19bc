package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Require skips the test, with the reason, where a lab cannot be brought up.
func Require(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a lab is not brought up in short tests")
	}
	if os.Getuid() != 0 {
		t.Skip("a lab needs root")
	}
	missing, err := Missing(t.Context(), Packages()...)
	if err != nil {
		t.Skipf("a lab needs Debian's package database: %v", err)
	}
	if len(missing) > 0 {
		t.Skipf("a lab needs %s; `lab install` adds it", strings.Join(missing, ", "))
	}
}

// Start is Require and Up for a test: the lab lives in a temporary folder, ends
// with the test, and on a failure the logs of its daemons are shown.
func Start(t testing.TB, o Options) *Lab {
	t.Helper()
	Require(t)
	if o.Dir == "" {
		o.Dir = TempDir(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.showLogs(t)
		}
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TempDir is a folder for a lab, removed with the test. Unlike t.TempDir's it is
// open to QEMU, which is another user, and its name is short: sockets lie in it.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-lab-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// showLogs prints the ends of the hosts' logs.
func (l *Lab) showLogs(t testing.TB) {
	t.Helper()
	for _, h := range l.Hosts {
		for _, pattern := range []string{"/var/log/libvirt/libvirtd.log", "/var/log/libvirt/qemu/*.log", "/var/log/berth/*", "/var/log/libvirt/*.console"} {
			files, _ := filepath.Glob(h.Path(pattern))
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
					t.Logf("%s %s:\n%s", h.Name, strings.TrimPrefix(f, h.dir), lastLines(b, 15))
				}
			}
		}
	}
}
