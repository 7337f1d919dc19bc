package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CacheDir is where downloads and built helpers are kept between labs:
// $BERTH_LAB_CACHE, else $XDG_CACHE_HOME/berth-lab, else /var/cache/berth-lab.
func CacheDir() string {
	if d := os.Getenv("BERTH_LAB_CACHE"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "berth-lab")
	}
	return "/var/cache/berth-lab"
}

// lockFile takes an exclusive lock on path until the returned function is
// called or the process ends.
func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// BuildStatic compiles a program of one file that needs only the standard
// library into a small static binary in the cache, once per content and
// toolchain, and returns its path. The Go command must be on the PATH the first
// time. Compiling from the embedded source, instead of by import path, works
// from any folder, so also for a command that was built and moved.
func BuildStatic(ctx context.Context, cache, name string, source []byte) (string, error) {
	sum := sha256.Sum256(source)
	out := filepath.Join(cache, "bin", name+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	unlock, err := lockFile(filepath.Join(cache, "bin", ".lock"))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer unlock()
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	tmp, err := os.MkdirTemp(filepath.Join(cache, "bin"), ".build-")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	for file, content := range map[string][]byte{
		"main.go": source,
		"go.mod":  []byte("module " + name + "\n\ngo 1.26\n"),
	} {
		if err := os.WriteFile(filepath.Join(tmp, file), content, 0o644); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", "out", ".")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=-mod=mod", "GOWORK=off", "GOTOOLCHAIN=local")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	if err := os.Rename(filepath.Join(tmp, "out"), out); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return out, nil
}
