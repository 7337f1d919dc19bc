package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// job is one migration, shared by the domain's halves on source and
// destination. It lives in the source's hypervisor: whoever asked for it may go
// away. Guarded by fleet.mu.
type job struct {
	source, dest *machine
	uuid         string
	m            driver.Migration
	wasPaused    bool // by its user, before

	elapsed     time.Duration
	mgmtLost    time.Duration // how long the management link has been cut
	stats       driver.Job
	sent        uint64 // of the present iteration
	iteration   uint64 // bytes that the present iteration has to send
	iterTime    time.Duration
	abort       bool
	switching   bool          // post-copy was asked for
	postCopy    bool          // the guest runs at the destination, and there is no way back
	maxDowntime time.Duration // 0 for the pace's

	done bool
	err  error // valid when done
}

// CheckCPU implements driver.LiveMigrator: the document's required features
// against LackFeatures.
func (h *Fake) CheckCPU(ctx context.Context, domainXML string) error {
	return h.call(ctx, "CheckCPU", "", false, func() error {
		var reasons []fault.Reason
		for _, f := range requires(domainXML, h.lacks) {
			reasons = append(reasons, fault.Reason{
				Code: "cpu_feature_missing", Message: "cpu feature " + f + " is missing", Want: f,
			})
		}
		if reasons == nil {
			return nil
		}
		return fault.Refuse(fault.DoesNotFit, "cpu of the guest on "+h.name, reasons...)
	})
}

// Migrate implements driver.LiveMigrator. The destination is the host part of
// the URI, looked up in the fleet.
func (h *Fake) Migrate(ctx context.Context, uuid string, m driver.Migration) error {
	f := h.fleet
	f.mu.Lock()
	before, after := h.before, h.after
	f.mu.Unlock()
	if before != nil {
		if err := before("Migrate", uuid); err != nil {
			return err
		}
	}
	if err := h.untilAwake(ctx, "Migrate", true); err != nil {
		return err
	}
	j, err := h.begin(uuid, m)
	if err != nil {
		return err
	}
	for {
		f.mu.Lock()
		done, err, up := j.done, j.err, h.openLocked("Migrate") == nil
		tick := f.paceLocked().Tick
		f.mu.Unlock()
		switch {
		case !up:
			return fault.New(fault.InDoubt, "migrate %s: libvirt on %s went away", uuid, h.name)
		case done && after != nil:
			if aerr := after("Migrate", uuid); aerr != nil {
				return aerr
			}
			return err
		case done:
			return err
		}
		if err := f.rt.Sleep(ctx, tick); err != nil {
			return fault.New(fault.InDoubt, "migrate %s: no answer yet: %w", uuid, err)
		}
	}
}

