package disks

import (
	"encoding/hex"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fsuuid2 is struct fsuuid2 of linux/fs.h.
type fsuuid2 struct {
	len  uint8
	uuid [16]uint8
}

// fsIOCGetFSUUID is FS_IOC_GETFSUUID = _IOR(0x15, 0, struct fsuuid2), since
// Linux 6.9; x/sys does not name it.
const fsIOCGetFSUUID = 2<<30 | uintptr(unsafe.Sizeof(fsuuid2{}))<<16 | 0x15<<8

// ioctlUUID is empty where kernel or filesystem does not say.
func ioctlUUID(fd uintptr) string {
	var id fsuuid2
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, fsIOCGetFSUUID, uintptr(unsafe.Pointer(&id)))
	if errno != 0 || id.len == 0 || int(id.len) > len(id.uuid) {
		return ""
	}
	return hex.EncodeToString(id.uuid[:id.len])
}
