package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devices makes those of the machine's devices that QEMU's user must open, where only
// root may (no udev in a host gives them to a group).
//
// /dev/kvm: libvirtd takes what it knows of a QEMU for outdated while that QEMU could do
// KVM and its user may not open it (virQEMUCapsIsValid): it then asks every QEMU anew for
// each list of capabilities and each guest, two seconds every time. /dev/userfaultfd: QEMU
// wants it for post-copy; without it only root has the call, unless a sysctl of the whole
// machine (vm.unprivileged_userfaultfd, which libvirt's package sets) says otherwise.
func (h *Host) devices() (binds [][2]string, err error) {
	for _, device := range []string{"/dev/kvm", "/dev/userfaultfd"} {
		var st unix.Stat_t
		if err := unix.Stat(device, &st); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("look at %s: %w", device, err)
		}
		node := filepath.Join(h.dir, filepath.Base(device))
		if err := os.Remove(node); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
			return nil, fmt.Errorf("make %s: %w", node, err)
		}
		// The umask has taken a part away.
		if err := os.Chmod(node, 0o666); err != nil {
			return nil, err
		}
		binds = append(binds, [2]string{node, device})
	}
	return binds, nil
}
