package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// configureLibvirt writes libvirtd's and QEMU's settings into the host's own
// /etc/libvirt.
func (h *Host) configureLibvirt() error {
	// Keepalive is short in both files: the connection of a peer-to-peer
	// migration takes it from qemu.conf.
	libvirtd := fmt.Sprintf(`host_uuid = "%s"
listen_tls = %d
listen_tcp = 0
listen_addr = "%s"
tls_port = "16514"
auth_tls = "none"
auth_unix_rw = "none"
auth_unix_ro = "none"
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
keepalive_interval = 2
keepalive_count = 3
log_filters = "2:qemu.qemu_migration 4:qemu.qemu_monitor 3:util.json 3:util.object"
log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
`, h.UUID(), map[bool]int{true: 1}[h.lab.listen], h.MgmtIP())
	user, owns := qemuUser, 1
	if h.lab.QEMUAsRoot() != "" {
		user, owns = "root", 0
	}
	// migration_address alone sets only what QEMU listens on; the address told
	// to the source is migration_host.
	qemu := fmt.Sprintf(`user = "%s"
group = "%s"
dynamic_ownership = %d
remember_owner = %d
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
keepalive_interval = 2
keepalive_count = 3
migration_address = "%s"
migration_host = "%s-mig"
migrate_tls_x509_cert_dir = "/etc/pki/qemu"
migrate_tls_x509_verify = 1
hugetlbfs_mount = "%s"
`, user, user, owns, owns, h.MigIP(), h.Name, h.hugepages())
	return errors.Join(
		os.MkdirAll(h.Path("/etc/libvirt/hooks"), 0o755),
		os.WriteFile(h.Path("/etc/libvirt/libvirtd.conf"), []byte(libvirtd), 0o644),
		os.WriteFile(h.Path("/etc/libvirt/qemu.conf"), []byte(qemu), 0o644))
}

// qemuUser is whom QEMU runs as, as on a Debian host; qemuUID is its number there.
const (
	qemuUser = "libvirt-qemu"
	qemuUID  = 64055
)

// QEMUAsRoot says why QEMU runs as root in this lab; empty where it runs as
// libvirt-qemu, as on a Debian host. That user has to get to the disks and to the
// guest's kernel.
func (l *Lab) QEMUAsRoot() string {
	for _, dir := range []string{l.SharedDir(), CacheDir()} {
		for ; dir != "/"; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err.Error()
			}
			if info.Mode()&0o001 == 0 {
				return dir + " is closed to other users"
			}
		}
	}
	return ""
}

// installHook puts a hook where libvirtd looks for one when it starts.
func (h *Host) installHook(text string) error {
	if text == "" {
		return nil
	}
	path := h.Path("/etc/libvirt/hooks/qemu.d/50-berth")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o755)
}

// hugepages is where the host has huge pages mounted; empty where the kernel has
// none, since libvirtd does not start with a folder that is no hugetlbfs.
func (h *Host) hugepages() string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", h.init.PID))
	if err == nil && strings.Contains(string(b), " /run/hugepages hugetlbfs ") {
		return "/run/hugepages"
	}
	return ""
}

const libvirtdPIDFile = "/run/libvirt/libvirtd.pid"

// LibvirtSocket is the libvirt daemon's socket, seen from outside the host:
// qemu:///system?socket=<this>.
func (h *Host) LibvirtSocket() string { return h.Path("/run/libvirt/libvirt-sock") }