// begin checks what libvirt checks before memory moves and starts the job.
func (h *Fake) begin(uuid string, m driver.Migration) (*job, error) {
	f := h.fleet
	undone := func(format string, args ...any) error {
		return fault.New(fault.Undone, "migrate %s: %w", uuid, fmt.Errorf(format, args...))
	}
	f.mu.Lock()
	if err := errors.Join(h.openLocked("Migrate"), h.refusesLocked("Migrate")); err != nil {
		f.mu.Unlock()
		return nil, err
	}
	d, err := h.activeLocked(uuid, "migrate")
	if err == nil && d.job != nil {
		err = fault.New(fault.Busy, "migrate %s: a job is in flight", uuid)
	}
	var live, persistent *definition
	if err == nil {
		live, persistent, err = documents(uuid, m)
	}
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	dest, hook := f.hosts[hostOf(m.DestinationURI)], f.phase
	f.mu.Unlock()

	if dest == nil || dest == h.machine {
		return nil, undone("unable to connect to server at %q", m.DestinationURI)
	}
	// The destination is asked before anything is made there.
	f.mu.Lock()
	if !dest.power || !dest.daemon || f.mgmtCut[pair(h.name, dest.name)] {
		f.mu.Unlock()
		return nil, undone("unable to connect to server at '%s:16514': Connection refused", dest.name)
	}
	destHook := dest.before
	f.mu.Unlock()
	if destHook != nil {
		if err := destHook("Arrive", uuid); err != nil {
			return nil, undone("%s refuses: %w", dest.name, err)
		}
	}
	if hook != nil {
		if err := hook(PhaseBegin, uuid); err != nil {
			return nil, undone("%s refuses: %w", dest.name, err)
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	// The hooks may have changed the world.
	if d, err = h.activeLocked(uuid, "migrate"); err != nil {
		return nil, err
	}
	if d.job != nil {
		return nil, fault.New(fault.Busy, "migrate %s: a job is in flight", uuid)
	}
	if !dest.power || !dest.daemon {
		return nil, undone("client socket is closed")
	}
	in := dest.domains[uuid]
	if in != nil && in.live != nil {
		return nil, undone("domain '%s' is already active on %s", in.name, dest.name)
	}
	for _, o := range dest.domains {
		if o.name == live.name && o.uuid != uuid {
			return nil, undone("domain '%s' already exists with uuid %s on %s", o.name, o.uuid, dest.name)
		}
	}
	j := &job{source: h.machine, dest: dest, uuid: uuid, m: m, wasPaused: d.state == driver.Paused, maxDowntime: m.MaxDowntime}
	// Before the destination is up libvirt says unbounded with nothing remaining.
	j.stats = driver.Job{Kind: driver.JobUnbounded}
	d.job, d.completed = j, nil
	if in == nil {
		in = &domain{uuid: uuid, name: live.name, id: -1}
		dest.domains[uuid] = in
	}
	dest.nextID++
	in.id, in.live, in.job, in.completed = dest.nextID, live, j, nil
	j.m.PersistentXML = persistent.xml
	f.recordLocked(h.name, uuid, "migration to "+dest.name+" begins")
	dest.setLocked(in, driver.Paused, driver.ReasonMigrating, driver.EventStarted, "migrated")
	if !f.manual {
		f.rt.Go("fake migration of "+uuid, func() { f.run(j) })
	}
	return j, nil
}

func documents(uuid string, m driver.Migration) (live, persistent *definition, err error) {
	var reasons []fault.Reason
	read := func(name, doc string) *definition {
		def, err := parse(doc)
		if err != nil {
			reasons = append(reasons, fault.Reason{Code: "bad_document", Message: fmt.Sprintf("%s: %v", name, err)})
		} else if def.uuid != uuid {
			reasons = append(reasons, fault.Reason{Code: "bad_document", Message: fmt.Sprintf("%s: uuid is %s", name, def.uuid)})
		}
		return def
	}
	live, persistent = read("destination xml", m.DestinationXML), read("persistent xml", m.PersistentXML)
	if m.DestinationURI == "" {
		reasons = append(reasons, fault.Reason{Code: "no_destination", Message: "destination uri is empty"})
	}
	if m.PostCopy && m.Paused {
		reasons = append(reasons, fault.Reason{Code: "post_copy_paused", Message: "post-copy runs the guest at the destination: it cannot arrive paused"})
	}
	if reasons != nil {
		return nil, nil, fault.Refuse(fault.Invalid, "migrate "+uuid, reasons...)
	}
	return live, persistent, nil
}

// hostOf is the host of qemu+tls://host:port/system.
func hostOf(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

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
	// The source stops its CPUs for the last bytes.
	switch s := j.source.domains[j.uuid]; {
	case j.postCopy: // they stand still already
	case s.state != driver.Paused:
		j.source.setLocked(s, driver.Paused, driver.ReasonMigrating, driver.EventSuspended, "migrated")
	default:
		s.reason = driver.ReasonMigrating
	}
	f.mu.Unlock()
	if hook != nil {
		if err := hook(PhaseFinish, j.uuid); err != nil {
			f.fail(j, err)
			return
		}
	}
	f.mu.Lock()
	if f.endedLocked(j) {
		f.mu.Unlock()
		return
	}
	f.completeLocked(j)
	f.mu.Unlock()
	if hook != nil {
		if err := hook(PhaseFinishReply, j.uuid); err != nil {
			f.fail(j, fmt.Errorf("finish: %w", err))
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !j.done {
		f.confirmLocked(j)
	}
}

// progressLocked moves bytes and reports whether the job is ready for its
// hand-over.
func (f *Fleet) progressLocked(j *job, d time.Duration) bool {
	if f.endedLocked(j) {
		return false
	}
	if j.source.hung || j.dest.hung {
		return false // libvirt is part of every step, so a stopped one stops the job
	}
	p := f.paceLocked()
	j.elapsed += d
	j.stats.Elapsed = j.elapsed
	if f.mgmtCut[pair(j.source.name, j.dest.name)] {
		if j.mgmtLost += d; j.mgmtLost >= p.Keepalive {
			f.failLocked(j, errors.New("client socket is closed"))
			return false
		}
	} else {
		j.mgmtLost = 0
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
	}
	rate := p.Rate
	if j.m.Bandwidth > 0 {
		rate = min(rate, j.m.Bandwidth)
	}
	bytes := uint64(float64(rate) * d.Seconds())
	j.stats.MemoryRate, j.stats.DirtyRate = rate, p.DirtyRate
	// Disks go first, as storage copy does before memory.
	if disk := min(bytes, j.stats.DiskRemaining); disk > 0 {
		j.stats.DiskRate, j.stats.MemoryRate = rate, 0
		j.stats.DiskProcessed += disk
		j.stats.DiskRemaining -= disk
		return false
	}
	j.stats.DiskRate = 0
	if j.switching && !j.postCopy {
		f.postCopyLocked(j)
	}
	j.iterTime += d
	sent := min(bytes, j.iteration-j.sent)
	j.sent += sent
	j.stats.MemoryProcessed += sent
	downtime := j.maxDowntime
	if downtime == 0 {
		downtime = p.MaxDowntime
	}
	if j.postCopy {
		j.stats.MemoryRemaining = j.iteration - j.sent
		return j.sent == j.iteration
	}
	if j.sent == j.iteration {
		// What was dirtied meanwhile is the next iteration.
		j.iteration = min(j.stats.MemoryTotal, uint64(float64(p.DirtyRate)*j.iterTime.Seconds()))
		j.sent, j.iterTime = 0, 0
		j.stats.MemoryRemaining = j.iteration
		if float64(j.iteration) <= float64(rate)*downtime.Seconds() {
			j.stats.Downtime = time.Duration(float64(j.iteration) / float64(rate) * float64(time.Second))
			return true
		}
		j.stats.Iteration++
	}
	j.stats.MemoryRemaining = j.iteration - j.sent
	return false
}

// endedLocked ends the job where one of its ends is gone or somebody asked for
// it, and reports whether it is over.
func (f *Fleet) endedLocked(j *job) bool {
	if j.done {
		return true
	}
	src, dst := j.source.domains[j.uuid], j.dest.domains[j.uuid]
	switch {
	case f.ctx.Err() != nil:
		j.done, j.err = true, fault.New(fault.InDoubt, "migrate %s: the fleet is closed", j.uuid)
	case j.source.hung:
		// Nobody is there who would notice.
	case src == nil || src.job != j || src.live == nil:
		f.failLocked(j, errors.New("domain is not running"))
	case dst == nil || dst.job != j || dst.live == nil:
		f.failLocked(j, errors.New("qemu unexpectedly closed the monitor"))
	case !j.dest.power || !j.dest.daemon:
		f.failLocked(j, errors.New("client socket is closed"))
	case j.abort:
		f.failLocked(j, errors.New("operation aborted: job 'migration out' canceled by client"))
	}
	return j.done
}

// completeLocked is Finish on the destination.
func (f *Fleet) completeLocked(j *job) {
	in := j.dest.domains[j.uuid]
	// Read when the job began, so it parses.
	in.persistent, _ = parse(j.m.PersistentXML)
	in.job = nil
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
	j.done = true
	s := j.source.domains[j.uuid]
	if s == nil || s.job != j {
		return
	}
	stats := j.stats
	s.job, s.completed = nil, &stats
	j.source.setLocked(s, driver.ShutOff, driver.ReasonMigrated, driver.EventStopped, "migrated")
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
	j.done = true
	j.err = fault.New(fault.Undone, "migrate %s: %w", j.uuid, cause)
	j.stats.Kind = driver.JobFailed
	f.recordLocked(j.source.name, j.uuid, "migration to "+j.dest.name+" fails: "+cause.Error())
	f.dropIncomingLocked(j)
	s := j.source.domains[j.uuid]
	if s == nil || s.job != j {
		return
	}
	s.job = nil
	switch {
	case s.live == nil:
		// It died under the job: nothing was put back, and what is there says why.
		j.err = fault.New(fault.InDoubt, "migrate %s: domain is %s (%s): %w", j.uuid, s.state, s.reason, cause)
	case s.state != driver.Paused:
	case j.wasPaused:
		s.reason = driver.ReasonUser
	case s.reason == driver.ReasonMigrating:
		j.source.setLocked(s, driver.Running, driver.ReasonMigrationCanceled, driver.EventResumed, "migrated")
	}
}

func (f *Fleet) dropIncomingLocked(j *job) {
	in := j.dest.domains[j.uuid]
	if in == nil || in.job != j {
		return
	}
	in.job = nil
	if in.live != nil {
		j.dest.setLocked(in, driver.ShutOff, driver.ReasonFailed, driver.EventStopped, "failed")
	}
}
