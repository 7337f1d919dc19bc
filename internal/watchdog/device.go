package watchdog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// magic is what a watchdog wants written right before it is closed, to stop.
const magic = "V"

// kernel is the part of the kernel that is asked; a test has another.
type kernel interface {
	stat(path string) (fs.FileInfo, error)
	open(path string) (handle, error)
	// attribute reads one of /sys/class/watchdog/watchdogN of a device; empty where the kernel
	// has none (CONFIG_WATCHDOG_SYSFS).
	attribute(path, name string) string
}

// handle is an open device. All but write and close are ioctls, by their names.
type handle interface {
	support() (unix.WatchdogInfo, error)
	setTimeout(seconds int) error
	timeout() (seconds int, err error)
	keepAlive() error
	write(text string) error
	close() error
}

// device is a watchdog of the kernel's.
type device struct{ h handle }

// openDevice opens a character device, which arms it, and has it take the timeout. What cannot be
// used is disarmed again, unless it was armed before.
func openDevice(path string, timeout time.Duration, k kernel, armed bool) (*Device, error) {
	// Read before it is opened: there may be no way back.
	noWayOut := k.attribute(path, "nowayout") == "1"
	h, err := k.open(path)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, inUse(path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "watchdog_permission", Message: err.Error(), Change: "let the agent have it: [Service] DeviceAllow=" + path + " rw, where its unit restricts devices",
		})
	case err != nil:
		return nil, fault.New(fault.Internal, "%w", err)
	}
	d := &Device{Facts: Facts{Path: path, NoWayOut: noWayOut}, line: device{h}}
	if err := d.adopt(h, timeout); err != nil {
		if armed || d.Identity == "" { // what a write does to something else nobody knows
			return nil, errors.Join(err, d.line.abandon())
		}
		return nil, errors.Join(err, d.Disarm())
	}
	return d, nil
}

// adopt looks at what was opened and sets it.
func (d *Device) adopt(h handle, timeout time.Duration) error {
	info, err := h.support()
	if err != nil {
		return fault.Refuse(fault.Invalid, "", noWatchdog(d.Path, "it does not answer WDIOC_GETSUPPORT: "+err.Error()))
	}
	d.Identity = strings.TrimRight(string(info.Identity[:]), "\x00")
	if info.Options&unix.WDIOF_MAGICCLOSE == 0 && !d.NoWayOut {
		return fault.Refuse(fault.Invalid, "", fault.Reason{
			Code:    "watchdog_ends_with_holder",
			Message: fmt.Sprintf("its driver (%s) stops it when the agent is killed: it has no magic close, and a way out", d.Identity),
			Change:  "load the driver with nowayout=1, or use another watchdog",
		})
	}
	// A driver that cannot set it has one that may do.
	setErr := h.setTimeout(int(timeout / time.Second))
	took, err := h.timeout()
	if err != nil {
		return fault.New(fault.Invalid, "ask %s for its timeout (WDIOC_GETTIMEOUT): %w", d.Identity, err)
	}
	d.Timeout = time.Duration(took) * time.Second
	if d.Timeout <= 0 || d.Timeout > timeout {
		r := fault.Reason{
			Code: "watchdog_timeout", Message: fmt.Sprintf("its driver (%s) has a timeout of %s and does not take %s", d.Identity, d.Timeout, timeout),
			Want: timeout.String(), Have: d.Timeout.String(), Change: "set [fleet] self_fence_timeout to one that it takes, and a lease that goes with it",
		}
		if setErr != nil {
			r.Message += ": " + setErr.Error()
		}
		return fault.Refuse(fault.Invalid, "", r)
	}
	// Not every driver begins anew when its time is set.
	return h.keepAlive()
}

func (d device) feed() error { return d.h.keepAlive() }

func (d device) disarm() error { return errors.Join(d.h.write(magic), d.h.close()) }

func (d device) abandon() error { return d.h.close() }

// linux is the kernel that this process runs on.
type linux struct{}

func (linux) stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (linux) open(path string) (handle, error) {
	// Not inherited: a hook that outlives the agent would hold it open.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return file(fd), nil
}

// watchdogMinor is the minor number, of the misc devices' major 10, of /dev/watchdog: the first
// watchdog's other name (include/linux/miscdevice.h, WATCHDOG_MINOR).
const watchdogMinor = 130

func (linux) attribute(path, name string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	major, minor := unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
	dir := fmt.Sprintf("/sys/dev/char/%d:%d", major, minor)
	if major == 10 && minor == watchdogMinor {
		dir = "/sys/class/watchdog/watchdog0"
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// file is an open character device.
type file int

func (f file) support() (unix.WatchdogInfo, error) {
	info, err := unix.IoctlGetWatchdogInfo(int(f))
	if err != nil {
		return unix.WatchdogInfo{}, err
	}
	return *info, nil
}

func (f file) setTimeout(seconds int) error {
	return unix.IoctlSetPointerInt(int(f), unix.WDIOC_SETTIMEOUT, seconds)
}

func (f file) timeout() (int, error) {
	// An int of C's: 32 bits wherever Linux runs.
	seconds, err := unix.IoctlGetUint32(int(f), unix.WDIOC_GETTIMEOUT)
	return int(int32(seconds)), err
}

func (f file) keepAlive() error { return unix.IoctlWatchdogKeepalive(int(f)) }

func (f file) write(text string) error {
	_, err := unix.Write(int(f), []byte(text))
	return err
}

func (f file) close() error { return unix.Close(int(f)) }