// StartLibvirtd starts the host's libvirtd and waits until it answers. A child
// that a killed daemon was just forking holds its port for a moment longer, so
// a daemon that cannot listen is started again for some seconds.
func (h *Host) StartLibvirtd(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := h.startLibvirtd(ctx)
		if err == nil || !strings.Contains(err.Error(), "network sockets") || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (h *Host) startLibvirtd(ctx context.Context) error {
	// A killed daemon leaves its pid file, whose pid may be another's by now.
	if err := os.Remove(h.Path(libvirtdPIDFile)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("start libvirtd on %s: %w", h.Name, err)
	}
	args := []string{"libvirtd", "--daemon", "--pid-file", libvirtdPIDFile}
	if h.lab.listen {
		args = append(args, "--listen")
	}
	cmd, err := h.Command(ctx, args...)
	if err != nil {
		return err
	}
	// A file, not a pipe: the daemon keeps its parent's descriptors for a moment
	// and Wait would wait for it.
	out, err := os.Create(filepath.Join(h.dir, "libvirtd.out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := h.Run(cmd); err != nil {
		text, _ := os.ReadFile(out.Name())
		log, _ := os.ReadFile(h.Path("/var/log/libvirt/libvirtd.log"))
		return fmt.Errorf("start libvirtd on %s: %w: %s\n%s", h.Name, err, bytes.TrimSpace(text), lastLines(log, 5))
	}
	// The daemon takes connections before its drivers are ready, and answers
	// after.
	if _, err := h.Virsh(ctx, "uri"); err != nil {
		return fmt.Errorf("start libvirtd on %s: %w", h.Name, err)
	}
	return nil
}

// LibvirtdPID is the libvirtd's pid, seen from outside the host.
func (h *Host) LibvirtdPID() (int, error) {
	pid, err := h.pidFile(libvirtdPIDFile)
	if err != nil {
		return 0, fmt.Errorf("libvirtd of %s: %w", h.Name, err)
	}
	return pid, nil
}

// QEMUPID is the pid of a running guest's QEMU, seen from outside the host.
func (h *Host) QEMUPID(domain string) (int, error) {
	pid, err := h.pidFile("/run/libvirt/qemu/" + domain + ".pid")
	if err != nil {
		return 0, fmt.Errorf("qemu of domain %s on %s: %w", domain, h.Name, err)
	}
	return pid, nil
}

// pidFile translates the pid in a file of the host into ours.
func (h *Host) pidFile(path string) (int, error) {
	b, err := os.ReadFile(h.Path(path))
	if err != nil {
		return 0, err
	}
	inner, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return outerPID(h.init.PID, inner)
}

// StopLibvirtd ends libvirtd with SIGTERM and waits; guests go on running.
func (h *Host) StopLibvirtd(ctx context.Context) error { return h.endLibvirtd(ctx, unix.SIGTERM) }

// KillLibvirtd ends libvirtd with SIGKILL and waits; guests go on running.
func (h *Host) KillLibvirtd(ctx context.Context) error { return h.endLibvirtd(ctx, unix.SIGKILL) }

func (h *Host) endLibvirtd(ctx context.Context, sig unix.Signal) error {
	pid, err := h.LibvirtdPID()
	if err != nil {
		return err
	}
	p, err := seen(pid)
	if err != nil {
		return nil // ended between the two looks
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal libvirtd of %s: %w", h.Name, err)
	}
	for p.alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("libvirtd of %s does not end: %w", h.Name, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// PauseLibvirtd stops libvirtd where it stands, as a daemon that hangs;
// ResumeLibvirtd lets it go on.
func (h *Host) PauseLibvirtd() error { return h.signalLibvirtd(unix.SIGSTOP) }

// ResumeLibvirtd undoes PauseLibvirtd.
func (h *Host) ResumeLibvirtd() error { return h.signalLibvirtd(unix.SIGCONT) }

func (h *Host) signalLibvirtd(sig unix.Signal) error {
	pid, err := h.LibvirtdPID()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal libvirtd of %s: %w", h.Name, err)
	}
	return nil
}

// Virsh runs virsh on the host's own libvirtd and returns its output, trimmed.
func (h *Host) Virsh(ctx context.Context, args ...string) (string, error) {
	return h.Exec(ctx, append([]string{"virsh", "-q", "-c", "qemu:///system"}, args...)...)
}

// VirshCommand is Virsh for callers who start it themselves (see Start).
func (h *Host) VirshCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return h.Command(ctx, append([]string{"virsh", "-q", "-c", "qemu:///system"}, args...)...)
}

// lastLines is the end of a log, for an error message.
func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
