package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// command runs one command line of berth to its end.
func command(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	var b bytes.Buffer
	code = execute(t.Context(), linked(), args, strings.NewReader(""), &b, &b)
	return code, b.String()
}

// runPlacement runs the server until stop is called, which gives its exit code.
func runPlacement(t *testing.T, args ...string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		code := execute(ctx, linked(), append([]string{"placement"}, args...), strings.NewReader(""), w, w)
		_ = w.Close()
		done <- code
	}()
	lines := bufio.NewScanner(r)
	ready := false
	for !ready && lines.Scan() {
		ready = strings.Contains(lines.Text(), "placement is ready")
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if !ready {
		t.Fatalf("the server ended with %d before it was ready", <-done)
	}
	stop = func() int { cancel(); return <-done }
	return stop
}

func TestPlacement_BackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	socket, db, file := "unix:"+filepath.Join(dir, "s"), filepath.Join(dir, "placement.db"), filepath.Join(dir, "backup")
	stop := runPlacement(t, "--listen", socket, "--db", db)
	if code, said := command(t, "placement", "backup", "--from", socket, file); code != 0 {
		t.Fatalf("backup exits %d: %s", code, said)
	}
	if code, said := command(t, "placement", "restore", file, "--db", db); code != 5 || !strings.Contains(said, "move it away first") {
		t.Errorf("restore over the database exits %d: %s", code, said)
	}
	if code := stop(); code != 0 {
		t.Errorf("the server exits %d", code)
	}
	if code, said := command(t, "placement", "backup", "--from", socket, file); code != 6 {
		t.Errorf("backup of nobody exits %d: %s", code, said)
	}
	if err := os.Rename(db, db+".lost"); err != nil {
		t.Fatal(err)
	}
	if code, said := command(t, "placement", "restore", file, "--db", db); code != 0 {
		t.Errorf("restore exits %d: %s", code, said)
	}
	if code := runPlacement(t, "--listen", socket, "--db", db)(); code != 0 {
		t.Errorf("the server on what was restored exits %d", code)
	}
}

func TestPlacement_RefusesWhatIsUnsafeOrUnclear(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string
	}{
		{"placement --listen 192.0.2.1:8778 --auth none", "everybody who reaches 192.0.2.1:8778 could write"},
		{"placement --listen 0.0.0.0:8778 --auth none", "everybody who reaches 0.0.0.0:8778 could write"},
		{"placement --listen 192.0.2.1:8778", "mutual TLS on 192.0.2.1:8778 needs a certificate"},
		{"placement --auth keystone", "neither none nor mtls"},
		{"placement --listen nonsense", "want HOST:PORT or unix:/path"},
		{"placement nonsense", "nonsense"},
		{"placement backup", "usage: berth placement backup FILE"},
		{"placement backup x --from ftp://host", "want http://HOST:PORT"},
		{"placement restore x", "say --db FILE"},
	} {
		if code, said := command(t, strings.Fields(tt.args)...); code != 2 || !strings.Contains(said, tt.want) {
			t.Errorf("`berth %s` exits %d and says %q, want 2 and %q", tt.args, code, said, tt.want)
		}
	}
}
