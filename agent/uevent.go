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

	"berth/topology"
)

// The kernel tells of every device that comes, goes or changes by a datagram of
// NUL-separated lines on this netlink family (lib/kobject_uevent.c); group 1 is
// the kernel itself, without udev's additions.
const ueventGroup = 1

// ueventSubsystems are those whose changes change a topology.Host. Network
// interfaces are not among them: a card's virtual functions are PCI devices.
var ueventSubsystems = []string{"cpu", "memory", "node", "pci", "mdev"}

// uevent is what is read of one event.
type uevent struct {
	action, subsystem string
	slot              string // of a PCI function, its address
	recovery          string // ERROR_EVENT of a PCI function that met an error
}

func parseUevent(event []byte) uevent {
	var e uevent
	for line := range bytes.SplitSeq(event, []byte{0}) {
		key, value, _ := bytes.Cut(line, []byte("="))
		switch string(key) {
		case "ACTION":
			e.action = string(value)
		case "SUBSYSTEM":
			e.subsystem = string(value)
		case "PCI_SLOT_NAME":
			e.slot = string(value)
		case "ERROR_EVENT":
			e.recovery = string(value)
		}
	}
	return e
}

// concerns says whether an event is about hardware that is reported.
func (e uevent) concerns() bool { return slices.Contains(ueventSubsystems, e.subsystem) }

// takeUevent notes what an event says of a device and tells of the change.
func (h *hardware) takeUevent(event []byte) {
	e := parseUevent(event)
	if !e.concerns() {
		return
	}
	if address, err := topology.ParsePCIAddress(e.slot); err == nil && e.subsystem == "pci" {
		h.mu.Lock()
		// drivers/pci/pci-driver.c, pci_uevent_ers: a function is offline from the
		// error that is being recovered from until that succeeded.
		switch {
		case e.recovery == "BEGIN_RECOVERY":
			h.lost[address] = "the kernel is recovering it from an error"
		case e.recovery == "FAILED_RECOVERY":
			h.lost[address] = "the kernel could not recover it from an error"
		case e.recovery == "SUCCESSFUL_RECOVERY", e.action == "add", e.action == "remove":
			delete(h.lost, address)
		}
		h.mu.Unlock()
	}
	h.tell()
}

// missedUevents is told that some were lost: everything may have changed. What
// devices recovered meanwhile is not known either; those that are dead show it
// by their files.
func (h *hardware) missedUevents() {
	h.mu.Lock()
	clear(h.lost)
	h.mu.Unlock()
	h.tell()
}

// runUevents takes the kernel's events until ctx ends. Where its socket cannot be
// had, libvirt's events and re-reading stand alone.
func (h *hardware) runUevents(ctx context.Context) error {
	f, err := openUevents()
	if err != nil {
		h.a.log.Info("the kernel's events of hardware cannot be had: libvirt's and re-reading serve", "error", err)
		<-ctx.Done()
		return nil
	}
	h.tell() // what came before there was a socket was told to nobody
	h.takeUevents(ctx, f)
	return nil
}

// takeUevents takes events from a socket until ctx ends, and closes it.
func (h *hardware) takeUevents(ctx context.Context, f *os.File) {
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
		case err == nil:
			h.takeUevent(buf[:n])
		case errors.Is(err, unix.ENOBUFS):
			h.missedUevents()
		case ctx.Err() == nil:
			h.a.log.Warn("the kernel's events of hardware ended: libvirt's and re-reading serve", "error", err)
			<-ctx.Done()
		}
	}
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
