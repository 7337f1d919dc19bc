package libvirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// Flags of virDomainMigrateFlags (libvirt-domain.h).
const (
	migrateLive             = 1 << 0
	migratePeer2Peer        = 1 << 1
	migratePersistDest      = 1 << 3
	migratePaused           = 1 << 5
	migrateNonSharedDisk    = 1 << 6
	migrateChangeProtection = 1 << 8
	migrateUnsafe           = 1 << 9
	migrateAbortOnError     = 1 << 12
	migrateAutoConverge     = 1 << 13
	migratePostCopy         = 1 << 15
	migrateTLS              = 1 << 16
	migrateParallel         = 1 << 17

	jobStatsCompleted = 1 << 0
)

// orders turns a Migration into libvirt's flags and typed parameters.
//
// UNDEFINE_SOURCE is never among them: the source's definition is what a
// rollback needs, and its end is Berth's own step. CHANGE_PROTECTION keeps
// everybody's hands off the source's devices meanwhile. ABORT_ON_ERROR rolls
// back when the guest meets an I/O error on the way, rather than sending it
// paused for a reason that the destination would not have.
func orders(m driver.Migration) (uint32, []Param) {
	flags := uint32(migrateLive | migratePeer2Peer | migratePersistDest | migrateChangeProtection | migrateAbortOnError)
	params := []Param{{"destination_xml", m.DestinationXML}, {"persistent_xml", m.PersistentXML}}
	text := func(name, value string) {
		if value != "" {
			params = append(params, Param{name, value})
		}
	}
	text("migrate_uri", m.MigrateURI)
	text("disks_uri", m.DisksURI)
	for flag, on := range map[uint32]bool{
		migratePaused: m.Paused, migrateUnsafe: m.Unsafe, migrateTLS: m.TLS, migrateAutoConverge: m.AutoConverge,
		migratePostCopy: m.PostCopy,
		// Only with a list: without one libvirt copies every writable disk, shared
		// volumes included.
		migrateNonSharedDisk: len(m.CopyDisks) > 0,
		migrateParallel:      m.ParallelConnections > 1,
	} {
		if on {
			flags |= flag
		}
	}
	for _, target := range m.CopyDisks {
		params = append(params, Param{"migrate_disks", target})
	}
	if m.Bandwidth > 0 {
		params = append(params, Param{"bandwidth", mebibytes(m.Bandwidth)})
	}
	if m.ParallelConnections > 1 {
		params = append(params, Param{"parallel.connections", m.ParallelConnections})
	}
	return flags, params
}

// mebibytes rounds up: a bound must never become 0, which means none.
func mebibytes(bytes uint64) uint64 { return bytes>>20 + min(1, bytes&(1<<20-1)) }

// milliseconds rounds up for the same reason.
func milliseconds(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

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
	flags, params := orders(m)
	l := d.newLink("migration")
	defer d.endLink(l)
	err = run(ctx, l, r, func(c Conn) error {
		if m.MaxDowntime == 0 {
			return c.Migrate(uuid, m.DestinationURI, params, flags)
		}
		// A setting of the running QEMU, not of the job: it is set before, since a
		// job may be over before anybody has seen it, and put back when the guest
		// stays, since the next job would have it too.
		was, err := c.MaxDowntime(uuid)
		if err != nil {
			return fmt.Errorf("read maximum downtime: %w", err)
		}
		if err := c.SetMaxDowntime(uuid, milliseconds(m.MaxDowntime)); err != nil {
			return fmt.Errorf("set maximum downtime: %w", err)
		}
		err = c.Migrate(uuid, m.DestinationURI, params, flags)
		if codeOf(err) != 0 {
			_ = c.SetMaxDowntime(uuid, was) // the guest may be gone; then so is the setting
		}
		return err
	})
	if err == nil || codeOf(err) == 0 {
		return err // done; or libvirt has not answered, and the error says what that means
	}
	return d.judge(ctx, r, err)
}

func check(r request, m driver.Migration) error {
	var reasons []fault.Reason
	need := func(what, value string) {
		if value == "" {
			reasons = append(reasons, fault.Reason{Code: "missing", Message: what + " is required"})
		}
	}
	need("destination uri", m.DestinationURI)
	need("destination xml", m.DestinationXML)
	need("persistent xml", m.PersistentXML)
	if m.PostCopy && m.Paused {
		reasons = append(reasons, fault.Reason{Code: "post_copy_paused", Message: "post-copy lets the guest run at the destination: it cannot arrive paused"})
	}
	if reasons != nil {
		return fault.Refuse(fault.Invalid, r.String(), reasons...)
	}
	return nil
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
	case job.Kind != driver.JobNone:
		return fault.New(fault.Busy, "%w; a job is in flight", cause)
	case !v.Active(), v.State == driver.Paused && (v.Reason == driver.ReasonMigrating ||
		v.Reason == driver.ReasonPostCopy || v.Reason == driver.ReasonPostCopyFailed):
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
		DiskTotal: n("disk_total"), DiskProcessed: n("disk_processed"), DiskRemaining: n("disk_remaining"), DiskRate: n("disk_bps"),
	}
	j.Error, _ = params["errmsg"].(string)
	return j, nil
}

// AbortJob implements driver.LiveMigrator. A job that does not end within a
// second of the order is freed from its dead connections; see unstick.
func (d *Driver) AbortJob(ctx context.Context, uuid string) error {
	if err := d.tune(ctx, "abort job of", uuid, func(c Conn) error { return c.AbortJob(uuid) }); err != nil {
		return err
	}
	for range abortLooks {
		switch j, err := d.Job(ctx, uuid); {
		case errors.Is(err, fault.Unavailable):
			return fault.New(fault.InDoubt, "the job of domain %s was told to end: %w", uuid, err)
		case err != nil || j.Kind == driver.JobNone:
			return err
		}
		if err := d.rt.Sleep(ctx, abortLook); err != nil {
			return fault.New(fault.InDoubt, "the job of domain %s was told to end: wait until it has: %w", uuid, err)
		}
	}
	// A guest that does not run any more has no job.
	return unless(d.unstick(ctx, uuid), errOperationInvalid)
}

// StartPostCopy implements driver.PostCopier.
func (d *Driver) StartPostCopy(ctx context.Context, uuid string) error {
	return run(ctx, d.control, request{verb: "start post-copy of", uuid: uuid, changes: true}, func(c Conn) error {
		return c.StartPostCopy(uuid)
	})
}

// SetMaxDowntime implements driver.LiveMigrator.
func (d *Driver) SetMaxDowntime(ctx context.Context, uuid string, limit time.Duration) error {
	return d.tune(ctx, "set maximum downtime of", uuid, func(c Conn) error {
		return c.SetMaxDowntime(uuid, milliseconds(limit))
	})
}

// SetBandwidth implements driver.LiveMigrator.
func (d *Driver) SetBandwidth(ctx context.Context, uuid string, bytesPerSecond uint64) error {
	return d.tune(ctx, "set bandwidth of", uuid, func(c Conn) error { return c.SetMaxSpeed(uuid, mebibytes(bytesPerSecond)) })
}

// tune changes the job in flight; a refusal counts only while there is one.
func (d *Driver) tune(ctx context.Context, verb, uuid string, f func(Conn) error) error {
	return run(ctx, d.control, request{verb: verb, uuid: uuid, changes: true}, func(c Conn) error {
		err := f(c)
		if codeOf(err) != errOperationInvalid {
			return err
		}
		kind, _, jerr := c.JobStats(uuid, 0)
		if jerr == nil && kind == 0 || codeOf(jerr) == errOperationInvalid {
			return nil
		}
		return err
	})
}
