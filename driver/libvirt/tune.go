package libvirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// What a migration has unless somebody says otherwise: QEMU's downtime-limit, in
// milliseconds, and the largest speed that libvirt takes (QEMU_DOMAIN_MIG_BANDWIDTH_MAX),
// in MiB a second.
const (
	usualDowntime = 300
	anySpeed      = (1<<63 - 1) >> 20
)

// bounds are what is no setting of a job, but of the running QEMU and of libvirt's record
// of it: it outlives the job.
type bounds struct{ downtime, speed uint64 }

var usual = bounds{usualDowntime, anySpeed}

func boundsOf(c Conn, uuid string) (b bounds, err error) {
	if b.downtime, err = c.MaxDowntime(uuid); err != nil {
		return b, fmt.Errorf("read maximum downtime: %w", err)
	}
	if b.speed, err = c.MaxSpeed(uuid); err != nil {
		return b, fmt.Errorf("read maximum speed: %w", err)
	}
	return b, nil
}

// set makes them b, where they are is.
func (b bounds) set(c Conn, uuid string, is bounds) error {
	if b.downtime != is.downtime {
		if err := c.SetMaxDowntime(uuid, b.downtime); err != nil {
			return fmt.Errorf("set maximum downtime: %w", err)
		}
	}
	if b.speed != is.speed {
		if err := c.SetMaxSpeed(uuid, b.speed, 0); err != nil {
			return fmt.Errorf("set maximum speed: %w", err)
		}
	}
	return nil
}

// bind sets the bounds of a migration: before it begins, since a job may be over before
// anybody has seen it; and whatever is asked, since somebody may have left others there.
// back is for a guest that stays.
func bind(c Conn, uuid string, m driver.Migration) (back func(), err error) {
	was, err := boundsOf(c, uuid)
	if err != nil {
		return func() {}, err
	}
	back = func() {
		if is, err := boundsOf(c, uuid); err == nil {
			_ = was.set(c, uuid, is) // the guest may be gone; then so is what was set
		}
	}
	want := usual // the bandwidth of a job is a parameter of its own
	if m.MaxDowntime > 0 {
		want.downtime = milliseconds(m.MaxDowntime)
	}
	return back, want.set(c, uuid, was)
}

// AbortJob implements driver.LiveMigrator. A job that does not end within a
// second of the order is freed from its dead connections; see unstick.
func (d *Driver) AbortJob(ctx context.Context, uuid string) error {
	if err := d.tune(ctx, "abort job of", uuid, func(c Conn) error { return c.AbortJob(uuid, 0) }); err != nil {
		return err
	}
	for range abortLooks {
		switch j, err := d.Job(ctx, uuid); {
		case errors.Is(err, fault.Unavailable):
			return fault.New(fault.InDoubt, "the job of domain %s was told to end: %w", uuid, err)
		case err != nil:
			return err
		case j.Kind == driver.JobNone:
			return d.unbind(ctx, uuid)
		}
		if err := d.rt.Sleep(ctx, abortLook); err != nil {
			return fault.New(fault.InDoubt, "the job of domain %s was told to end: wait until it has: %w", uuid, err)
		}
	}
	// A guest that does not run any more has no job.
	return unless(d.unstick(ctx, uuid), errOperationInvalid)
}

// unbind ends the bounds of a job whose call nobody waits for any more: who begun it would
// have put them back. What was there before nobody knows then, so it is what is usual.
func (d *Driver) unbind(ctx context.Context, uuid string) error {
	d.mu.Lock()
	waits := d.moving[uuid]
	d.mu.Unlock()
	if waits {
		return nil
	}
	err := run(ctx, d.control, request{verb: "unbind migrations of", uuid: uuid, changes: true}, func(c Conn) error {
		is, err := boundsOf(c, uuid)
		if err != nil {
			return err
		}
		return usual.set(c, uuid, is)
	})
	if err != nil && !errors.Is(err, fault.Invalid) { // one that does not run has no bounds
		d.log.Warn("the bounds of an aborted migration stay", "instance", uuid, "error", err)
	}
	return nil // the job has ended; the next migration says its own bounds
}

// SetMaxDowntime implements driver.LiveMigrator.
func (d *Driver) SetMaxDowntime(ctx context.Context, uuid string, bound time.Duration) error {
	return d.tune(ctx, "set maximum downtime of", uuid, whileInFlight(uuid, func(c Conn) error {
		return c.SetMaxDowntime(uuid, milliseconds(bound))
	}))
}

// SetBandwidth implements driver.LiveMigrator. libvirt has a bound for post-copy apart,
// where 0 means none; before, 0 would be taken for one.
func (d *Driver) SetBandwidth(ctx context.Context, uuid string, bytesPerSecond uint64) error {
	v, err := d.Domain(ctx, uuid)
	if err != nil {
		return err
	}
	speed, flags := mebibytes(bytesPerSecond), uint32(0)
	switch {
	case v.Reason == driver.ReasonPostCopy:
		flags = speedPostCopy
	case speed == 0:
		speed = anySpeed
	}
	return d.tune(ctx, "set bandwidth of", uuid, whileInFlight(uuid, func(c Conn) error {
		return c.SetMaxSpeed(uuid, speed, flags)
	}))
}

// tune changes the job in flight; a refusal counts only while there is one.
func (d *Driver) tune(ctx context.Context, verb, uuid string, f func(Conn) error) error {
	return run(ctx, d.control, request{verb: verb, uuid: uuid, changes: true}, func(c Conn) error {
		err := f(c)
		if codeOf(err) != errOperationInvalid {
			return err
		}
		if none, jerr := idle(c, uuid); none && jerr == nil {
			return nil
		}
		return err
	})
}

// whileInFlight undoes at once what was set where there is no job, and would stay.
func whileInFlight(uuid string, f func(Conn) error) func(Conn) error {
	return func(c Conn) error {
		if err := f(c); err != nil {
			return err
		}
		if none, err := idle(c, uuid); !none || err != nil {
			return nil // it was set, and the job's end puts it back
		}
		is, err := boundsOf(c, uuid)
		if err != nil {
			return err
		}
		return usual.set(c, uuid, is)
	}
}

// idle reports whether a domain has no job; one that does not run has none.
func idle(c Conn, uuid string) (bool, error) {
	kind, _, err := c.JobStats(uuid, 0)
	if codeOf(err) == errOperationInvalid {
		return true, nil
	}
	return kind == 0, err
}
