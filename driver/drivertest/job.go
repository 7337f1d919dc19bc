package drivertest

import (
	"context"
	"strings"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// Job implements driver.LiveMigrator. Of what arrives it tells nothing, as libvirt
// ("migration statistics are available only on the source host").
func (h *Fake) Job(ctx context.Context, uuid string) (out driver.Job, err error) {
	err = h.call(ctx, "Job", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err != nil {
			return err
		}
		out = driver.Job{Kind: driver.JobNone}
		for _, j := range []*job{d.job, d.broken} {
			// One that failed in post-copy waits for who recovers it.
			if j != nil && j.source == h.machine && (!j.done || j == d.broken) {
				out = j.stats
				out.Kind = driver.JobUnbounded
			}
		}
		return nil
	})
	return out, err
}

// CompletedJob implements driver.LiveMigrator. Reading takes it away, as
// libvirt does.
func (h *Fake) CompletedJob(ctx context.Context, uuid string) (out driver.Job, err error) {
	err = h.call(ctx, "CompletedJob", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err != nil {
			return err
		}
		if d.completed == nil {
			return fault.New(fault.NotFound, "completed job of %s on %s", uuid, h.name)
		}
		out, d.completed = *d.completed, nil
		return nil
	})
	return out, err
}

// AbortJob implements driver.LiveMigrator. The job ends at its next step; one in
// post-copy cannot be given up.
func (h *Fake) AbortJob(ctx context.Context, uuid string) error {
	return h.withJob(ctx, "AbortJob", uuid, func(j *job) error {
		if j.postCopy {
			return fault.New(fault.Invalid, "abort job of %s: cannot abort migration in post-copy mode", uuid)
		}
		j.abort = true
		return nil
	})
}

// SetMaxDowntime implements driver.LiveMigrator.
func (h *Fake) SetMaxDowntime(ctx context.Context, uuid string, d time.Duration) error {
	return h.withJob(ctx, "SetMaxDowntime", uuid, func(j *job) error { j.maxDowntime = d; return nil })
}

// SetBandwidth implements driver.LiveMigrator.
func (h *Fake) SetBandwidth(ctx context.Context, uuid string, bytesPerSecond uint64) error {
	return h.withJob(ctx, "SetBandwidth", uuid, func(j *job) error {
		if j.postCopy {
			j.m.PostCopyBandwidth = bytesPerSecond
		} else {
			j.m.Bandwidth = bytesPerSecond
		}
		return nil
	})
}

func (h *Fake) withJob(ctx context.Context, call, uuid string, do func(*job) error) error {
	return h.call(ctx, call, uuid, true, func() error {
		d, err := h.findLocked(uuid)
		if err != nil || d.job == nil || d.job.source != h.machine {
			return err
		}
		h.fleet.recordLocked(h.name, uuid, strings.ToLower(call))
		return do(d.job)
	})
}
