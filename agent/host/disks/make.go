package disks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Mark is the extended attribute on a file that a migration made, its value the
// migration's uuid. It is for people and for a second proof; filesystems
// without user attributes do without.
const Mark = "user.berth.migration"

// Stamp tells a file from another that got its name, or its inode, later.
type Stamp struct {
	Inode uint64    `json:"inode"`
	Birth time.Time `json:"birth,omitzero"` // zero where the filesystem keeps none
}

// Made is one file of a migration, from the intent to the file in its place. The
// caller keeps it durably: after Plan, and again after Build.
type Made struct {
	Path      string   `json:"path"`
	Part      string   `json:"part"` // private name while it is built
	Migration string   `json:"migration"`
	Dirs      []string `json:"dirs,omitempty"` // folders that did not exist, the outermost first
	Stamp     *Stamp   `json:"stamp,omitempty"`
	Marked    bool     `json:"marked,omitempty"`
}

// Plan says what making path would make. fault.Exists when the place is taken.
func (f Files) Plan(migration, part, path string) (Made, error) {
	m := Made{Path: path, Migration: migration, Part: private(path, migration, part, "part")}
	if _, err := os.Lstat(f.Real(path)); err == nil {
		return Made{}, Occupied(path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Made{}, fault.New(fault.Internal, "make disk %s: %w", path, err)
	}
	for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(f.Real(dir)); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return Made{}, fault.New(fault.Internal, "make disk %s: %w", path, err)
		}
		m.Dirs = append(m.Dirs, dir)
	}
	slices.Reverse(m.Dirs)
	return m, nil
}

// Occupied is the refusal for a place that something else has.
func Occupied(path string) error {
	return fault.Refuse(fault.Exists, "", fault.Reason{
		Code: "disk_exists", Message: "disk path " + path + " is occupied", Want: path,
		Change: "remove or rename what is there, if nobody needs it",
	})
}

// Build makes folders and the image under its private name, and stamps it. What
// an earlier half-done Build left is made anew.
func (f Files) Build(ctx context.Context, m *Made, format string, size int64) error {
	fail := func(err error) error { return wrapMake(m.Path, err) }
	for _, dir := range m.Dirs {
		if err := os.Mkdir(f.Real(dir), 0o755); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return fail(err)
		}
		// QEMU is another user, whatever the umask took.
		if err := os.Chmod(f.Real(dir), 0o755); err != nil {
			return fail(err)
		}
	}
	real := f.Real(m.Part)
	if err := os.Remove(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	// 0600: it will hold a guest's disk; libvirt gives it to its own user.
	file, err := os.OpenFile(real, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	if err := f.create(ctx, real, format, size); err != nil {
		return fail(err)
	}
	m.Marked = unix.Setxattr(real, Mark, []byte(m.Migration), 0) == nil
	if err := file.Sync(); err != nil {
		return fail(err)
	}
	// qemu-img writes into the file that is there; were it to make another, the
	// stamp of that one is what counts.
	stamp, err := f.Stamp(m.Part)
	if err != nil {
		return fail(err)
	}
	m.Stamp = &stamp
	return nil
}

// Publish gives a built file its place. fault.Exists when the place was taken
// meanwhile. Safe to repeat.
func (f Files) Publish(m Made) error {
	err := os.Link(f.Real(m.Part), f.Real(m.Path))
	if err != nil && f.is(m.Path, m) {
		err = nil // an earlier Publish got this far
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return Occupied(m.Path)
	case err != nil:
		return fault.New(fault.Internal, "make disk %s: %w", m.Path, err)
	}
	if err := os.Remove(f.Real(m.Part)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Internal, "make disk %s: %w", m.Path, err)
	}
	return f.syncDir(filepath.Dir(m.Path))
}

