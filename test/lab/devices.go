package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devices makes those of a host's devices that are not as the machine has them.
//
// /dev/kvm: guests of a lab are emulated, whatever the machine could do, and so hosts have a
// file there that QEMU's user may not open. libvirtd takes what it knows of a QEMU for
// outdated while it stands there open to QEMU's user and did not work when QEMU was asked, or
// the other way round (virQEMUCapsIsValid), and asks every QEMU anew then, for each list of
// capabilities and each guest. Also where it does work: part of what libvirtd compares then is
// the number of the processor that it runs on just now (CPUID leaf 0x1f).
//
// /dev/userfaultfd: QEMU wants it for post-copy; without it only root has the call, unless a
// sysctl of the whole machine (vm.unprivileged_userfaultfd, which libvirt's package sets) says
// otherwise.
func (h *Host) devices() (binds [][2]string, err error) {
	for device, stand := range map[string]func(path string, st unix.Stat_t) error{"/dev/kvm": closedFile, "/dev/userfaultfd": openDevice} {
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
		if err := stand(node, st); err != nil {
			return nil, fmt.Errorf("make %s: %w", node, err)
		}
		binds = append(binds, [2]string{node, device})
	}
	return binds, nil
}

func closedFile(path string, _ unix.Stat_t) error { return os.WriteFile(path, nil, 0) }

// openDevice makes a device that everybody may open, where only root may open the machine's (no
// udev in a host gives it to a group).
func openDevice(path string, machine unix.Stat_t) error {
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(machine.Rdev)); err != nil {
		return err
	}
	return os.Chmod(path, 0o666) // the umask has taken a part away
}
