package openstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/test/lab"
)

// recipe is raised when what a template holds changes here, so that the cached
// ones are made again.
const recipe = "2"

// template gives the cached folder called kind for the installed versions of the
// packages, and fills it first where it is not there. It is whole or absent: a
// fill that is interrupted leaves a folder that the next one removes.
func template(ctx context.Context, kind string, packages []string, fill func(dir string) error) (string, error) {
	out, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${Package}=${Version},"}, packages...)...).Output()
	if err != nil {
		return "", fmt.Errorf("read the versions of %s: %w", strings.Join(packages, ", "), err)
	}
	sum := sha256.Sum256([]byte(recipe + "," + string(out)))
	base := filepath.Join(lab.CacheDir(), "openstack")
	dir := filepath.Join(base, kind+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("make template %s: %w", kind, err)
	}
	lock, err := os.OpenFile(filepath.Join(base, "."+kind+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("make template %s: %w", kind, err)
	}
	defer lock.Close() // which ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("make template %s: lock: %w", kind, err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Those of other versions, and what a killed fill left.
	old, _ := filepath.Glob(filepath.Join(base, kind+"-*"))
	for _, d := range old {
		if err := os.RemoveAll(d); err != nil {
			return "", fmt.Errorf("remove an old template: %w", err)
		}
	}
	tmp := filepath.Join(base, kind+"-new")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make template %s: %w", kind, err)
	}
	if err := fill(tmp); err != nil {
		return "", fmt.Errorf("make template %s: %w", kind, err)
	}
	return dir, os.Rename(tmp, dir)
}

// copyTree copies a folder's content into another folder that is there.
func copyTree(ctx context.Context, from, to string) error {
	return command(exec.CommandContext(ctx, "cp", "-a", "--sparse=always", from+"/.", to))
}

// command runs cmd; an error holds what it said.
func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(out) > 4000 {
			out = out[len(out)-4000:]
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// python runs one of Debian's programs, or a piece of Python after -c.
func python(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", args...)
	cmd.Env = environment(env...)
	return command(cmd)
}