// Unmake removes what Plan, Build and Publish made, however far they got, and
// nothing else: folders only when they are empty, the file only by its stamp.
// Safe to repeat.
func (f Files) Unmake(m Made) error {
	var errs []error
	if err := os.Remove(f.Real(m.Part)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		errs = append(errs, err)
	}
	if f.is(m.Path, m) {
		if err := os.Remove(f.Real(m.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, dir := range slices.Backward(m.Dirs) {
		err := os.Remove(f.Real(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fault.New(fault.Internal, "remove disk %s: %w", m.Path, err)
	}
	return nil
}

// Keep takes the mark off: the file belongs to the guest now. Best effort, the
// stamp on record is what decides.
func (f Files) Keep(m Made) {
	if f.is(m.Path, m) {
		_ = unix.Removexattr(f.Real(m.Path), Mark)
	}
}

// is reports whether path is the file that m made.
func (f Files) is(path string, m Made) bool {
	if m.Stamp == nil {
		return false
	}
	got, err := f.Stamp(path)
	if err != nil || !got.Equals(*m.Stamp) {
		return false
	}
	// A stamp without a birth time could be another file's that got the inode.
	if !m.Marked || !m.Stamp.Birth.IsZero() {
		return true
	}
	value := make([]byte, 64)
	n, err := unix.Getxattr(f.Real(path), Mark, value)
	return err == nil && string(value[:n]) == m.Migration
}

// Stamp reads a file's stamp; fault.NotFound when there is none. A symbolic
// link is not followed: it is not the file.
func (f Files) Stamp(path string) (Stamp, error) {
	var sx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, f.Real(path), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &sx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Stamp{}, fault.New(fault.NotFound, "stamp %s: no such file", path)
	}
	if err != nil {
		return Stamp{}, fault.New(fault.Internal, "stamp %s: %w", path, err)
	}
	s := Stamp{Inode: sx.Ino}
	if sx.Mask&unix.STATX_BTIME != 0 && sx.Btime.Sec != 0 {
		s.Birth = time.Unix(sx.Btime.Sec, int64(sx.Btime.Nsec)).UTC()
	}
	return s, nil
}

// Equals compares two stamps.
func (s Stamp) Equals(o Stamp) bool { return s.Inode == o.Inode && s.Birth.Equal(o.Birth) }

// Remove removes the file of that stamp; another file in its place stays, and
// an error says so. Success when there is none, and where the path leads to a
// device: its node, or the link to it, is not the instance's and stays.
func (f Files) Remove(path string, s Stamp) error {
	got, err := f.Stamp(path)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !got.Equals(s) {
		return fault.New(fault.Forbidden, "remove disk %s: the file there is not the one that moved (inode %d, want %d)", path, got.Inode, s.Inode)
	}
	if st, err := os.Stat(f.Real(path)); err == nil && st.Mode()&fs.ModeDevice != 0 {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Internal, "remove disk %s: %w", path, err)
	}
	if err := os.Remove(f.Real(path)); err != nil {
		return fault.New(fault.Internal, "remove disk %s: %w", path, err)
	}
	return f.syncDir(filepath.Dir(path))
}

// Exists reports whether anything has that path. An unreadable place is an
// error, not an empty one.
func (f Files) Exists(path string) (bool, error) {
	_, err := os.Lstat(f.Real(path))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	return true, nil
}

// Empty reports whether a folder has nothing in it, or is not there. An unreadable one is
// an error.
func (f Files) Empty(dir string) (bool, error) {
	d, err := os.Open(f.Real(dir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return true, nil
	}
	if err != nil {
		return false, fault.New(fault.Internal, "look into %s: %w", dir, err)
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, fault.New(fault.Internal, "look into %s: %w", dir, err)
	}
	return false, nil
}

// Size is a file's length, bytes; 0 where there is none that can be looked at.
// It is what a raw image's guest sees, and less than that for other formats.
func (f Files) Size(path string) int64 {
	fi, err := os.Stat(f.Real(path))
	if err != nil {
		return 0
	}
	return fi.Size()
}

func (f Files) syncDir(dir string) error {
	d, err := os.Open(f.Real(dir))
	if err != nil {
		return fault.New(fault.Internal, "sync folder %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some filesystems cannot
		return fault.New(fault.Internal, "sync folder %s: %w", dir, err)
	}
	return nil
}

// PartName is the name part of a disk's private file. A target is what another host's
// document says, and leads to no other folder.
func PartName(attempt int, target string) string {
	return fmt.Sprintf("%d-%s", attempt, url.PathEscape(target))
}

// BuildFrom is Build with the contents of an image whose format is given; size 0
// is the image's own, a larger one makes room behind it. Without an image it is
// Build. It refuses an image that is not Whole.
func (f Files) BuildFrom(ctx context.Context, m *Made, format string, size int64, image, imageFormat string) error {
	if image == "" {
		return f.Build(ctx, m, format, size)
	}
	img, err := f.Image(ctx, image, imageFormat)
	if err != nil {
		return err
	}
	if err := Whole(image, imageFormat, img); err != nil {
		return wrapMake(m.Path, err)
	}
	if err := f.Build(ctx, m, format, max(size, img.VirtualSize)); err != nil {
		return err
	}
	from, err := alone(f.Real(image), imageFormat)
	if err != nil {
		return wrapMake(m.Path, err)
	}
	// A format and json:{…} exclude each other.
	how := []string{"convert", "-n", "-O", format, from, f.Real(m.Part)}
	if from == f.Real(image) {
		how = slices.Insert(how, 2, "-f", imageFormat)
	}
	// -n: into the file that is there and stamped. A larger target keeps zeros
	// behind what is copied.
	if _, err = f.run(ctx, how...); err != nil {
		return wrapMake(m.Path, err)
	}
	// Durable before anybody believes that the guest has it.
	file, err := os.Open(f.Real(m.Part))
	if err != nil {
		return wrapMake(m.Path, err)
	}
	return wrapMake(m.Path, errors.Join(file.Sync(), file.Close()))
}

func wrapMake(path string, err error) error {
	if err == nil {
		return nil
	}
	err = noRoom(err)
	return fault.New(fault.KindOf(err), "make disk %s: %w", path, err)
}
