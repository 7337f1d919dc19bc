package drivertest

import (
	"context"
	"errors"
	"fmt"
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
	wasPaused    bool        // by its user, before
	from         *definition // the source's, when it began

	prepared         bool // the destination has its half
	phase            phase
	lives, destLives int // of the two daemons when they began to talk

	elapsed     time.Duration
	mgmtLost    time.Duration // how long the destination's daemon has been silent
	stats       driver.Job
	sent        uint64 // of the present iteration
	iteration   uint64 // bytes that the present iteration has to send
	iterTime    time.Duration
	dirtied     uint64 // by the guest since the present iteration began
	hot         int    // passes in which it changed too much, for auto-converge
	abort       bool
	switching   bool          // post-copy was asked for
	postCopy    bool          // the guest runs at the destination, and there is no way back
	maxDowntime time.Duration // 0 for the pace's

	failing error // of a post-copy that broke on the source; it ends when the destination has noticed
	done    bool
	err     error // valid when done
}

// endLocked is the end of a job, once.
func (j *job) endLocked(err error) {
	if !j.done {
		j.done, j.err = true, err
		j.source.fleet.tellLocked()
	}
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
// the URI, looked up in the fleet, or where a socket leads (Fleet.Forward). Once the request has arrived, libvirt carries it
// out, whoever waits for it.
func (h *Fake) Migrate(ctx context.Context, uuid string, m driver.Migration) error {
	if err := h.ahead(ctx, "Migrate", uuid); err != nil {
		return err
	}
	f := h.fleet
	f.mu.Lock()
	err := errors.Join(h.openLocked("Migrate"), h.refusesLocked("Migrate"))
	lives := h.lives
	f.mu.Unlock()
	if err != nil {
		return err
	}
	j := &job{source: h.machine, uuid: uuid, m: m}
	f.rt.Go("fake migration of "+uuid, func() { f.carryOut(j) })
	return h.outcome(ctx, "Migrate", j, lives)
}

// carryOut is the source's libvirt at work.
func (f *Fleet) carryOut(j *job) {
	if err := f.begin(j); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if d := j.source.domains[j.uuid]; d != nil && d.job == j {
			d.job = nil
		}
		j.endLocked(err)
		return
	}
	f.mu.Lock()
	manual := f.manual
	f.mu.Unlock()
	if !manual {
		f.run(j)
	}
}

// begin checks what libvirt checks before memory moves, and prepares the
// destination.
func (f *Fleet) begin(j *job) error {
	h, uuid, m := j.source, j.uuid, j.m
	undone := func(format string, args ...any) error {
		return fault.New(fault.Undone, "migrate %s: %w", uuid, fmt.Errorf(format, args...))
	}
	if err := h.untilAwake(f.ctx, "Migrate", true); err != nil {
		return err
	}
	f.mu.Lock()
	d, _, _, err := j.mayBeginLocked()
	if err == nil {
		// The job is there before anybody else is asked. Before the destination is up
		// libvirt says unbounded with nothing remaining.
		j.stats = driver.Job{Kind: driver.JobUnbounded}
		d.job, d.completed, j.lives = j, nil, h.lives
	}
	dest, hook := f.destinationLocked(m.DestinationURI), f.phase
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if dest == nil || dest == h {
		return undone("unable to connect to server at %q", m.DestinationURI)
	}
	// The destination is asked before anything is made there.
	j.dest = dest
	f.mu.Lock()
	if !dest.power || !dest.daemon || f.mgmtCut[pair(h.name, dest.name)] {
		f.mu.Unlock()
		return undone("unable to connect to server at '%s:16514': Connection refused", dest.name)
	}
	j.destLives = dest.lives
	destHook := dest.before
	f.mu.Unlock()
	f.window()
	if !f.talks(j) {
		return undone("client socket is closed")
	}
	if destHook != nil {
		if err := destHook("Arrive", uuid); err != nil {
			return undone("%s refuses: %w", dest.name, err)
		}
	}
	if hook != nil {
		if err := hook(PhaseBegin, uuid); err != nil {
			return undone("%s refuses: %w", dest.name, err)
		}
	}
	f.mu.Lock()
	// The hooks may have changed the world.
	d, live, persistent, err := j.mayBeginLocked()
	switch {
	case err != nil:
	case h.lives != j.lives:
		err = fault.New(fault.InDoubt, "migrate %s: libvirt on %s went away", uuid, h.name)
	case j.abort:
		err = undone("operation aborted: job 'migration out' canceled by client")
	case dest.lives != j.destLives:
		err = undone("client socket is closed")
	default:
		err = f.prepareLocked(j, d, live, persistent, undone)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	f.window()
	if hook != nil {
		if err := hook(PhasePrepareReply, uuid); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !j.done {
				f.failLocked(j, fmt.Errorf("prepare: %w", err))
			}
			return j.err
		}
	}
	if !f.talks(j) {
		f.fail(j, errors.New("client socket is closed"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return j.err // it may have ended meanwhile
}

// mayBeginLocked is what the source's libvirt looks at.
func (j *job) mayBeginLocked() (d *domain, live, persistent *definition, err error) {
	h := j.source
	if err := h.answersLocked("Migrate"); err != nil {
		return nil, nil, nil, fault.New(fault.InDoubt, "migrate %s: libvirt on %s went away", j.uuid, h.name)
	}
	if d, err = h.activeLocked(j.uuid, "migrate"); err != nil {
		return nil, nil, nil, err
	}
	if d.job != nil && d.job != j {
		return nil, nil, nil, fault.New(fault.Busy, "migrate %s: a job is in flight", j.uuid)
	}
	if err := h.optionsLocked(j.uuid, j.m); err != nil {
		return nil, nil, nil, err
	}
	live, persistent, err = documents(j.uuid, j.m)
	return d, live, persistent, err
}

// prepareLocked makes the destination's half.
func (f *Fleet) prepareLocked(j *job, d *domain, live, persistent *definition, undone func(string, ...any) error) error {
	dest := j.dest
	in := dest.domains[j.uuid]
	if in != nil && in.live != nil {
		return undone("domain '%s' is already active on %s", in.name, dest.name)
	}
	for _, o := range dest.sortedLocked() {
		if o.name == live.name && o.uuid != j.uuid {
			return undone("domain '%s' already exists with uuid %s on %s", o.name, o.uuid, dest.name)
		}
	}
	if err := f.disksFitLocked(j, d.live, live); err != nil {
		return undone("%w", err)
	}
	if err := f.socketsLocked(j); err != nil {
		return undone("%w", err)
	}
	j.from = d.live
	j.wasPaused, j.maxDowntime = d.state == driver.Paused, j.m.MaxDowntime
	j.prepared = true
	if in == nil {
		in = &domain{uuid: j.uuid, name: live.name, id: -1}
		dest.domains[j.uuid] = in
	}
	dest.nextID++
	in.id, in.live, in.job, in.completed = dest.nextID, live, j, nil
	j.m.PersistentXML = persistent.xml
	f.recordLocked(j.source.name, j.uuid, "migration to "+dest.name+" begins")
	dest.setLocked(in, driver.Paused, driver.ReasonMigrating, driver.EventStarted, "migrated")
	return nil
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
