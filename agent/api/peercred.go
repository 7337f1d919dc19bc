package api

import (
	"net"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials are who is at the other end of a unix socket, as the kernel kept it when he
// connected: a process that gives itself another user afterwards is still the old one.
type credentials struct {
	uid    uint32
	groups []uint32 // his group, and his supplementary ones
}

// credentialsOf asks the kernel (unix(7), SO_PEERCRED and SO_PEERGROUPS). False where it
// does not say: then the caller is somebody whom the socket's file let in, and no more.
func credentialsOf(c net.Conn) (credentials, bool) {
	sock, ok := c.(syscall.Conn)
	if !ok {
		return credentials{}, false
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return credentials{}, false
	}
	var out credentials
	var cred *unix.Ucred
	var credErr, groupsErr error
	err = raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			out.groups, groupsErr = peerGroups(fd)
		}
	})
	if err != nil || credErr != nil {
		return credentials{}, false
	}
	if groupsErr != nil {
		out.groups = nil // a right that his groups would give is lacking, and nothing else
	}
	out.uid = cred.Uid
	if !slices.Contains(out.groups, cred.Gid) {
		out.groups = append(out.groups, cred.Gid)
	}
	return out, true
}

// peerGroups gives the supplementary groups. The kernel says how much room they need when
// there is too little: at first that of 32.
func peerGroups(fd uintptr) ([]uint32, error) {
	const width = unsafe.Sizeof(uint32(0))
	groups := make([]uint32, 32)
	for range 2 {
		length := uint32(uintptr(len(groups)) * width)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&length)), 0)
		switch errno {
		case 0:
			return groups[:uintptr(length)/width], nil
		case unix.ERANGE:
			groups = make([]uint32, max(1, uintptr(length)/width))
		default:
			return nil, errno
		}
	}
	return nil, unix.ERANGE
}
