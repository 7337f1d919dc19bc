package disks

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestLease_RefusedByAServerNamesNoWriter: a guest on NFSv4 or SMB, whose server has not
// delegated its disk, is not taken for one that somebody writes to.
func TestLease_RefusedByAServerNamesNoWriter(t *testing.T) {
	for _, tt := range []struct {
		name           string
		err            error
		filesystem     int64
		alone, written bool
	}{
		{"given on ext4", nil, unix.EXT4_SUPER_MAGIC, true, false},
		{"refused on ext4", unix.EAGAIN, unix.EXT4_SUPER_MAGIC, false, true},
		{"refused on overlayfs", unix.EAGAIN, unix.OVERLAYFS_SUPER_MAGIC, false, true},
		{"no leases", unix.EINVAL, unix.EXT4_SUPER_MAGIC, false, false},
		{"not the owner", unix.EACCES, unix.TMPFS_MAGIC, false, false},
		{"delegated by NFS", nil, unix.NFS_SUPER_MAGIC, true, false},
		{"not delegated by NFS", unix.EAGAIN, unix.NFS_SUPER_MAGIC, false, false},
		{"no oplock by SMB", unix.EAGAIN, unix.SMB2_SUPER_MAGIC, false, false},
		{"no oplock by CIFS", unix.EAGAIN, unix.CIFS_SUPER_MAGIC, false, false},
	} {
		if alone, written := leaseSays(tt.err, tt.filesystem); alone != tt.alone || written != tt.written {
			t.Errorf("%s: alone %v, written %v; want %v, %v", tt.name, alone, written, tt.alone, tt.written)
		}
	}
}
