package stream

import (
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// asUser runs f in a thread of another user. The thread is never used again: it is
// locked, and ends with its goroutine.
func asUser(uid int, f func() error) error {
	goruntime.LockOSThread()
	// setresuid of this thread alone; the library's sets every thread's.
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
		return e
	}
	return f()
}
