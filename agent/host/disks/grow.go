package disks

import (
	"context"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Grow makes a disk that nobody uses as large as size for its guest; one that is so large
// already stays as it is. It is the same file from then on, so that what knows it by its
// stamp still does. Safe to repeat. fault.DoesNotFit where the filesystem is full.
func (f Files) Grow(ctx context.Context, path, format string, size int64) error {
	img, err := f.Image(ctx, path, format)
	if err != nil || img.VirtualSize >= size {
		return err
	}
	real := f.Real(path)
	if _, err := f.run(ctx, "resize", "-q", "-f", format, real, strconv.FormatInt(size, 10)); err != nil {
		return fault.New(fault.KindOf(noRoom(err)), "grow disk %s: %w", path, noRoom(err))
	}
	file, err := os.OpenFile(real, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fault.New(fault.Internal, "grow disk %s: %w", path, err)
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return fault.New(fault.KindOf(noRoom(err)), "grow disk %s: %w", path, noRoom(err))
	}
	return nil
}
