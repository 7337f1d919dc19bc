package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// privateMounts starts a command in a mount namespace of its own, so that what
// it mounts is gone when it ends.
func privateMounts() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

const (
	inNet  = unix.CLONE_NEWNET
	inHost = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWPID
)

// startIn starts cmd inside the given namespaces of process pid. The thread
// that forks enters them and is thrown away, so the started process is a child
// of ours with a pid of ours: it can be waited for and killed directly, which
// nsenter's go-between would prevent. What prepare, if any, does to that thread,
// the process inherits.
func startIn(pid int, namespaces int, prepare func() error, cmd *exec.Cmd) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	result := make(chan error, 1)
	var spawn func()
	spawn = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread's namespaces are what /proc/self shows to the rest
			// of the program, and it cannot be thrown away. Hold it and take
			// another.
			done := make(chan struct{})
			go func() { defer close(done); spawn() }()
			<-done
			runtime.UnlockOSThread()
			return
		}
		// Never unlocked: the runtime ends the thread with this goroutine.
		result <- func() error {
			// A mount namespace can only be entered by a thread that shares its
			// root and working directory with no other, setns(2).
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Setns(fd, namespaces); err != nil {
				return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
			}
			if prepare != nil {
				if err := prepare(); err != nil {
					return err
				}
			}
			return cmd.Start()
		}()
	}
	go spawn()
	return <-result
}

// process is a process that was seen once: the start time tells it from a later
// one with the same pid.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// seen looks at a process now.
func seen(pid int) (process, error) {
	start, _, err := stat(pid)
	return process{PID: pid, Start: start}, err
}

// alive reports whether it still runs; a zombie does not.
func (p process) alive() bool {
	start, state, err := stat(p.PID)
	return p.PID > 0 && err == nil && start == p.Start && state != "Z" && state != "X"
}

// kill ends it with SIGKILL and waits until it is gone, which for a pid
// namespace's first process means that all others are gone too.
func (p process) kill() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil || !p.alive() {
		if err == nil {
			unix.Close(fd)
		}
		return nil // gone already
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		switch {
		case n == 1:
			return nil
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		default:
			return fmt.Errorf("process %d is still there 10 s after SIGKILL", p.PID)
		}
	}
}

// stat reads start time and state from /proc/PID/stat.
func stat(pid int) (start uint64, state string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", err
	}
	// The second field is the command in parentheses and may hold anything.
	text := string(b)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 20 {
		return 0, "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0], err
}

// outerPID finds the pid, in our pid namespace, of the process that is inner in
// the pid namespace of process initPID.
func outerPID(initPID, inner int) (int, error) {
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", initPID))
	if err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range all {
		// Processes come and go while we look: what cannot be read is not it.
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != want {
			continue
		}
		b, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
				f := strings.Fields(ids)
				if len(f) > 1 && f[len(f)-1] == strconv.Itoa(inner) {
					return strconv.Atoi(filepath.Base(dir))
				}
			}
		}
	}
	return 0, fmt.Errorf("no process %d in the pid namespace of process %d", inner, initPID)
}
