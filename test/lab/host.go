package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is one hypervisor of a lab, or its switch.
type Host struct {
	Name  string
	Index int // from 1; the last number of the host's addresses

	lab       *Lab
	dir       string // its folder outside
	backports bool   // runs the libvirt of the release's backports
	apart     bool   // see Options.Apart
	init      process
	// started is the first process where this program started it, and is to be
	// waited for; nil in a lab that was attached to.
	started *exec.Cmd
}

// ownDirs are the folders that a host keeps on disk below its own folder; they
// can be read and written from outside under Host.Path, also while it is off.
var ownDirs = []string{
	"/etc/berth", "/etc/libvirt", "/etc/pki", "/run",
	"/var/lib/berth", "/var/lib/libvirt", "/var/log/berth", "/var/log/libvirt", "/var/cache/libvirt",
}

// Path translates a path in the host to one outside. Below the host's own
// folders (/run, /etc/berth, /etc/libvirt, /etc/pki, /var/lib/berth,
// /var/lib/libvirt, /var/log/berth, /var/log/libvirt, /var/cache/libvirt) it is
// a plain path that outlives the host; elsewhere it leads through /proc and is
// good for reading while the host is up.
func (h *Host) Path(inside string) string {
	inside = filepath.Clean(inside)
	for _, own := range ownDirs {
		if inside == own || strings.HasPrefix(inside, own+"/") {
			return filepath.Join(h.dir, inside)
		}
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", h.init.PID), inside)
}

// Console is where a guest's serial console is written, seen from outside:
// guest.DomainXML writes it to /var/log/libvirt/NAME.console, which is another
// file on every host.
func (h *Host) Console(guest string) string {
	return h.Path("/var/log/libvirt/" + guest + ".console")
}

// UUID is the host's own uuid, as libvirt reports it: made from the names of
// lab and host, so that it is the same after the host was off.
func (h *Host) UUID() string {
	sum := sha256.Sum256([]byte(h.lab.Name + "/" + h.Name))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
	s := hex.EncodeToString(sum[:16])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// InitPID is the pid, outside, of the host's first process.
func (h *Host) InitPID() int { return h.init.PID }

// Command prepares a command to run in the host; start it with Start or Run of
// the host, never with its own Start. The environment is the caller's. The
// working directory is / and may be changed to one of the host's.
func (h *Host) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("host %s: no command", h.Name)
	}
	if !h.init.alive() {
		return nil, fmt.Errorf("host %s is off: cannot run %s", h.Name, args[0])
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// CommandContext has looked the name up on the machine, whose files differ.
	cmd.Err = nil
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	if strings.Contains(args[0], "/") {
		return cmd, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		cmd.Path = filepath.Join(dir, args[0])
		if exists(h.Path(cmd.Path)) {
			return cmd, nil
		}
	}
	return nil, fmt.Errorf("host %s has no command %s", h.Name, args[0])
}

// Start starts cmd inside the host. cmd.Process is the process itself, with its
// pid outside: a test can kill it with any signal. It ends with the host.
func (h *Host) Start(cmd *exec.Cmd) error {
	if !h.init.alive() {
		return fmt.Errorf("host %s is off: cannot run %s", h.Name, cmd.Path)
	}
	var prepare func() error
	if h.lab.cells > 1 {
		prepare = ignoreNodes
	}
	if err := startIn(h.init.PID, inHost, prepare, cmd); err != nil {
		return fmt.Errorf("host %s: start %s: %w", h.Name, cmd.Path, err)
	}
	return nil
}

// Run is Start and Wait.
func (h *Host) Run(cmd *exec.Cmd) error {
	if err := h.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Exec runs a command in the host and returns its standard output, trimmed; an
// error carries its standard error and unwraps to *exec.ExitError.
func (h *Host) Exec(ctx context.Context, args ...string) (string, error) {
	cmd, err := h.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := h.Run(cmd); err != nil {
		return strings.TrimSpace(out.String()), fmt.Errorf("host %s: %w", h.Name, commandError(cmd, err, stderr.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// PowerOff ends the host at once with everything in it, as a pulled plug. Its
// folders stay.
func (h *Host) PowerOff() error {
	err := h.init.kill()
	if h.started != nil {
		_ = h.started.Wait() // it was killed, and says so
		h.started = nil
	}
	if err != nil {
		return fmt.Errorf("power off host %s: %w", h.Name, err)
	}
	return nil
}

// PowerOn brings a host back that was powered off: an empty /run, its other
// folders as they were, links, and libvirtd.
func (h *Host) PowerOn(ctx context.Context) error {
	if h.init.alive() {
		return fmt.Errorf("power on host %s: it is up", h.Name)
	}
	// The kernel takes a dead net namespace apart at its leisure, and until then
	// the switch still has this host's ports. Either of us may be first, so that
	// they are gone already is no error.
	for _, link := range []Link{Mgmt, Mig} {
		_ = ip(ctx, h.lab.Switch.init.PID, "link del "+h.port(link))
	}
	err := h.lab.bringUp(ctx, h)
	if err := errors.Join(err, h.lab.save()); err != nil {
		return fmt.Errorf("power on host %s: %w", h.Name, err)
	}
	return nil
}

// boot starts the host's first process and waits until its view of the file
// system is built.
func (h *Host) boot(ctx context.Context, hostinit string) error {
	if err := os.RemoveAll(filepath.Join(h.dir, "run")); err != nil {
		return err
	}
	for _, d := range append([]string{"/upper", "/run/lock", "/run/libvirt"}, ownDirs...) {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			return err
		}
	}
	plan, err := h.plan(ctx)
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(plan, "", "\t")
	if err != nil {
		return err
	}
	planFile := filepath.Join(h.dir, "plan.json")
	if err := os.WriteFile(planFile, b, 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(h.dir, "init.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command(hostinit, planFile)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	if h.lab.owner.PID != 0 {
		fd, err := unix.PidfdOpen(h.lab.owner.PID, 0)
		if err != nil {
			return fmt.Errorf("open the owner, process %d: %w", h.lab.owner.PID, err)
		}
		owner := os.NewFile(uintptr(fd), "owner")
		defer owner.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, owner)
		cmd.Args = append(cmd.Args, "owned")
	}
	// A session of its own: Ctrl-C is for the owner, who then takes the lab down.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	w.Close()
	h.started = cmd
	if h.init, err = seen(cmd.Process.Pid); err != nil {
		return fmt.Errorf("its first process ended at once: %w", err)
	}
	said := make(chan string, 1)
	go func() {
		var text bytes.Buffer
		_, _ = text.ReadFrom(r)
		said <- strings.TrimSpace(text.String())
	}()
	select {
	case text := <-said:
		if text != "ok" {
			return fmt.Errorf("its first process: %s", text)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plan is what hostinit reads; see there for the fields.
type plan struct {
	Hostname string
	Upper    string
	Usr      []string
	UsrHide  []string
	UsrWhole []string
	Overlays []string
	Binds    [][2]string
	Keep     []string
	Files    map[string]string
	HugeKiB  int
}

func (h *Host) plan(ctx context.Context) (*plan, error) {
	have, err := installed(ctx, []string{"qemu-system-x86", "libvirt-daemon"})
	if err != nil {
		return nil, err
	}
	tree, err := qemuTree(have["qemu-system-x86"])
	if err != nil {
		return nil, err
	}
	p := &plan{
		Hostname: h.Name,
		HugeKiB:  h.lab.hugePages * hugePageKiB,
		Upper:    filepath.Join(h.dir, "upper"),
		Overlays: []string{"/etc", "/var/lib", "/var/log", "/var/cache"},
		Keep:     append([]string{h.lab.Dir, CacheDir()}, h.lab.shared...),
		Files:    map[string]string{},
	}
	// Hosts have no need of libvirt's network driver, and newer ones end the
	// daemon where there is no firewall program.
	drivers, err := filepath.Glob("/usr/lib/*/libvirt/connection-driver/libvirt_driver_network.so")
	if err != nil {
		return nil, err
	}
	for _, d := range drivers {
		p.UsrHide = append(p.UsrHide, strings.TrimPrefix(d, "/usr/"))
	}
	if tree != "" {
		p.Usr = []string{filepath.Join(tree, "usr")}
		// A QEMU that meets another build's modules dies at start.
		p.UsrWhole = []string{"lib/x86_64-linux-gnu/qemu", "share/qemu"}
	}
	if h.backports {
		tree, err := libvirtTree(have["libvirt-daemon"])
		if err != nil {
			return nil, err
		}
		if tree != "" {
			p.Usr = append(p.Usr, filepath.Join(tree, "usr"))
			p.UsrWhole = append(p.UsrWhole, "lib/x86_64-linux-gnu/libvirt")
			p.UsrHide = nil // the tree has no network driver
		}
	}
	for _, d := range ownDirs {
		p.Binds = append(p.Binds, [2]string{filepath.Join(h.dir, d), d})
	}
	devices, err := h.devices()
	if err != nil {
		return nil, err
	}
	p.Binds = append(p.Binds, devices...)
	if h != h.lab.Switch {
		made, err := h.view()
		if err != nil {
			return nil, fmt.Errorf("make up its cells: %w", err)
		}
		p.Binds = append(p.Binds, made...)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(h.UUID()))
	p.Files["/etc/hostname"] = h.Name + "\n"
	p.Files["/etc/hosts"] = h.lab.hostsFile()
	p.Files["/etc/machine-id"] = hex.EncodeToString(sum[:16]) + "\n"
	// libvirtd does not start without the user libvirt-qemu, which Debian makes
	// in a package that is not wanted here.
	p.Files["/etc/passwd"] = withEntries(passwd, fmt.Sprintf("%s:x:%d:%[2]d::/var/lib/libvirt:/usr/sbin/nologin", qemuUser, qemuUID))
	p.Files["/etc/group"] = withEntries(group, fmt.Sprintf("%s:x:%d:", qemuUser, qemuUID), "libvirt:x:64056:", "kvm:x:64057:", "berth:x:64058:")
	return p, nil
}

// withEntries adds lines to a passwd or group file whose names it does not have.
func withEntries(file []byte, lines ...string) string {
	text := string(file)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for _, l := range lines {
		name, _, _ := strings.Cut(l, ":")
		if !strings.HasPrefix(text, name+":") && !strings.Contains(text, "\n"+name+":") {
			text += l + "\n"
		}
	}
	return text
}
