package disks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Block is a piece of a file as it was read: some bytes, or a run of zeros.
type Block struct {
	Length  int64 // 0 at the file's end
	Zero    bool  // nothing but zeros, and no Data
	Data    []byte
	Size    int64  // of the whole file
	Version string // inode, size and time of the last change
}

// Part is a file while it is filled from elsewhere, under its private name.
// Several may write at once.
type Part interface {
	// Trim drops what follows kept, and makes the file size bytes long: what a
	// power cut may have left behind kept is zeros again.
	Trim(kept, size int64) error
	// WriteAt writes; blocks of zeros are left out, so that holes stay holes in a
	// file that had nothing there.
	WriteAt(data []byte, offset int64) error
	// Sync returns when all that was written, and the file's name, are durable.
	Sync() error
	Close() error
}

// hole is the smallest hole that is kept: the block of common filesystems.
const hole = 4096

var zeros [hole]byte

// Lookup gives the file that a path leads to, without symbolic links in it, its
// length and what it occupies, bytes. fault.NotFound for none, fault.Invalid for
// what is no plain file: a device has no holes and no end that could be shipped.
func (f Files) Lookup(path string) (real string, size, occupies int64, err error) {
	fd, err := f.open(path, unix.O_PATH, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return "", 0, 0, openError(path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", 0, 0, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", 0, 0, notPlain(path)
	}
	if real, err = f.named(fd, path); err != nil {
		return "", 0, 0, err
	}
	return real, st.Size, st.Blocks * 512, nil // stat(2): blocks of 512 bytes, whatever the filesystem's are
}

func notPlain(path string) error {
	return fault.New(fault.Invalid, "look at %s: not a plain file", path)
}

func openError(path string, err error) error {
	kind := fault.Internal
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		kind = fault.NotFound
	case errors.Is(err, unix.ELOOP):
		kind = fault.Forbidden
	}
	return fault.New(kind, "open %s: %w", path, err)
}

// Resolve gives a path without symbolic links in it, also of a folder, a socket or a device.
// What is not there yet is taken as it is named, below the deepest folder that is there.
func (f Files) Resolve(path string) (string, error) {
	path = filepath.Join("/", path)
	below := ""
	for at := path; ; at = filepath.Dir(at) {
		if at == "/" {
			return filepath.Join(at, below), nil
		}
		fd, err := f.open(at, unix.O_PATH, unix.RESOLVE_NO_MAGICLINKS)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			if link, lerr := os.Readlink(f.Real(at)); lerr == nil {
				// Whoever creates the file creates it there.
				return "", fault.New(fault.Forbidden, "resolve %s: %s is a link to %s, which is not there", path, at, link)
			}
			below = filepath.Join(filepath.Base(at), below)
			continue
		}
		if err != nil {
			return "", fault.New(fault.Unavailable, "resolve %s: %w", path, err)
		}
		real, err := f.named(fd, path)
		unix.Close(fd)
		return filepath.Join(real, below), err
	}
}

// named gives the path, below the hypervisor's root, of an open file.
func (f Files) named(fd int, path string) (string, error) {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	root := f.Real("/")
	if root == "/" {
		return real, nil
	}
	// The root itself may be reached by a link.
	if whole, err := filepath.EvalSymlinks(root); err == nil {
		root = whole
	}
	below, ok := strings.CutPrefix(real, root)
	if !ok {
		return "", fault.New(fault.Forbidden, "look at %s: it leads out of %s", path, root)
	}
	return filepath.Join("/", below), nil
}

