package disks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/stuck"
)

// Writer is a process that has a file open for writing.
type Writer struct {
	Path string
	Name string // the process's own (comm); empty where nobody could name it
	PID  int    // 0 likewise
}

// String names the process as people look for it.
func (w Writer) String() string {
	if w.PID == 0 {
		return "a process that cannot be named from here"
	}
	return fmt.Sprintf("%s (pid %d)", w.Name, w.PID)
}

// Writers finds who has one of these files or block devices open for writing, in the
// order of the paths. A path at which nothing is has no writer. Three are asked, since
// none of them knows all:
//
//   - the kernel, by a lease: fcntl(2) gives no read lease on a file that anybody has open
//     for writing, in whatever namespace, or as a loop device. Where it gives one, nobody
//     on this host has, and the processes need not be looked through. NFSv4 and SMB refuse
//     one also where the server has not delegated the file, which says nothing;
//   - QEMU's own lock on the byte that stands for the permission to write
//     (docs/system/qemu-block-drivers, "Disk image file locking"; block/file-posix.c,
//     RAW_LOCK_PERM_BASE and BLK_PERM_WRITE), which NFS carries to other hosts;
//   - /proc/PID/fd, which alone has a name. A process that may not be looked at is passed
//     over: the other two know of it all the same.
//
// A device has neither lease nor lock, and is looked for in /proc alone.
//
// A child of this process has what was open here until its exec. So it blocks for up to
// childExecs while nobody but such a child, or nobody who can be named, is found.
func (f Files) Writers(paths ...string) ([]Writer, error) {
	return lasting(func() ([]Writer, error) { return f.writers(paths) }, childExecs)
}

// childExecs is how long a child of this process may take from fork to exec. Arbitrary: a
// loaded host takes milliseconds.
const childExecs = time.Second

// lasting gives the writers that a look finds, and looks again within the limit while all of
// them may be children of this process before their exec.
func lasting(look func() ([]Writer, error), limit time.Duration) ([]Writer, error) {
	self, _ := os.ReadFile("/proc/self/comm") // without it only those without a name pass
	passes := func(w Writer) bool {
		return w.PID == 0 || w.PID != os.Getpid() && w.Name == strings.TrimSpace(string(self))
	}
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		out, err := look()
		lasts := slices.ContainsFunc(out, func(w Writer) bool { return !passes(w) })
		if err != nil || len(out) == 0 || lasts || time.Now().After(end) {
			return out, err
		}
	}
}

func (f Files) writers(paths []string) ([]Writer, error) {
	var out []Writer
	var open []watched
	for _, path := range paths {
		w, err := stuck.Read(f.calls, f.Real(path), func() (*watched, error) { return f.watch(path) })
		if err != nil {
			return nil, lookError(err, "look who writes to %s", path)
		}
		if w != nil {
			open = append(open, *w)
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	named, err := f.holdersIn("/proc", open, heldToWrite)
	if err != nil {
		return nil, lookError(err, "look who writes to %s", open[0].path)
	}
	for i, w := range open {
		if len(named[i]) == 0 && w.written {
			named[i] = []Writer{{Path: w.path}}
		}
		out = append(out, named[i]...)
	}
	return out, nil
}

// watched is a file whose writers are looked for.
type watched struct {
	path    string
	name    string // the last part of its path without links
	device  bool
	dev     uint64 // of a device its own number, else its filesystem's
	mount   string // device of the superblock it is on (stuck.Mount); empty where that is not known
	inode   uint64
	written bool // somebody has it open for writing, whoever
}

// lookError is what a look could not tell: that the file system does not answer, or a fault.
func lookError(err error, format, path string) error {
	if errors.Is(err, fault.Unavailable) {
		return fault.Wrap(err, format, path)
	}
	return fault.New(fault.Internal, format+": %w", path, err)
}

// watch looks at one path; nil when nobody on this host writes to it for certain.
func (f Files) watch(path string) (*watched, error) {
	at, err := f.open(path, unix.O_PATH, unix.RESOLVE_NO_MAGICLINKS)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer unix.Close(at)
	w, err := watch(at, path)
	if err != nil {
		return nil, err
	}
	if w.device {
		return &w, nil
	}
	fd, err := f.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, unix.RESOLVE_NO_MAGICLINKS)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// A server that gives root nothing (NFS, root_squash). It has no lease and no lock for
		// this process; /proc tells of the processes of this host all the same.
		return &w, nil
	case err != nil:
		return nil, err
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	_, leased := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	if leased == nil {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
			return nil, err
		}
	}
	var alone bool
	alone, w.written = leaseSays(leased, int64(fs.Type))
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: mayWriteByte, Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err == nil && lock.Type != unix.F_UNLCK {
		w.written = true
	}
	if alone && !w.written {
		return nil, nil
	}
	return &w, nil
}

// leaseSays reads the answer to a read lease on a file of that filesystem (statfs(2)): nobody
// on this host writes to it, somebody does, or neither is known. Any error but EAGAIN is a
// filesystem without leases.
func leaseSays(err error, filesystem int64) (alone, written bool) {
	switch uint32(filesystem) {
	case unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		// EAGAIN without a delegation or an oplock, whoever writes (nfs4_setlease, cifs_setlease).
		return err == nil, false
	}
	return err == nil, errors.Is(err, unix.EAGAIN)
}

// mayWriteByte is RAW_LOCK_PERM_BASE (100) and the number of the bit BLK_PERM_WRITE (1).
const mayWriteByte = 101

