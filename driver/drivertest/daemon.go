package drivertest

import (
	"context"
	"errors"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// Hang stops the daemon as SIGSTOP does, or lets it go on: calls wait, and what
// was asked to change meanwhile happens when it wakes, whether or not anybody still
// waits for the answer. Guests and jobs of other hosts go on.
func (h *machine) Hang(on bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.hung = on
	h.fleet.recordLocked(h.name, "", map[bool]string{true: "libvirtd hangs", false: "libvirtd goes on"}[on])
	h.fleet.tellLocked()
}

// untilAwake waits while the daemon hangs.
func (h *machine) untilAwake(ctx context.Context, name string, changes bool) error {
	for {
		if err := ctx.Err(); err != nil {
			return lost(changes, name, h.name, err)
		}
		h.fleet.mu.Lock()
		hung, news := h.hung && h.daemon, h.fleet.newsLocked()
		h.fleet.mu.Unlock()
		if !hung {
			return nil
		}
		if err := runtime.Await(ctx, h.fleet.rt, news); err != nil {
			return lost(changes, name, h.name, err)
		}
	}
}

// late carries out a changing call that a daemon which hangs has read already: when
// it wakes, whoever waits. It is lost with the daemon.
func (h *Fake) late(ctx context.Context, name, uuid string, effect func() error) error {
	f := h.fleet
	f.mu.Lock()
	lives := h.lives
	f.mu.Unlock()
	done := make(chan error, 1)
	f.rt.Go("late "+name+" on "+h.name, func() {
		if err := h.untilAwake(f.ctx, name, true); err != nil {
			done <- err
			return
		}
		f.mu.Lock()
		same := h.lives == lives
		f.mu.Unlock()
		if !same {
			done <- lost(true, name, h.name, errors.New("libvirtd went away"))
			return
		}
		done <- h.effect(name, uuid, effect)
	})
	err, _, gone := runtime.Receive(ctx, f.rt, done)
	if gone != nil {
		return lost(true, name, h.name, gone)
	}
	return err
}

// KillDaemon ends libvirtd as SIGKILL does. Guests run on. What becomes of its
// migrations depends on how far they are: see phase.
func (h *machine) KillDaemon() {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if h.daemon {
		h.endDaemonLocked("libvirtd is killed")
	}
}

// StopDaemon ends libvirtd as SIGTERM does: nobody can reach it from now on, and the
// process lives on while it sends a guest, for Pace.Linger at most. As a destination
// it ends as by KillDaemon.
func (h *machine) StopDaemon() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if !h.daemon {
		return
	}
	j := h.sendingLocked()
	if j == nil {
		h.endDaemonLocked("libvirtd stops")
		return
	}
	h.daemon, h.lingers, h.downReason = false, true, "libvirtd does not run"
	f.recordLocked(h.name, "", "libvirtd stops, and lingers for its migration")
	h.loseLocked()
	f.tellLocked()
	lives, until := h.lives, f.rt.Boot().Since+f.paceLocked().Linger
	f.rt.Go("lingering libvirtd of "+h.name, func() {
		for {
			f.mu.Lock()
			left, news := until-f.rt.Boot().Since, f.newsLocked()
			over := h.lives != lives || f.ctx.Err() != nil
			if !over && (left <= 0 || h.sendingLocked() == nil) {
				h.endDaemonLocked("libvirtd has stopped")
				over = true
			}
			f.mu.Unlock()
			if over {
				return
			}
			ctx, cancel := f.rt.WithTimeout(f.ctx, left)
			_ = runtime.Await(ctx, f.rt, news) // the loop looks at both
			cancel()
		}
	})
}

// sendingLocked is a migration that this host sends; nil for none.
func (h *machine) sendingLocked() *job {
	for _, d := range h.sortedLocked() {
		if d.job != nil && !d.job.done && d.job.source == h {
			return d.job
		}
	}
	return nil
}

// endDaemonLocked is the end of the process, however it comes.
func (h *machine) endDaemonLocked(what string) {
	f := h.fleet
	h.daemon, h.lingers, h.downReason = false, false, "libvirtd does not run"
	h.lives++
	f.recordLocked(h.name, "", what)
	h.loseLocked()
	for _, d := range h.sortedLocked() {
		j := d.job
		switch {
		case j == nil || j.done:
		case j.source == h:
			h.endSendingLocked(d, j, errors.New("libvirtd was killed"))
		case j.phase >= finishing:
			if !f.silentLocked(j) {
				f.failLocked(j, errors.New("client socket is closed"))
			}
		case !f.mgmtCut[pair(j.source.name, j.dest.name)] && !j.source.hung:
			f.failLocked(j, errors.New("client socket is closed"))
		default:
			f.dropIncomingLocked(j, false) // its own libvirtd is gone, and the source will hear of it
		}
	}
	f.tellLocked()
}

