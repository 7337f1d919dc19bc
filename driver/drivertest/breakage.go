package drivertest

import (
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// Fault sets a hook before every call's effect: an error is the call's answer,
// and nothing happens. call is the method's name; on a destination "Arrive" is
// libvirt's question before a guest's memory moves. The hook runs without locks
// and may break the fleet in other ways. nil removes it.
func (h *machine) Fault(hook func(call, uuid string) error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.before = hook
}

// FaultReply sets a hook after every successful call's effect: an error
// replaces the answer, as a lost reply does. Migrate's hook is asked when the
// job has ended, well or badly.
func (h *machine) FaultReply(hook func(call, uuid string) error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.after = hook
}

// LoseReply makes the next answer to a call get lost: it happens, and the caller
// hears fault.InDoubt.
func (h *machine) LoseReply(call string) {
	lost := false
	h.FaultReply(func(c, uuid string) error {
		if c != call || lost {
			return nil
		}
		lost = true
		return fault.New(fault.InDoubt, "%s %s on %s: the answer was lost", c, uuid, h.name)
	})
}

// Hang stops the daemon as SIGSTOP does, or lets it go on: calls wait, and what
// was asked meanwhile happens when it wakes only if the caller still waits.
// Guests and jobs of other hosts go on.
func (h *machine) Hang(on bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.hung = on
	h.fleet.recordLocked(h.name, "", map[bool]string{true: "libvirtd hangs", false: "libvirtd goes on"}[on])
}

// KillDaemon ends libvirtd as SIGKILL does. Guests run on; a migration that
// this host sends ends without rollback here, one that it receives rolls back at
// the source.
func (h *machine) KillDaemon() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	h.daemon, h.downReason = false, "libvirtd does not run"
	f.recordLocked(h.name, "", "libvirtd is killed")
	h.loseLocked()
	for _, d := range h.sortedLocked() {
		j := d.job
		if j == nil || j.done {
			continue
		}
		if j.source != h {
			f.failLocked(j, fault.New(fault.Unavailable, "client socket is closed"))
			continue
		}
		if j.postCopy {
			f.breakPostCopyLocked(j, errors.New("libvirtd was killed"))
			continue
		}
		// The source's half keeps the state it has: running before the switch-over,
		// `paused (migrating)` after it. The destination drops an incomplete guest.
		j.done, j.err = true, fault.New(fault.InDoubt, "migrate %s: libvirtd was killed", j.uuid)
		f.dropIncomingLocked(j)
		d.job = nil
	}
}

// StartDaemon starts libvirtd again: it finds its running guests, and streams
// hear a resync.
func (h *machine) StartDaemon() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if !h.power {
		return
	}
	h.daemon = true
	f.recordLocked(h.name, "", "libvirtd starts")
	h.resyncLocked()
}

// Crash pulls the machine's plug: every guest on it is lost at once.
func (h *machine) Crash() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordLocked(h.name, "", "the machine crashes")
	h.power, h.daemon, h.hung, h.downReason = false, false, false, "the machine is off"
	h.loseLocked()
	for _, d := range h.sortedLocked() {
		j := d.job
		if d.live != nil {
			h.setLocked(d, driver.ShutOff, driver.ReasonUnknown, driver.EventStopped, "")
		}
		switch {
		case j == nil || j.done:
			continue
		case j.postCopy:
			f.breakPostCopyLocked(j, errors.New("the machine crashed"))
		case j.source == h:
			j.done, j.err = true, fault.New(fault.InDoubt, "migrate %s: the machine crashed", j.uuid)
			f.dropIncomingLocked(j)
		default:
			f.failLocked(j, fault.New(fault.Unavailable, "client socket is closed"))
		}
		d.job = nil
	}
}

// Boot powers the machine on. Guests with autostart start, as libvirtd does it.
func (h *machine) Boot() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.power {
		return
	}
	h.power, h.daemon = true, true
	f.recordLocked(h.name, "", "the machine boots")
	h.resyncLocked()
	for _, d := range h.sortedLocked() {
		if d.autostart && d.live == nil {
			h.startLocked(d, false)
		}
	}
}

// CrashGuest ends a guest's process as kill -9 of its QEMU does.
func (h *machine) CrashGuest(uuid string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if d := h.domains[uuid]; d != nil && d.live != nil {
		h.setLocked(d, driver.ShutOff, driver.ReasonCrashed, driver.EventStopped, "failed")
	}
}

func (h *machine) loseLocked() {
	for _, s := range h.streamsLocked() {
		s.lose()
	}
}

func (h *machine) resyncLocked() {
	for _, s := range h.streamsLocked() {
		s.resync(h.fleet.rt.Now())
	}
}
