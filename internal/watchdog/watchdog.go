package watchdog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"berth/internal/fault"
)

// Facts are what is known of an armed device.
type Facts struct {
	Path     string
	Identity string        // as the driver or the daemon calls itself: "Software Watchdog"
	Timeout  time.Duration // that the device has taken; never above the one that was asked for
	// NoWayOut: once armed it cannot be disarmed, so that an agent that is stopped for longer
	// than Timeout costs the host. False where the kernel does not say, too.
	NoWayOut bool
}

// Device is an armed watchdog. Its methods are not safe for concurrent use.
type Device struct {
	Facts
	line line
}

// line is one kind of device.
type line interface {
	feed() error
	disarm() error  // ends line and watchdog
	abandon() error // ends the line alone: the watchdog goes on
}

// Open arms the watchdog at path with a timeout in whole seconds. Opening feeds it, so that the
// caller must be allowed to. After an error it is not armed, but where it has no way out, or did
// not answer, and the error says so.
//
// fault.NotFound where nothing is there; fault.Invalid for what is no watchdog, or one that
// cannot promise what is needed; fault.Busy while another process has it.
func Open(path string, timeout time.Duration) (*Device, error) {
	return open(path, timeout, linux{}, false)
}

// Reopen takes over a watchdog that an earlier holder has left armed, and by which others go. It
// is Open, but after an error it is as armed as it was: nobody who goes by it has been told.
func Reopen(path string, timeout time.Duration) (*Device, error) {
	return open(path, timeout, linux{}, true)
}

func open(path string, timeout time.Duration, k kernel, armed bool) (*Device, error) {
	doing := "arm watchdog " + path
	info, err := k.stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.Refuse(fault.NotFound, doing, fault.Reason{
			Code: "watchdog_absent", Message: "there is no " + path, Want: path,
			Change: "load the driver of this machine's watchdog (ls /dev/watchdog*; modprobe softdog where it has none), or correct [fleet] self_fence",
		})
	case err != nil:
		return nil, fault.New(fault.Internal, "%s: %w", doing, err)
	case timeout < time.Second || timeout%time.Second != 0:
		return nil, fault.New(fault.Invalid, "%s: a timeout of %s: want whole seconds", doing, timeout)
	}
	var d *Device
	switch info.Mode().Type() {
	case os.ModeDevice | os.ModeCharDevice:
		d, err = openDevice(path, timeout, k, armed)
	case os.ModeSocket:
		d, err = openDaemon(path, timeout, armed)
	default:
		return nil, fault.Refuse(fault.Invalid, doing, noWatchdog(path, "neither a character device nor a unix socket"))
	}
	if err != nil {
		return nil, fault.Wrap(err, "%s", doing)
	}
	return d, nil
}

// Feed has the countdown begin anew.
func (d *Device) Feed() error {
	if err := d.line.feed(); err != nil {
		return fault.Wrap(err, "feed watchdog %s", d.Path)
	}
	return nil
}

// Disarm ends the watchdog, and the device is closed whatever comes. An error is that it goes
// on, or may: the host is then reset after Timeout unless somebody opens it again.
func (d *Device) Disarm() error {
	if err := d.line.disarm(); err != nil {
		return fault.Wrap(err, "disarm watchdog %s", d.Path)
	}
	if d.NoWayOut {
		return fault.Refuse(fault.Forbidden, "disarm watchdog "+d.Path, fault.Reason{
			Code: "watchdog_no_way_out", Message: fmt.Sprintf("its driver has no way out (nowayout): it resets this host in %s unless it is opened again", d.Timeout),
			Change: "start the agent in time; to be able to stop it, load the driver with nowayout=0",
		})
	}
	return nil
}

// Abandon closes the device and leaves it armed: the host is reset after Timeout unless somebody
// opens it again.
func (d *Device) Abandon() error {
	if err := d.line.abandon(); err != nil {
		return fault.Wrap(err, "close watchdog %s", d.Path)
	}
	return nil
}

func noWatchdog(path, is string) fault.Reason {
	return fault.Reason{
		Code: "watchdog_none", Message: path + " is no watchdog: " + is, Have: is,
		Change: "correct [fleet] self_fence; ls /dev/watchdog* shows those there are",
	}
}

func inUse(path string) error {
	return fault.Refuse(fault.Busy, "", fault.Reason{
		Code: "watchdog_busy", Message: "another process has " + path,
		Change: "end it (systemd with RuntimeWatchdogSec=, watchdog(8), wdmd), or name another device in [fleet] self_fence; fuser -v " + path + " shows it",
	})
}
