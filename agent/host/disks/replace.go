package disks

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Replaced is a file that is made anew in the place of another one, which is kept beside
// it until nobody may want it back. The caller keeps it durably: after PlanReplace, again
// after the new file was built, and until PutBack or DropKept has succeeded.
type Replaced struct {
	Made        // Part is the new file until Replace
	Kept string `json:"kept"` // private name of the old file from Replace on
	Old  Stamp  `json:"old"`
	// Copied is the version of the old file of which the new one is a copy; empty for one
	// that is no copy.
	Copied string `json:"copied,omitempty"`
}

// PlanReplace says what making path anew would make. fault.NotFound when there is
// nothing, fault.Forbidden for what is no plain file under its own name.
func (f Files) PlanReplace(migration, part, path string) (Replaced, error) {
	fi, err := os.Lstat(f.Real(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Replaced{}, fault.New(fault.NotFound, "replace disk %s: no such file", path)
	case err != nil:
		return Replaced{}, fault.New(fault.Internal, "replace disk %s: %w", path, err)
	case !fi.Mode().IsRegular():
		return Replaced{}, NotPlain(path)
	}
	r := Replaced{Made: Made{Path: path, Migration: migration, Part: private(path, migration, part, "part")}, Kept: private(path, migration, part, "kept")}
	r.Old, err = f.Stamp(path)
	return r, err
}

// private is a name beside a path that only one migration has.
func private(path, migration, part, what string) string {
	return filepath.Join(filepath.Dir(path), privatePrefix+migration+"-"+part+"."+what)
}

const privatePrefix = ".berth-"

// Private reports whether a path has the name of a file that a migration makes, or keeps.
func Private(path string) bool { return strings.HasPrefix(filepath.Base(path), privatePrefix) }

// NotPlain is the refusal for a path that cannot be replaced.
func NotPlain(path string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_not_plain", Message: path + " is not a plain file under its own name", Have: path,
		Change: "name the file itself in the guest's definition",
	})
}

