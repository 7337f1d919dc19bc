package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel tells of every device that comes, goes or changes by a datagram of
// NUL-separated lines on this netlink family (lib/kobject_uevent.c); group 1 is
// the kernel itself, without udev's additions.
const ueventGroup = 1

// ueventSubsystems are those whose changes change a topology.Host.
var ueventSubsystems = []string{"cpu", "memory", "node", "pci", "mdev"}

// concerns says whether an event is about hardware that is reported.
func concerns(event []byte) bool {
	for line := range bytes.SplitSeq(event, []byte{0}) {
		if name, ok := bytes.CutPrefix(line, []byte("SUBSYSTEM=")); ok {
			return slices.Contains(ueventSubsystems, string(name))
		}
	}
	return false
}

// runUevents asks for the hardware to be read again when the kernel tells that
// it changed, until ctx ends. Where the socket cannot be had the slow re-read
// stands alone.
func (h *hardware) runUevents(ctx context.Context) error {
	f, err := openUevents()
	if err != nil {
		h.a.log.Info("changes of the hardware are seen by re-reading alone", "error", err)
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		// Ends the read below; f itself is closed by the reader.
		_ = f.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	defer f.Close()
	buf := make([]byte, 16<<10)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost: something changed
			h.kickRead()
		case err != nil && ctx.Err() == nil:
			h.a.log.Warn("changes of the hardware are seen by re-reading alone from now on", "error", err)
			<-ctx.Done()
		case err == nil && concerns(buf[:n]):
			h.kickRead()
		}
	}
	return nil
}

func openUevents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's event socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the kernel's events: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

// kickRead asks for a reading; one that is waiting already serves.
func (h *hardware) kickRead() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// settleTime is how long after an event is waited before reading: plugging one
// card makes dozens of events.
const settleTime = time.Second
