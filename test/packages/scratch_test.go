package packages

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/lab"
)

// scratch is a machine to install packages on.
type scratch struct {
	t   *testing.T
	pid int // of its first process
}

// patience is how long a condition is waited for, on a machine however busy.
const patience = time.Minute

// newScratch makes a machine of its own of this one's files. It has no service manager,
// no network and no processes but what a test starts.
func newScratch(t *testing.T) *scratch {
	t.Helper()
	require(t)
	dir := lab.TempDir(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "sh", "-ec", `
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
exec chroot . sh -c 'echo ready; while :; do sleep 3600; done'
`, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The first process of a process namespace takes all others with it.
		cancel()
		_ = cmd.Wait() // killed
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		cancel()
		_ = cmd.Wait()
		t.Fatalf("the scratch machine does not come up: %s", errs.String())
	}
	return &scratch{t, cmd.Process.Pid}
}

// require skips where packages cannot be tried out.
func require(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("packages are not installed in short tests")
	}
	if os.Getuid() != 0 {
		t.Skip("a machine to install packages on needs root")
	}
	missing, err := lab.Missing(t.Context(), append(lab.Packages(), lab.PackagingPackages()...)...)
	if err != nil {
		t.Skipf("packages are tried out by Debian's tools: %v", err)
	}
	if len(missing) > 0 {
		t.Skipf("packages are tried out with %s; `lab install -packaging` adds it", strings.Join(missing, ", "))
	}
}

// path is a file of the machine, seen from outside.
func (s *scratch) path(p string) string {
	return filepath.Join("/proc", itoa(s.pid), "root", p)
}

// try runs a script on the machine and gives what it said and whether it ended well.
func (s *scratch) try(script string) (string, bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--target", itoa(s.pid), "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd", "sh", "-ec", script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		s.t.Fatalf("%s: does not end:\n%s", script, out)
	}
	return strings.TrimSpace(string(out)), err == nil
}

// run is try for what must end well.
func (s *scratch) run(script string) string {
	s.t.Helper()
	out, ok := s.try(script)
	if !ok {
		s.t.Fatalf("%s:\n%s", script, out)
	}
	return out
}

// refused is try for what must not end well, and must say why.
func (s *scratch) refused(script, why string) {
	s.t.Helper()
	if out, ok := s.try(script); ok || !strings.Contains(out, why) {
		s.t.Errorf("%s: want it refused with %q, got:\n%s", script, why, out)
	}
}

func (s *scratch) exists(path string) bool {
	_, err := os.Lstat(s.path(path))
	return err == nil
}

func (s *scratch) want(paths ...string) {
	s.t.Helper()
	for _, p := range paths {
		if !s.exists(p) {
			s.t.Errorf("%s is not there", p)
		}
	}
}

func (s *scratch) wantNone(paths ...string) {
	s.t.Helper()
	for _, p := range paths {
		if s.exists(p) {
			s.t.Errorf("%s is there", p)
		}
	}
}

// until waits for a condition.
func (s *scratch) until(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}
