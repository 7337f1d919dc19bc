package processes

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/stuck"
)

// Table is the process table of the host on which instances run.
type Table struct {
	// Root is where this process sees the hypervisor's /; empty where both see the same.
	// The host's /proc is mounted in it.
	Root string
	// Calls limits the wait for a process that does not answer; nil for no limit.
	Calls *stuck.Calls
}

// Of returns the pids of the QEMU processes of an instance, by the uuid in their command
// lines, in the order of /proc. A process that has ended, or ends while it is read, is none.
// It reads each process once. fault.Unavailable where a process cannot be read, or where the
// mount of /proc hides other users' processes. The kernel tells a command line from the memory of
// its process, and waits where that waits: one that does not answer is passed over where it is
// no hypervisor by all else that /proc tells, and is fault.Unavailable where it may be one.
func (t Table) Of(uuid string) ([]int, error) {
	proc := filepath.Join("/", t.Root, "proc")
	// Every pid namespace has a process 1. A /proc without it hides processes (hidepid).
	if _, err := os.Stat(filepath.Join(proc, "1")); err != nil {
		return nil, fault.New(fault.Unavailable, "read the processes of this host: %s hides them (%w)", proc, err)
	}
	all, err := os.ReadDir(proc)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "read the processes of this host: %w", err)
	}
	var out []int
	for _, p := range all {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		line, err := stuck.OfProcess(t.Calls, pid, func() ([]byte, error) { return os.ReadFile(filepath.Join(proc, p.Name(), "cmdline")) })
		switch {
		case errors.Is(err, fault.Unavailable) && !mayBeHypervisor(filepath.Join(proc, p.Name())):
			continue
		case errors.Is(err, fault.Unavailable):
			return nil, fault.Wrap(err, "read the command line of process %d, which may be an instance's", pid)
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH):
			continue // it has ended
		case err != nil:
			return nil, fault.New(fault.Unavailable, "read the command line of process %d: %w", pid, err)
		case IsOf(line, uuid):
			out = append(out, pid)
		}
	}
	return out, nil
}

// mayBeHypervisor reports whether a process can be QEMU by its name, its program or its open
// files, for which the kernel asks its memory nothing. What cannot be read may be one.
func mayBeHypervisor(dir string) bool {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	exe, exeErr := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || exeErr != nil {
		return true
	}
	for _, name := range []string{string(comm), filepath.Base(exe)} {
		if strings.Contains(name, "qemu") || strings.Contains(name, "kvm") {
			return true
		}
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	for _, fd := range open {
		if link, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name())); link == "/dev/kvm" || link == "anon_inode:kvm-vm" {
			return true
		}
	}
	return err != nil
}

// IsOf reports whether a command line, as /proc/PID/cmdline has it, is of a QEMU process
// of that instance. libvirt gives each `-uuid UUID`; other programs (berth itself, virt-install)
// have an option --uuid. A kernel thread and a process that has ended and waits for its parent
// have an empty one.
func IsOf(cmdline []byte, uuid string) bool {
	args := bytes.Split(cmdline, []byte{0})
	for i, a := range args[:len(args)-1] {
		if string(a) == "-uuid" && strings.EqualFold(string(args[i+1]), uuid) {
			return true
		}
	}
	return false
}
