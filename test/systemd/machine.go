package systemd

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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/lab"
)

// patience is for everything that is waited for: a loaded machine is slow, not broken.
const patience = 90 * time.Second

// machine is a container with a systemd of its own as process 1. Its files are those of the
// machine it runs on; what is written goes to memory.
type machine struct {
	t    *testing.T
	name string // its own, by which it is known to others
	init int    // process 1, as it is called outside
}

// in is the machine for a part of its test.
func (m *machine) in(t *testing.T) *machine { return &machine{t: t, name: m.name, init: m.init} }

// require skips, with the reason, where no machine can be booted.
func require(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("no machine is booted in short tests")
	}
	if os.Getuid() != 0 {
		t.Skip("booting a machine needs root")
	}
	missing, err := lab.Missing(t.Context(), lab.SystemdPackages()...)
	if err != nil {
		t.Skipf("booting a machine needs Debian's package database: %v", err)
	}
	if len(missing) > 0 {
		t.Skipf("booting a machine needs %s; `lab install -systemd` adds it", strings.Join(missing, ", "))
	}
}

// boot starts a machine with further files and folders in it, by their paths there, and returns
// when its basic units are up. It ends with the test.
func boot(t *testing.T, name string, files map[string]string) *machine {
	t.Helper()
	require(t)
	root := t.TempDir()
	args := []string{
		"systemd-nspawn", "--quiet", "--boot", "--volatile=overlay", "--directory=" + root, "--register=no", "--keep-unit",
		"--machine=" + name, "--private-network", "--console=pipe",
	}
	for there, here := range files {
		args = append(args, "--bind-ro="+here+":"+there)
	}
	args = append(args, "systemd.unit=basic.target")
	// nspawn refuses the machine's own root, but not the same files elsewhere.
	script := `mount --bind / "$0" && exec "$@"`
	if groups := ownGroups(t, name); len(groups) > 0 {
		script = "for group in " + strings.Join(groups, " ") + "; do echo $$ >$group/cgroup.procs || exit; done; " + script
	}
	console, err := os.Create(filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, root}, args...)...)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }() // how, nobody asks
	m := &machine{t: t, name: name}
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(console.Name())
			t.Logf("the end of what the machine's console said:\n%s", tail(said, 30))
		}
		// Its process 1 first: one that outlives nspawn stays for ever.
		if init, err := systemdBelow(cmd.Process.Pid); err == nil {
			_ = syscall.Kill(init, syscall.SIGKILL)
		}
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-ended
			t.Error("the machine did not end")
		}
	})
	m.await("boot", func() error {
		select {
		case <-ended:
			t.Fatal("the machine did not come up")
		default:
		}
		if m.init, err = systemdBelow(cmd.Process.Pid); err != nil {
			return err
		}
		_, err := m.try("systemctl", "is-active", "basic.target")
		return err
	})
	return m
}

// ownGroups makes control groups for a machine, in those hierarchies of the kernel's that systemd
// uses: without them two machines that run at a time share those of their units. They go with
// the test.
func ownGroups(t *testing.T, name string) []string {
	t.Helper()
	var groups []string
	for _, root := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue // another arrangement
		}
		group := filepath.Join(root, fmt.Sprintf("%s-%d", name, os.Getpid()))
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		groups = append(groups, group)
		t.Cleanup(func() {
			var err error
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				if err = removeGroup(group); err == nil {
					return
				}
			}
			t.Error(err)
		})
	}
	return groups
}

// removeGroup removes a control group with those below it; what looks like files in them is the
// kernel's.
func removeGroup(group string) error {
	entries, err := os.ReadDir(group)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(group, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(group)
}

// systemdBelow finds process 1 of the machine among what nspawn has started.
func systemdBelow(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, child := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(child)
		if err != nil {
			return 0, err
		}
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(comm)) == "systemd" {
			return pid, nil
		}
		if init, err := systemdBelow(pid); err == nil {
			return init, nil
		}
	}
	return 0, errors.New("no systemd has begun yet")
}

// try runs a command in the machine, and gives what it wrote.
func (m *machine) try(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args := append([]string{"--target", strconv.Itoa(m.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "SYSTEMD_PAGER="}
	cmd.WaitDelay = time.Second
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(command, " "), err, out.String(), complaint.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// run is try for what must succeed.
func (m *machine) run(command ...string) string {
	m.t.Helper()
	out, err := m.try(command...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// property is what systemctl shows of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "--property="+name, "--value", unit)
}

// number is a property that is one.
func (m *machine) number(unit, name string) int {
	m.t.Helper()
	n, err := strconv.Atoi(m.property(unit, name))
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// journal is what a unit has logged, and systemd about it.
func (m *machine) journal(unit string) string {
	m.t.Helper()
	return m.run("journalctl", "--no-pager", "--output=cat", "--unit="+unit)
}

// path is where a file of the machine's is seen from outside.
func (m *machine) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.init, name) }

// write puts a file into the machine.
func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755)
	if err == nil {
		err = os.WriteFile(m.path(name), []byte(text), mode)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// read gives a file of the machine's.
func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// await asks until there is no error any more.
func (m *machine) await(what string, ask func() error) {
	m.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = ask(); err == nil {
			return
		}
	}
	m.t.Fatalf("%s: not within %s: %v", what, patience, err)
}

// tail is the end of a text, in lines.
func tail(text []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
