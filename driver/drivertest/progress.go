package drivertest

import (
	"errors"
	"strconv"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// run moves one job on until it ends.
func (f *Fleet) run(j *job) {
	for f.ctx.Err() == nil {
		f.mu.Lock()
		tick, done := f.paceLocked().Tick, j.done
		f.mu.Unlock()
		if done {
			return
		}
		if f.rt.Sleep(f.ctx, tick) != nil {
			return
		}
		f.step(j, tick)
	}
}

// step moves a job on by d: what can end it first, then bytes, then the
// hand-over.
func (f *Fleet) step(j *job, d time.Duration) {
	f.mu.Lock()
	hook := f.phase
	ready := f.progressLocked(j, d)
	done := j.done
	f.mu.Unlock()
	if done {
		return
	}
	if hook != nil {
		if err := hook(PhasePerform, j.uuid); err != nil {
			f.fail(j, err)
			return
		}
	}
	if !ready {
		return
	}
	f.mu.Lock()
	if f.endedLocked(j) {
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	f.handOver(j)
}

// progressLocked moves bytes and reports whether the job is ready for its
// hand-over.
func (f *Fleet) progressLocked(j *job, d time.Duration) bool {
	if f.endedLocked(j) {
		return false
	}
	if j.source.hung {
		return false // libvirt is part of every step, so a stopped one stops the job
	}
	p := f.paceLocked()
	j.elapsed += d
	j.stats.Elapsed = j.elapsed
	if f.silentLocked(j) {
		if j.mgmtLost += d; j.mgmtLost >= p.Keepalive {
			f.failLocked(j, errors.New("client socket is closed"))
			return false
		}
	} else {
		j.mgmtLost = 0
	}
	if j.dest.hung || !j.dest.power {
		return false
	}
	if f.dataCut[pair(j.source.name, j.dest.name)] || j.elapsed <= p.Setup {
		return false
	}
	if j.stats.MemoryTotal == 0 {
		j.stats.Setup = p.Setup
		s := j.source.domains[j.uuid]
		j.stats.MemoryTotal = uint64(s.live.memoryMB) << 20
		j.stats.DiskTotal = p.DiskBytes * uint64(len(j.m.CopyDisks))
		j.stats.DiskRemaining = j.stats.DiskTotal
		j.iteration, j.stats.Iteration = j.stats.MemoryTotal, 1
		f.iterationLocked(j)
	}
	if j.stats.DiskRemaining == 0 && j.switching && !j.postCopy {
		j.postCopy = true
		// What was sent and has changed since goes once more.
		j.iteration, j.sent = min(j.stats.MemoryTotal, j.iteration-j.sent+j.dirtied), 0
		f.runThereLocked(j)
	}
	bound := j.m.Bandwidth
	if j.postCopy {
		bound = j.m.PostCopyBandwidth
	}
	rate := p.Rate
	if bound > 0 {
		rate = min(rate, bound)
	}
	bytes := uint64(float64(rate) * d.Seconds())
	j.stats.MemoryRate = rate
	// Disks go first, as storage copy does before memory.
	if disk := min(bytes, j.stats.DiskRemaining); disk > 0 {
		j.stats.DiskRate, j.stats.MemoryRate = rate, 0
		j.stats.DiskProcessed += disk
		j.stats.DiskRemaining -= disk
		return false
	}
	j.stats.DiskRate = 0
	sent := min(bytes, j.iteration-j.sent)
	j.sent += sent
	j.stats.MemoryProcessed += sent
	if j.postCopy {
		j.stats.MemoryRemaining = j.iteration - j.sent
		j.stats.PageRequests = j.stats.MemoryProcessed / requestedBytes
		return j.sent == j.iteration
	}
	j.iterTime += d
	if s := j.source.domains[j.uuid]; s.state != driver.Paused { // one that stands still changes nothing
		j.dirtied += uint64(float64(p.DirtyRate) * d.Seconds() * float64(100-j.stats.Throttle) / 100)
	}
	if j.sent < j.iteration {
		j.stats.MemoryRemaining = j.iteration - j.sent
		return false
	}
	return f.nextLocked(j, rate, p)
}

// requestedBytes is for how much of post-copy's memory the destination asks once.
const requestedBytes = 64 << 10

// nextLocked begins another pass, over what was dirtied in the last one, or reports that
// there is so little of it that the guest may stand still for it.
func (f *Fleet) nextLocked(j *job, rate uint64, p Pace) bool {
	changes := j.stats.MemoryTotal
	if p.WorkingSet > 0 {
		changes = min(changes, p.WorkingSet)
	}
	j.stats.DirtyRate = uint64(float64(j.dirtied) / j.iterTime.Seconds())
	j.convergeLocked()
	j.iteration = min(changes, j.dirtied)
	j.sent, j.dirtied, j.iterTime = 0, 0, 0
	j.stats.MemoryRemaining = j.iteration
	j.stats.Downtime = time.Duration(float64(j.iteration) / float64(rate) * float64(time.Second))
	downtime := j.maxDowntime
	if downtime == 0 {
		downtime = p.MaxDowntime
	}
	if j.stats.Downtime <= downtime {
		return true
	}
	j.stats.Iteration++
	f.iterationLocked(j)
	return false
}

// convergeLocked is QEMU's auto-converge: a guest that for two passes changed more than
// half of what was sent meanwhile is slowed down, from then on by more each time.
func (j *job) convergeLocked() {
	if !j.m.AutoConverge || j.dirtied*2 <= j.sent {
		return
	}
	if j.hot++; j.hot < 2 {
		return
	}
	j.hot = 0
	initial, increment := j.m.Throttle.Initial, j.m.Throttle.Increment
	if initial == 0 {
		initial = 20
	}
	if increment == 0 {
		increment = 10
	}
	if j.stats.Throttle == 0 {
		j.stats.Throttle = initial
		return
	}
	j.stats.Throttle = min(99, j.stats.Throttle+increment)
}

func (f *Fleet) iterationLocked(j *job) {
	s := j.source.domains[j.uuid]
	j.source.publishLocked(driver.Event{
		Kind: driver.EventIteration, UUID: j.uuid, Name: s.name, Detail: strconv.FormatUint(j.stats.Iteration, 10),
	})
}

// endedLocked ends the job where one of its ends is gone or somebody asked for
// it, and reports whether it is over.
func (f *Fleet) endedLocked(j *job) bool {
	if j.done {
		return true
	}
	if j.failing != nil {
		f.answeredLocked(j)
		return true
	}
	src, dst := j.source.domains[j.uuid], j.dest.domains[j.uuid]
	switch {
	case f.ctx.Err() != nil:
		j.endLocked(fault.New(fault.InDoubt, "migrate %s: the fleet is closed", j.uuid))
	case j.source.hung:
		// Nobody is there who would notice.
	case src == nil || src.job != j || src.live == nil:
		f.failLocked(j, errors.New("domain is not running"))
	case !f.silentLocked(j) && j.dest.lives != j.destLives:
		f.failLocked(j, errors.New("client socket is closed"))
	case j.dest.power && (j.postCopy || !f.dataCut[pair(j.source.name, j.dest.name)]) && (dst == nil || dst.job != j || dst.live == nil):
		f.failLocked(j, errors.New("qemu unexpectedly closed the monitor"))
	case j.abort:
		f.failLocked(j, errors.New("operation aborted: job 'migration out' canceled by client"))
	}
	return j.done
}
