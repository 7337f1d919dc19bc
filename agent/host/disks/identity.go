package disks

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Identity names a file so that two hosts which give the same name mean the
// same file. It is empty where that cannot be known; fault.NotFound when there
// is no file.
//
// The two errors are not alike. A shared file taken for a local one leads to a
// refusal, since its place at the destination is occupied. A local file taken
// for a shared one loses the guest's disk. So nothing is guessed:
//
//   - on a filesystem of one kernel (ext4, xfs, btrfs, tmpfs, overlay, and all
//     that is not listed below) two hosts share a file only when they are
//     namespaces of one kernel: boot id, device number, inode, birth time. Equal
//     filesystem uuids and inodes on two machines are clones, not one file, and
//     boot ids differ.
//   - NFS: mount source, and the file handle, in which the client embeds the
//     server's own (nfs_encode_fh): filesystem, inode and generation there. Two
//     hosts that mount it by two names of one server are refused, since small
//     fsid numbers in handles are not unique among servers.
//   - CephFS: f_fsid, which the client makes from the cluster's, and the inode.
//   - GlusterFS: mount source and inode, which is made from the file's gfid, a
//     uuid. Not where the source is the loopback.
//   - GFS2 and OCFS2: filesystem uuid (FS_IOC_GETFSUUID) and inode, which is the
//     block address on the shared device. Not on kernels before 6.9.
//   - a block device: its world-wide name, as multipath or SCSI gives it; within
//     one kernel its device number.
//
// CIFS, 9p, virtiofs, Lustre, other FUSE and what is unknown and networked have
// no identity across kernels.
func (f Files) Identity(path string) (string, error) {
	real := f.Real(path)
	var sx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, real, unix.AT_STATX_SYNC_AS_STAT, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BTIME, &sx); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return "", fault.New(fault.NotFound, "identify %s: no such file", path)
		}
		return "", fault.New(fault.Internal, "identify %s: %w", path, err)
	}
	switch sx.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return f.blockDevice(sx.Rdev_major, sx.Rdev_minor), nil
	case unix.S_IFREG:
	default:
		return "", fault.New(fault.Invalid, "identify %s: neither a file nor a block device", path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(real, &st); err != nil {
		return "", fault.New(fault.Internal, "identify %s: %w", path, err)
	}
	switch uint64(st.Type) & 0xffffffff {
	case unix.NFS_SUPER_MAGIC:
		if handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, real, 0); err == nil && len(handle.Bytes()) > nfsOwnBytes {
			if src, _ := mountSource(mount); !loopback(src) {
				return fmt.Sprintf("nfs/%s/%x/%s", src, handle.Type(), hex.EncodeToString(handle.Bytes())), nil
			}
		}
	case cephMagic:
		if st.Fsid.Val != [2]int32{} {
			return fmt.Sprintf("ceph/%08x%08x/%d", uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1]), sx.Ino), nil
		}
	case unix.FUSE_SUPER_MAGIC:
		if _, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, real, 0); err == nil || mount > 0 {
			if src, kind := mountSource(mount); kind == "fuse.glusterfs" && !loopback(src) {
				return fmt.Sprintf("glusterfs/%s/%d", src, sx.Ino), nil
			}
		}
	case gfs2Magic, unix.OCFS2_SUPER_MAGIC:
		if id := filesystemUUID(real); id != "" {
			return fmt.Sprintf("cluster/%x/%s/%d", st.Type, id, sx.Ino), nil
		}
	}
	return f.ofThisKernel(fmt.Sprintf("%d:%d/%d/%d.%09d", sx.Dev_major, sx.Dev_minor, sx.Ino, sx.Btime.Sec, sx.Btime.Nsec)), nil
}

// ofThisKernel names a thing that only namespaces of one running kernel share.
func (f Files) ofThisKernel(thing string) string {
	if f.BootID == "" || f.BootID == "unknown" {
		return ""
	}
	return "kernel/" + f.BootID + "/" + thing
}

const (
	cephMagic = 0x00c36400 // fs/ceph/super.h
	gfs2Magic = 0x01161970 // include/uapi/linux/gfs2_ondisk.h
	// nfsOwnBytes is what the client itself puts before the server's handle:
	// fileid high and low, type (fs/nfs/export.c).
	nfsOwnBytes = 12
)

func (f Files) blockDevice(major, minor uint32) string {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
	// A dm uuid is only as good as its maker: multipath's is the device's own
	// name, LVM's is on the disk and is copied with it.
	if id := line(filepath.Join(dir, "dm/uuid")); strings.HasPrefix(id, "mpath-") {
		return "block/" + strings.TrimPrefix(id, "mpath-3")
	}
	if id := line(filepath.Join(dir, "device/wwid")); strings.HasPrefix(id, "naa.") || strings.HasPrefix(id, "eui.") {
		return "block/" + strings.TrimPrefix(strings.TrimPrefix(id, "naa."), "eui.")
	}
	return f.ofThisKernel(fmt.Sprintf("block/%d:%d", major, minor))
}

func line(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "" // a device without that attribute
	}
	return strings.TrimSpace(string(b))
}

// mountSource is what is mounted and as which type (proc_pid_mountinfo(5):
// after the dash, type and source).
func mountSource(id int) (source, kind string) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	defer file.Close()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		first, _, _ := strings.Cut(before, " ")
		if fields := strings.Fields(after); ok && first == fmt.Sprint(id) && len(fields) >= 2 {
			return fields[1], fields[0]
		}
	}
	return "", ""
}

// loopback reports whether a mount source is this machine, whichever machine
// that is; an unknown source counts as one.
func loopback(source string) bool {
	return source == "" || strings.HasPrefix(source, "localhost") || strings.HasPrefix(source, "127.") ||
		strings.HasPrefix(source, "[::1]") || strings.HasPrefix(source, "::1")
}

// filesystemUUID asks FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2).
func filesystemUUID(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	return ioctlUUID(file.Fd())
}

// Space is room on the filesystem on which a path is or would be.
type Space struct {
	Device string // equal for paths on the same filesystem
	Bytes  int64  // free for this user
}

// Space looks at the nearest folder above path that exists.
func (f Files) Space(path string) (Space, error) {
	for dir := filepath.Dir(f.Real(path)); ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" {
			continue
		}
		if err != nil {
			return Space{}, fault.New(fault.Internal, "room for %s: %w", path, err)
		}
		var s unix.Stat_t
		if err := unix.Stat(dir, &s); err != nil {
			return Space{}, fault.New(fault.Internal, "room for %s: %w", path, err)
		}
		return Space{Device: fmt.Sprint(s.Dev), Bytes: int64(st.Bavail) * st.Bsize}, nil
	}
}
