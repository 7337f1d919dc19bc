package drivertest

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// BreakPostCopy closes the connection by which a guest in post-copy gets its memory, at
// both ends: both QEMUs notice at once, and each side is left with its half. It is what a
// process between them does, or a network that resets; one that is cut does nothing of
// the kind (CutData). A half that has noticed already stays as it is.
func (f *Fleet) BreakPostCopy(uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.namesLocked() {
		d := f.hosts[name].domains[uuid]
		if d == nil {
			continue
		}
		for _, j := range []*job{d.job, d.broken} {
			if j != nil && j.postCopy && j.source == f.hosts[name] {
				f.breakPostCopyLocked(j, errors.New("connection reset by peer"))
				f.haltedLocked(j)
				return
			}
		}
	}
}

// breakPostCopyLocked is the end of a post-copy on the source: each side keeps a half that is
// not the guest. Where the two QEMUs have lost their connection without a word, the
// destination's does not know, and its libvirt, which is asked for the end, answers only when
// it does: until then the source's call lasts.
func (f *Fleet) breakPostCopyLocked(j *job, cause error) {
	if j.done || j.failing != nil {
		return
	}
	j.failing = fault.New(fault.InDoubt, "migrate %s: broken in post-copy: %w", j.uuid, cause)
	f.recordLocked(j.source.name, j.uuid, "post-copy to "+j.dest.name+" breaks: "+cause.Error())
	if s := j.source.domains[j.uuid]; s != nil && s.job == j {
		s.job = nil
		if s.live != nil {
			s.broken = j
			j.source.setLocked(s, driver.Paused, driver.ReasonPostCopyFailed, driver.EventSuspended, "post-copy failed")
		}
	}
	if !f.dataCut[pair(j.source.name, j.dest.name)] {
		f.haltedLocked(j)
	}
	f.answeredLocked(j)
}

// answeredLocked ends a broken post-copy's call where nobody is there who will answer it.
func (f *Fleet) answeredLocked(j *job) {
	in := j.dest.domains[j.uuid]
	alive := in != nil && in.job == j && in.live != nil
	if !alive || f.silentLocked(j) || j.source.lives != j.lives || j.dest.lives != j.destLives || f.ctx.Err() != nil {
		j.endLocked(j.failing)
	}
}

// haltedLocked is the destination's QEMU that has seen the end of its connection: the
// guest runs there until it needs a page that it has not.
func (f *Fleet) haltedLocked(j *job) {
	in := j.dest.domains[j.uuid]
	if in == nil || in.job != j {
		return
	}
	in.job = nil
	if j.failing != nil {
		j.endLocked(j.failing)
	}
	if in.live == nil {
		return
	}
	in.broken = j
	if j.wasPaused {
		j.dest.setLocked(in, driver.Paused, driver.ReasonPostCopyFailed, driver.EventSuspended, "post-copy failed")
		return
	}
	j.dest.setLocked(in, driver.Running, driver.ReasonPostCopyFailed, driver.EventResumed, "post-copy failed")
}

// FailPostCopy implements driver.PostCopyRecoverer: the source's QEMU closes its end. With
// the data link cut the destination's hears nothing of it.
func (h *Fake) FailPostCopy(ctx context.Context, uuid string) error {
	return h.call(ctx, "FailPostCopy", uuid, true, func() error {
		d, err := h.findLocked(uuid)
		switch {
		case err != nil:
			return err
		case d.broken != nil && d.broken.source == h.machine:
			return nil
		case d.job == nil || d.job.source != h.machine || !d.job.postCopy:
			return fault.New(fault.Invalid, "fail post-copy of %s: there is none", uuid)
		}
		h.fleet.breakPostCopyLocked(d.job, errors.New("paused by its user"))
		return nil
	})
}

// RecoverPostCopy implements driver.PostCopyRecoverer. It needs a destination that has
// noticed too, and a way for the memory; without, this side stays as it is.
func (h *Fake) RecoverPostCopy(ctx context.Context, uuid string, m driver.Migration) error {
	if err := h.ahead(ctx, "RecoverPostCopy", uuid); err != nil {
		return err
	}
	if err := h.untilAwake(ctx, "RecoverPostCopy", true); err != nil {
		return err
	}
	f := h.fleet
	f.mu.Lock()
	j, err := h.resumeLocked(uuid, m)
	lives, manual := h.lives, f.manual
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if !manual {
		f.rt.Go("fake post-copy of "+uuid, func() { f.run(j) })
	}
	return h.outcome(ctx, "RecoverPostCopy", j, lives)
}

