package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// kvm makes a /dev/kvm for the host that QEMU's user may open, where the machine
// has one that only root may (no udev here has made it over to the group kvm).
// libvirtd takes what it knows of a QEMU for outdated while that QEMU could do KVM
// and its user may not open /dev/kvm (virQEMUCapsIsValid): it then asks every QEMU
// anew for each list of capabilities and each guest, two seconds every time.
func (h *Host) kvm() (binds [][2]string, err error) {
	const device = "/dev/kvm"
	var st unix.Stat_t
	if err := unix.Stat(device, &st); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look at %s: %w", device, err)
	}
	node := filepath.Join(h.dir, "kvm")
	if err := os.Remove(node); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
		return nil, fmt.Errorf("make %s: %w", node, err)
	}
	// The umask has taken a part away.
	return [][2]string{{node, device}}, os.Chmod(node, 0o666)
}
