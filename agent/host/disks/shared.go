package disks

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// local are the filesystems (statfs(2)) that one kernel alone has mounted: what is on them no
// other host sees, unless this one exports it (exports.go).
var local = map[uint32]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true,
	unix.OVERLAYFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true, unix.HUGETLBFS_MAGIC: true, unix.SQUASHFS_MAGIC: true, unix.MSDOS_SUPER_MAGIC: true,
	unix.EXFAT_SUPER_MAGIC: true, unix.ISOFS_SUPER_MAGIC: true, unix.NILFS_SUPER_MAGIC: true, unix.REISERFS_SUPER_MAGIC: true, unix.EROFS_SUPER_MAGIC_V1: true,
	0x2fc12fc1: true, // zfs, include/os/linux/zfs/sys/zfs_vfsops_os.h
	0xca451a4e: true, // bcachefs
	0x3153464a: true, // jfs
	0x7366746e: true, // ntfs3
}

// Shared reports whether other hosts may see a file: it is on a filesystem that is none of
// one kernel alone, network and cluster filesystems, FUSE, and all that is not known, or in a
// folder that this host exports by NFS. False where there is no such file. fault.Unavailable
// where what is exported cannot be read.
func (f Files) Shared(path string) (bool, error) {
	mounted, there, err := f.kindOf(path)
	if err != nil || mounted || !there {
		return mounted, err
	}
	return f.exported(path)
}

// kindOf reports whether a file is on a filesystem that other hosts may have mounted, and whether
// there is such a file.
func (f Files) kindOf(path string) (mounted, there bool, err error) {
	var st unix.Statfs_t
	err = unix.Statfs(f.Real(path), &st)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fault.New(fault.Internal, "look at the filesystem of %s: %w", path, err)
	}
	return !local[uint32(st.Type)], true, nil
}
