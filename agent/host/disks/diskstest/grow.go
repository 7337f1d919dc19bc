package diskstest

import (
	"context"

	"berth/internal/fault"
)

// StepGrow is the step of Grow.
const StepGrow = "grow"

// Grow is disks.Files'.
func (f *Files) Grow(ctx context.Context, path, format string, size int64) error {
	img, err := f.Image(ctx, path, format)
	if err != nil || img.VirtualSize >= size {
		return err
	}
	return f.change(StepGrow, path, func(v *volume) error {
		file := v.entries[path]
		if file == nil || file.folder {
			return fault.New(fault.NotFound, "grow disk %s: no such file", path)
		}
		file.size = size
		return nil
	})
}
