package drivertest

import (
	"errors"
	"fmt"

	"berth/driver"
	"berth/internal/fault"
)

// phase is how far the source's libvirt has come with a migration, as it stands in
// the status that it keeps of the domain: what it does when it is started again
// follows from it (qemuProcessRecoverMigrationOut and In).
//
//	phase of the source      killed and started again, the source's half is
//	performing               running as before, or resumed: `running (migration canceled)`
//	performed                left as it stands: `paused (migrating)`
//	confirming               stopped: `shut off (daemon)`
//
//	phase of the destination killed and started again, the destination's half is
//	arriving                 killed
//	finishing                killed, if it does not run
//	complete                 kept
type phase int

const (
	performing phase = iota // memory moves
	performed               // all is sent; Finish is asked for, or its answer awaited
	finishing               // performed, and the destination's libvirt is at Finish
	complete                // performed, and the destination has the whole guest
	confirming              // the source has heard of it, and lets its half go
)

// window lets time pass between two phases, so that others can act in between.
func (f *Fleet) window() {
	f.mu.Lock()
	d := f.paceLocked().HandOver
	if f.manual {
		d = 0
	}
	f.mu.Unlock()
	if d > 0 {
		_ = f.rt.Sleep(f.ctx, d) // its end is seen where the job is looked at
	}
}

// silentLocked reports whether the destination's daemon does not answer, without
// having closed the connection.
func (f *Fleet) silentLocked(j *job) bool {
	return f.mgmtCut[pair(j.source.name, j.dest.name)] || j.dest.hung || !j.dest.power
}

// talks waits while the destination's daemon is silent, as long as the keepalive, and
// reports whether the two daemons have their connection still. A source that hangs
// notices nothing.
func (f *Fleet) talks(j *job) bool {
	silent := f.paceLockedOnce().Keepalive
	for {
		f.mu.Lock()
		tick, manual, hung := f.paceLocked().Tick, f.manual, j.source.hung
		over := f.ctx.Err() != nil || j.source.lives != j.lives
		quiet, closed := f.silentLocked(j), j.dest.lives != j.destLives
		f.mu.Unlock()
		switch {
		case over:
			return false
		case hung && !manual:
		case !quiet:
			return !closed
		case silent <= 0 || manual:
			return false
		default:
			silent -= tick
		}
		if f.rt.Sleep(f.ctx, tick) != nil {
			return false
		}
	}
}

func (f *Fleet) paceLockedOnce() Pace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paceLocked()
}

// handOver is what follows when all but the last bytes are sent. The two daemons have
// their own threads for it, so each goes on when the other dies.
func (f *Fleet) handOver(j *job) {
	f.mu.Lock()
	if f.endedLocked(j) {
		f.mu.Unlock()
		return
	}
	// The source stops its CPUs for the last bytes.
	switch s := j.source.domains[j.uuid]; {
	case j.postCopy: // they stand still already
	case s.state != driver.Paused:
		j.source.setLocked(s, driver.Paused, driver.ReasonMigrating, driver.EventSuspended, "migrated")
	default:
		s.reason = driver.ReasonMigrating
	}
	hook := f.phase
	f.mu.Unlock()
	f.window()
	f.mu.Lock()
	if f.endedLocked(j) {
		f.mu.Unlock()
		return
	}
	j.phase = performed
	f.mu.Unlock()
	f.window()
	if hook != nil {
		if err := hook(PhaseFinish, j.uuid); err != nil {
			f.fail(j, err)
			return
		}
	}
	if !f.talks(j) {
		f.fail(j, errors.New("client socket is closed"))
		return
	}
	if !f.finish(j) {
		return
	}
	f.window() // the answer is on its way
	if hook != nil {
		if err := hook(PhaseFinishReply, j.uuid); err != nil {
			f.fail(j, fmt.Errorf("finish: %w", err))
			return
		}
	}
	if !f.talks(j) {
		f.fail(j, errors.New("finish: client socket is closed"))
		return
	}
	f.mu.Lock()
	if !j.done {
		j.phase = confirming
	}
	f.mu.Unlock()
	f.window()
	if hook != nil {
		if err := hook(PhaseConfirm, j.uuid); err != nil {
			j.source.KillDaemon()
		}
	}
	if j.source.untilAwake(f.ctx, "confirm", true) != nil {
		return // the fleet is closed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !j.done {
		f.confirmLocked(j)
	}
}

