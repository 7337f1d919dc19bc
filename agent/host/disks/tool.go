package disks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/systemd"
)

// qemu-img reads what guests and their owners wrote: headers of images are where an attack would
// come from. Where the agent is its service, it runs as a transient unit, in a sandbox that is
// tighter than the agent's: it reaches no other program's socket, not the agent's keys and ledger,
// no other process, and has bounds of memory and time. The files are the same ones, seen under the
// same names, since an operator keeps images wherever he likes.

// confined are the properties of every such unit.
var confined = []string{
	"NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH", "PrivateMounts=yes", "PrivateIPC=yes", "DevicePolicy=closed",
	"ProtectClock=yes", "ProtectControlGroups=yes", "ProtectHostname=yes", "ProtectKernelLogs=yes", "ProtectKernelModules=yes", "ProtectKernelTunables=yes",
	"ProtectProc=invisible", "RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "LockPersonality=yes", "MemoryDenyWriteExecute=yes",
	"SystemCallArchitectures=native", "SystemCallFilter=@system-service", "SystemCallFilter=~@privileged @resources", "SystemCallErrorNumber=EPERM",
	// No AF_UNIX: with root's name alone it could ask the service manager for more.
	"RestrictAddressFamilies=AF_INET AF_INET6", "UMask=0077", "LimitCORE=0",
	// Far above what any image needs that is not made to fill the machine. Page cache counts, too:
	// from three quarters on a writer is slowed down to what its disk takes, and not killed.
	// Arbitrary, as the number of threads.
	"MemoryHigh=768M", "MemoryMax=1G", "TasksMax=256",
}

// reads are those of one that reads an image's header: nothing can be written, and nobody reached.
var reads = []string{"ProtectSystem=strict", "DeviceAllow=block-* r", "PrivateNetwork=yes"}

// writes are those of one that makes, grows or fills an image, all but /usr, /boot and /etc as of the
// agent; what it is made from may lie in the network.
var writes = []string{"ProtectSystem=full", "DeviceAllow=block-* rw"}

// asOwner are those of one that runs as an image's owner, who is QEMU's user: it must not reach the
// QEMU processes of the host by having their user's name. A user namespace of its own keeps it from
// their memory (ptrace(2), cap_ptrace_access_check), not from signals (kill(2)), which have a filter.
var asOwner = []string{"PrivateUsers=yes", "SystemCallFilter=~kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"}

// hidden are the agent's secrets, unless it is there that somebody keeps disks. No more is: what an
// image lies on may be anywhere.
var hidden = []string{"/etc/berth", "/var/lib/berth", "/run/berth", "/var/lib/berth-placement", "/run/berth-placement", "/var/log/berth"}

// The longest that qemu-img may take, by what it does: one that reads a header, and one that may
// write a whole disk. Arbitrary; both end with their caller's context, too.
const (
	readTime  = 5 * time.Minute
	writeTime = 24 * time.Hour
)

func (f Files) tool() string { return cmp.Or(f.Tool, "qemu-img") }

// run runs qemu-img and gives its output; its complaint is the error.
func (f Files) run(ctx context.Context, args ...string) ([]byte, error) {
	return f.runAs(ctx, nil, args...)
}

// user is whom qemu-img runs as; nil for the agent's own.
type user struct{ uid, gid uint32 }

// readerOf gives the owner of a file that this process may not read, though it is root: NFS
// with root_squash. It never gives root. It gives nil where this process may read the file, where
// the file is gone, and where root owns it: qemu-img says what is wrong then. It opens the file.
func readerOf(real string) (*user, error) {
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		return nil, unix.Close(fd)
	}
	if !errors.Is(err, fs.ErrPermission) {
		return nil, nil // qemu-img says what is wrong with it
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil || st.Uid == 0 {
		return nil, err
	}
	return &user{st.Uid, st.Gid}, nil
}

// runAs is run as another user; nil for the agent's own.
func (f Files) runAs(ctx context.Context, as *user, args ...string) ([]byte, error) {
	path, err := exec.LookPath(f.tool())
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Refuse(fault.Unavailable, "", fault.Reason{
			Code: "disk_tool_missing", Message: f.tool() + " is not installed", Change: "install qemu-utils",
		})
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "qemu-img: %w", err)
	}
	out, complaint, err := f.ask(ctx, as, append([]string{path}, args...))
	text, own := strings.CutPrefix(strings.TrimSpace(string(complaint)), "qemu-img: ")
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nil, fault.New(fault.Unavailable, "qemu-img: %w", errors.Join(context.Cause(ctx), clinging(err)))
	case f.Manager != nil && !own:
		// The manager's words, or none where it killed what took too much: nothing is said of the image.
		return nil, fault.New(fault.Unavailable, "qemu-img did not come to its end as a unit of systemd's: %s: %w", cmp.Or(text, "journalctl has more"), err)
	}
	return nil, fault.New(fault.Invalid, "qemu-img: %s: %w", text, err)
}

func clinging(err error) error {
	if errors.Is(err, systemd.ErrClings) {
		return systemd.ErrClings
	}
	return nil
}

func (f Files) ask(ctx context.Context, as *user, command []string) (out, complaint []byte, err error) {
	if f.Manager != nil {
		return f.Manager.Output(ctx, unit(as, command))
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	if as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as.uid, Gid: as.gid}}
	}
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	err = cmd.Run()
	return said.Bytes(), errs.Bytes(), err
}

// unit is what the manager is asked for.
func unit(as *user, command []string) systemd.Transient {
	verb := command[1]
	t := systemd.Transient{
		Unit: "berth-disk-" + verb + "-" + strings.ToLower(rand.Text()[:12]) + ".service", Description: "Berth, qemu-img " + verb,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}, Limit: writeTime, Command: command, Properties: slices.Clone(confined),
	}
	if verb == "info" {
		t.Limit, t.Properties = readTime, append(t.Properties, reads...)
	} else {
		t.Properties = append(t.Properties, writes...)
	}
	if as != nil {
		t.Properties = append(append(t.Properties, asOwner...), fmt.Sprintf("User=%d", as.uid), fmt.Sprintf("Group=%d", as.gid))
	}
	for _, dir := range hidden {
		lies := func(arg string) bool {
			real, err := filepath.EvalSymlinks(arg)
			return strings.HasPrefix(arg, dir+"/") || strings.Contains(arg, `"`+dir+"/") || err == nil && strings.HasPrefix(real, dir+"/")
		}
		if !slices.ContainsFunc(command, lies) {
			t.Properties = append(t.Properties, "InaccessiblePaths=-"+dir)
		}
	}
	return t
}
