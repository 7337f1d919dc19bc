package host

import (
	"context"
	"strings"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// copying is a file that is being made. It may take longer than any verb: the verb says
// that it lasts and is asked again, and its undo ends it.
type copying struct {
	stop context.CancelFunc
	done chan struct{} // closed when what follows stands
	disk changedDisk
	err  error
}

func copyKey(ref migration.Ref, target string) string { return streamKey(ref) + "/" + target }

// buildDisk makes the new file of a disk: from the image, or from its old file. Where it
// lasts longer than ctx it goes on, and the same call finds it. fault.Unavailable then.
func (h *Host) buildDisk(ctx context.Context, ref migration.Ref, d *changedDisk, image *migration.Image) error {
	key := copyKey(ref, d.Target)
	h.mu.Lock()
	c := h.copies[key]
	h.mu.Unlock()
	if c == nil {
		work, stop := context.WithCancel(h.ctx)
		c = &copying{stop: stop, done: make(chan struct{}), disk: *d}
		if !h.spawn("make a disk for "+ref.Instance, func() {
			defer close(c.done)
			if c.disk.Image {
				c.err = h.files.BuildFrom(work, &c.disk.Made, c.disk.Format, c.disk.Size, image.Path, image.Format)
			} else {
				c.err = h.files.BuildCopy(work, &c.disk.Replaced, c.disk.Format, c.disk.Size)
			}
		}) {
			stop()
			return fault.New(fault.Unavailable, "make disk %s: the agent ends", d.Path)
		}
		h.mu.Lock()
		h.copies[key] = c
		h.mu.Unlock()
	}
	if err := runtime.Await(ctx, h.rt, c.done); err != nil {
		return fault.New(fault.Unavailable, "make disk %s: it lasts: %w", d.Path, err)
	}
	h.mu.Lock()
	delete(h.copies, key)
	h.mu.Unlock()
	c.stop()
	if c.err == nil {
		*d = c.disk
	}
	return c.err
}

// stopCopies ends what an attempt makes, and waits for it: nothing writes after it. The
// caller has the instance's turn, and the verbs that would begin anew are late.
func (h *Host) stopCopies(ctx context.Context, ref migration.Ref) error {
	h.mu.Lock()
	var mine []*copying
	for key, c := range h.copies {
		if strings.HasPrefix(key, copyKey(ref, "")) {
			mine = append(mine, c)
			c.stop()
		}
	}
	h.mu.Unlock()
	for _, c := range mine {
		if err := runtime.Await(ctx, h.rt, c.done); err != nil {
			return fault.New(fault.Unavailable, "end the copy of disk %s: %w", c.disk.Path, err)
		}
		h.mu.Lock()
		delete(h.copies, copyKey(ref, c.disk.Target))
		h.mu.Unlock()
	}
	return nil
}
