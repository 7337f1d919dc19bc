package libvirt

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// StartPostCopy implements driver.PostCopier.
func (d *Driver) StartPostCopy(ctx context.Context, uuid string) error {
	return run(ctx, d.control, request{verb: "start post-copy of", uuid: uuid, changes: true}, func(c Conn) error {
		return c.StartPostCopy(uuid)
	})
}

// FailPostCopy implements driver.PostCopyRecoverer: libvirt has QEMU close its end of the
// connection (migrate-pause), and calls the job failed when QEMU says that it has.
func (d *Driver) FailPostCopy(ctx context.Context, uuid string) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = d.rt.WithTimeout(ctx, d.o.CallTimeout)
		defer cancel()
	}
	r := request{verb: "fail post-copy of", uuid: uuid, changes: true}
	over, err := d.failed(ctx, r)
	if over || err != nil {
		return err
	}
	refused := run(ctx, d.control, r, func(c Conn) error { return c.AbortJob(uuid, abortPostCopy) })
	for {
		over, err := d.failed(ctx, r)
		switch {
		case errors.Is(err, fault.Unavailable):
			return fault.New(fault.InDoubt, "%s: it was told to: %w", r, err)
		case over || err != nil:
			return err
		case refused != nil:
			return refused
		}
		if err := d.rt.Sleep(ctx, abortLook); err != nil {
			return fault.New(fault.InDoubt, "%s: it was told to: %w", r, err)
		}
	}
}

// failed reports whether a post-copy has failed here; fault.Invalid where there is none.
func (d *Driver) failed(ctx context.Context, r request) (bool, error) {
	v, err := d.Domain(ctx, r.uuid)
	switch {
	case err != nil:
		return false, err
	case v.State == driver.Paused && v.Reason == driver.ReasonPostCopyFailed:
		return true, nil
	case v.State == driver.Paused && v.Reason == driver.ReasonPostCopy:
		return false, nil
	}
	return false, fault.New(fault.Invalid, "%s: it is %s (%s)", r, v.State, v.Reason)
}

// RecoverPostCopy implements driver.PostCopyRecoverer. libvirt goes on only where both
// sides have seen that the connection broke; else it refuses ("actively monitored by another
// thread"), and this side stays as it is.
func (d *Driver) RecoverPostCopy(ctx context.Context, uuid string, m driver.Migration) error {
	r := request{verb: "recover post-copy of", uuid: uuid, changes: true, patient: true}
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
	case v.State == driver.Paused && v.Reason == driver.ReasonPostCopyFailed:
		return d.send(ctx, r, m, migratePostCopyResume)
	case job.Kind != driver.JobNone:
		return fault.New(fault.Busy, "%s: its job is in flight", r)
	}
	return fault.New(fault.Invalid, "%s: it is %s (%s)", r, v.State, v.Reason)
}