// finish is the destination's libvirt at Finish; false when the source has failed
// over it. It goes on when the source's daemon dies meanwhile.
func (f *Fleet) finish(j *job) bool {
	f.mu.Lock()
	if j.source.lives != j.lives {
		f.mu.Unlock()
		return false // it was never asked for
	}
	j.phase = finishing
	f.mu.Unlock()
	f.window()
	f.mu.Lock()
	defer f.mu.Unlock()
	in := j.dest.domains[j.uuid]
	switch {
	case j.dest.lives != j.destLives:
		f.failLocked(j, errors.New("client socket is closed"))
		return false
	case in == nil || in.job != j || in.live == nil:
		f.failLocked(j, errors.New("qemu unexpectedly closed the monitor"))
		return false
	}
	f.completeLocked(j)
	return !j.done
}

// completeLocked is the end of Finish on the destination.
func (f *Fleet) completeLocked(j *job) {
	in := j.dest.domains[j.uuid]
	// Read when the job began, so it parses.
	in.persistent, _ = parse(j.m.PersistentXML)
	in.job = nil
	j.phase = complete
	f.copyDisksLocked(j)
	j.stats.Kind, j.stats.MemoryRemaining = driver.JobCompleted, 0
	stats := j.stats
	in.completed = &stats
	if j.m.Paused || j.wasPaused {
		j.dest.setLocked(in, driver.Paused, driver.ReasonUser, driver.EventSuspended, "paused")
		return
	}
	j.dest.setLocked(in, driver.Running, driver.ReasonMigrated, driver.EventResumed, "migrated")
}

// confirmLocked is Confirm on the source: its half stops.
func (f *Fleet) confirmLocked(j *job) {
	s := j.source.domains[j.uuid]
	if s == nil || s.job != j || s.live == nil {
		if s != nil && s.job == j {
			s.job = nil
		}
		j.endLocked(fault.New(fault.InDoubt, "migrate %s: domain is not running", j.uuid))
		return
	}
	stats := j.stats
	s.job, s.completed = nil, &stats
	j.source.setLocked(s, driver.ShutOff, driver.ReasonMigrated, driver.EventStopped, "migrated")
	j.endLocked(nil)
}

func (f *Fleet) fail(j *job, cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(j, cause)
}

// failLocked rolls back as libvirt does: the destination's incoming half goes
// (a complete one stays), the source's runs on.
func (f *Fleet) failLocked(j *job, cause error) {
	if j.done {
		return
	}
	if j.postCopy {
		f.breakPostCopyLocked(j, cause)
		return
	}
	err := fault.New(fault.Undone, "migrate %s: %w", j.uuid, cause)
	j.stats.Kind = driver.JobFailed
	f.recordLocked(j.source.name, j.uuid, "migration to "+j.dest.name+" fails: "+cause.Error())
	s := j.source.domains[j.uuid]
	if s != nil && s.job == j && s.live == nil {
		// It died under the job: nothing was put back, and what is there says why.
		err = fault.New(fault.InDoubt, "migrate %s: domain is %s (%s): %w", j.uuid, s.state, s.reason, cause)
	}
	j.endLocked(err)
	f.dropIncomingLocked(j, !f.silentLocked(j))
	if s == nil || s.job != j {
		return
	}
	s.job = nil
	switch {
	case s.live == nil || s.state != driver.Paused:
	case j.wasPaused:
		s.reason = driver.ReasonUser
	case s.reason == driver.ReasonMigrating:
		j.source.setLocked(s, driver.Running, driver.ReasonMigrationCanceled, driver.EventResumed, "migrated")
	}
}

// dropIncomingLocked ends what arrives, and is not complete: at once where the source
// can say so, else when the destination has noticed that nobody is there any more.
func (f *Fleet) dropIncomingLocked(j *job, told bool) {
	if !j.prepared || j.postCopy { // what has come in post-copy is the guest
		return
	}
	in := j.dest.domains[j.uuid]
	if in == nil || in.job != j {
		return
	}
	if j.phase >= finishing && !j.dest.daemon {
		in.fate = killed // no incoming any more, so QEMU waits for the next daemon
		return
	}
	after := f.paceLocked().Orphan
	if told || after == 0 || f.manual || in.live == nil {
		f.killIncomingLocked(j.dest, in)
		return
	}
	// Until then it is there, and nobody's: its job is over.
	f.rt.Go("orphan of migration of "+j.uuid, func() {
		_ = f.rt.Sleep(f.ctx, after)
		if j.dest.untilAwake(f.ctx, "drop", true) != nil {
			return // the fleet is closed
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if j.dest.domains[j.uuid] == in && in.job == j {
			f.killIncomingLocked(j.dest, in)
		}
	})
}

func (f *Fleet) killIncomingLocked(h *machine, in *domain) {
	in.job = nil
	if in.live != nil {
		h.setLocked(in, driver.ShutOff, driver.ReasonFailed, driver.EventStopped, "failed")
	}
}