// endSendingLocked leaves the source's half as it is, for the next daemon to find.
func (h *machine) endSendingLocked(d *domain, j *job, why error) {
	f := h.fleet
	if j.postCopy {
		f.breakPostCopyLocked(j, why)
		return
	}
	j.endLocked(fault.New(fault.InDoubt, "migrate %s: %w", j.uuid, why))
	d.job = nil
	switch j.phase {
	case performing:
		d.fate = resumed
		if j.wasPaused {
			d.fate = asItWas
		}
	case confirming:
		d.fate = stopped
	}
	if j.phase < finishing {
		f.dropIncomingLocked(j, false)
	}
}

// fate is what a new daemon does with a domain that it finds running, for the sake
// of a migration that the one before it did not end.
type fate int

const (
	kept    fate = iota
	resumed      // if it is `paused (migrating)`
	asItWas      // paused by its user
	stopped      // it was confirmed to be elsewhere
	killed       // it was not complete, as far as anybody knows
)

// StartDaemon starts libvirtd again: it finds its running guests, ends what its
// predecessor left half-way, and streams hear a resync. The reasons of guests that do
// not run, and the statistics of jobs, are forgotten. It fails while a predecessor
// lingers, or the machine is off.
func (h *machine) StartDaemon() error {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !h.power:
		return fault.New(fault.Unavailable, "start libvirtd on %s: the machine is off", h.name)
	case h.lingers:
		return fault.New(fault.Busy, "start libvirtd on %s: unable to obtain pidfile", h.name)
	case h.daemon:
		return nil
	}
	h.daemon, h.hung = true, false
	f.recordLocked(h.name, "", "libvirtd starts")
	h.loadLocked()
	for _, d := range h.sortedLocked() {
		h.findAgainLocked(d)
	}
	h.resyncLocked()
	f.tellLocked()
	return nil
}

// findAgainLocked is what a new daemon makes of a domain.
func (h *machine) findAgainLocked(d *domain) {
	fate := d.fate
	d.fate, d.completed = kept, nil
	if d.live == nil {
		d.reason = driver.ReasonUnknown
		return
	}
	if d.job != nil && d.job.dest == h && !d.job.postCopy && (d.job.done || d.job.destLives != h.lives) {
		h.fleet.killIncomingLocked(h, d) // an arrival that nobody sends
		return
	}
	switch {
	case fate == killed && d.state != driver.Running:
		h.fleet.killIncomingLocked(h, d)
	case fate == stopped:
		h.setLocked(d, driver.ShutOff, driver.ReasonDaemon, driver.EventStopped, "failed")
	case fate == resumed && d.state == driver.Paused && d.reason == driver.ReasonMigrating:
		h.setLocked(d, driver.Running, driver.ReasonMigrationCanceled, driver.EventResumed, "migrated")
	case fate == asItWas && d.reason == driver.ReasonMigrating:
		d.reason = driver.ReasonUser
	}
}

// Crash pulls the machine's plug: every guest on it is lost at once. Others notice
// when their keepalive does.
func (h *machine) Crash() {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if !h.power {
		return
	}
	f.recordLocked(h.name, "", "the machine crashes")
	h.power, h.daemon, h.hung, h.lingers, h.downReason = false, false, false, false, "the machine is off"
	h.lives++
	h.loseLocked()
	clear(h.forgotten)
	for _, d := range h.sortedLocked() {
		j := d.job
		d.fate = kept
		if d.live != nil {
			h.setLocked(d, driver.ShutOff, driver.ReasonUnknown, driver.EventStopped, "")
		}
		switch {
		case j == nil || j.done:
		case j.postCopy:
			f.breakPostCopyLocked(j, errors.New("the machine crashed"))
		case j.source == h:
			j.endLocked(fault.New(fault.InDoubt, "migrate %s: the machine crashed", j.uuid))
			if j.phase < finishing {
				f.dropIncomingLocked(j, false)
			}
		}
		d.job = nil
	}
	f.tellLocked()
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
	h.loadLocked()
	h.resyncLocked()
	for _, d := range h.sortedLocked() {
		d.reason = driver.ReasonUnknown
		if d.autostart && d.live == nil {
			h.startLocked(d, false)
		}
	}
	f.tellLocked()
}

// CrashGuest ends a guest's process as kill -9 of its QEMU does.
func (h *machine) CrashGuest(uuid string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if d := h.domains[uuid]; d != nil && d.live != nil {
		h.setLocked(d, driver.ShutOff, driver.ReasonCrashed, driver.EventStopped, "failed")
	}
}

// defaultLinger is how long a libvirtd that was told to stop waits for its
// migrations, as measured.
const defaultLinger = 30 * time.Second
