package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// record is what the file `process` says.
type record struct {
	PID int `json:"pid"`
	// Start is the time of the process's start, in clock ticks since the boot
	// (/proc/PID/stat, field 22): with the boot it tells a process from a later one
	// of its number.
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
}

// holdLife writes who this process is and locks it until the process ends. A
// second process of the session is fault.Busy.
func holdLife(p Paths) (*os.File, error) {
	f, err := os.OpenFile(p.process(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	// A lock of the open file (fcntl(2), "open file description locks"): it can be
	// looked at without being taken, and falls with the process.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return nil, fault.New(fault.Busy, "another process holds %s: %w", p.process(), err)
	}
	start, err := startOf(os.Getpid())
	if err == nil {
		var text []byte
		if text, err = json.Marshal(record{PID: os.Getpid(), Start: start, Boot: (&runtime.System{}).Boot().ID}); err == nil {
			if err = f.Truncate(0); err == nil {
				_, err = f.WriteAt(text, 0)
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// living says whether a process holds the session. A folder that is not there has
// none.
func living(p Paths) (bool, error) {
	f, err := os.OpenFile(p.process(), os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look who holds %s: %w", p.process(), err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// kill sends SIGKILL to the session's process, if it is still that one.
func kill(p Paths) error {
	text, err := os.ReadFile(p.process())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("read %s: %w", p.process(), err)
	}
	if r.PID <= 1 || r.Boot != (&runtime.System{}).Boot().ID {
		return nil
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", r.PID, err)
	}
	defer unix.Close(fd)
	// Looked at after it is held: whoever has the number now keeps it till then.
	start, err := startOf(r.PID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && start != r.Start {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", r.PID, err)
	}
	return nil
}

// startOf reads a process's start time from /proc/PID/stat (proc(5), field 22).
func startOf(pid int) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	// The second field is in brackets and may hold anything.
	_, rest, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("%s is not understood", path)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}
