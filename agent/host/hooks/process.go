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

	"berth/systemd"
)

// End kills a hook that an earlier agent left running, with all its processes; false when
// it is over already. A unit is known by its name. Of a child the start time tells it from a
// stranger that got its pid later; where the first process is gone, those of its group are
// known by the hook's name in their environment. Blocks for no longer than managerPatience.
func End(p Process) (bool, error) {
	if p.Unit != "" {
		return endUnit(p)
	}
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
		return false, fmt.Errorf("end hook %s, pid %d: %w", p.Hook, p.PID, err)
	}
	return true, nil
}

// endUnit ends one also where this agent would start children: the manager that had it is the
// machine's, and a machine without one has no unit.
func endUnit(p Process) (bool, error) {
	if !systemd.Running() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), managerPatience)
	defer cancel()
	was, err := systemd.Units{}.End(ctx, p.Unit)
	if err != nil {
		return was, fmt.Errorf("end hook %s, unit %s: %w", p.Hook, p.Unit, err)
	}
	return was, nil
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
