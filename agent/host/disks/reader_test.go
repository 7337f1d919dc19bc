package disks_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/agent/host/disks"
)

// TestImage_ThatRootMayNotRead_IsReadAsItsOwner: as on NFS with root_squash. The rights that
// make root different are given up by one thread, which ends with the test.
func TestImage_ThatRootMayNotRead_IsReadAsItsOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for at := dir; at != "/tmp" && at != "/"; at = at[:max(strings.LastIndexByte(at, '/'), 1)] {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const owner = 65534
	image, tool := dir+"/image", dir+"/tool"
	script := "#!/bin/sh\n[ $(id -u) = 65534 ] && [ \"$(id -G)\" = 65534 ] && exec cat \"$6\"\necho qemu-img: it is $(id -u) >&2; exit 1\n"
	if err := os.WriteFile(tool, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(image, []byte(`{"virtual-size": 1048576}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(image, owner, owner); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never given back: the thread ends here
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&head, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		img, err := disks.Files{Tool: tool}.Image(t.Context(), image, "qcow2")
		if err != nil || img.VirtualSize != 1<<20 {
			t.Errorf("%+v, %v", img, err)
		}
	}()
	<-done
}
