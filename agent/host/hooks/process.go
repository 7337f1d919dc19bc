package hooks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// End kills the process group of a hook that an earlier agent left running;
// false when it is over already. The start time tells a hook from a stranger
// that got its pid later.
func End(p Process) (bool, error) {
	start, err := startTime(p.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if start != p.Start {
		return false, nil
	}
	if err := syscall.Kill(-p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, fmt.Errorf("end hook %s, pid %d: %w", p.Hook, p.PID, err)
	}
	return true, nil
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
