package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth/internal/fault"
	"berth/systemd"
)

// ErrNotEnded means that processes of a hook were killed and are not known to be gone: they wait
// in the kernel for a device or a filesystem that does not answer, or the service manager is
// silent. The hook has neither done its work nor failed: it may go on when what it waits for
// answers. So its record stays, and nothing runs in its place until End has seen it end.
var ErrNotEnded = errors.New("a hook has not ended")

// notEnded refuses to go on while a hook may. The failure that came before it, if any, is told
// as well.
func notEnded(p Process, before, cause error) error {
	what, look := fmt.Sprintf("pid %d", p.PID), fmt.Sprintf("ps -o stat,wchan:30,args -g %d", p.PID)
	if p.Unit != "" {
		what, look = "unit "+p.Unit, "systemctl status "+p.Unit
	}
	why := ErrNotEnded
	if before != nil {
		why = fmt.Errorf("%w; before that: %w", ErrNotEnded, before)
	}
	return &fault.Error{
		Kind: fault.Unavailable,
		Reasons: []fault.Reason{{
			Code: "hook_not_ended", Message: "hook " + p.Hook + " was killed and is not known to have ended (" + what + "): " + cause.Error(),
			Change: "see what it waits for (" + look + "), and have that answer or go: it is asked for again by itself",
		}},
		Err: why,
	}
}

// End kills a hook that an earlier agent left running, or that could not be ended before, with
// all its processes; false when it is over already. ErrNotEnded where it is not known to be. A
// unit is known by its name. Of a child the start time tells it from a stranger that got its
// pid later; where the first process is gone, those of its group are known by the hook's name
// in their environment. Blocks for no longer than managerPatience.
func (r *Runner) End(p Process) (bool, error) {
	end := endChild
	if p.Unit != "" {
		end = r.endUnit
	}
	was, err := end(p)
	if err != nil {
		return was, notEnded(p, nil, err)
	}
	return was, nil
}

func endChild(p Process) (bool, error) {
	start, err := startTime(p.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		left, err := leftBehind(p)
		if err != nil || !left {
			return false, err
		}
	case err != nil:
		return false, err
	case start != p.Start:
		return false, nil
	}
	if err := syscall.Kill(-p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, err
	}
	return true, nil
}

// endUnit ends one also where this agent would start children: the manager that had it is the
// machine's, and a machine without one has no unit.
func (r *Runner) endUnit(p Process) (bool, error) {
	manager := r.Manager
	if manager == nil {
		if !systemd.Running() {
			return false, nil
		}
		manager = &systemd.Units{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), managerPatience)
	defer cancel()
	return manager.End(ctx, p.Unit)
}

// leftBehind reports whether a hook whose first process is gone has others in its group.
// No process gets that number as its pid while the group lives.
func leftBehind(p Process) (bool, error) {
	if err := syscall.Kill(-p.PID, 0); err != nil {
		return false, nil // there is no such group, or it is not ours to ask
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if group, err := syscall.Getpgid(pid); err != nil || group != p.PID {
			continue
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), environ+p.Hook) {
			return true, nil
		}
	}
	return false, nil
}

// startTime is field 22 of /proc/PID/stat, in clock ticks since boot
// (proc_pid_stat(5)).
func startTime(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the command in parentheses and may hold anything,
	// parentheses and blanks too: count from the last one.
	i := bytes.LastIndexByte(text, ')')
	fields := bytes.Fields(text[i+1:])
	const startField = 22 - 3 // the first after the command is field 3
	if i < 0 || len(fields) <= startField {
		return 0, fmt.Errorf("/proc/%d/stat is not as proc_pid_stat(5) describes", pid)
	}
	return strconv.ParseUint(string(fields[startField]), 10, 64)
}