// resumeLocked makes a job that goes on where the broken one stopped.
func (h *Fake) resumeLocked(uuid string, m driver.Migration) (*job, error) {
	f := h.fleet
	if err := errors.Join(h.openLocked("RecoverPostCopy"), h.refusesLocked("RecoverPostCopy")); err != nil {
		return nil, err
	}
	d, err := h.findLocked(uuid)
	switch {
	case err != nil:
		return nil, err
	case d.job != nil && d.job.source == h.machine:
		return nil, fault.New(fault.Busy, "recover post-copy of %s: its job is in flight", uuid)
	case d.broken != nil && d.broken.source == h.machine && !d.broken.done:
		return nil, fault.New(fault.Busy, "recover post-copy of %s: being actively monitored by another thread", uuid)
	case d.broken == nil || d.broken.source != h.machine:
		return nil, fault.New(fault.Invalid, "recover post-copy of %s: it is %s (%s)", uuid, d.state, d.reason)
	}
	doubt := func(what string) error {
		return fault.New(fault.InDoubt, "recover post-copy of %s: %s; it is %s (%s) here", uuid, what, d.state, d.reason)
	}
	was := d.broken
	in := was.dest.domains[uuid]
	switch dest := f.destinationLocked(m.DestinationURI); {
	case dest == nil || dest != was.dest:
		return nil, doubt("unable to connect to server at " + m.DestinationURI)
	case !dest.power || !dest.daemon || dest.hung || f.mgmtCut[pair(h.name, dest.name)]:
		return nil, doubt("unable to connect to server at " + dest.name)
	case in == nil || in.live == nil:
		return nil, doubt("domain is not running on " + dest.name)
	case in.broken != was:
		return nil, doubt("migration of the domain is being actively monitored by another thread on " + dest.name)
	case f.dataCut[pair(h.name, dest.name)]:
		return nil, doubt("no route to " + dest.name)
	}
	j := *was
	j.m.MigrateURI, j.m.DestinationURI = m.MigrateURI, m.DestinationURI
	j.m.PostCopyBandwidth = m.PostCopyBandwidth
	j.done, j.err, j.failing, j.abort, j.mgmtLost = false, nil, nil, false, 0
	j.lives, j.destLives, j.phase = h.lives, j.dest.lives, performing
	if err := f.socketsLocked(&j); err != nil {
		return nil, doubt(err.Error())
	}
	d.broken, in.broken, d.job, in.job = nil, nil, &j, &j
	f.recordLocked(h.name, uuid, "post-copy to "+j.dest.name+" is recovered")
	f.runThereLocked(&j)
	return &j, nil
}

// runThereLocked is a guest in post-copy: it stands still here, and runs there.
func (f *Fleet) runThereLocked(j *job) {
	j.source.setLocked(j.source.domains[j.uuid], driver.Paused, driver.ReasonPostCopy, driver.EventSuspended, "post-copy")
	if !j.wasPaused {
		j.dest.setLocked(j.dest.domains[j.uuid], driver.Running, driver.ReasonPostCopy, driver.EventResumed, "post-copy")
	}
}

// ahead is what comes before a call that lasts: hooks, and a caller that is gone.
func (h *Fake) ahead(ctx context.Context, call, uuid string) error {
	h.fleet.mu.Lock()
	before := h.before
	h.fleet.mu.Unlock()
	if before != nil {
		if err := before(call, uuid); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return lost(true, call, h.name, err)
	}
	return nil
}

// outcome waits until a job ends, or nobody is there any more who would tell.
func (h *Fake) outcome(ctx context.Context, call string, j *job, lives int) error {
	f := h.fleet
	f.mu.Lock()
	after := h.after
	f.mu.Unlock()
	for {
		f.mu.Lock()
		done, err, up := j.done, j.err, h.openLocked(call) == nil && h.lives == lives
		news := f.newsLocked()
		f.mu.Unlock()
		switch {
		case !up:
			return fault.New(fault.InDoubt, "migrate %s: libvirt on %s went away", j.uuid, h.name)
		case done && after != nil:
			if aerr := after(call, j.uuid); aerr != nil {
				return aerr
			}
			return err
		case done:
			return err
		}
		if err := runtime.Await(ctx, f.rt, news); err != nil {
			return fault.New(fault.InDoubt, "migrate %s: no answer yet: %w", j.uuid, err)
		}
	}
}
