// Package stucktest mounts file systems that do not answer, for tests.
package stucktest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a FUSE file system whose server never answers: whoever touches it waits in the
// kernel. End gives all of them an error (ENOTCONN); the test's end does, too. It skips the test
// where mounting is not allowed.
func Hang(t testing.TB) (dir string, end func()) {
	t.Helper()
	dir, _, end = mount(t)
	return dir, end
}

// mount mounts FUSE and gives the descriptor by which it is served, and what closes that.
func mount(t testing.TB) (dir string, fd int, end func()) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "hung")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("berth-test-server:/export", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(fd)
		t.Skipf("needs the right to mount: %v", err)
	}
	var once sync.Once
	end = func() {
		once.Do(func() {
			// The connection ends with its last descriptor.
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		end()
		// EINVAL: Serve has.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return dir, fd, end
}
