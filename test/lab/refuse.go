package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Refuse says no where the machine is itself a hypervisor: a libvirt daemon
// answers or runs, a QEMU runs, or domains are defined. It looks at the
// machine's own namespaces only, so other labs do not count. force overrides.
// The error lists everything that was found.
func Refuse(force bool) error {
	if force {
		return nil
	}
	found := hypervisor("/")
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("this machine is a hypervisor, and a lab beside its guests is refused (FORCE=1 overrides): %s", strings.Join(found, "; "))
}

// hypervisor lists the signs of libvirt in use on the machine whose file system
// is root.
func hypervisor(root string) []string {
	var found []string
	for _, s := range []string{"run/libvirt/libvirt-sock", "run/libvirt/virtqemud-sock"} {
		path := filepath.Join(root, s)
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			found = append(found, "a libvirt daemon answers on "+path)
		}
	}
	xmls, _ := filepath.Glob(filepath.Join(root, "etc/libvirt/qemu/*.xml"))
	for _, x := range xmls {
		found = append(found, "domain "+strings.TrimSuffix(filepath.Base(x), ".xml")+" is defined in "+x)
	}
	ours, err := os.Readlink(filepath.Join(root, "proc/self/ns/pid"))
	if err != nil {
		return append(found, "cannot look for running daemons: "+err.Error())
	}
	all, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	for _, p := range all {
		// A process that ends while we look is not a reason.
		b, err := os.ReadFile(filepath.Join(p, "comm"))
		if err != nil {
			continue
		}
		name := strings.TrimSpace(string(b))
		if name != "libvirtd" && name != "virtqemud" && !strings.HasPrefix(name, "qemu-system-") {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(p, "ns/pid")); err == nil && ns == ours {
			found = append(found, fmt.Sprintf("%s runs as process %s", name, filepath.Base(p)))
		}
	}
	return found
}
