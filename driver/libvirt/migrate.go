package libvirt

import (
	"context"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// Migrate implements driver.LiveMigrator. It uses a connection of its own, so
// that no other call's deadline can cost it its answer.
//
// # Unix sockets
//
// With DestinationURI qemu+unix:///system?socket=…, MigrateURI and DisksURI unix:///…
// libvirt needs no network. Measured with libvirt 9.0.0 and QEMU 10.0.2, with copied
// disks and parallel connections together, QEMU as libvirt-qemu: on the destination
// QEMU makes both sockets, so its user must be able to write their folder (0700 of its
// own is enough; else "Failed to bind socket"), takes the place of a stale one, and
// removes them when it is done. On the source libvirtd connects to the control socket
// and, for one connection, to memory's; with parallel ones, and for disks, QEMU does, so
// the sockets must be its user's. QEMU's TLS flag asks for a name that a socket does not
// have. Without DisksURI a copy is refused: "NBD URI must be supplied".
func (d *Driver) Migrate(ctx context.Context, uuid string, m driver.Migration) error {
	r := request{verb: "migrate", uuid: uuid, changes: true, patient: true}
	if err := check(r, m); err != nil {
		return err
	}
	release, err := d.reserve(r)
	if err != nil {
		return err
	}
	defer release()
	v, job, err := d.look(ctx, uuid)
	switch {
	case err != nil:
		return err
	case !v.Active():
		return fault.New(fault.Invalid, "%s: it is %s (%s)", r, v.State, v.Reason)
	case job.Kind != driver.JobNone:
		return fault.New(fault.Busy, "%s: a job is in flight", r)
	}
	if err := d.knows(ctx, r, m); err != nil {
		return err
	}
	return d.send(ctx, r, m, 0)
}

// send is libvirt's migration, and what it came to.
func (d *Driver) send(ctx context.Context, r request, m driver.Migration, more uint32) error {
	flags, params := orders(m)
	l := d.newLink("migration")
	defer d.endLink(l)
	err := run(ctx, l, r, func(c Conn) error {
		if more&migratePostCopyResume != 0 {
			if m.PostCopyBandwidth == 0 { // what is not said stays as it was
				params = append(params, Param{"bandwidth.postcopy", uint64(0)})
			}
			return c.Migrate(r.uuid, m.DestinationURI, params, flags|more)
		}
		back, err := bind(c, r.uuid, m)
		if err == nil {
			err = c.Migrate(r.uuid, m.DestinationURI, params, flags)
		}
		if codeOf(err) != 0 {
			back()
		}
		return err
	})
	if err == nil || codeOf(err) == 0 {
		return err // done; or libvirt has not answered, and the error says what that means
	}
	return d.judge(ctx, r, err)
}

// reserve keeps this driver from sending a domain twice at once; libvirt would
// refuse, but its answer to the second could not be told from a failed first.
func (d *Driver) reserve(r request) (release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moving[r.uuid] {
		return nil, fault.New(fault.Busy, "%s: a job is in flight", r)
	}
	d.moving[r.uuid] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.moving, r.uuid)
	}, nil
}

// look reads what decides about a migration's outcome.
func (d *Driver) look(ctx context.Context, uuid string) (v driver.Domain, j driver.Job, err error) {
	if v, err = d.Domain(ctx, uuid); err != nil {
		return v, j, err
	}
	j, err = d.Job(ctx, uuid)
	return v, j, err
}

// judge looks at the domain after libvirt called the migration failed: only a
// domain that is here, active, and not half handed over was put back.
func (d *Driver) judge(ctx context.Context, r request, cause error) error {
	ctx, cancel := d.rt.WithTimeout(context.WithoutCancel(ctx), d.o.CallTimeout)
	defer cancel()
	v, job, err := d.look(ctx, r.uuid)
	switch {
	case err != nil:
		return fault.New(fault.InDoubt, "%w; looking at it: %w", cause, err)
	case v.State == driver.Paused && v.Reason == driver.ReasonPostCopyFailed:
		// Its job is there still, for who recovers it.
		return fault.New(fault.InDoubt, "%w; it is %s (%s) here", cause, v.State, v.Reason)
	case job.Kind != driver.JobNone:
		return fault.New(fault.Busy, "%w; a job is in flight", cause)
	case !v.Active(), v.State == driver.Paused && (v.Reason == driver.ReasonMigrating || v.Reason == driver.ReasonPostCopy):
		return fault.New(fault.InDoubt, "%w; it is %s (%s) here", cause, v.State, v.Reason)
	}
	return fault.New(fault.Undone, "%w", cause)
}

// Job implements driver.LiveMigrator.
func (d *Driver) Job(ctx context.Context, uuid string) (driver.Job, error) {
	return do(ctx, d.stats, request{verb: "read job of", uuid: uuid}, func(c Conn) (driver.Job, error) {
		kind, params, err := c.JobStats(uuid, 0)
		if codeOf(err) == errOperationInvalid {
			// "domain is not running": what does not run has no job.
			return driver.Job{Kind: driver.JobNone}, nil
		}
		if err != nil {
			return driver.Job{}, err
		}
		return jobOf(kind, params)
	})
}

// CompletedJob implements driver.LiveMigrator.
func (d *Driver) CompletedJob(ctx context.Context, uuid string) (driver.Job, error) {
	r := request{verb: "read completed job of", uuid: uuid}
	return do(ctx, d.stats, r, func(c Conn) (driver.Job, error) {
		kind, params, err := c.JobStats(uuid, jobStatsCompleted)
		if err == nil && kind == 0 {
			err = fault.New(fault.NotFound, "%s: there is none", r)
		}
		if err != nil {
			return driver.Job{}, err
		}
		return jobOf(kind, params)
	})
}

// jobOf reads the typed parameters of VIR_DOMAIN_JOB_* (libvirt-domain.h):
// milliseconds, bytes and bytes a second. What libvirt does not say stays zero; a
// kind that it has no name for is no answer: taken for none, it would make of a
// job in flight one that is over.
func jobOf(kind int, params map[string]any) (driver.Job, error) {
	if kind < 0 || kind >= len(jobKinds) {
		return driver.Job{}, nonsense("a job is of type %d", kind)
	}
	n := func(name string) uint64 {
		v, _ := params[name].(uint64)
		return v
	}
	ms := func(name string) time.Duration { return time.Duration(n(name)) * time.Millisecond }
	j := driver.Job{
		Kind: jobKinds[kind], Elapsed: ms("time_elapsed"), Downtime: ms("downtime"), Setup: ms("setup_time"),
		MemoryTotal: n("memory_total"), MemoryProcessed: n("memory_processed"), MemoryRemaining: n("memory_remaining"),
		MemoryRate: n("memory_bps"), Iteration: n("memory_iteration"),
		// Pages a second, of the page size beside it.
		DirtyRate: n("memory_dirty_rate") * n("memory_page_size"),
		Throttle:  int(n("auto_converge_throttle")), PageRequests: n("memory_postcopy_requests"),
		DiskTotal: n("disk_total"), DiskProcessed: n("disk_processed"), DiskRemaining: n("disk_remaining"), DiskRate: n("disk_bps"),
	}
	j.Error, _ = params["errmsg"].(string)
	return j, nil
}