// Openers finds the processes that have one of these files or block devices open in any
// way, in the order of the paths; this process and qemu-img, which only look, are left
// out. A process that may not be looked at is passed over, so an empty answer proves
// nothing by itself. It reads /proc once.
func (f Files) Openers(paths ...string) ([]Writer, error) {
	var look []watched
	for _, path := range paths {
		w, err := stuck.Read(f.calls, f.Real(path), func() (*watched, error) {
			at, err := f.open(path, unix.O_PATH, unix.RESOLVE_NO_MAGICLINKS)
			switch {
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
				return nil, nil
			case err != nil:
				return nil, err
			}
			w, err := watch(at, path)
			return &w, errors.Join(err, unix.Close(at))
		})
		if err != nil {
			return nil, lookError(err, "look who has %s open", path)
		}
		if w != nil {
			look = append(look, *w)
		}
	}
	if len(look) == 0 {
		return nil, nil
	}
	found, err := f.holdersIn("/proc", look, heldOpen)
	if err != nil {
		return nil, lookError(err, "look who has %s open", look[0].path)
	}
	return slices.DeleteFunc(slices.Concat(found...), func(w Writer) bool { return w.PID == os.Getpid() || w.Name == "qemu-img" }), nil
}

// watch looks at a file that is open as a path.
func watch(at int, path string) (watched, error) {
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return watched{}, err
	}
	w := watched{path: path, name: filepath.Base(path), dev: st.Dev, inode: st.Ino}
	if real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at)); err == nil {
		w.name = filepath.Base(real)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		w.device, w.dev = true, st.Rdev
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", at))
	if err != nil {
		return w, nil // what is open elsewhere is told apart by more calls then
	}
	if mounts, err := stuck.ReadMounts("/proc/self/mountinfo"); err == nil {
		m, _ := mounts.ByID(fdinfo(info).mount)
		w.mount = m.Device
	}
	return w, nil
}

// holdersIn looks through the descriptors of all processes, those whose flags count. Nothing
// there is followed before its fdinfo and its link have said that it may be one that is looked
// for: a stat of another process's file waits for ever when that is on a server which does not
// answer. fault.Unavailable where one that may be looked for does not answer.
func (f Files) holdersIn(proc string, files []watched, counts func(flags int64) bool) ([][]Writer, error) {
	out := make([][]Writer, len(files))
	all, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, p.Name())
		descriptors, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it has ended, or may not be looked at
		}
		p := holder{files: f, dir: dir}
		for _, fd := range descriptors {
			i, err := p.whichIsHeld(fd.Name(), files, counts)
			if err != nil {
				return nil, err
			}
			if i < 0 || slices.ContainsFunc(out[i], func(w Writer) bool { return w.PID == pid }) {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(dir, "comm")) // one that has ended meanwhile has none
			out[i] = append(out[i], Writer{Path: files[i].path, Name: strings.TrimSpace(string(comm)), PID: pid})
		}
	}
	return out, nil
}

// heldOpen and heldToWrite say which flags of a descriptor count.
func heldOpen(flags int64) bool { return flags&unix.O_PATH == 0 }

func heldToWrite(flags int64) bool {
	mode := flags & unix.O_ACCMODE
	return heldOpen(flags) && (mode == unix.O_WRONLY || mode == unix.O_RDWR)
}

// holder is a process whose descriptors are looked through.
type holder struct {
	files  Files
	dir    string // in /proc
	mounts stuck.Mounts
}

// whichIsHeld is the file that a descriptor whose flags count is of; -1 for none of them.
func (p *holder) whichIsHeld(fd string, files []watched, counts func(flags int64) bool) (int, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "fdinfo", fd))
	if err != nil {
		return -1, nil
	}
	info := fdinfo(text)
	if !counts(info.flags) {
		return -1, nil
	}
	at := filepath.Join(p.dir, "fd", fd)
	link, _ := os.Readlink(at) // empty: it is closed by now
	for i, w := range files {
		// The inode is told since Linux 5.14; some filesystems have two numbers for it.
		if info.inode != w.inode && filepath.Base(link) != w.name {
			continue
		}
		mount, known := p.mount(info.mount)
		if known && !w.device && w.mount != "" && mount.Device != w.mount {
			continue // a file of another file system, which need not answer
		}
		st, err := stuck.OnMount(p.files.calls, mount, func() (unix.Stat_t, error) {
			var st unix.Stat_t
			return st, unix.Stat(at, &st)
		})
		switch {
		case !errors.Is(err, fault.Unavailable):
		case w.device, info.inode != 0 && info.inode != w.inode:
			continue // a device's node that only has its name
		default:
			return -1, err
		}
		if err != nil {
			continue
		}
		if w.device && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == w.dev || !w.device && st.Dev == w.dev && st.Ino == w.inode {
			return i, nil
		}
	}
	return -1, nil
}

// mount is one that the process sees. Of one that it does not, or that was taken off, nothing is
// known but its number.
func (p *holder) mount(id int) (stuck.Mount, bool) {
	if p.mounts == nil {
		p.mounts, _ = stuck.ReadMounts(filepath.Join(p.dir, "mountinfo")) // without it none is known
	}
	m, known := p.mounts.ByID(id)
	if !known {
		m = stuck.Mount{Device: "mount " + strconv.Itoa(id), Point: "a mount that was taken off"}
	}
	return m, known
}

// descriptor is what proc_pid_fdinfo(5) has in every kind of descriptor.
type descriptor struct {
	flags int64
	mount int
	inode uint64 // 0 on kernels that do not tell it
}

func fdinfo(text []byte) (d descriptor) {
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(string(line), ":")
		switch value = strings.TrimSpace(value); key {
		case "flags":
			d.flags, _ = strconv.ParseInt(value, 8, 64)
		case "mnt_id":
			d.mount, _ = strconv.Atoi(value)
		case "ino":
			d.inode, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	return d
}
