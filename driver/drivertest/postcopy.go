package drivertest

import (
	"context"

	"berth/driver"
	"berth/internal/fault"
)

// StartPostCopy implements driver.PostCopier. The job turns at its next step,
// once disks are copied.
func (h *Fake) StartPostCopy(ctx context.Context, uuid string) error {
	return h.call(ctx, "StartPostCopy", uuid, true, func() error {
		d, err := h.findLocked(uuid)
		switch {
		case err != nil:
			return err
		case d.job == nil || d.job.source != h.machine || !d.job.m.PostCopy:
			return fault.New(fault.Invalid, "start post-copy of %s: no migration in flight permits it", uuid)
		case d.job.postCopy:
			return fault.New(fault.Invalid, "start post-copy of %s: it is in post-copy", uuid)
		}
		h.fleet.recordLocked(h.name, uuid, "post-copy is asked for")
		d.job.switching = true
		return nil
	})
}

// DiskCopies implements driver.StorageCopier. Disks go one after the other, in
// the order of Migration.CopyDisks.
func (h *Fake) DiskCopies(ctx context.Context, uuid string) (out map[string]driver.DiskCopy, err error) {
	err = h.call(ctx, "DiskCopies", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err != nil {
			return err
		}
		out = map[string]driver.DiskCopy{}
		// Until the destination is up nothing is being copied.
		if j := d.job; j != nil && j.source == h.machine && !j.done && j.stats.MemoryTotal > 0 {
			each := j.stats.DiskTotal / max(uint64(len(j.m.CopyDisks)), 1)
			left := j.stats.DiskProcessed
			for _, disk := range j.m.CopyDisks {
				copied := min(left, each)
				left -= copied
				out[disk] = driver.DiskCopy{Total: each, Copied: copied, Ready: copied == each}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