// CopyNeeds is how much room a copy beside path takes, bytes: nothing where the
// filesystem lets files share blocks. It leaves nothing behind.
func (f Files) CopyNeeds(path string) (int64, error) {
	src, err := os.Open(f.Real(path))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fault.New(fault.NotFound, "look at %s: no such file", path)
	}
	if err != nil {
		return 0, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	defer src.Close()
	// A file without a name goes when it is closed.
	if fd, err := unix.Open(filepath.Dir(f.Real(path)), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
		defer unix.Close(fd)
		if unix.IoctlFileClone(fd, int(src.Fd())) == nil {
			return 0, nil
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return 0, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	return st.Blocks * 512, nil
}

// BuildCopy makes r's new file as a copy of the old one, that its guest sees with size
// bytes, and stamps it; the old one must not be in use: fault.Forbidden where it was
// written to meanwhile. Blocks are shared where the
// filesystem can, else holes stay holes. A copy that fails leaves nothing:
// fault.DoesNotFit where the filesystem is full.
func (f Files) BuildCopy(ctx context.Context, r *Replaced, format string, size int64) error {
	real := f.Real(r.Part)
	err := f.buildCopy(ctx, r, format, size)
	if err != nil {
		_ = os.Remove(real) // else PutBack does it
	}
	return wrapMake(r.Path, err)
}

func (f Files) buildCopy(ctx context.Context, r *Replaced, format string, size int64) error {
	old, err := os.OpenFile(f.Real(r.Path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if now, err := f.Stamp(r.Path); err != nil || !now.Equals(r.Old) {
		return errors.Join(err, fault.New(fault.Forbidden, "the file is not the one that was to be replaced"))
	}
	was, err := stat(int(old.Fd()), r.Path)
	if err != nil {
		return err
	}
	real := f.Real(r.Part)
	if err := os.Remove(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(real, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if unix.IoctlFileClone(int(file.Fd()), int(old.Fd())) != nil {
		if err := copySparse(ctx, file, old); err != nil {
			return noRoom(err)
		}
	}
	// Within the file: it stays the same one.
	if _, err := f.run(ctx, "resize", "-q", "-f", format, real, strconv.FormatInt(size, 10)); err != nil {
		return noRoom(err)
	}
	r.Marked = unix.Setxattr(real, Mark, []byte(r.Migration), 0) == nil
	if err := file.Sync(); err != nil {
		return noRoom(err)
	}
	stamp, err := f.Stamp(r.Part)
	if err != nil {
		return err
	}
	r.Stamp, r.Copied = &stamp, was.Version
	return f.asCopied(*r)
}

// asCopied refuses an old file that was written to since its copy was begun: somebody has
// started its guest, and what that wrote is in no copy.
func (f Files) asCopied(r Replaced) error {
	if r.Copied == "" {
		return nil
	}
	file, err := os.OpenFile(f.Real(r.Path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	now, err := stat(int(file.Fd()), r.Path)
	if err == nil && now.Version != r.Copied {
		err = fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "disk_changed", Message: r.Path + " was written to since it was copied", Want: r.Path, Change: "find out who writes to it, and try again",
		})
	}
	return err
}

// copySparse copies the data of a file and leaves its holes.
func copySparse(ctx context.Context, to, from *os.File) error {
	fi, err := from.Stat()
	if err != nil {
		return err
	}
	size := fi.Size()
	if err := to.Truncate(size); err != nil {
		return err
	}
	const piece = 16 << 20 // between two looks at ctx
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		hole := size
		if err != nil {
			data = at // a filesystem that does not tell holes
		} else if end, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE); err == nil {
			hole = end
		}
		for at = data; at < hole; {
			if ctx.Err() != nil {
				return fault.New(fault.Unavailable, "copy: %w", context.Cause(ctx))
			}
			n := min(hole-at, piece)
			if _, err := io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, n)); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// noRoom makes a refusal of a filesystem that is full.
func noRoom(err error) error {
	if err == nil || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !strings.Contains(err.Error(), "No space left on device") {
		return err
	}
	return fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "disk_space", Message: "its folder has no room left: " + err.Error(), Change: "make room there"})
}

// Replace gives the new file the place of the old one, which has its private name from
// then on; at each moment the path leads to one of the two. fault.Forbidden when what is
// there is neither, or was written to since it was copied. Safe to repeat.
func (f Files) Replace(r Replaced) error {
	fail := func(err error) error {
		return fault.New(fault.KindOf(err), "replace disk %s: %w", r.Path, err)
	}
	now, err := f.Stamp(r.Path)
	if err != nil {
		return fail(err)
	}
	switch {
	case f.is(r.Path, r.Made): // an earlier Replace got this far
		return f.syncDir(filepath.Dir(r.Path))
	case !now.Equals(r.Old):
		return fail(fault.New(fault.Forbidden, "the file there is neither the old nor the new one"))
	case !f.is(r.Part, r.Made):
		return fail(fault.New(fault.NotFound, "the new file was not built"))
	}
	if err := f.asCopied(r); err != nil {
		return fail(err)
	}
	if err := os.Link(f.Real(r.Path), f.Real(r.Kept)); errors.Is(err, fs.ErrExist) {
		if kept, err := f.Stamp(r.Kept); err != nil || !kept.Equals(r.Old) {
			return errors.Join(Occupied(r.Kept), err)
		}
	} else if err != nil {
		return fail(err)
	}
	if err := f.asOld(r); err != nil {
		return fail(err)
	}
	// The second name before the first is another file's.
	if err := f.syncDir(filepath.Dir(r.Path)); err != nil {
		return err
	}
	if err := os.Rename(f.Real(r.Part), f.Real(r.Path)); err != nil {
		return fail(err)
	}
	return f.syncDir(filepath.Dir(r.Path))
}

// asOld gives the new file the old one's user and mode: whoever opened that opens this.
func (f Files) asOld(r Replaced) error {
	var st unix.Stat_t
	if err := unix.Lstat(f.Real(r.Path), &st); err != nil {
		return err
	}
	// Best effort: libvirt gives it to the guest's user at its start, unless told not to.
	_ = os.Lchown(f.Real(r.Part), int(st.Uid), int(st.Gid))
	return os.Chmod(f.Real(r.Part), fs.FileMode(st.Mode&0o777))
}

// PutBack takes back what PlanReplace, a build and Replace did, however far they got: the
// old file is in its place, the new one is gone. A file that somebody else put there before
// Replace stays. fault.Forbidden when the old one is no longer kept, or another file came
// since. Safe to repeat.
func (f Files) PutBack(r Replaced) error {
	fail := func(err error) error { return fault.New(fault.KindOf(err), "put disk %s back: %w", r.Path, err) }
	if err := os.Remove(f.Real(r.Part)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	now, err := f.Stamp(r.Path)
	gone := errors.Is(err, fault.NotFound)
	if err != nil && !gone {
		return fail(err)
	}
	kept, err := f.Stamp(r.Kept)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return fail(err)
	}
	have := err == nil && kept.Equals(r.Old)
	switch {
	case !gone && now.Equals(r.Old):
		if have { // a second name of it
			err = os.Remove(f.Real(r.Kept))
		} else {
			err = nil
		}
	case !have && !gone && !f.is(r.Path, r.Made):
		return nil // never replaced: somebody else did
	case !have:
		return fail(fault.New(fault.Forbidden, "the old file is not kept any more"))
	case gone || f.is(r.Path, r.Made):
		err = os.Rename(f.Real(r.Kept), f.Real(r.Path))
	default:
		return fail(fault.New(fault.Forbidden, "the file there is neither the old nor the new one"))
	}
	if err != nil {
		return fail(err)
	}
	return f.syncDir(filepath.Dir(r.Path))
}

// DropKept removes the old file: the new one is the guest's. There is no way back from
// it. Safe to repeat.
func (f Files) DropKept(r Replaced) error {
	if kept, err := f.Stamp(r.Kept); errors.Is(err, fault.NotFound) || err == nil && !kept.Equals(r.Old) {
		f.Keep(r.Made)
		return nil // somebody else's, if anything
	}
	if err := f.Remove(r.Kept, r.Old); err != nil {
		return err
	}
	f.Keep(r.Made)
	return nil
}