// open opens a path below the hypervisor's root. A link in it never leads out of
// that root.
func (f Files) open(path string, flags int, resolve uint64) (int, error) {
	root, err := unix.Open(f.Real("/"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, strings.TrimPrefix(filepath.Clean(path), "/"), &unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | resolve,
	})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	// Before Linux 5.6, and where a sandbox does not know the call.
	whole := f.Real(path)
	if resolve&unix.RESOLVE_NO_SYMLINKS == 0 {
		if whole, err = filepath.EvalSymlinks(whole); err != nil {
			return -1, err
		}
	}
	return unix.Open(whole, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// ReadBlock reads the block at offset, a multiple of block, of a path that Lookup
// gave; no link is followed. Where nothing but zeros follow it gives as many whole
// blocks of them as there are, up to most bytes. Length 0 where the file ends, and
// for most 0. fault.Busy when the file changes while it is read.
func (f Files) ReadBlock(path string, offset, most, block int64) (Block, error) {
	fd, err := f.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return Block{}, openError(path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	b, err := stat(fd, path)
	if err != nil || most == 0 || offset >= b.Size {
		return b, err
	}
	if offset < 0 || offset%block != 0 || most < 0 {
		return Block{}, fault.New(fault.Invalid, "read %s: %d bytes at %d: want a multiple of %d", path, most, offset, block)
	}
	end := min(offset+block, b.Size)
	data, err := unix.Seek(fd, offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // no data any more
		data = b.Size
	case err != nil: // a filesystem that does not tell holes
		data = offset
	}
	if data >= end {
		if data < b.Size {
			data -= data % block
		}
		b.Length, b.Zero = min(data-offset, max(most-most%block, end-offset)), true
		return b, nil
	}
	b.Data = make([]byte, end-offset)
	if _, err := file.ReadAt(b.Data, offset); err != nil && !errors.Is(err, io.EOF) {
		return Block{}, fault.New(fault.Internal, "read %s: %w", path, err)
	}
	now, err := stat(fd, path)
	if err == nil && now.Version != b.Version {
		err = fault.New(fault.Busy, "read %s: it changed meanwhile", path)
	}
	if err != nil {
		return Block{}, err
	}
	b.Length = int64(len(b.Data))
	if b.Zero = allZero(b.Data); b.Zero {
		b.Data = nil
	}
	return b, nil
}

// stat tells size and version. The time of the last write changes with what guests
// and tools write; that of the last change of the inode, which libvirt's owners and
// labels touch, does not count.
func stat(fd int, path string) (Block, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Block{}, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Block{}, notPlain(path)
	}
	return Block{Size: st.Size, Version: fmt.Sprintf("%d:%d:%d.%09d", st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec)}, nil
}

func allZero(data []byte) bool {
	for len(data) > 0 {
		n := min(len(data), hole)
		if !bytes.Equal(data[:n], zeros[:n]) {
			return false
		}
		data = data[n:]
	}
	return true
}

// OpenPart opens the file that Build made for m, to be filled. fault.NotFound when
// it is not there any more.
func (f Files) OpenPart(m Made) (Part, error) {
	file, err := os.OpenFile(f.Real(m.Part), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, openError(m.Part, err)
	}
	if !f.is(m.Part, m) {
		_ = file.Close() // opened for nothing
		return nil, fault.New(fault.NotFound, "open %s: another file has its name", m.Part)
	}
	return &part{f: f, m: m, file: file}, nil
}

type part struct {
	f    Files
	m    Made
	file *os.File
}

// Trim implements Part.
func (p *part) Trim(kept, size int64) error {
	err := p.file.Truncate(kept)
	if err == nil {
		err = p.file.Truncate(size)
	}
	return p.fail(err)
}

// WriteAt implements Part.
func (p *part) WriteAt(data []byte, offset int64) error {
	for at := 0; at < len(data); {
		end := at
		for end < len(data) && !allZero(data[end:min(end+hole, len(data))]) {
			end = min(end+hole, len(data))
		}
		if end > at {
			if _, err := p.file.WriteAt(data[at:end], offset+int64(at)); err != nil {
				return p.fail(err)
			}
		}
		at = min(end+hole, len(data))
	}
	return nil
}

// Sync implements Part.
func (p *part) Sync() error {
	if err := unix.Fdatasync(int(p.file.Fd())); err != nil {
		return p.fail(err)
	}
	return p.f.syncDir(filepath.Dir(p.m.Part))
}

// Close implements Part.
func (p *part) Close() error { return p.fail(p.file.Close()) }

// fail says what could not be done. A full filesystem is a refusal, and nothing that
// another try would change.
func (p *part) fail(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return fault.Refuse(fault.DoesNotFit, "", fault.Reason{
			Code: "disk_room_short", Message: "no room for " + p.m.Path + ": " + err.Error(), Want: p.m.Path, Change: "free space on that filesystem",
		})
	}
	return fault.New(fault.Internal, "write %s: %w", p.m.Path, err)
}
